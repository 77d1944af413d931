"""Errors of a model on a batch, and the loss that is minimized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError
from mlff_triton.model.fused import fused
from mlff_triton.model.prediction import predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph
from mlff_triton.training.batches import LISTED, Batch

Add = Callable[[Sequence[Tensor]], None]

PENALTIES = ("huber", "mae", "mse")
HUBER = 0.01  # eV per atom or eV/Å, below which the Huber loss is quadratic
RELATIVE = 3  # column of relative energies in sums of penalties
TINY = 1e-12  # squared length of an error that has no direction


class BatchErrors(NamedTuple):
    """Differences between a model and the labels.

    Attributes
    ----------
    energy : float64 [B]
        Energies in eV.
    forces : [N, 3]
        Forces in eV/Å.
    virial : float64 [B, 3, 3]
        Virials in eV, zero where none is known.
    n_atoms : float64 [B]
        Number of atoms of each structure.
    charges : float64 [N], optional
        Partial charges in elementary charges; 0 where none are known.
    dipole : float64 [B, 3], optional
        Dipoles in e Å; 0 where none is known.
    """

    energy: Tensor
    forces: Tensor
    virial: Tensor
    n_atoms: Tensor
    charges: Tensor | None = None
    dipole: Tensor | None = None


def errors_of(model: TensorNet, batch: Batch, *, create_graph: bool) -> BatchErrors:
    """Compare a model with the labels of a batch on its device.

    Parameters
    ----------
    model : TensorNet
        The model.
    batch : Batch
        B structures with N atoms.
    create_graph : bool
        If True, the errors can be differentiated by the weights.

    Returns
    -------
    BatchErrors
    """
    found = predict(
        fused(model),
        batch["z"],
        batch["pos"],
        Graph(**{name: batch[name] for name in LISTED}),
        cell=batch["cell"],
        batch=batch["batch"],
        charge=batch["q"],
        create_graph=create_graph,
        n_systems=len(batch["energy"]),  # because a captured step cannot read it from the GPU
    )
    ones = torch.ones_like(found.atom_energies)
    charges = dipole = None
    if found.charges is not None and "charges" in batch:
        own = found.charges.double()
        moments = own[:, None] * batch["pos"]
        dipole = torch.zeros_like(batch["dipole"]).index_add(0, batch["batch"], moments)
        dipole = (dipole - batch["dipole"]) * batch["dipole_mask"][:, None]
        charges = (own - batch["charges"]) * batch["charges_mask"][batch["batch"]]
    return BatchErrors(
        energy=found.energy - batch["energy"],
        forces=found.forces - batch["forces"],
        virial=(found.virial - batch["virial"]) * batch["virial_mask"][:, None, None],
        n_atoms=torch.zeros_like(found.energy).index_add(0, batch["batch"], ones),
        charges=charges,
        dipole=dipole,
    )


@dataclass(frozen=True)
class Loss:
    """Weighted sum of penalties on errors of energies, forces, virials, charges and dipoles.

    Energies count per atom, forces and dipoles by the lengths of their errors, partial charges by
    the atom, and virials per atom by their root mean squares over the nine components. Energies
    relative to the mean of a series count as they are, not per atom. Each is averaged over the
    batch, with the weights of the structures.

    Attributes
    ----------
    penalty : {"huber", "mae", "mse"}
        Penalty on an error: its size above 0.01 and quadratic below, its size, or its square.
    energy, forces, stress, charge, dipole, relative : float
        Weights of the energy in 1 / (eV per atom), of forces in 1 / (eV/Å), of the virial in
        1 / (eV per atom), of partial charges in 1 / e, of dipoles in 1 / (e Å), and of relative
        energies in 1 / eV. Those of charges and dipoles are without effect for models without
        partial charges, the last one without series.

    Raises
    ------
    InputError
        If the penalty is unknown, or weights are negative or all zero.
    """

    penalty: str = "huber"
    energy: float = 4.0
    forces: float = 1.0
    stress: float = 1.0
    charge: float = 1.0
    dipole: float = 1.0
    relative: float = 1.0

    def __post_init__(self) -> None:
        if self.penalty not in PENALTIES:
            raise InputError(
                f"the loss {short_repr(self.penalty)} is unknown: use one of {', '.join(PENALTIES)}"
            )
        weights = self._weights
        if not all(0 <= weight < 1e9 for weight in weights) or not any(weights[:2]):
            raise InputError(
                "weights of the loss must not be negative, and that of the energy or of forces "
                "must be above 0"
            )

    def __call__(self, model: nn.Module, batch: Batch, add: Add = lambda _: None) -> Tensor:
        """Return the loss of a model on a batch, with gradients; see `of`."""
        assert isinstance(model, TensorNet)
        return self.of(errors_of(model, batch, create_graph=True), batch, add)

    def of(self, errors: BatchErrors, batch: Batch, add: Add = lambda _: None) -> Tensor:
        """Return the loss of errors on a batch.

        For a share of a batch, it is the share's contribution to the loss of the whole batch;
        ``add`` replaces tensors by their sums over all shares.
        """
        penalties, weights = self.sums(errors, batch).unbind()
        weights = weights.detach().clone()
        add([weights])
        return self.total(torch.stack([penalties, weights]))

    def sums(self, errors: BatchErrors, batch: Batch) -> Tensor:
        """Return the sums that the loss is made of, which add up over batches.

        Returns
        -------
        float64 [2, 4] or [2, 6]
            Penalties with their weights, and the weights: of energies, forces, virials and relative
            energies, and of partial charges and dipoles.
        """
        counts = errors.n_atoms
        weight = batch["weight"] * batch["molecule_mask"]
        atom_weight = weight[batch["batch"]] * batch["atom_mask"]
        virial_weight = weight * batch["virial_mask"]
        virial = errors.virial.flatten(1).square().mean(1).add(TINY).sqrt() / counts
        parts = [
            ((errors.energy / counts).abs(), weight),
            (errors.forces.double().square().sum(1).add(TINY).sqrt(), atom_weight),
            (virial, virial_weight),
            _deviations(errors.energy, batch, weight),
        ]
        if errors.charges is not None and errors.dipole is not None:
            charge_weight = atom_weight * batch["charges_mask"][batch["batch"]]
            moment = errors.dipole.square().sum(1).add(TINY).sqrt()
            parts.append((errors.charges.abs(), charge_weight))
            parts.append((moment, weight * batch["dipole_mask"]))
        penalties = [(self._penalty(sizes) * weights).sum() for sizes, weights in parts]
        return torch.stack([*penalties, *(weights.sum() for _, weights in parts)]).view(2, -1)

    def relative_sums(self, deviations: Tensor, weight: Tensor) -> Tensor:
        """Return the part of `sums` from the relative energies of whole series, [2].

        Parameters
        ----------
        deviations : float64 [S]
            Errors of energies relative to the mean error of their series, in eV.
        weight : float64 [S]
            Weights of the structures.
        """
        return torch.stack([(self._penalty(deviations.abs()) * weight).sum(), weight.sum()])

    def total(self, sums: Tensor) -> Tensor:
        """Return the loss of all batches whose sums were added up."""
        penalties, weights = sums
        means = (penalties / weights.clamp(min=1e-9)).unbind()
        losses = [scale * mean for scale, mean in zip(self._weights, means, strict=False)]
        return torch.stack(losses).sum()

    @property
    def _weights(self) -> tuple[float, ...]:
        return self.energy, self.forces, self.stress, self.relative, self.charge, self.dipole

    def _penalty(self, sizes: Tensor) -> Tensor:
        if self.penalty == "mse":
            return sizes.square()
        if self.penalty == "mae":
            return sizes
        zeros = torch.zeros_like(sizes)
        return nn.functional.smooth_l1_loss(sizes, zeros, beta=HUBER, reduction="none")


def _deviations(energy: Tensor, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return deviations of errors [B] from the means of their series, and weights (0 if alone)."""
    if "series" not in batch:
        return torch.zeros_like(energy), torch.zeros_like(weight)
    first = torch.arange(len(energy), device=energy.device) - batch["series"]
    same = (first[:, None] == first).double()  # a product adds up in the same order every time
    count = same.sum(1)
    return (energy - same @ energy / count).abs(), weight * (count > 1)
