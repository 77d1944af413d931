"""Energies, forces and virials of a model, by differentiation with respect to edge vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton._common.torch_settings import normal, own_settings
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import KnownDomain
from mlff_triton.model.tensornet import AtomResults, Frame, TensorNet
from mlff_triton.neighbors.graph import Graph


class Ensemble(nn.Module):
    """The mean of several models, with the interface of a single one.

    Parameters
    ----------
    members : list of TensorNet
        Models of the same dtype. Their cutoffs and elements may differ.

    Raises
    ------
    InputError
        If the list is empty.
    """

    def __init__(self, members: list[TensorNet]) -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble needs at least one model")
        self.members = nn.ModuleList(members)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return members_of(self)[0].dtype

    @property
    def cutoff(self) -> float:
        """Largest cutoff of the members in Å."""
        return max(member.cutoff for member in members_of(self))

    @property
    def uses_charge(self) -> bool:
        """True if every member supports charged systems."""
        return all(member.uses_charge for member in members_of(self))

    @property
    def has_charges(self) -> bool:
        """True if every member predicts partial charges."""
        return all(member.has_charges for member in members_of(self))

    @property
    def is_local(self) -> bool:
        """True if atoms of every member depend only on others within a few cutoffs."""
        return all(member.is_local for member in members_of(self))

    @property
    def uses_mesh(self) -> bool:
        """True if a member's energy contains a sum by particle-mesh Ewald."""
        return any(member.uses_mesh for member in members_of(self))

    @property
    def known_domain(self) -> KnownDomain | None:
        """Structures that the members were trained for, if all members have the same record."""
        first, *others = (member.known_domain for member in members_of(self))
        return first if all(other == first for other in others) else None

    @property
    def has_uncertainty(self) -> bool:
        """True if every member predicts the uncertainty of each atom."""
        return all(member.has_uncertainty for member in members_of(self))

    @property
    def uncertainty_limit(self) -> float | None:
        """Largest limit of the members, as `TensorNet.uncertainty_limit`; None if one has none."""
        limits = [member.uncertainty_limit for member in members_of(self)]
        found = [limit for limit in limits if limit is not None]
        return max(found) if len(found) == len(limits) else None

    @property
    def mean(self) -> Tensor:
        """Energy added to each system, eV."""
        return torch.stack([member.mean for member in members_of(self)]).mean()

    def forward(
        self,
        numbers: Tensor,
        vectors: Tensor,
        graph: Graph,
        charge: Tensor,
        batch: Tensor | None = None,
        frame: Frame | None = None,
    ) -> Tensor:
        """Compute the mean energy of each atom; arguments as for `TensorNet.forward`."""
        return self.atom_results(numbers, vectors, graph, charge, batch, frame).energies

    def atom_results(
        self,
        numbers: Tensor,
        vectors: Tensor,
        graph: Graph,
        charge: Tensor,
        batch: Tensor | None = None,
        frame: Frame | None = None,
    ) -> AtomResults:
        """Compute the means of all results that the members have; see `TensorNet.atom_results`."""
        results = [
            member.atom_results(numbers, vectors, graph, charge, batch, frame)
            for member in members_of(self)
        ]
        energies, charges, uncertainty = map(_mean, zip(*results, strict=True))
        assert energies is not None
        return AtomResults(energies, charges, uncertainty)


def _mean(of_members: Sequence[Tensor | None]) -> Tensor | None:
    """Return the mean of a result, or None if a member does not have it."""
    found = [result for result in of_members if result is not None]
    return torch.stack(found).mean(0) if len(found) == len(of_members) else None


def members_of(model: TensorNet | Ensemble) -> list[TensorNet]:
    """List the members of an ensemble, or a single model itself."""
    if isinstance(model, TensorNet):
        return [model]
    return [member for member in model.members if isinstance(member, TensorNet)]


def check_has_uncertainty(has_uncertainty: bool) -> None:
    """Raise `InputError` unless a model knows its uncertainty."""
    if not has_uncertainty:
        raise InputError(
            "the model does not know its uncertainty: take one that mlff-triton train has made, or "
            "fine-tune this one with it"
        )


@dataclass(frozen=True)
class Prediction:
    """Energies and their derivatives for a batch of systems.

    Attributes
    ----------
    energy : float64 [B]
        Energy of each system in eV.
    forces : [N, 3]
        Forces in eV/Å.
    virial : float64 [B, 3, 3]
        ``dE/dstrain`` in eV. Divided by the volume, it is the stress.
    atom_energies : float64 [N]
        Energy of each atom in eV. They add up to ``energy``.
    charges : [N], optional
        Partial charge of each atom in elementary charges, if the model predicts them. They add up
        to the total charge.
    uncertainty : [N], optional
        Expected error of the force on each atom in eV/Å, if the model knows its uncertainty. It
        carries no gradients. For several models, it is the mean.
    """

    energy: Tensor
    forces: Tensor
    virial: Tensor
    atom_energies: Tensor
    charges: Tensor | None = None
    uncertainty: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Prediction:
        """Apply a function to every tensor."""
        return Prediction(**{name: function(tensor) for name, tensor in self.tensors.items()})

    @classmethod
    def mean(cls, predictions: Sequence[Prediction]) -> Prediction:
        """Return the mean of the results that several predictions for the same systems share."""
        if len(predictions) == 1:
            return predictions[0]
        columns = [prediction.tensors for prediction in predictions]
        names = [name for name in columns[0] if all(name in column for column in columns)]
        return cls(**{n: torch.stack([column[n] for column in columns]).mean(0) for n in names})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that was predicted, by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


class FieldSums(NamedTuple):
    """Energy of partial charges in an external field.

    Attributes
    ----------
    energies : float64 [N]
        Energy of each atom in eV.
    potential : float64 [N]
        Derivative of the sum of the energies by the charge of each atom, V.
    """

    energies: Tensor
    potential: Tensor


Potentials = Callable[[Tensor], FieldSums]
"""Function of partial charges [N] in elementary charges at fixed positions, in closed form."""


class ExternalField(Protocol):
    """An external field at fixed positions, in which partial charges have an energy.

    A step of the engine calls `prepare`, then the field itself, then `finish`, and `collect` when
    all that they have queued on a GPU is done. A step whose neighbor list turns out to be stale is
    repeated from `prepare` on.

    Attributes
    ----------
    layout : int or None
        Identifies the launches of these methods and the addresses that they use among all fields,
        so that a CUDA graph of a step can include them. None if it cannot.
    """

    @property
    def layout(self) -> int | None:
        """Same as the attribute."""

    def prepare(self) -> None:
        """Queue what does not depend on the charges."""

    def __call__(self, charges: Tensor) -> FieldSums:
        """Queue the computation of the energies of partial charges [N], which may be float32."""

    def finish(self) -> None:
        """Queue the transfer of results to the host."""

    def collect(self) -> None:
        """Take over the results of the last step, which are complete by now."""


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
    slab: int | None = None,
    n_systems: int | None = None,
    field: Potentials | None = None,
) -> Prediction:
    """Compute energies, forces and virials by differentiating the energy along the edges.

    Models with partial charges or uncertainties predict these as well. Autocast, inference mode,
    the default device and the default dtype of the caller change nothing.

    Parameters
    ----------
    model : TensorNet or Ensemble
        The model.
    numbers : int64 [N]
        Atomic numbers.
    positions : [N, 3]
        Positions in Å. Use float64 to keep edge vectors free of cancellation errors.
    graph : Graph
        Neighbor list within ``model.cutoff``.
    cell : [B, 3, 3], optional
        Lattice vectors (rows) in Å. Models with particle-mesh Ewald require cells, which are
        periodic in all three directions, or those of slabs.
    batch : int64 [N], optional
        System of each atom, ascending. By default, all atoms belong to one system.
    charge : [B], optional
        Total charge of each system in elementary charges. Default: 0.
    create_graph : bool
        If True, all results can be differentiated by weights, positions and cells that require
        gradients, as training on forces requires. Otherwise, they carry no gradients.
    slab : {0, 1, 2}, optional
        Direction in which no system is periodic, for particle-mesh Ewald. The length of the cells'
        vector in this direction does not matter.
    n_systems : int, optional
        Number of systems B. By default, it is read from ``batch``, which makes the host wait for a
        GPU. With it, a call can be captured in a CUDA graph, which checks neither elements nor
        charges.
    field : callable, optional
        Energy of the partial charges in a field, which is added to the energy of the model. The
        model must predict charges. The forces follow from the dependence of the charges on
        positions. They do not include the force of the field on fixed charges.

    Returns
    -------
    Prediction

    Raises
    ------
    UnknownElementError
        If the model does not support an element.
    InputError
        If a system is charged but the model supports only neutral systems, or particle-mesh Ewald
        has no cell, or one without a volume.

    Examples
    --------
    >>> from mlff_triton import load_model, neighbor_list
    >>> model = load_model("default")
    >>> positions = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.96], [0.0, 0.93, -0.24]])
    >>> graph = neighbor_list(positions, model.cutoff)
    >>> predict(model, torch.tensor([8, 1, 1]), positions, graph).forces.shape
    torch.Size([3, 3])
    """
    with own_settings(keep_determinism=True), torch.enable_grad():
        systems = _Systems.of(model, numbers, positions, graph, cell, batch, charge, n_systems)
        return _differentiate(model, systems, slab, field, create_graph=create_graph)


class _Systems(NamedTuple):
    """Arguments of `predict` under the same names; `charge` and `batch` are always set."""

    numbers: Tensor
    positions: Tensor
    graph: Graph
    cell: Tensor | None
    batch: Tensor
    charge: Tensor
    n_systems: int

    @classmethod
    def of(
        cls,
        model: TensorNet | Ensemble,
        numbers: Tensor,
        positions: Tensor,
        graph: Graph,
        cell: Tensor | None,
        batch: Tensor | None,
        charge: Tensor | None,
        n_systems: int | None,
    ) -> _Systems:
        """Return arguments of `predict` with its defaults, checked against the model."""
        numbers, positions, graph = normal(numbers), normal(positions), graph.map(normal)
        batch = torch.zeros_like(numbers) if batch is None else normal(batch)
        if n_systems is None:
            n_systems = int(batch[-1]) + 1
        if charge is None:
            charge = torch.zeros(n_systems, device=positions.device)
        elif not is_capturing(charge):
            check_neutral(model.uses_charge, charge)
        cell = None if cell is None else normal(cell)
        return cls(numbers, positions, graph, cell, batch, normal(charge), n_systems)

    def sum_of(self, values: Tensor, index: Tensor) -> Tensor:
        """Add up values [M, ...] of the systems with an index [M]."""
        return values.new_zeros(self.n_systems, *values.shape[1:]).index_add(0, index, values)


def _differentiate(
    model: TensorNet | Ensemble,
    systems: _Systems,
    slab: int | None,
    field: Potentials | None,
    *,
    create_graph: bool,
) -> Prediction:
    """Compute energies, and differentiate them by edge vectors, and positions and cells if needed.

    Arguments are those of `predict`.
    """
    graph, batch = systems.graph, systems.batch
    edges = graph.vectors(systems.positions, systems.cell, batch)
    follows_edges = create_graph and edges.requires_grad
    vectors = edges.to(model.dtype) if follows_edges else _leaf(edges, model.dtype)
    frame = _frame(model, systems.positions, systems.cell, slab, follows=follows_edges)
    atom_energies, charges, uncertainty = model.atom_results(
        systems.numbers, vectors, graph, systems.charge[batch], batch, frame
    )
    total = atom_energies.sum()
    if field is not None:
        assert charges is not None
        sums = field(charges.detach())
        total = total + (charges.double() * sums.potential).sum()
        atom_energies = atom_energies + sums.energies
    by = [vectors] if frame is None else [vectors, frame.positions, frame.cell]
    gradients = torch.autograd.grad(total, by, create_graph=create_graph)
    if not follows_edges:
        vectors = vectors.detach()
        if frame is not None:
            frame = Frame(frame.positions.detach(), frame.cell.detach())
    if not (create_graph and (follows_edges or _is_trained(model))):
        atom_energies = atom_energies.detach()
        gradients = tuple(each.detach() for each in gradients)
        charges = None if charges is None else charges.detach()
    forces, virial = _forces(systems, vectors, frame, gradients)
    n_atoms = systems.sum_of(virial.new_ones(len(batch)), batch)
    atom_energies = atom_energies + (model.mean / n_atoms)[batch]
    energy = systems.sum_of(atom_energies, batch)
    return Prediction(energy, forces, virial, atom_energies, charges, uncertainty)


def _forces(
    systems: _Systems, vectors: Tensor, frame: Frame | None, gradients: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Return forces and virials from gradients by edge vectors and by the frame, if any."""
    graph, batch = systems.graph, systems.batch
    gradient, *by_frame = gradients
    ends = torch.cat([graph.senders, graph.receivers])
    forces = gradient.new_zeros(len(batch), 3)
    forces = forces.index_add(0, ends, torch.cat([gradient, -gradient]))
    strain = vectors.double()[:, :, None] * gradient.double()[:, None, :]
    virial = systems.sum_of(strain, batch[graph.receivers])
    if frame is not None:
        by_position, by_cell = by_frame
        forces = forces - by_position.to(forces.dtype)
        strain = frame.positions[:, :, None] * by_position[:, None, :]
        virial = virial.index_add(0, batch, strain) + frame.cell.mT @ by_cell
    return forces, (virial + virial.mT) / 2


def _frame(
    model: TensorNet | Ensemble,
    positions: Tensor,
    cell: Tensor | None,
    slab: int | None,
    *,
    follows: bool,
) -> Frame | None:
    """Return positions and cells to differentiate the energy by, apart from those in edges."""
    if not model.uses_mesh:
        return None
    if cell is None:
        raise InputError(
            "the model's Coulomb energy is by particle-mesh Ewald, which needs a periodic cell: "
            "give one, or load the model with coulomb='all-pairs'"
        )
    if follows:  # one of them may be a constant
        copies = (tensor.double().clone() for tensor in (positions, cell))
        places, cell = (t if t.requires_grad else t.requires_grad_() for t in copies)
        return Frame(places, cell, slab)
    return Frame(_leaf(positions, torch.float64), _leaf(cell, torch.float64), slab)


def _leaf(edges: Tensor, dtype: torch.dtype) -> Tensor:
    """Return edge vectors of a dtype, detached, for differentiating the energy by them."""
    return edges.detach().to(dtype).requires_grad_()


def _is_trained(model: nn.Module) -> bool:
    """Return True if gradients of a weight are wanted."""
    return any(weight.requires_grad for weight in model.parameters())


def check_neutral(uses_charge: bool, charge: Tensor | NDArray[np.generic]) -> None:
    """Raise `InputError` if a system is charged but the model supports only neutral systems."""
    if not uses_charge and charge.any():
        raise InputError(
            "the model was made for neutral systems: take one that knows charges, such as "
            "default-charged, or the neutral form of the molecule"
        )
