"""Fused operators inside live TorchMD-NET models."""
