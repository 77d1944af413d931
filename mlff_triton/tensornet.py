"""TensorNet as a plain PyTorch module: exact radial networks and autograd. The truth, and for training.

G. Simeon and G. De Fabritiis, "TensorNet: Cartesian Tensor Representations for Efficient Learning
of Molecular Potentials", NeurIPS 2023, https://arxiv.org/abs/2306.06482. The variants of TorchMD-NET 3.1
and of MatGL 4.1 are one module; what differs between them is data in `TensorNetConfig`.

Every atom and channel carries a 3x3 tensor ``X = I 1 + A(a) + S``, stored as nine numbers, component
first, ``x[9, N, F]``:

    x[0]    I, the trace over three
    x[1:4]  a, with A(a) v = a x v        (X_21 - X_12 = 2 a_0, ...)
    x[4:9]  S_00, S_01, S_02, S_11, S_12  (S_22 = -S_00 - S_11)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton.errors import InputError, UnknownElementError
from mlff_triton.graph import Graph
from mlff_triton.radial_basis import BASES, cosine_cutoff
from mlff_triton.units import BOHR

MAX_ATOMIC_NUMBER = 118
PARTS = (1, 3, 5)  # sizes of I, a and S among the nine components
PART_OF_COMPONENT = (0, 1, 1, 1, 2, 2, 2, 2, 2)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "ssp": lambda x: functional.softplus(x) - 0.6931471805599453,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
}


@dataclass(frozen=True)
class ZBLConfig:
    """Screened nuclear repulsion (Ziegler, Biersack, Littmark 1985, eqs. 9 and 10, p. 147).

    Attributes
    ----------
    cutoff : float
        Distance in Å at which the cosine cutoff switches it off.
    prefactor : float
        Coulomb constant ``e^2 / (4 pi eps0)`` in eV Å.
    length_scale : float
        Length of one Å of the model in Å of the screening function.
    charges : tuple of float, optional
        Nuclear charge of each element; by default its atomic number.
    """

    cutoff: float
    prefactor: float
    length_scale: float = 1.0
    charges: tuple[float, ...] | None = None


@dataclass(frozen=True)
class TensorNetConfig:
    """What distinguishes one TensorNet from another, apart from its weights.

    Attributes
    ----------
    elements : tuple of int
        Atomic numbers that the model knows, in the order of its embedding.
    hidden_channels, num_layers, num_rbf : int
        Channels F, interaction layers, radial basis functions.
    rbf_type : {"expnorm", "gauss", "bessel", "bessel-smooth"}
        Radial basis.
    bessel_orders : int
        Angular orders of the ``bessel`` basis; they divide ``num_rbf``.
    trainable_rbf : bool
        Whether the basis is trained.
    activation : str
        One of `ACTIVATIONS`.
    cutoff_lower, cutoff_upper : float
        Cutoff radii in Å.
    group : {"O(3)", "SO(3)"}
        Symmetry of the tensor product.
    self_loops : bool
        Whether an atom is its own neighbor at distance 0 (TorchMD-NET: yes, MatGL: no).
    readout_activation : bool
        Whether the linear layer before the head is activated (TorchMD-NET: yes, MatGL: no).
    head : {"scalar", "gated"}
        TorchMD-NET's ``Scalar`` network, or MatGL's gated one with SiLU.
    uses_charge : bool
        Whether the model was made for total charges other than 0.
    zbl : ZBLConfig, optional
        Nuclear repulsion added to the network's energy.
    """

    elements: tuple[int, ...]
    hidden_channels: int = 128
    num_layers: int = 2
    num_rbf: int = 32
    rbf_type: str = "expnorm"
    bessel_orders: int = 1
    trainable_rbf: bool = False
    activation: str = "silu"
    cutoff_lower: float = 0.0
    cutoff_upper: float = 5.0
    group: str = "O(3)"
    self_loops: bool = True
    readout_activation: bool = True
    head: str = "scalar"
    uses_charge: bool = True
    zbl: ZBLConfig | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("rbf_type", self.rbf_type, BASES),
            ("activation", self.activation, ACTIVATIONS),
            ("group", self.group, ("O(3)", "SO(3)")),
            ("head", self.head, ("scalar", "gated")),
        ):
            if value not in known:
                raise InputError(f"{name}={value!r} is unknown: use one of {', '.join(known)}")
        if not 0 <= self.cutoff_lower < self.cutoff_upper:
            raise InputError(
                f"cutoffs must satisfy 0 <= lower < upper, not {self.cutoff_lower}, "
                f"{self.cutoff_upper}"
            )
        if self.rbf_type == "bessel" and self.self_loops:
            raise InputError("the bessel basis has no value at distance 0: use self_loops=False")
        if not self.elements or not all(0 <= z <= MAX_ATOMIC_NUMBER for z in self.elements):
            raise InputError("elements must be atomic numbers, and at least one")

    @property
    def cutoff(self) -> float:
        """Radius in Å within which every pair must be in the neighbor list."""
        return max(self.cutoff_upper, self.zbl.cutoff if self.zbl else 0.0)


def compose(x: Tensor) -> Tensor:
    """Nine components [9, N, F] -> 3x3 tensors [3, 3, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.unbind(0)
    rows = (
        (i + s00, s01 - a2, s02 + a1),
        (s01 + a2, i + s11, s12 - a0),
        (s02 - a1, s12 + a0, i - s00 - s11),
    )
    return torch.stack([torch.stack(row) for row in rows])


def decompose(t: Tensor) -> Tensor:
    """3x3 tensors [3, 3, N, F] -> nine components [9, N, F]."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t.flatten(0, 1).unbind(0)
    trace = (t00 + t11 + t22) / 3
    skew = (0.5 * (t21 - t12), 0.5 * (t02 - t20), 0.5 * (t10 - t01))
    symmetric = (
        t00 - trace,
        0.5 * (t01 + t10),
        0.5 * (t02 + t20),
        t11 - trace,
        0.5 * (t12 + t21),
    )
    return torch.stack([trace, *skew, *symmetric])


def irrep_norms(x: Tensor) -> Tensor:
    """Squared Frobenius norms of the three parts: [9, N, F] -> [3, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.square().unbind(0)
    s22 = (x[4] + x[7]) ** 2
    return torch.stack([3 * i, 2 * (a0 + a1 + a2), s00 + s11 + s22 + 2 * (s01 + s02 + s12)])


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product of 3x3 tensors, [3, 3, N, F] each."""
    return (a[:, :, None] * b[None]).sum(1)


def scale(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each part by its own factor: [9, N, F] and [N, 3, F] -> [9, N, F]."""
    parts = zip(x.split(PARTS), factors.unbind(1), strict=True)
    return torch.cat([part * factor for part, factor in parts])


class IrrepLinear(nn.Module):
    """One bias-free linear map for each of the three parts of ``x[9, N, F]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, channels, channels))
        bound = channels**-0.5  # as nn.Linear
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """[9, N, F] -> [9, N, F]."""
        parts = zip(x.split(PARTS), self.weight.unbind(0), strict=True)
        return torch.cat([functional.linear(part, weight) for part, weight in parts])


class Embedding(nn.Module):
    """Elements and geometry -> the first tensor of every atom."""

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
        """Species [N] -> x [9, N, F]."""
        receiver, sender = self._pair_tables(species)
        graph = edges.graph
        radial = self.radial(edges.basis) * edges.cutoff[:, None]  # [P + 1, 3 F]
        radial = radial.unflatten(1, (3, -1))
        z_pair = receiver[graph.receivers] + sender[graph.senders]  # [E, F]
        factors = [z_pair * f.index_select(0, edges.pair) for f in radial.unbind(1)]  # 3 of [E, F]
        harmonics = zip(_harmonics(edges.directions), PART_OF_COMPONENT, strict=True)
        x = torch.stack([edges.sum_at_receivers(h[:, None] * factors[k]) for h, k in harmonics])
        if self.config.self_loops:
            x = torch.cat([x[:1] + (receiver + sender) * radial[-1, 0], x[1:]])
        scales = self.norm(irrep_norms(x).sum(0))
        for linear in self.scalar:
            scales = self.activation(linear(scales))
        return scale(self.tensor(x), scales.unflatten(1, (3, -1)))

    def _pair_tables(self, species: Tensor) -> tuple[Tensor, Tensor]:
        """The pair embedding ``W (e_i, e_j) + b`` split into a receiver's and a sender's half."""
        half = self.config.hidden_channels
        receiver = functional.linear(self.element.weight, self.pair.weight[:, :half])
        sender = functional.linear(self.element.weight, self.pair.weight[:, half:], self.pair.bias)
        return receiver[species], sender[species]


class Interaction(nn.Module):
    """One round of message passing and tensor products."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.radial = nn.ModuleList(
            [
                nn.Linear(config.num_rbf, channels),
                nn.Linear(channels, 2 * channels),
                nn.Linear(2 * channels, 3 * channels),
            ]
        )
        self.tensor_in = IrrepLinear(channels)
        self.tensor_out = IrrepLinear(channels)

    def forward(self, x: Tensor, edges: Edges, charge: Tensor) -> Tensor:
        """Tensors x [9, N, F] and total charge of each atom's system [N, 1] -> [9, N, F]."""
        radial = edges.basis
        for linear in self.radial:
            radial = self.activation(linear(radial))
        radial = (radial * edges.cutoff[:, None]).unflatten(1, (3, -1))  # [P + 1, 3, F]

        x = x / (irrep_norms(x).sum(0) + 1)
        y = self.tensor_in(x)
        message = edges.pass_messages(y, radial)
        if self.config.self_loops:
            message = message + scale(y, radial[-1:])

        charge_factor = 1 + 0.1 * charge
        a, b = compose(y), compose(message)
        if self.config.group == "O(3)":
            product = decompose(matmul(a, b) + matmul(b, a)) * charge_factor
        else:
            product = decompose(2 * matmul(a, b))
        delta = self.tensor_out(product / (irrep_norms(product).sum(0) + 1))
        full = compose(delta)
        return x + delta + charge_factor * decompose(matmul(full, full))


class ScalarHead(nn.Module):
    """TorchMD-NET's ``Scalar`` output network: F -> F/2 -> 1."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.activation = ACTIVATIONS[config.activation]
        self.linear1 = nn.Linear(channels, channels // 2)
        self.linear2 = nn.Linear(channels // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, F] -> [N]."""
        return self.linear2(self.activation(self.linear1(x)))[:, 0]


class GatedHead(nn.Module):
    """MatGL's ``WeightedReadOut``: two networks F -> F -> F -> F -> 1, one gating the other."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        sizes = [config.hidden_channels] * 4 + [1]
        pairs = list(zip(sizes, sizes[1:], strict=False))
        self.values = nn.ModuleList([nn.Linear(*pair) for pair in pairs])
        self.gates = nn.ModuleList([nn.Linear(*pair) for pair in pairs])

    def forward(self, x: Tensor) -> Tensor:
        """[N, F] -> [N]."""
        value = gate = x
        for linear_v, linear_g in zip(self.values[:-1], self.gates[:-1], strict=True):
            value, gate = functional.silu(linear_v(value)), functional.silu(linear_g(gate))
        return (self.values[-1](value) * torch.sigmoid(self.gates[-1](gate)))[:, 0]


HEADS: dict[str, type[nn.Module]] = {"scalar": ScalarHead, "gated": GatedHead}


class Readout(nn.Module):
    """Invariants of each atom's tensor -> the energy that the network gives it."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.activation = ACTIVATIONS[config.activation] if config.readout_activation else None
        self.norm = nn.LayerNorm(3 * channels)
        self.linear = nn.Linear(3 * channels, channels)
        self.head = HEADS[config.head](config)

    def forward(self, x: Tensor) -> Tensor:
        """x [9, N, F] -> [N]."""
        invariants = irrep_norms(x).movedim(0, 1).flatten(1)  # [N, 3 F]
        hidden = self.linear(self.norm(invariants))
        if self.activation is not None:
            hidden = self.activation(hidden)
        energies: Tensor = self.head(hidden)
        return energies


@dataclass(frozen=True)
class Edges:
    """Geometry of the edges. What depends on the distance alone is kept once a pair; the row
    after the last pair is distance 0, the self-loop.

    Attributes
    ----------
    directions : [E, 3]
        Unit vectors from sender to receiver.
    distances : [P]
        Distance of each pair in Å.
    basis : [P + 1, num_rbf]
        Radial basis.
    cutoff : [P + 1]
        Cosine cutoff.
    pair : int64 [E]
        Pair of each edge.
    """

    graph: Graph
    directions: Tensor
    distances: Tensor
    basis: Tensor
    cutoff: Tensor
    pair: Tensor

    def sum_at_receivers(self, messages: Tensor) -> Tensor:
        """Sum messages [E, F] at their receivers: [N, F]."""
        zeros = messages.new_zeros(self.graph.n_atoms, messages.shape[1])
        return zeros.index_add(0, self.graph.receivers, messages)

    def pass_messages(self, y: Tensor, radial: Tensor) -> Tensor:
        """``M_i = sum_j f_k(d_ij) y_j``, a component at a time: arrays of one fit into the cache.

        Parameters
        ----------
        y : [9, N, F]
            What the neighbors send.
        radial : [P + 1, 3, F]
            Factors of the three parts for each pair.

        Returns
        -------
        [9, N, F]
        """
        factors = [f.index_select(0, self.pair) for f in radial.unbind(1)]  # 3 of [E, F]
        components = zip(y, PART_OF_COMPONENT, strict=True)
        return torch.stack(
            [
                self.sum_at_receivers(c.index_select(0, self.graph.senders) * factors[k])
                for c, k in components
            ]
        )


class TensorNet(nn.Module):
    """TensorNet energies, differentiable twice with respect to edge vectors and weights.

    Parameters
    ----------
    config : TensorNetConfig
        The architecture.

    Notes
    -----
    ``std``, ``mean`` (eV, one a system) and ``references`` (eV, one an element) are float64 buffers:
    a total energy of -27,000 eV keeps its digits. Use `predict` for energies, forces and virials.
    """

    std: Tensor
    mean: Tensor
    references: Tensor
    species_of_number: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        self.basis = BASES[config.rbf_type](config)
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList([Interaction(config) for _ in range(config.num_layers)])
        self.readout = Readout(config)
        for buffer, shape, value in (("std", (), 1.0), ("mean", (), 0.0)):
            self.register_buffer(buffer, torch.full(shape, value, dtype=torch.float64))
        self.register_buffer("references", torch.zeros(len(config.elements), dtype=torch.float64))
        species = torch.full((MAX_ATOMIC_NUMBER + 1,), -1)
        species[list(config.elements)] = torch.arange(len(config.elements))
        self.register_buffer("species_of_number", species, persistent=False)
        self.basis.to(torch.get_default_dtype())

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self.embedding.pair.weight.dtype

    @property
    def cutoff(self) -> float:
        """Radius in Å of the neighbor list that the model needs."""
        return self.config.cutoff

    @property
    def uses_charge(self) -> bool:
        """Whether the model was made for charged systems."""
        return self.config.uses_charge

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TensorNet:
        """Move and cast the weights, but keep the energy scale in float64."""
        scale = {name: getattr(self, name) for name in ("std", "mean", "references")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, exact in scale.items():
            setattr(self, name, exact.to(getattr(self, name).device))
        return self

    def species(self, numbers: Tensor) -> Tensor:
        """Index of each atom's element in ``config.elements``: int64 [N] -> int64 [N].

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """
        if int(numbers.min()) < 0 or int(numbers.max()) > MAX_ATOMIC_NUMBER:
            raise UnknownElementError(f"atomic numbers must lie in 0..{MAX_ATOMIC_NUMBER}")
        species = self.species_of_number[numbers]
        if int(species.min()) < 0:
            unknown = sorted(set(numbers[species < 0].tolist()))
            raise UnknownElementError(
                f"the model does not know atomic numbers {unknown}; it knows "
                f"{list(self.config.elements)}"
            )
        return species

    def forward(self, numbers: Tensor, vectors: Tensor, graph: Graph, charge: Tensor) -> Tensor:
        """Energy of each atom, without the model's mean.

        Parameters
        ----------
        numbers : int64 [N]
            Atomic numbers.
        vectors : [E, 3]
            Edge vectors in Å, of the model's dtype.
        graph : Graph
            Neighbor list within `cutoff`.
        charge : [N]
            Total charge of each atom's system, in elementary charges.

        Returns
        -------
        float64 [N]
            eV.
        """
        species = self.species(numbers)
        edges = self._edges(vectors, graph)
        x = self.embedding(species, edges)
        q = charge.to(vectors.dtype)[:, None]
        for layer in self.layers:
            x = layer(x, edges, q)
        energies = self.readout(x).double() * self.std + self.references[species]
        if self.config.zbl is not None:
            energies = energies + self._repulsion(self.config.zbl, numbers, edges)
        return energies

    def _edges(self, vectors: Tensor, graph: Graph) -> Edges:
        first, pair = graph.pairs
        distances = torch.linalg.vector_norm(vectors[first], dim=1)
        with_self = torch.cat([distances, distances.new_zeros(1)])
        cutoff = cosine_cutoff(with_self, self.config.cutoff_lower, self.config.cutoff_upper)
        basis = self.basis(with_self if self.config.self_loops else distances)
        if not self.config.self_loops:
            cutoff = cutoff[:-1]
        directions = vectors / distances[pair][:, None]
        return Edges(graph, directions, distances, basis, cutoff, pair)

    def _repulsion(self, zbl: ZBLConfig, numbers: Tensor, edges: Edges) -> Tensor:
        """ZBL energy of each atom, float64 [N], eV."""
        charges = numbers.double()
        if zbl.charges is not None:
            charges = charges.new_tensor(zbl.charges)[self.species(numbers)]
        graph, d = edges.graph, edges.distances[edges.pair].double()
        z_i, z_j = charges[graph.receivers], charges[graph.senders]
        x = d * zbl.length_scale * (z_i**0.23 + z_j**0.23) / (0.8854 * BOHR)
        terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))
        screening = sum(weight * torch.exp(-rate * x) for weight, rate in terms)
        pair = 0.5 * zbl.prefactor * z_i * z_j / d * screening * cosine_cutoff(d, 0.0, zbl.cutoff)
        return pair.new_zeros(graph.n_atoms).index_add(0, graph.receivers, pair)


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


def _harmonics(u: Tensor) -> tuple[Tensor, ...]:
    """Nine components [E] of ``1 + A(u) + (u u^T - 1/3)`` for unit vectors [E, 3]."""
    x, y, z = u.unbind(1)
    third = (x * x + y * y + z * z) / 3
    one = torch.ones_like(x)
    return one, x, y, z, x * x - third, x * y, x * z, y * y - third, y * z


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
    elif not model.uses_charge and bool(charge.any()):
        raise InputError("the model was made for neutral systems: set the charge to 0")
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
