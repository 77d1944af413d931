"""Transformer encoders: ESM-1b, ESM-2, BERT and the parts of others that are known."""
