"""Inputs of bench ``convolution``: the layers of DiffDock, and those of MACE."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.clebsch_gordan import coupling
from mlff_triton.kernels.convolution.types import Instruction, TensorProduct, columns_of
from mlff_triton.kernels.types.edges import Knots

S, V = 48, 10  # scalars and vectors of DiffDock
CHANNELS, NEIGHBORS, HIDDEN = 128, 50, 64  # of MACE
PER_RECEIVER = 24  # edges, in DiffDock
CUTOFF = 6.0  # Å
INTERVALS = 128

HARMONICS = "1x0e + 1x1o + 1x2e"


@dataclass(frozen=True)
class Shape:
    """A layer.

    Attributes
    ----------
    product : TensorProduct
        Irreps and paths.
    hidden : int
        Hidden values of the network of an edge; 0 if weights depend on the distance alone.
    per_receiver : int
        Edges of each receiver.
    """

    product: TensorProduct
    hidden: int
    per_receiver: int


def docking_shapes(s: int = S, v: int = V) -> dict[str, Shape]:
    """Return the layers of DiffDock's score model, with given numbers of scalars and vectors.

    Harmonics are those of version 1, up to degree 2. DiffDock-L stops at degree 1, so its layers
    have fewer weights: 6928 instead of 7128 in the fourth.
    """
    whole = f"{s}x0e + {v}x1o + {v}x1e + {s}x0o"
    bonds = "1x0e + 1x1o + 1x1e + 1x2o + 1x2e + 1x2e + 1x3o + 1x3e + 1x4e"
    listed = {
        "layer-1": (f"{s}x0e", HARMONICS, f"{s}x0e + {v}x1o", 3),
        "layer-2": (f"{s}x0e + {v}x1o", HARMONICS, f"{s}x0e + {v}x1o + {v}x1e", 3),
        "layer-3": (f"{s}x0e + {v}x1o + {v}x1e", HARMONICS, whole, 3),
        "layer-4": (whole, HARMONICS, whole, 3),
        "center": (whole, HARMONICS, "2x1o + 2x1e", 2),
        "torsion": (whole, bonds, f"{s}x0o + {s}x0e", 3),
    }
    return {
        name: Shape(TensorProduct.of(node, harmonics, output), parts * s, PER_RECEIVER)
        for name, (node, harmonics, output, parts) in listed.items()
    }


def mace_shapes(channels: int = CHANNELS) -> dict[str, Shape]:
    """Return the convolutions of MACE by the largest degree of its features.

    In those named "network", the last layer of the network that makes weights is part of them.
    """
    return {
        f"mace-{degree}{suffix}": _mace(channels, degree, hidden)
        for suffix, hidden in (("", 0), ("-network", HIDDEN))
        for degree in (0, 1, 2)
    }


def _mace(channels: int, degree: int, hidden: int) -> Shape:
    """Return all paths to natural parities, each with an output of its own, sorted by degree."""
    natural = [f"{l}{'eo'[l % 2]}" for l in range(4)]  # noqa: E741
    paths = [
        (i, j, k)
        for k in range(4)
        for i in range(degree + 1)
        for j in range(4)
        if abs(i - j) <= k <= i + j and (i + j + k) % 2 == 0
    ]
    product = TensorProduct.of(
        " + ".join(f"{channels}x{name}" for name in natural[: degree + 1]),
        " + ".join(f"1x{name}" for name in natural),
        " + ".join(f"{channels}x{natural[k]}" for _, _, k in paths),
        [(i, j, at, "uvu", True) for at, (i, j, _) in enumerate(paths)],
    )
    return Shape(product, hidden, NEIGHBORS)


@dataclass(frozen=True)
class Problem:
    """Inputs of a case in a dtype.

    Attributes
    ----------
    product : TensorProduct
        Irreps and paths.
    floats : tuple of Tensor
        Inputs that get gradients: nodes, harmonics and hidden values with weight and bias, or
        distances.
    graph : (Tensor, Tensor)
        Row pointer and senders.
    table, knots : Tensor and Knots, or None
        Table of functions of the distance.
    """

    product: TensorProduct
    floats: tuple[Tensor, ...]
    graph: tuple[Tensor, Tensor]
    table: Tensor | None
    knots: Knots | None

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.floats[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the inputs."""
        return self.floats[0].dtype

    @property
    def irreps(self) -> tuple[str, ...]:
        """Irreps of nodes, harmonics and output in e3nn's notation."""
        product = self.product
        return tuple(
            " + ".join(map(str, irreps))
            for irreps in (product.node, product.harmonics, product.output)
        )

    @property
    def instructions(self) -> list[Instruction]:
        """Instructions in e3nn's notation."""
        mode = self.product.mode
        return [(p.node, p.harmonic, p.output, mode, True) for p in self.product.paths]

    @cached_property
    def receivers(self) -> Tensor:
        """Receiver of each edge, int64 [E]."""
        nodes = torch.arange(len(self.graph[0]) - 1, device=self.device)
        return nodes.repeat_interleave(self.graph[0].diff())

    @cached_property
    def coupling(self) -> Tensor:
        """Map of harmonics to coupling matrices, as a constant."""
        return coupling(self.product).to(self.floats[0])

    @property
    def given(self) -> Problem:
        """The same problem with weights [E, weights] instead of distances, for peers."""
        if self.table is None or self.knots is None:
            return self
        from mlff_triton.kernels.convolution.reference.radial_convolution import tabulated_weights

        node, edge_sh, distance = self.floats
        weights = tabulated_weights(distance.double(), self.table, self.knots)
        floats = node, edge_sh, weights.to(self.dtype)
        return Problem(self.product, floats, self.graph, None, None)

    def to(self, dtype: torch.dtype) -> Problem:
        """Return the problem in another dtype; tables stay in float64."""
        floats = tuple(x.to(dtype) for x in self.floats)
        return Problem(self.product, floats, self.graph, self.table, self.knots)


def build(shape: Shape, n_edges: int, device: torch.device) -> Problem:
    """Return random inputs in float64, whose values float32 holds exactly."""
    rng = torch.Generator(device).manual_seed(n_edges)
    product = shape.product
    n_nodes = max(1, n_edges // shape.per_receiver)

    def randn(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=rng, device=device).double()

    row_ptr = torch.arange(n_nodes + 1, device=device) * n_edges // n_nodes
    senders = torch.randint(n_nodes, (n_edges,), generator=rng, device=device)
    node = randn(n_nodes, columns_of(product.node))
    edge_sh = randn(n_edges, columns_of(product.harmonics))
    if shape.hidden:
        scale = shape.hidden**-0.5
        weight = (randn(shape.hidden, product.n_weights) * scale).float().double()
        hidden, bias = randn(n_edges, shape.hidden).relu(), randn(product.n_weights)
        floats = node, edge_sh, hidden, weight, bias
        return Problem(product, floats, (row_ptr, senders), None, None)
    distance = 0.5 + (CUTOFF - 0.6) * torch.rand(n_edges, generator=rng, device=device)
    positions = torch.linspace(0, CUTOFF, INTERVALS + 1, dtype=torch.float64, device=device)
    knots = Knots(positions, torch.arange(INTERVALS, dtype=torch.int32, device=device))
    table = randn(INTERVALS + 1, 3, product.n_weights)
    floats = node, edge_sh, distance.double()
    return Problem(product, floats, (row_ptr, senders), table, knots)
