"""Operators on pairs and tokens in plain PyTorch."""

from mlff_triton.kernels.pairs.reference.attention_update import (
    pair_biases,
    token_attention_,
    triangle_attention_,
)
from mlff_triton.kernels.pairs.reference.conditioning import (
    conditioned_attention_,
    conditioned_layers_,
    conditioned_transition_,
    conditioned_windows_,
)
from mlff_triton.kernels.pairs.reference.outer_product_mean import outer_product_mean_
from mlff_triton.kernels.pairs.reference.pair_average import pair_average_
from mlff_triton.kernels.pairs.reference.split_linear import linear_map
from mlff_triton.kernels.pairs.reference.transition import transition_
from mlff_triton.kernels.pairs.reference.triangle_multiplication import triangle_multiplication_
