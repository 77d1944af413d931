"""Transformer encoders: ESM-1b, ESM-2, BERT, and known parts of other encoders.

Recognition, one file per source of models:

- ``huggingface``: ESM-1b, ESM-2, BERT and their language heads, of Hugging Face's transformers
- ``fair_esm``: ESM-2 of the package fair-esm
- ``row_parts``, ``sequence_parts``: layer norms, MLPs, attention and layers of any other encoder
- ``torch_modules``: norms, activations and MLPs, inside all of these

Computation, independent of the source:

- ``weights``: weights of an encoder as plain tuples
- ``batch_runner``: padded batches, packed before and unpacked after the forward pass; CUDA graphs
- ``packed_forward_torch``, ``packed_forward_triton``: the forward pass over packed rows
- ``masks``: checks of the values of attention masks
- ``language_head``: hidden states to logits, or to the largest logit
- ``top_tokens``: `mlff_triton.bio.top_tokens`
"""
