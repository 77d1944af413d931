from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.channel_maps import channel_maps
from mlff_triton.kernels.ops.reference.channel_maps import channel_maps as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches


def random_inputs(
    n_atoms: int, n_out: int, n_in: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return random tensors and weights."""
    generator = torch.Generator().manual_seed(n_atoms + n_out)
    x = torch.randn(9, n_atoms, n_in, generator=generator)
    weights = torch.randn(3, n_out, n_in, generator=generator) / max(1, n_in) ** 0.5
    return x.to(device, dtype), weights.to(device, dtype)


@pytest.mark.parametrize("size", [(0, 8, 8), (1, 8, 8), (63, 33, 8), (70, 8, 33), (5, 130, 130)])
def test_halves_match_the_reference_to_second_order(size, device):
    inputs = random_inputs(*size, device)
    assert_matches(lambda *t: channel_maps(*t, precision="halves"), reference, *inputs)


def test_matches_the_reference(device, dtype):
    assert_matches(channel_maps, reference, *random_inputs(7, 8, 9, device, dtype))


def test_many_atoms(device):
    x, weights = random_inputs(500, 16, 16, device)
    assert_close(channel_maps(x, weights), reference(x.double(), weights.double()), 0, x.dtype)


def test_strided_inputs(device):
    x, weights = random_inputs(20, 16, 16, device)
    expected = channel_maps(x, weights, precision="halves")
    for strided in (x.movedim(0, 1).contiguous().movedim(1, 0), x.mT.contiguous().mT):
        assert torch.equal(channel_maps(strided, weights, precision="halves"), expected)
    transposed = weights.mT.contiguous().mT
    assert torch.equal(channel_maps(x, transposed, precision="halves"), expected)


def test_registered_completely(device):
    x, weights = (t.requires_grad_() for t in random_inputs(3, 4, 5, device))
    torch.library.opcheck(torch.ops.mlff_triton.channel_maps.default, (x, weights))
    operator = torch.ops.mlff_triton.channel_maps_backward_weights.default
    torch.library.opcheck(operator, (torch.ones(9, 3, 6, device=device, requires_grad=True), x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(8, 2, 4)}, r"x has the shape \[8, 2, 4\] instead of \[9, N, K\]"),
        ({"weights": torch.ones(3, 4, 5)}, r"weights has the shape .* instead of \[3, F, 4\]"),
        ({"weights": torch.ones(3, 4, 4).double()}, "the same for all"),
        ({"precision": "tf32"}, "precision='tf32' is unknown: use halves or torch"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {"x": torch.ones(9, 2, 4), "weights": torch.ones(3, 4, 4)} | change
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with pytest.raises(InputError, match=message):
        channel_maps(**inputs)


def test_refuses_halves_of_float64(device):
    with pytest.raises(InputError, match="halves are those of float32"):
        channel_maps(*random_inputs(2, 4, 4, device, torch.float64), precision="halves")
