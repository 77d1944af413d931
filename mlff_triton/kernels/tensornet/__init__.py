"""The engine's fused operators, without autograd; their backward passes are written out."""
