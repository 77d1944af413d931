"""Operators on packed rows of tokens in plain PyTorch."""

from mlff_triton.kernels.ops.reference.attention import attention
from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.ops.reference.linear import linear
from mlff_triton.kernels.transformer.reference.token_embedding import token_embedding
from mlff_triton.kernels.transformer.reference.unpack_rows import unpack_rows
