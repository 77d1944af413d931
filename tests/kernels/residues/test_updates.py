"""Updates of edges and residues, compared with their references in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.residues.edge_update import edge_update
from mlff_triton.kernels.residues.project import project
from mlff_triton.kernels.residues.reference import edge_update as edge_reference
from mlff_triton.kernels.residues.reference import project as project_reference
from mlff_triton.kernels.residues.reference import residue_update as residue_reference
from mlff_triton.kernels.residues.residue_update import residue_update
from mlff_triton.kernels.types.halves import split_scaled_halves
from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm
from mlff_triton.kernels.types.residue_network import EdgeNetwork, Projections, ResidueNetwork
from mlff_triton.testing import assert_close

SIZES = [(1, 1, 16), (5, 3, 32), (37, 20, 16), (9, 48, 128)]  # R, K, C
KINDS = [torch.float32, torch.float64, "halves"]


class Case:
    """Random residues, edges and networks, whose values are exact in float32."""

    def __init__(self, n_residues: int, n_neighbors: int, channels: int) -> None:
        torch.manual_seed(n_residues)
        self.x = _random(n_residues, channels)
        self.edges = _random(n_residues, n_neighbors, channels)
        self.receivers, senders = _random(2, n_residues, channels)
        self.senders = torch.cat([senders, _random(3, channels)])
        self.sources = torch.randint(len(self.senders), (n_residues, n_neighbors)).int()
        self.mask = (torch.arange(n_residues) % 4 != 1).double()
        self.weights = (torch.rand(n_residues, n_neighbors) < 0.7).double()
        self.network = EdgeNetwork(
            _random(channels, channels) / channels**0.5,
            _linear(channels, channels),
            _linear(channels, channels),
        )
        wide = 4 * channels
        self.residues = ResidueNetwork(
            _norm(channels), _linear(channels, wide), _linear(wide, channels), _norm(channels)
        )


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape).double()


def _linear(n_in: int, n_out: int) -> Linear:
    return Linear((_random(n_in, n_out) / n_in**0.5).float().double(), _random(n_out))


def _norm(channels: int) -> Norm:
    return _random(channels), _random(channels), 1e-5


def to(value, device, dtype):
    """Move the tensors of a structure, floating ones in another dtype."""
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, tuple):
        parts = [to(part, device, dtype) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def split(network):
    """Split all weights of a network, float32, into halves."""
    if isinstance(network, Linear):
        return network._replace(weight=split_scaled_halves(network.weight))
    if isinstance(network, EdgeNetwork):
        return EdgeNetwork(split_scaled_halves(network.first), *map(split, network[1:]))
    return network._replace(up=split(network.up), down=split(network.down))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_edges_match_the_reference(size, kind, device):
    case = Case(*size)
    given = case.edges, case.receivers, case.senders, case.sources, case.network, _norm(size[2])
    expected = edge_reference.edge_update(*given)
    dtype = torch.float32 if kind == "halves" else kind
    arguments = [to(value, device, dtype) for value in given]
    if kind == "halves":
        arguments[4] = split(arguments[4])
    assert_close(edge_update(*arguments).cpu(), expected, 0, dtype)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_residues_match_the_reference(size, weighted, kind, device):
    case = Case(*size)
    given = (
        *(case.x, case.edges, case.receivers, case.senders, case.sources, case.mask),
        *(case.network, case.residues, case.weights if weighted else None),
    )
    expected = residue_reference.residue_update(*given)
    dtype = torch.float32 if kind == "halves" else kind
    arguments = [to(value, device, dtype) for value in given]
    if kind == "halves":
        arguments[6:8] = map(split, arguments[6:8])
    assert_close(residue_update(*arguments).cpu(), expected, 0, dtype)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 16), (37, 32), (70, 128)], ids=str)
def test_projections_match_the_reference(size, kind, device):
    n_residues, channels = size
    torch.manual_seed(n_residues)
    weight = (_random(3, channels, channels) / channels**0.5).float().double()
    given = _random(n_residues, channels), Projections(weight, _random(3, 1, channels))
    expected = project_reference.project(*given)
    dtype = torch.float32 if kind == "halves" else kind
    x, projections = (to(value, device, dtype) for value in given)
    if kind == "halves":
        projections = projections._replace(weight=split_scaled_halves(projections.weight))
    for found, exact in zip(project(x, projections), expected, strict=True):
        assert_close(found.cpu(), exact, 0, dtype)
