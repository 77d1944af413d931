"""Operators on packed rows of tokens as fused Triton kernels."""

from mlff_triton.kernels.ops.attention import attention
from mlff_triton.kernels.ops.layer_norm import layer_norm
from mlff_triton.kernels.ops.linear import linear
from mlff_triton.kernels.transformer.token_embedding import token_embedding
from mlff_triton.kernels.transformer.unpack_rows import unpack_rows
