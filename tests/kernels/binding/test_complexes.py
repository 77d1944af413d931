"""Operators on complexes, compared with their references in float64."""

from __future__ import annotations

import math

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.binding import (
    complex_tokens,
    contact_energy,
    frame_attention,
    frame_network,
    principal_axes,
)
from mlff_triton.kernels.binding.reference import complex_tokens as tokens_reference
from mlff_triton.kernels.binding.reference import contact_energy as energy_reference
from mlff_triton.kernels.binding.reference import frame_attention as attention_reference
from mlff_triton.kernels.binding.reference import frame_network as network_reference
from mlff_triton.kernels.binding.reference import principal_axes as axes_reference
from mlff_triton.kernels.types.complexes import Layout, Readout
from mlff_triton.testing import assert_close
from tests.kernels.binding import cases
from tests.kernels.binding.cases import Complexes, split_tokens, to_device

SIZES = [
    (1, 1, 1, 16),
    (2, 3, 5, 32),
    (3, 7, 23, 32),
    (2, 3, 5, 32, 40),
]  # complexes, ligand atoms, residues, channels, and rows that are not in use


@pytest.fixture(params=SIZES, ids=str)
def given(request: pytest.FixtureRequest) -> Complexes:
    return Complexes(*request.param)


@pytest.fixture(params=[False, True], ids=["small", "large"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the blocks for any GPU, and under the interpreter those for large ones too."""
    if request.param and torch.cuda.is_available():
        pytest.skip("a GPU chooses by its shared memory")
    if not torch.cuda.is_available():
        for module in (frame_attention, frame_network, contact_energy):
            monkeypatch.setattr(module, "has_large_memory", lambda _: request.param)


def test_principal_axes(given, dtype, device):
    positions = given.positions.to(dtype)
    center, axes = axes_reference.principal_axes(positions, given.kept)
    found_center, found = principal_axes.principal_axes(positions.to(device), given.kept.to(device))
    assert_close(found_center.cpu(), center, 0)
    overlaps = axes.mT @ found.cpu()
    assert_close(overlaps.abs(), torch.eye(3).expand_as(overlaps), 0)


def test_axes_turn_with_the_complex(device):
    given = Complexes(2, 3, 9, 16)
    turn = torch.linalg.qr(torch.randn(3, 3).double())[0]
    given.positions[~given.kept] = 0.0
    turned = given.positions @ turn.T + 3.0
    turned[~given.kept] = 0.0
    kept = given.kept.to(device)
    _, axes = principal_axes.principal_axes(given.positions.to(device), kept)
    _, found = principal_axes.principal_axes(turned.to(device), kept)
    overlaps = (turn @ axes.cpu()).mT @ found.cpu()
    assert_close(overlaps.abs(), torch.eye(3).expand_as(overlaps), 0)


def test_complex_tokens(given, device):
    centers, axes = axes_reference.principal_axes(given.positions, given.kept)
    arguments = given.positions, given.kinds, given.layout
    rows = given.groups, given.kind_rows
    expected = tokens_reference.complex_tokens(*arguments, centers, axes, *rows)
    found = complex_tokens.complex_tokens(
        *to_device(arguments, device), centers.to(device), axes.to(device), *to_device(rows, device)
    )
    n_rows = int(given.layout.row_ptr[-1])
    coordinates = found.coordinates[:, :n_rows].cpu()
    assert_close(coordinates, expected.coordinates[:, :n_rows], 0, torch.float32)
    keys, values = (cases.joined(part) for part in (found.keys, found.values))
    found = found._replace(keys=keys, values=values)
    for name in ("positions", "embedded", "queries", "keys", "values"):
        actual = getattr(found, name)[:n_rows].cpu()
        assert_close(actual, getattr(expected, name)[:n_rows], 0, torch.float32)
    assert found.embedded[n_rows:].isnan().all()  # poisoned, and not written


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("size", [16, 32, 64])
def test_frame_attention(given, size, device):
    heads = given.channels // size
    if not heads:
        pytest.skip("there are fewer channels")
    length = given.kept.shape[1]
    expected = attention_reference.frame_attention(
        given.tokens, given.layout.row_ptr, length, given.directions, heads
    )
    found = frame_attention.frame_attention(
        split_tokens(given.tokens, device),
        given.layout.row_ptr.to(device),
        length,
        to_device(given.directions, device),
        heads,
    )
    n_rows = int(given.layout.row_ptr[-1])
    assert_close(cases.joined(found)[:n_rows].cpu(), expected[:n_rows], 0, torch.float32)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("hidden", [1, 3])
def test_frame_network(given, hidden, device):
    network = cases.network(given.channels, hidden * given.channels)
    arguments = given.layout.row_ptr[-1:], given.directions, network
    expected = network_reference.frame_network(given.tokens, given.attended, *arguments)
    found = frame_network.frame_network(
        split_tokens(given.tokens, device),
        cases.split(given.attended).to(device),
        *to_device(arguments, device),
    )
    n_rows = int(given.layout.row_ptr[-1])
    assert_close(cases.joined(found)[:n_rows].cpu(), expected[:n_rows], 0, torch.float32)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("threshold", [0.0, 6.0, 100.0])
def test_contact_energy(given, threshold, device):
    tokens, readout = given.tokens, cases.readout(given.channels)
    arguments = given.layout, given.max_lengths, threshold, readout
    expected = energy_reference.contact_energy(tokens.embedded, tokens.positions, *arguments)
    found = contact_energy.contact_energy(
        cases.split(tokens.embedded).to(device),
        *to_device((tokens.positions, *arguments), device),
    )
    assert found.shape == (len(given.kept),)
    assert_close(found.cpu(), expected, 0, torch.float32, floor=1.0)
    assert (found != 0).any() == (threshold > 0)


@pytest.mark.parametrize(("threshold", "count"), [(5.0, 0), (5.000001, 1), (13.0, 1), (14.0, 2)])
def test_contacts_are_closer_than_the_threshold(threshold, count, device):
    positions = torch.tensor([[1.0, 0, 0], [4.0, 4, 0], [1.0, 5, 12]], device=device)
    row_ptr = torch.tensor([0, 3], dtype=torch.int32, device=device)
    layout = Layout(torch.arange(3).int().to(device), row_ptr, row_ptr[1:] // 3)
    one = cases.Linear(torch.zeros(16, 16).double(), torch.ones(16).double())
    readout = to_device(Readout(one, one, one), device)
    x = cases.split(torch.zeros(3, 16)).to(device)
    found = contact_energy.contact_energy(x, positions, layout, (1, 2), threshold, readout)
    assert_close(found.cpu(), torch.tensor([count * 16 / (1 + math.exp(-1))]), 0, torch.float32)


def test_frames_are_all_signs():
    signs = attention_reference.frame_signs(torch.ones(1))
    assert len(set(map(tuple, signs.tolist()))) == 8
    assert (signs.abs() == 1).all()


def test_wrong_shapes_are_refused(device):
    given = Complexes(1, 1, 1, 16)
    with pytest.raises(InputError, match="positions has the shape"):
        principal_axes.principal_axes(given.positions[..., :2].to(device), given.kept.to(device))
