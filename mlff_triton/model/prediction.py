"""Energies, forces and virials of a model, by differentiating along the edges of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlff_triton.errors import InputError
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph


class Ensemble(nn.Module):
    """The mean of several models, used like one of them.

    Parameters
    ----------
    members : list of TensorNet
        Models of the same dtype; each may have its own cutoff and elements.
    """

    def __init__(self, members: list[TensorNet]) -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble needs at least one model")
        self.members = nn.ModuleList(members)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self._models()[0].dtype

    @property
    def cutoff(self) -> float:
        """Largest cutoff of the members in Å."""
        return max(member.cutoff for member in self._models())

    @property
    def uses_charge(self) -> bool:
        """Whether every member was made for charged systems."""
        return all(member.uses_charge for member in self._models())

    @property
    def mean(self) -> Tensor:
        """Energy added to each system, eV."""
        return torch.stack([member.mean for member in self._models()]).mean()

    def forward(self, numbers: Tensor, vectors: Tensor, graph: Graph, charge: Tensor) -> Tensor:
        """Mean energy of each atom; arguments as for `TensorNet.forward`."""
        energies = [member(numbers, vectors, graph, charge) for member in self._models()]
        return torch.stack(energies).mean(0)

    def _models(self) -> list[TensorNet]:
        return [member for member in self.members if isinstance(member, TensorNet)]


@dataclass(frozen=True)
class Prediction:
    """What a model says of a batch of systems.

    Attributes
    ----------
    energy : float64 [B]
        eV.
    forces : [N, 3]
        eV/Å.
    virial : float64 [B, 3, 3]
        ``dE/dstrain`` in eV; divided by the volume it is the stress.
    atom_energies : float64 [N]
        eV; they add up to ``energy``.
    """

    energy: Tensor
    forces: Tensor
    virial: Tensor
    atom_energies: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Prediction:
        """The same with a function applied to every tensor."""
        return Prediction(*(function(tensor) for tensor in vars(self).values()))


def predict(
    model: TensorNet | Ensemble,
    numbers: Tensor,
    positions: Tensor,
    graph: Graph,
    *,
    cell: Tensor | None = None,
    batch: Tensor | None = None,
    charge: Tensor | None = None,
    create_graph: bool = False,
) -> Prediction:
    """Energies, forces and virials by differentiating the energy along the edges.

    Parameters
    ----------
    model : TensorNet or Ensemble
        The potential.
    numbers : int64 [N]
        Atomic numbers.
    positions : [N, 3]
        Positions in Å; float64 ones give edge vectors without cancellation.
    graph : Graph
        Neighbor list within ``model.cutoff``.
    cell : [B, 3, 3], optional
        Lattice vectors (rows) in Å.
    batch : int64 [N], optional
        System of each atom, in order; one system by default.
    charge : [B], optional
        Total charges in elementary charges; 0 by default.
    create_graph : bool
        Keep the graph of the forces, to train on them.

    Returns
    -------
    Prediction

    Raises
    ------
    UnknownElementError
        If the model was not made for an element.
    InputError
        If a system is charged and the model was made for neutral ones.
    """
    if batch is None:
        batch = torch.zeros_like(numbers)
    n_systems = int(batch[-1]) + 1
    if charge is None:
        charge = torch.zeros(n_systems, device=positions.device)
    check_neutral(model.uses_charge, charge)
    vectors = graph.vectors(positions.detach(), cell, batch)
    vectors = vectors.to(model.dtype).requires_grad_()
    with torch.enable_grad():
        atom_energies = model(numbers, vectors, graph, charge[batch])
        gradient = torch.autograd.grad(atom_energies.sum(), vectors, create_graph=create_graph)[0]
    if not create_graph:
        atom_energies = atom_energies.detach()
    ends = torch.cat([graph.senders, graph.receivers])
    forces = gradient.new_zeros(len(numbers), 3)
    forces = forces.index_add(0, ends, torch.cat([gradient, -gradient]))
    strain = vectors.detach().double()[:, :, None] * gradient.double()[:, None, :]
    virial = strain.new_zeros(n_systems, 3, 3).index_add(0, batch[graph.receivers], strain)
    counts = torch.bincount(batch, minlength=n_systems)
    atom_energies = atom_energies + (model.mean / counts)[batch]
    energy = atom_energies.new_zeros(n_systems).index_add(0, batch, atom_energies)
    return Prediction(energy, forces, (virial + virial.mT) / 2, atom_energies)


def check_neutral(uses_charge: bool, charge: Tensor | NDArray[np.generic]) -> None:
    """Raise `InputError` if a system is charged and the model was made for neutral ones."""
    if not uses_charge and charge.any():
        raise InputError("the model was made for neutral systems: set the charge to 0")
