from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.transformer.reference import top_logit as reference
from mlff_triton.kernels.transformer.token_linear import Moments
from mlff_triton.kernels.transformer.token_norm import token_moments
from mlff_triton.kernels.transformer.top_logit import Tile, launch_top_logit, top_logit
from mlff_triton.kernels.transformer.types import TopLogit
from tests.support.token_cases import (
    DTYPES,
    HALVES,
    assert_rows,
    layer_of,
    live_count,
    random_layer,
    random_rows,
    truth,
)

SIZES = [  # T, live, V, K
    (1, 1, 1, 20),
    (1, 1, 33, 20),
    (63, 50, 33, 96),
    (70, 70, 300, 33),
    (20, 13, 300, 96),
]
EPS = 0.01
UNTOUCHED = torch.iinfo(torch.int64).max  # value of an index that was not written


def assert_top(found: TopLogit, logits: Tensor, tolerance: float) -> None:
    """Compare with float64 logits [T, V]; indices only where the two largest clearly differ."""
    exact = reference.largest(logits)
    index, logit = (t.cpu() for t in found)
    assert index.dtype is torch.int64
    assert index.shape == logit.shape == exact.index.shape
    assert (logit - exact.logit).abs().max() <= tolerance
    second = logits.scatter(1, exact.index[:, None], -torch.inf).amax(1)
    clear = exact.logit - second > 2 * tolerance
    assert clear.any() or len(clear) == 1
    assert torch.equal(index[clear], exact.index[clear])
    chosen = logits.gather(1, index[:, None])[:, 0]
    assert (exact.logit - chosen).max() <= 2 * tolerance


def tolerance_of(logits: Tensor, dtype: torch.dtype) -> float:
    """Return eight units of rounding of the largest logit."""
    return 8 * torch.finfo(dtype).eps * float(logits.abs().max())


def assert_matches(
    device: str, size: tuple[int, int, int, int], dtype: torch.dtype, tile: Tile | None = None
) -> None:
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, dtype, live), random_layer(n_out, n_in, dtype)
    inputs = x.to(device), layer_of(device, *layer), live_count(live, device)
    found = top_logit(*inputs) if tile is None else launch_top_logit(*inputs, None, tile)
    assert found.logit.dtype is COMPUTE_DTYPES[dtype]
    logits = truth(x, layer)[:live]
    tolerance = tolerance_of(logits, COMPUTE_DTYPES[dtype])  # of sums, for half precisions too
    assert_top(TopLogit(*(t[:live] for t in found)), logits, tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_the_reference(size, dtype, device):
    assert_matches(device, size, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [32, 64])
def test_tiles_of_many_rows(rows, dtype, device):
    assert_matches(device, (130, 77, 100, 40), dtype, Tile(rows, 64, 128 // dtype.itemsize))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_normalization(size, dtype, device):
    """The tolerance allows for the rounding of the folded weights."""
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, dtype, live), random_layer(n_out, n_in, dtype)
    scale, shift = torch.randn(2, n_in).to(dtype)
    count = live_count(live, device)
    moments = Moments(token_moments(x.to(device), count), EPS)
    folded = layer_of(device, *layer, (scale, shift))
    found = top_logit(x.to(device), folded, count, moments=moments)
    logits = truth(x, layer, (scale, shift, EPS))[:live]
    assert_top(TopLogit(*(t[:live] for t in found)), logits, tolerance_of(logits, dtype))


def test_moments_in_parts(device, dtype):
    """A linear layer whose rows are wider than a tile returns its moments in parts."""
    x, layer = random_rows(20, 40, dtype), random_layer(33, 40, dtype)
    norm = torch.ones(40, dtype=dtype), torch.zeros(40, dtype=dtype)
    parts = x.view(20, 5, 8)
    sums = torch.stack([parts.sum(2).T, parts.square().sum(2).T]).contiguous()
    folded = layer_of(device, *layer, norm)
    found = top_logit(x.to(device), folded, moments=Moments(sums.to(device), EPS))
    logits = truth(x, layer, (*norm, EPS))
    assert_top(found, logits, tolerance_of(logits, dtype))


def test_all_rows_live_unless_told(device, dtype):
    x, layer = random_rows(63, 20, dtype), random_layer(33, 20, dtype)
    found = top_logit(x.to(device), layer_of(device, *layer))
    logits = truth(x, layer)
    assert_top(found, logits, tolerance_of(logits, dtype))


@pytest.mark.parametrize("live", [0, 1, 16, 21])
def test_rows_that_mean_nothing_are_not_written(live, device, dtype):
    x, layer = random_rows(40, 20, dtype), random_layer(33, 20, dtype)
    index, logit = top_logit(x.to(device), layer_of(device, *layer), live_count(live, device))
    exact = reference.largest(truth(x, layer))
    assert_rows(logit[:, None], exact.logit[:, None], dtype, live)
    assert torch.equal(index[:live].cpu(), exact.index[:live])
    assert (index[live:] == UNTOUCHED).all()


def one_hot_logits(logits: Tensor, device: str) -> TopLogit:
    """Run the kernel on given logits [T, V], as the product of a unit matrix with them."""
    n_rows, n_out = logits.shape
    x = torch.eye(n_rows, dtype=logits.dtype)
    bias = torch.zeros(n_out, dtype=logits.dtype)
    return top_logit(x.to(device), layer_of(device, logits.T, bias))


@pytest.mark.parametrize("n_out", [2, 33, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_ties_go_to_the_smallest_index(n_out, dtype, device):
    """Logits are small integers, so each row has its largest one several times."""
    logits = torch.randint(-3, 2, (40, n_out)).to(dtype)
    logits[0] = -5
    logits[1] = 0
    exact = reference.largest(logits.double())
    assert ((logits == exact.logit[:, None]).sum(1) > 1).sum() > 5
    found = one_hot_logits(logits, device)
    assert torch.equal(found.index.cpu(), (logits == exact.logit[:, None]).int().argmax(1))
    assert torch.equal(found.logit.cpu().double(), exact.logit)


def test_infinities(device, dtype):
    """Infinities in the bias forbid tokens."""
    x, (weight, bias) = random_rows(20, 30, dtype), random_layer(100, 30, dtype)

    def found(allowed: list[int], value: float) -> TopLogit:
        forbidding = torch.full_like(bias, -torch.inf)
        forbidding[allowed] = value
        return top_logit(x.to(device), layer_of(device, weight, forbidding))

    exact = truth(x, (weight[[70, 99]], torch.zeros(2, dtype=dtype)))
    assert set(exact.argmax(1).tolist()) == {0, 1}
    assert torch.equal(found([70, 99], 0).index.cpu(), torch.tensor([70, 99])[exact.argmax(1)])
    for allowed, value, first in (([], 0, 0), ([77, 40], torch.inf, 40)):
        index, logit = found(allowed, value)
        assert (index == first).all()
        assert (logit == (value or -torch.inf)).all()


@pytest.mark.parametrize("indices", [[0], [5, 31], [70, 99], [6, 70], [66, 3, 64]])
def test_nan_is_the_largest(indices, device, dtype):
    """The first NaN counts as the largest, as in `torch.max`, also before infinity."""
    x, (weight, bias) = random_rows(20, 30, dtype), random_layer(100, 30, dtype)
    bias[[4, 80]] = torch.inf
    bias[indices] = torch.nan
    found = top_logit(x.to(device), layer_of(device, weight, bias))
    assert (found.index == min(indices)).all()
    assert found.logit.isnan().all()
    index, logit = reference.top_logit(x, weight, bias)
    assert torch.equal(found.index.cpu(), index)
    assert logit.isnan().all()


def test_rows_of_nan_spoil_no_others(device, dtype):
    x, layer = random_rows(20, 30, dtype), random_layer(33, 30, dtype)
    x[3] = torch.nan
    found = top_logit(x.to(device), layer_of(device, *layer))
    assert found.index[3] == 0
    assert found.logit[3].isnan()
    logits = truth(x, layer)
    kept = torch.arange(20) != 3
    found = TopLogit(*(t.cpu()[kept] for t in found))
    assert_top(found, logits[kept], tolerance_of(logits[kept], dtype))


@pytest.mark.parametrize("n_rows", [0, 3])
def test_no_rows(n_rows, device):
    x, layer = torch.randn(n_rows, 20), random_layer(33, 20, torch.float32)
    found = top_logit(x.to(device), layer_of(device, *layer), live_count(0, device))
    assert found.index.shape == found.logit.shape == (n_rows,)
    assert found.logit.isnan().all()
    assert (found.index == UNTOUCHED).all()


@pytest.mark.parametrize("normalized", [False, True])
def test_weights_may_be_strided(normalized, device, dtype):
    x, (weight, bias) = random_rows(9, 20, dtype), random_layer(33, 20, dtype)
    norm = torch.randn(2, 20).to(dtype).unbind() if normalized else None
    layer = layer_of(device, weight.T.contiguous().T, bias[:, None].repeat(1, 2)[:, 0], norm)
    moments = Moments(token_moments(x.to(device), live_count(9, device)), EPS)
    found = top_logit(x.to(device), layer, moments=moments if normalized else None)
    logits = truth(x, (weight, bias), norm and (*norm, EPS))
    assert_top(found, logits, tolerance_of(logits, dtype))


def test_refuses_moments_without_a_normalization_and_the_reverse(device):
    x, layer = random_rows(9, 20, torch.float32).to(device), random_layer(33, 20, torch.float32)
    norm = torch.ones(20), torch.zeros(20)
    with pytest.raises(InputError, match="contains no normalization: pass no moments"):
        top_logit(x, layer_of(device, *layer), moments=Moments(token_moments(x, None), EPS))
    with pytest.raises(InputError, match="contains a normalization: pass the moments of its rows"):
        top_logit(x, layer_of(device, *layer, norm))


def test_derivatives_of_the_reference():
    """The logit is differentiable almost everywhere; random inputs avoid ties."""
    shapes = (3, 4), (6, 4), (6,), (4,), (4,)
    inputs = tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)

    def logit(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return reference.top_logit(x, weight, bias, (scale, shift, EPS)).logit

    assert torch.autograd.gradcheck(logit, inputs)
