from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.edge_tensors import edge_tensors
from mlff_triton.kernels.ops.reference import edge_tensors as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches


def random_inputs(
    n_atoms: int, channels: int, device: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random inputs with up to three edges per atom; the last atom has none."""
    generator = torch.Generator().manual_seed(n_atoms)
    counts = torch.randint(0, 4, (n_atoms,), generator=generator)
    counts[-1:] = 0
    row_ptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    n_edges = int(counts.sum())
    directions = torch.randn(n_edges, 3, generator=generator, dtype=torch.float64)
    factors = torch.randn(n_edges, 3, channels, generator=generator, dtype=torch.float64)
    return directions.to(device, dtype), factors.to(device, dtype), row_ptr.to(device)


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (63, 8), (5, 33), (5, 128)])
def test_agrees_with_the_reference_to_second_order(n_atoms, channels, device, dtype):
    inputs = random_inputs(n_atoms, channels, device, dtype)
    assert_matches(edge_tensors, reference.edge_tensors, *inputs)


def test_500_atoms_and_int32_indices(device):
    directions, factors, row_ptr = random_inputs(500, 16, device, torch.float32)
    sums = edge_tensors(directions, factors, row_ptr.int())
    exact = reference.edge_tensors(directions.double(), factors.double(), row_ptr)
    assert_close(sums, exact, 0, torch.float32)
    assert not sums[:, -1].any(), "the last atom has no edges"


def test_edges_of_no_atom_are_left_out(device):
    directions, factors, row_ptr = random_inputs(5, 8, device)
    padded = [torch.cat([t, torch.full_like(t[:2], torch.nan)]) for t in (directions, factors)]
    expected = edge_tensors(directions, factors, row_ptr)
    assert_close(edge_tensors(*padded, row_ptr), expected, 0)
    zeros = [t.nan_to_num(0.0) for t in padded]
    assert_close(reference.edge_tensors(*zeros, row_ptr), expected, 0)


def test_strided_inputs(device):
    directions, factors, row_ptr = random_inputs(5, 8, device)
    strided = directions.T.contiguous().T, factors.mT.contiguous().mT
    assert_close(edge_tensors(*strided, row_ptr), edge_tensors(directions, factors, row_ptr), 0)


def test_agrees_with_torchmd_net(device):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    with warnings.catch_warnings():  # Warp warns at its first import
        warnings.simplefilter("ignore")
        from torchmdnet.models.tensornet import tensornet_embedding_message_passing

    from mlff_triton.kernels.ops.reference.decomposition import compose

    directions, factors, row_ptr = random_inputs(5, 8, device)
    receivers = torch.arange(5, device=device).repeat_interleave(row_ptr.diff())
    i, a, s = tensornet_embedding_message_passing(directions, factors, receivers[None], 5)
    eye = torch.eye(3, device=device, dtype=torch.float64)[:, :, None]
    full = compose(edge_tensors(directions, factors, row_ptr))
    assert_close(full, i[:, None, None] * eye + a + s, 0)


def test_derivatives_of_reference(device):
    *leaves, row_ptr = random_inputs(3, 2, device)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(lambda *t: reference.edge_tensors(*t, row_ptr), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: reference.edge_tensors(*t, row_ptr), leaves)


def test_registered_completely(device):
    directions, factors, row_ptr = random_inputs(3, 4, device)
    inputs = directions.requires_grad_(), factors.requires_grad_(), row_ptr
    torch.library.opcheck(torch.ops.mlff_triton.edge_tensors, inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directions": torch.ones(2, 4)}, r"directions has the shape \[2, 4\]"),
        ({"factors": torch.ones(3, 3, 4)}, r"factors has the shape \[3, 3, 4\] instead of \[2, 3"),
        (
            {"factors": torch.ones(2, 3, 4).double()},
            "the same for all",
        ),
        ({"row_ptr": torch.tensor([0.0, 2.0])}, "row_ptr must be int64 or int32"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {
        "directions": torch.ones(2, 3),
        "factors": torch.ones(2, 3, 4),
        "row_ptr": torch.tensor([0, 2]),
    }
    inputs = {name: t.to(device) for name, t in (inputs | change).items()}
    with pytest.raises(InputError, match=message):
        edge_tensors(**inputs)
