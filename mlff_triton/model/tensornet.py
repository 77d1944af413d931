"""TensorNet as a plain PyTorch module, with exact radial networks and autograd.

Models are trained with this module, and every fast implementation is measured against it.

G. Simeon and G. De Fabritiis, "TensorNet: Cartesian Tensor Representations for Efficient Learning
of Molecular Potentials", NeurIPS 2023, https://arxiv.org/abs/2306.06482. One module covers the
variants of TorchMD-NET 3.1 and MatGL 4.1. `TensorNetConfig` states their differences as data.

Each atom and channel carries a 3x3 tensor, stored as nine components ``x[9, N, F]``: see
`mlff_triton.model.irreps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.errors import UnknownElementError
from mlff_triton.model.activations import ACTIVATIONS
from mlff_triton.model.config import (
    MAX_ATOMIC_NUMBER,
    TensorNetConfig,
    ZBLConfig,
    unknown_elements,
)
from mlff_triton.model.edges import Edges, half_to_each
from mlff_triton.model.irreps import (
    PART_OF_COMPONENT,
    PARTS,
    compose,
    decompose,
    irrep_norms,
    matmul,
    scale,
)
from mlff_triton.model.known_domain import RECORDS, KnownDomain, hash_of_weights
from mlff_triton.model.radial_basis import BASES, cosine_cutoff
from mlff_triton.model.readout import Readout
from mlff_triton.model.zbl import zbl_energy
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph

EXACT = ("std", "mean", "references", "nuclear_charges")
"""Buffers of a model that stay in float64 when it is cast."""

UNCERTAINTY = ("readout.uncertainty", "readout.uncertainty_limit")
"""Buffers of models that know their uncertainty; see `Readout`."""


class AtomResults(NamedTuple):
    """Results of a network for each atom.

    Attributes
    ----------
    energies : float64 [N]
        eV, without the model's mean.
    charges : [N], optional
        Partial charges in elementary charges, if the model predicts them.
    uncertainty : [N], optional
        Expected errors of the forces on the atoms in eV/Å, if the model knows them. They carry no
        gradients.
    """

    energies: Tensor
    charges: Tensor | None = None
    uncertainty: Tensor | None = None


class Frame(NamedTuple):
    """Positions and cells; only energies by particle-mesh Ewald depend on them directly.

    Attributes
    ----------
    positions : float64 [N, 3]
        Å.
    cell : float64 [B, 3, 3]
        Lattice vectors (rows) in Å.
    slab : {0, 1, 2}, optional
        Direction that is not periodic, in which the length of the vector does not matter.
    """

    positions: Tensor
    cell: Tensor
    slab: int | None = None


class IrrepLinear(nn.Module):
    """One bias-free linear map for each of the three parts of ``x[9, N, F]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, channels, channels))
        bound = channels**-0.5  # like nn.Linear
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map [9, N, F] to [9, N, F]."""
        parts = zip(x.split(PARTS), self.weight.unbind(0), strict=True)
        return torch.cat([functional.linear(part, weight) for part, weight in parts])


class Embedding(nn.Module):
    """The initial tensor of each atom, from its element, its neighbors and their geometry."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.element = nn.Embedding(len(config.elements), channels)
        self.pair = nn.Linear(2 * channels, channels)
        self.radial = nn.Linear(config.num_rbf, 3 * channels)
        self.norm = nn.LayerNorm(channels)
        self.scalar = nn.ModuleList(
            [nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, 3 * channels)]
        )
        self.tensor = IrrepLinear(channels)

    def forward(self, species: Tensor, edges: Edges) -> Tensor:
        """Compute x [9, N, F] from species [N] and edges."""
        receiver, sender = self._pair_tables(species)
        graph = edges.graph
        radial = self.radial(edges.basis) * edges.cutoff[:, None]  # [P + 1, 3 F]
        radial = radial.unflatten(1, (3, -1))
        z_pair = receiver.index_select(0, graph.receivers) + sender.index_select(0, graph.senders)
        factors = [z_pair * f.index_select(0, edges.row) for f in radial.unbind(1)]  # 3 of [E, F]
        harmonics = zip(_harmonics(edges.directions), PART_OF_COMPONENT, strict=True)
        x = torch.stack([edges.sum_at_receivers(h[:, None] * factors[k]) for h, k in harmonics])
        if self.config.self_loops:
            x = torch.cat([x[:1] + (receiver + sender) * radial[0, 0], x[1:]])
        scales = self.norm(irrep_norms(x).sum(0))
        for linear in self.scalar:
            scales = self.activation(linear(scales))
        return scale(self.tensor(x), scales.unflatten(1, (3, -1)))

    def _pair_tables(self, species: Tensor) -> tuple[Tensor, Tensor]:
        """Split the pair embedding ``W (e_i, e_j) + b`` by receiver and sender."""
        half = self.config.hidden_channels
        receiver = functional.linear(self.element.weight, self.pair.weight[:, :half])
        sender = functional.linear(self.element.weight, self.pair.weight[:, half:], self.pair.bias)
        return receiver.index_select(0, species), sender.index_select(0, species)


class Interaction(nn.Module):
    """One round of message passing and tensor products."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.radial = nn.ModuleList(
            [
                nn.Linear(config.edge_features, channels),
                nn.Linear(channels, 2 * channels),
                nn.Linear(2 * channels, 3 * channels),
            ]
        )
        self.tensor_in = IrrepLinear(channels)
        self.tensor_out = IrrepLinear(channels)

    def forward(self, x: Tensor, edges: Edges, charge: Tensor) -> Tensor:
        """Update tensors x [9, N, F], given the total charge of each atom's system [N, 1]."""
        radial = edges.basis
        for linear in self.radial:
            radial = self.activation(linear(radial))
        radial = (radial * edges.cutoff[:, None]).unflatten(1, (3, -1))  # [P + 1, 3, F]
        factors = [f.index_select(0, edges.row) for f in radial.unbind(1)]  # 3 of [E, F]
        own = radial[:1] if self.config.self_loops else None
        return self.update(x, edges, factors, own, 1 + 0.1 * charge)

    def update(
        self,
        x: Tensor,
        edges: Edges,
        factors: list[Tensor],
        own: Tensor | None,
        charge_factor: Tensor | float,
    ) -> Tensor:
        """Update tensors by messages with given factors.

        Parameters
        ----------
        x : [9, N, F]
            Tensors of the atoms.
        edges : Edges
            Geometry of the edges.
        factors : 3 of [E, F]
            Factors of the three parts of the messages.
        own : [N, 3, F] or [1, 3, F], optional
            Factors of the message of each atom to itself, in models with self-loops.
        charge_factor : [N, 1] or float
            Factor of the products of tensors.

        Returns
        -------
        [9, N, F]
        """
        x = x / (irrep_norms(x).sum(0) + 1)
        y = self.tensor_in(x)
        message = edges.pass_messages(y, factors)
        if own is not None:
            message = message + scale(y, own)

        a, b = compose(y), compose(message)
        if self.config.group == "O(3)":
            product = decompose(matmul(a, b) + matmul(b, a)) * charge_factor
        else:
            product = decompose(2 * matmul(a, b))
        delta = self.tensor_out(product / (irrep_norms(product).sum(0) + 1))
        full = compose(delta)
        updated: Tensor = x + delta + charge_factor * decompose(matmul(full, full))
        return updated


class TensorNet(nn.Module):
    """TensorNet energies, twice differentiable with respect to edge vectors and weights.

    `predict` computes energies, forces and virials with it.

    Parameters
    ----------
    config : TensorNetConfig
        The architecture.

    Attributes
    ----------
    std : float64 []
        Scale of the network's energies in eV.
    mean : float64 []
        Energy in eV added to each system.
    references : float64 [number of elements]
        Energy in eV added to each atom, by element.
    learned : KnownDomain or None
        Structures that the model was trained for, as its training recorded them.

    Notes
    -----
    ``std``, ``mean`` and ``references`` stay in float64 when the model is cast, because a total
    energy may be as large as -27,000 eV.

    Examples
    --------
    >>> TensorNet(TensorNetConfig(elements=(1, 8), hidden_channels=16)).dtype
    torch.float32
    """

    std: Tensor
    mean: Tensor
    references: Tensor
    species_of_number: Tensor
    nuclear_charges: Tensor
    layer: type[Interaction] = Interaction
    learned: KnownDomain | None = None

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        self.basis = BASES[config.rbf_type](config)
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList([self.layer(config) for _ in range(config.num_layers)])
        self.readout = Readout(config)
        for buffer, shape, value in (("std", (), 1.0), ("mean", (), 0.0)):
            self.register_buffer(buffer, torch.full(shape, value, dtype=torch.float64))
        self.register_buffer("references", torch.zeros(len(config.elements), dtype=torch.float64))
        species = torch.full((MAX_ATOMIC_NUMBER + 1,), -1)
        species[list(config.elements)] = torch.arange(len(config.elements))
        self.register_buffer("species_of_number", species, persistent=False)
        charges = [zbl.charges_of(config.elements) for zbl in config.repulsions]
        nuclei = torch.tensor(charges, dtype=torch.float64)  # [repulsions, elements]
        self.register_buffer("nuclear_charges", nuclei, persistent=False)
        self.basis.to(torch.get_default_dtype())

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self.embedding.pair.weight.dtype

    @property
    def interactions(self) -> list[Interaction]:
        """Interaction layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, Interaction)]

    @property
    def cutoff(self) -> float:
        """Cutoff radius in Å of the neighbor list that the model needs."""
        return self.config.cutoff

    @property
    def uses_charge(self) -> bool:
        """True if the model supports charged systems."""
        return self.config.uses_charge

    @property
    def has_charges(self) -> bool:
        """True if the model predicts the partial charge of each atom."""
        return False

    @property
    def is_local(self) -> bool:
        """True if atoms depend only on others within a few cutoffs: see `layers`."""
        return True

    @property
    def uses_mesh(self) -> bool:
        """True if the energy contains a sum by particle-mesh Ewald, which needs a `Frame`."""
        return False

    @property
    def known_domain(self) -> KnownDomain | None:
        """Structures that the model was trained for, if its weights or its training tell."""
        record = RECORDS.get(self.network_hash, self.learned)
        if record is None or self.uncertainty_limit is None:
            return record
        return replace(record, bonds=None)

    @property
    def has_uncertainty(self) -> bool:
        """True if the model predicts the uncertainty of each atom."""
        return self.readout.uncertainty is not None

    @property
    def uncertainty_limit(self) -> float | None:
        """Uncertainty in eV/Å above which an atom is unlike those of the training set, or None."""
        limit = self.readout.uncertainty_limit
        return None if limit is None else float(limit)

    @property
    def weights_hash(self) -> str:
        """Hash of the weights, by which copies of a model are recognized."""
        return hash_of_weights(self.state_dict())

    @property
    def network_hash(self) -> str:
        """Hash of the weights that energies depend on, without those of uncertainties."""
        facts = self.state_dict()
        return hash_of_weights({k: v for k, v in facts.items() if k not in UNCERTAINTY})

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TensorNet:
        """Move or cast the weights, but keep the energy scale and nuclei in float64."""
        kept = {name: getattr(self, name) for name in EXACT}
        super()._apply(fn, recurse)
        for name, exact in kept.items():
            setattr(self, name, exact.to(getattr(self, name).device))
        return self

    def species(self, numbers: Tensor) -> Tensor:
        """Look up the index of each atom's element in ``config.elements``.

        Parameters
        ----------
        numbers : int64 [N]
            Atomic numbers.

        Returns
        -------
        int64 [N]

        Raises
        ------
        UnknownElementError
            If the model does not support an element. This is not checked while a CUDA graph is
            captured.
        """
        if is_capturing(numbers):
            return self.species_of_number[numbers]
        if int(numbers.min()) < 0 or int(numbers.max()) > MAX_ATOMIC_NUMBER:
            raise UnknownElementError(f"atomic numbers must lie in 0..{MAX_ATOMIC_NUMBER}")
        species = self.species_of_number[numbers]
        if int(species.min()) < 0:
            raise unknown_elements(numbers[species < 0].tolist(), self.config.elements)
        return species

    def check_box(self, box: Box) -> None:
        """Raise `InputError` if the model cannot compute systems in a box; TensorNets can."""

    def forward(
        self,
        numbers: Tensor,
        vectors: Tensor,
        graph: Graph,
        charge: Tensor,
        batch: Tensor | None = None,
        frame: Frame | None = None,
    ) -> Tensor:
        """Compute the energy of each atom, without the model's mean.

        Parameters
        ----------
        numbers : int64 [N]
            Atomic numbers.
        vectors : [E, 3]
            Edge vectors in Å, in the model's dtype.
        graph : Graph
            Neighbor list within `cutoff`.
        charge : [N]
            Total charge of each atom's system, in elementary charges.
        batch : int64 [N], optional
            System of each atom, ascending. By default, all atoms belong to one system.
        frame : Frame, optional
            Positions and cells; models with `uses_mesh` need them.

        Returns
        -------
        float64 [N]
            Energies in eV.

        Raises
        ------
        UnknownElementError
            If the model does not support an element.
        InputError
            If the model needs a frame that is missing.
        """
        return self.atom_results(numbers, vectors, graph, charge, batch, frame).energies

    def atom_results(
        self,
        numbers: Tensor,
        vectors: Tensor,
        graph: Graph,
        charge: Tensor,
        batch: Tensor | None = None,  # noqa: ARG002 (of models whose atoms depend on all others)
        frame: Frame | None = None,  # noqa: ARG002
    ) -> AtomResults:
        """Compute all results of each atom; arguments and errors are those of `forward`."""
        species = self.species(numbers)
        edges = self._edges(vectors, graph)
        x = self.embedding(species, edges)
        q = charge.to(vectors.dtype)[:, None]
        for layer in self.layers:
            x = layer(x, edges, q)
        energies, hidden = self.readout(x)
        energies = self._with_priors(energies.double(), species, edges)
        return AtomResults(energies, None, self.readout.uncertainty_of(hidden))

    def _with_priors(self, energies: Tensor, species: Tensor, edges: Edges) -> Tensor:
        """Scale energies [N] to eV, and add those that no network computes."""
        energies = energies * self.std + self.references[species]
        for zbl, charges in zip(self.config.repulsions, self.nuclear_charges, strict=True):
            energies = energies + self._repulsion(zbl, charges[species], edges)
        return energies

    def _edges(self, vectors: Tensor, graph: Graph) -> Edges:
        first, pair = graph.pairs
        distances = torch.linalg.vector_norm(vectors.index_select(0, first), dim=1)
        radii, row = distances, pair
        if self.config.self_loops:
            radii, row = torch.cat([distances.new_zeros(1), distances]), pair + 1
        cutoff = cosine_cutoff(radii, self.config.cutoff_lower, self.config.cutoff_upper)
        directions = vectors / distances.index_select(0, pair)[:, None]
        return Edges(graph, directions, distances, self.basis(radii), cutoff, row)

    def _repulsion(self, zbl: ZBLConfig, charges: Tensor, edges: Edges) -> Tensor:
        """Compute the nuclear repulsion of each atom, float64 [N], eV, from nuclear charges [N]."""
        graph = edges.graph
        first, _ = graph.pairs
        z_i, z_j = charges[graph.receivers[first]], charges[graph.senders[first]]
        return half_to_each(2 * zbl_energy(zbl, edges.distances.double(), z_i, z_j), graph)


def _harmonics(u: Tensor) -> tuple[Tensor, ...]:
    """Compute the nine components [E] of ``1 + A(u) + (u u^T - 1/3)`` for unit vectors [E, 3]."""
    x, y, z = u.unbind(1)
    third = (x * x + y * y + z * z) / 3
    one = torch.ones_like(x)
    return one, x, y, z, x * x - third, x * y, x * z, y * y - third, y * z
