"""The transformer of atoms in the input embedder of Boltz-2, compared with the package's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    assert_same_again,
    exact_results,
    randomize,
    results,
    results_under_autocast,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic

__all__ = ["bfloat16_arithmetic"]

transformers = pytest.importorskip(
    "boltz.model.modules.transformersv2", reason="boltz is not installed"
)
encoders = pytest.importorskip("boltz.model.modules.encodersv2")

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

CHANNELS, CONDITIONS, HEADS, LAYERS, QUERIES, KEYS = 32, 16, 4, 2, 32, 128


def make(device: str = "cpu", **options: Any) -> nn.Module:
    sizes = {"dim": CHANNELS, "dim_single_cond": CONDITIONS, "depth": LAYERS, "heads": HEADS}
    return randomize(transformers.AtomTransformer(QUERIES, KEYS, **sizes, **options)).to(device)


def arguments(batch: int, samples: int, windows: int, device: str) -> tuple[Tensor, ...]:
    """Return atoms, conditions, biases, the matrix of keys, and the mask."""
    torch.manual_seed(windows)
    n, rows = windows * QUERIES, batch * samples
    mask = torch.ones(rows, n)
    mask[-1, n - 20 :] = 0
    given = (
        torch.randn(rows, n, CHANNELS),
        torch.randn(rows, n, CONDITIONS),
        torch.randn(batch, windows, QUERIES, KEYS, LAYERS * HEADS),
        encoders.get_indexing_matrix(windows, QUERIES, KEYS, "cpu"),
        mask,
    )
    return tuple(x.to(device) for x in given)


def run(model: nn.Module, samples: int) -> Any:
    """Return a function of the `arguments`."""

    def forward(q: Tensor, c: Tensor, bias: Tensor, matrix: Tensor, mask: Tensor) -> Tensor:
        to_keys = partial(encoders.single_to_keys, indexing_matrix=matrix, W=QUERIES, H=KEYS)
        found: Tensor = model(q, c, bias, to_keys, mask, multiplicity=samples)
        return found

    return forward


def compare(model: nn.Module, size: tuple[int, int, int], device: str, **options: Any) -> Any:
    """Return results of the accelerated model, the original, and float64, which must be close."""
    given, step = arguments(*size, device), run(model, size[1])
    exact, own = exact_results(model, step, given), results(step, given)
    with bio.accelerated(model, **options):
        found = results(step, given)
        assert [part.state for part in bio.report(model)] == ["fast"]
        assert_same_again(found, step, given, options.get("backend"))
    masks = (torch.ones_like(given[4]),)
    assert_close(found, own, exact, masks)
    return found, own, exact, masks


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_results_are_those_of_boltz(size, norm):
    compare(make(post_layer_norm=norm), size, "cpu", backend="torch")


def test_kernels_are_as_exact_as_boltz(device):
    assert_as_exact(*compare(make(device), (1, 2, 2), device, backend="triton"))


@pytest.mark.usefixtures("bfloat16_arithmetic")
def test_kernels_follow_autocast(device):
    model, given = make(device), arguments(1, 1, 3, device)
    step = run(model, 1)
    exact = exact_results(model, step, given)
    found, own = results_under_autocast(model, step, given, device)
    assert_as_exact(found, own, exact, (torch.ones_like(given[4]),), torch.bfloat16)


def test_other_inputs_are_refused():
    model, (q, c, bias, matrix, mask) = make(), arguments(1, 1, 3, "cpu")
    to_keys = partial(encoders.single_to_keys, indexing_matrix=matrix, W=QUERIES, H=KEYS)
    given = {"q": q, "c": c, "bias": bias, "mask": mask, "to_keys": to_keys}
    bio.accelerate(model, backend="torch")
    refusal = model.forward.refusal
    assert refusal(given) is None
    assert "number" in refusal(given | {"multiplicity": 2})
    assert "c does not have the size" in refusal(given | {"c": c[:, 1:]})
    assert "not those of Boltz-2" in refusal(given | {"to_keys": lambda x: to_keys(x).flip(1)})
    assert "values other than 0 and 1" in refusal(given | {"mask": mask / 2})
    assert "all padding" in refusal(given | {"mask": 0 * mask})
    assert "not tensors" in refusal(given | {"bias": None})
