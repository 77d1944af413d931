"""Fused operators for live TorchMD-NET models."""
