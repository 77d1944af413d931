"""Blocks of Boltz-1 and Boltz-2, accelerated, compared with the package's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from triton.runtime import interpreter

from mlff_triton import bio
from mlff_triton.bio.core import first_launch
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.bio.models.boltz.adapter import BoltzBlockForward
from mlff_triton.errors import UnsupportedModelError
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    check_in_pytorch,
    check_on_a_gpu,
    exact_results,
    inputs,
    randomize,
    results,
    results_under_autocast,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic
from tests.support.strides import assert_strides_do_not_matter

__all__ = ["bfloat16_arithmetic"]

layers = pytest.importorskip("boltz.model.layers.pairformer", reason="boltz is not installed")

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

TOKENS, PAIRS = 48, 32
HEADS = {"pairwise_head_width": 8, "pairwise_num_heads": 2}


def boltz2(**options: Any) -> nn.Module:
    return layers.PairformerLayer(TOKENS, PAIRS, 4, v2=True, **HEADS, **options)


def boltz1(**options: Any) -> nn.Module:
    trunk = pytest.importorskip("boltz.model.modules.trunk", reason="fairscale is not installed")
    return trunk.PairformerLayer(TOKENS, PAIRS, 4, **HEADS, **options)


def without_tokens() -> nn.Module:
    return layers.PairformerNoSeqLayer(PAIRS, **HEADS)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "boltz-2": boltz2,
    "boltz-2 with a last norm": lambda: boltz2(post_layer_norm=True),
    "boltz-1": boltz1,
    "boltz-1 without tokens": lambda: boltz1(no_update_s=True),
    "pairs": without_tokens,
}
blocks = pytest.mark.parametrize("name", BLOCKS)


def make(name: str, device: str = "cpu") -> nn.Module:
    return randomize(BLOCKS[name]()).to(device)


def arguments(
    block: nn.Module, batch: int, n: int, device: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the arguments of a block, and the masks of its results."""
    torch.manual_seed(n)
    s, z, mask, pair_mask = inputs(batch, n, TOKENS, PAIRS, device)
    if type(block).__name__ == "PairformerNoSeqLayer":
        return (z, pair_mask), (pair_mask,)
    return (s, z, mask, pair_mask), (mask, pair_mask)


@blocks
@pytest.mark.parametrize("size", [(1, 1), (2, 17), (1, 100)], ids=str)
def test_results_are_those_of_boltz(name, size):
    block = make(name)
    check_in_pytorch(block, block, *arguments(block, *size, "cpu"))


@blocks
def test_kernels_are_as_exact_as_boltz(name, device):
    block = make(name, device)
    given, masks = arguments(block, 2, 5, device)
    exact, own = exact_results(block, block, given), results(block, given)
    with bio.accelerated(block, backend="triton"):
        found = results(block, given)
        assert all(map(torch.equal, found, results(block, given)))
        assert [part.state for part in bio.report(block)] == ["fast"]
    assert_close(found, own, exact, masks)
    assert_as_exact(found, own, exact, masks)


@pytest.fixture
def first_launches(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Let launches be the first ones, as nothing is compiled under the interpreter."""
    monkeypatch.setattr(first_launch, "_KEYS", type(first_launch._KEYS)())
    if device == "cuda":
        return

    def launch_nothing(*given: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter.InterpretedFunction, "run", lambda *_, **__: None)
            given[-1]()

    monkeypatch.setattr(
        "mlff_triton.bio.models.structure.block.before_first_launch", launch_nothing
    )


@pytest.mark.usefixtures("first_launches")
@pytest.mark.parametrize("graph", [False, pytest.param("auto", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("channels", [TOKENS, 144], ids=["narrow tokens", "wide tokens"])
def test_the_first_call_is_as_exact_as_others(channels, graph, device):
    block = randomize(layers.PairformerLayer(channels, PAIRS, 4, v2=True, **HEADS)).to(device)
    given = inputs(2, 5, channels, PAIRS, device)
    kept = [x.clone() for x in given]
    own = results(block, given)
    exact = exact_results(block, block, given)
    with bio.accelerated(block, backend="triton", cuda_graph=graph):
        found = results(block, given)
        assert all(map(torch.equal, given, kept))
        assert all(map(torch.equal, found, results(block, given)))
    assert_close(found, own, exact, given[2:])
    assert_as_exact(found, own, exact, given[2:])


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("size", [(1, 1), (2, 17), (1, 100), (1, 511)], ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_boltz(name, size):
    block = make(name, "cuda")
    check_on_a_gpu(block, block, *arguments(block, *size, "cuda"))


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_results_under_autocast_are_as_exact_as_those_of_boltz(name, precision):
    block = make(name, "cuda")
    given, masks = arguments(block, 2, 100, "cuda")
    exact = exact_results(block, block, given)
    with torch.autocast("cuda", torch.bfloat16):
        own = results(block, given)
        with bio.accelerated(block, precision=precision):
            found = results(block, given)
            assert [part.state for part in bio.report(block)] == ["fast"]
    assert_as_exact(found[-1:], own[-1:], exact[-1:], masks[-1:], torch.bfloat16)
    if precision is None:
        assert_as_exact(found, own, exact, masks, torch.bfloat16)


@blocks
def test_blocks_follow_autocast(name):
    block = make(name)
    given, masks = arguments(block, 2, 17, "cpu")
    own = results(block, given)
    with torch.autocast("cpu", torch.bfloat16), bio.accelerated(block, backend="torch"):
        found = results(block, given)
        assert all(map(torch.equal, found, results(block, given)))
        assert [part.state for part in bio.report(block)] == ["fast"]
        assert "bfloat16" in bio.report(block)[0].by
    for x, y, mask in zip(found, own, masks, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x[mask.bool()], y[mask.bool()], rtol=0.05, atol=0.1)


@pytest.mark.usefixtures("bfloat16_arithmetic")
@blocks
def test_kernels_follow_autocast(name, device):
    block = make(name, device)
    given, masks = arguments(block, 2, 5, device)
    exact = exact_results(block, block, given)
    found, own = results_under_autocast(block, block, given, device)
    assert_as_exact(found[-1:], own[-1:], exact[-1:], masks[-1:], torch.bfloat16)


def test_autocast_leaves_the_tokens_of_boltz_2_in_float32():
    block = make("boltz-2")
    forward = BoltzBlockForward(block, bio.core.fast_forward.Options(backend="torch"))
    with torch.autocast("cpu", torch.bfloat16):
        pairs, tokens = forward.read().weights
    assert pairs.outgoing.project_in.dtype == torch.bfloat16
    assert tokens.attention.query.dtype == torch.float32


@blocks
def test_random_numbers_advance_as_in_boltz(name):
    block = make(name)
    given, _ = arguments(block, 2, 5, "cpu")
    results(block, given)
    expected = torch.rand(3)
    with bio.accelerated(block, backend="torch"):
        results(block, given)
        assert torch.equal(torch.rand(3), expected)
        results(block, given)
        assert torch.equal(torch.rand(3), expected)


def test_inputs_are_not_overwritten():
    block = make("boltz-2")
    given, _ = arguments(block, 2, 5, "cpu")
    before = [x.clone() for x in given]
    with bio.accelerated(block, backend="torch"):
        for _ in range(2):
            results(block, given)
    assert all(map(torch.equal, given, before))


def test_strides_of_inputs_do_not_matter(device):
    block = make("boltz-2", device)
    given, _ = arguments(block, 1, 3, device)
    spread = tuple(x.repeat_interleave(2, -1)[..., ::2] for x in given)
    with bio.accelerated(block, backend="triton"):
        assert all(map(torch.equal, results(block, given), results(block, spread)))


def test_the_whole_stack_is_found():
    module = layers.PairformerModule(TOKENS, PAIRS, 2, 4, v2=True, **HEADS)
    randomize(module)
    given, masks = arguments(module, 1, 7, "cpu")
    exact, own = exact_results(module, module, given), results(module, given)
    bio.accelerate(module, backend="torch")
    assert [part.path for part in bio.report(module)] == ["layers.0", "layers.1"]
    assert_close(results(module, given), own, exact, masks)
    bio.restore(module)
    assert all(map(torch.equal, results(module, given), own))
    assert not any("forward" in vars(part) for part in module.modules())


def test_blocks_are_copied_and_read_again():
    block = make("boltz-2")
    given, masks = arguments(block, 1, 5, "cpu")
    bio.accelerate(block, backend="torch")
    twin = pickle.loads(pickle.dumps(copy.deepcopy(block)))
    assert all(map(torch.equal, results(twin, given), results(block, given)))
    with torch.no_grad():
        block.transition_z.fc3.weight *= 1.5
    found = results(block, given)
    bio.restore(block)
    own = results(block, given)
    assert_close(found, own, exact_results(block, block, given), masks)
    assert not torch.equal(results(twin, given)[1], found[1])


def test_weights_may_have_any_stride():
    def read(block: nn.Module) -> Any:
        return BoltzBlockForward(block, bio.core.fast_forward.Options(backend="torch")).read()

    assert_strides_do_not_matter(read, make("boltz-2"))


def fallback(
    block: nn.Module, given: tuple[Any, ...], match: str, **options: Any
) -> tuple[Tensor, ...]:
    """Return the results of the original forward, which runs for an expected reason."""
    with (
        bio.accelerated(block, backend="torch", **options),
        pytest.warns(FallbackWarning, match=match),
    ):
        return results(block, given)


def test_training_and_gradients_need_the_original():
    block = make("boltz-2")
    given, _ = arguments(block, 1, 5, "cpu")
    fallback(block.train(), given, "training mode")
    block.eval()
    with bio.accelerated(block, backend="torch"), pytest.warns(FallbackWarning, match="gradients"):
        assert block(*given)[1].requires_grad


@pytest.mark.parametrize("which", [2, 3])
def test_other_masks_need_the_original(which):
    block = make("boltz-2")
    given, _ = arguments(block, 1, 5, "cpu")
    given[which][:] = 0.5
    own = results(block, given)
    assert all(map(torch.equal, fallback(block, given, "other than 0 and 1"), own))
    bio.accelerate(block, backend="torch")
    results(block, tuple(x.round() for x in given))  # so that the weights are read
    with pytest.warns(FallbackWarning, match="other than 0 and 1"):
        found = results(block, given)
    assert all(map(torch.equal, found, own))


def test_other_inputs_need_the_original():
    block = make("boltz-2")
    forward = BoltzBlockForward(block, bio.core.fast_forward.Options(backend="torch"))
    given, _ = arguments(block, 1, 5, "cpu")
    named = dict(zip(("s", "z", "mask", "pair_mask"), given, strict=True))
    assert forward.refusal(named) is None
    for name, value, reason in (
        ("s", named["s"][:, :4], "different sizes"),
        ("s", named["s"][0], "of 3 axes"),
        ("s", named["s"].long(), "floating dtype"),
        ("mask", [1, 1], "of 2 axes"),
        ("pair_mask", named["mask"], "of 3 axes"),
        ("z", named["z"][:, :4], "not a tensor"),
        ("z", None, "not a tensor"),
    ):
        assert reason in (forward.refusal(named | {name: value}) or "")


def test_float64_needs_the_original():
    block = make("pairs").double()
    given, _ = arguments(block, 1, 5, "cpu")
    with pytest.raises(RuntimeError):
        fallback(block, given, "not float32")


def change(path: str, value: Any) -> Callable[[nn.Module], None]:
    def apply(block: nn.Module) -> None:
        owner, _, name = path.rpartition(".")
        setattr(block.get_submodule(owner), name, value)

    return apply


@pytest.mark.parametrize(
    "apply",
    [
        change("transition_z.silu", nn.ReLU()),
        change("attention.proj_z.2", nn.Identity()),
        change("tri_mul_in.norm_out", nn.Identity()),
        change("tri_att_start.mha.linear_g", None),
        change("tri_mul_out.p_in.forward", lambda x: x),
        change("extra", nn.Linear(2, 2)),
    ],
)
def test_other_structures_are_refused(apply):
    block = make("boltz-2")
    apply(block)
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(block, strict=True)


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (change("tri_att_end.starting", True), "direction"),
        (change("tri_mul_in.p_in.bias", nn.Parameter(torch.ones(2 * PAIRS))), "has a bias"),
        (change("tri_att_start.linear.precision", torch.float32), "a dtype of its own"),
        (change("attention.norm_s", nn.LayerNorm(TOKENS)), "normalized once"),
    ],
)
def test_other_settings_need_the_original(apply, reason):
    block = make("boltz-2")
    apply(block)
    given, _ = arguments(block, 1, 5, "cpu")
    own = results(block, given)
    assert all(map(torch.equal, fallback(block, given, reason), own))


def test_sizes_that_kernels_do_not_support_need_the_original(device):
    block = randomize(layers.PairformerNoSeqLayer(24, **HEADS)).to(device)
    z = torch.randn(1, 5, 5, 24, device=device)
    bio.accelerate(block, backend="triton")
    with pytest.warns(FallbackWarning, match="24 channels"):
        results(block, (z, torch.ones(1, 5, 5, device=device)))
    assert "24 channels" in bio.report(block)[0].state
