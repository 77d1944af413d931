"""Layer of a network on edges, in plain PyTorch.

    y_e = activation([f_e, x_i, x_j] W + b)

for an edge ``e`` with features f, and the rows x of nodes ``i`` and ``j``. M. Geiger, T. Smidt,
"e3nn: Euclidean neural networks", https://arxiv.org/abs/2207.09453, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate


def edge_network(
    features: Tensor,
    ends: Sequence[tuple[Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor,
    activation: str = "relu",
) -> Tensor:
    """Compute `mlff_triton.kernels.convolution.edge_network.edge_network`."""
    rows = [node.index_select(0, index) for node, index in ends]
    joined = torch.cat([features, *rows], 1) if rows else features
    return activate(torch.addmm(bias, joined, weight), activation)
