"""Operators on pairs and tokens as fused Triton kernels."""

from mlff_triton.kernels.pairs.attention_update import (
    pair_biases,
    token_attention_,
    triangle_attention_,
)
from mlff_triton.kernels.pairs.conditioning import (
    conditioned_attention_,
    conditioned_layers_,
    conditioned_transition_,
    conditioned_windows_,
)
from mlff_triton.kernels.pairs.outer_product_mean import outer_product_mean_
from mlff_triton.kernels.pairs.pair_average import pair_average_
from mlff_triton.kernels.pairs.split_linear import linear_map
from mlff_triton.kernels.pairs.transition import transition_
from mlff_triton.kernels.pairs.triangle_multiplication import triangle_multiplication_
