"""Linear maps of residues, in plain PyTorch.

    y_pr = x_r W_p + b_p

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.residues.types import Projections


def project(x: Tensor, projections: Projections) -> tuple[Tensor, ...]:
    """Compute `mlff_triton.kernels.residues.project.project`."""
    weight, bias = projections
    return torch.baddbmm(bias, x.expand(len(bias), -1, -1), weight).unbind()
