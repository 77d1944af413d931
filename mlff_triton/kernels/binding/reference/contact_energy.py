"""Energies of contacts between the atoms of ligands and proteins, in plain PyTorch.

    l_i = silu(x_i U + u) D + d      t_j = silu(x_j W + w)
    energy = sum_ij l_i . t_j      for pairs closer than a threshold

Source: M. Liu and S. G. Paliwal, "DualBind: A Dual-Loss Framework for Protein-Ligand Binding
Affinity Prediction", https://arxiv.org/abs/2406.07770.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from mlff_triton.kernels.binding.types import Layout, Readout


def contact_energy(
    x: Tensor,
    positions: Tensor,
    layout: Layout,
    max_lengths: tuple[int, int],
    threshold: float,
    readout: Readout,
) -> Tensor:
    """Compute `mlff_triton.kernels.binding.contact_energy.contact_energy`, in any dtype.

    The weights of the readout are [inputs, outputs].
    """
    del max_lengths
    ligand = silu(x @ readout.up.weight + readout.up.bias)
    ligand = ligand @ readout.down.weight + readout.down.bias
    target = silu(x @ readout.target.weight + readout.target.bias)
    energies = x.new_zeros(len(layout.n_ligand))
    bounds = layout.row_ptr.tolist()
    for b, n_ligand in enumerate(layout.n_ligand.tolist()):
        begin = bounds[b] + n_ligand
        ours, theirs = slice(bounds[b], begin), slice(begin, bounds[b + 1])
        offsets = positions[ours, None] - positions[None, theirs]
        contacts = offsets.norm(dim=-1) < threshold
        energies[b] = torch.einsum("ic,jc,ij->", ligand[ours], target[theirs], contacts.to(x.dtype))
    return energies
