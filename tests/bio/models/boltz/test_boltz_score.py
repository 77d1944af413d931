"""The score network of Boltz-2, compared with the package's own."""

from __future__ import annotations

import copy
import gc
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from benchmarks.bio.boltz_features import protein_features
from mlff_triton import bio
from mlff_triton.bio.core import graph_cache
from mlff_triton.bio.models.structure import sampling
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    assert_same_again,
    exact_results,
    in_float64,
    randomize,
    results,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic
from tests.support.cpu_graphs import capture_without_gpu

__all__ = ["bfloat16_arithmetic"]

diffusion = pytest.importorskip(
    "boltz.model.modules.diffusionv2", reason="boltz or einx is not installed"
)
conditioning = pytest.importorskip("boltz.model.modules.diffusion_conditioning")

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

TOKENS, PAIRS, ATOMS, HEADS = 24, 16, 32, 4
SIZES = {"atom_encoder_depth": 2, "token_transformer_depth": 2, "atom_decoder_depth": 1}


def make(
    device: str = "cpu", tokens: int = TOKENS, heads: int = HEADS, **options: Any
) -> nn.Module:
    made = diffusion.DiffusionModule(
        tokens, ATOMS, dim_fourier=16, token_transformer_heads=heads, **SIZES, **options
    )
    return randomize(made).to(device)


def join(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make a batch of two, padded to the larger size."""
    joined = {}
    for name, x in one.items():
        y = other[name]
        size = [max(pair) for pair in zip(x.shape, y.shape, strict=True)]
        parts = [z.new_zeros(1, *size[1:]) for z in (x, y)]
        for part, z in zip(parts, (x, y), strict=True):
            part[tuple(map(slice, z.shape))] = z
        joined[name] = torch.cat(parts)
    return joined


def trunk(
    lengths: tuple[int, ...], device: str = "cpu", tokens: int = TOKENS, heads: int = HEADS
) -> dict[str, Any]:
    """Return what all steps have in common, for one or two proteins."""
    features = protein_features(lengths[0], 1, "cpu")
    if len(lengths) > 1:
        features = join(features, protein_features(lengths[1], 1, "cpu"))
    n, batch = max(lengths), len(lengths)
    prepared = randomize(
        conditioning.DiffusionConditioning(
            tokens,
            PAIRS,
            ATOMS,
            PAIRS,
            token_transformer_heads=heads,
            atom_feature_dim=388,
            **SIZES,
        )
    )
    torch.manual_seed(n)
    s_trunk, s_inputs = torch.randn(2, batch, n, tokens)
    with torch.inference_mode():
        z, positions = torch.randn(2, batch, n, n, PAIRS)
        found = prepared(s_trunk, z, positions, features)
    names = "q", "c", "to_keys", "atom_enc_bias", "atom_dec_bias", "token_trans_bias"
    given = {
        "s_inputs": s_inputs,
        "s_trunk": s_trunk,
        "feats": features,
        "diffusion_conditioning": dict(zip(names, found, strict=True)),
    }
    return moved(given, device)


def moved(given: Any, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """Move the tensors of nested dictionaries, those of a function too, and copy them."""
    if isinstance(given, dict):
        return {name: moved(x, device, dtype) for name, x in given.items()}
    if isinstance(given, Tensor):
        return given.to(device, dtype if given.is_floating_point() else given.dtype).clone()
    keywords = moved(given.keywords, device, dtype) if hasattr(given, "keywords") else None
    return given if keywords is None else type(given)(given.func, **keywords)


def noisy(given: dict[str, Any], samples: int, seed: int = 0, *, equal: bool = False) -> Any:
    """Return scaled positions and noise levels of samples."""
    torch.manual_seed(seed)
    mask = given["feats"]["atom_pad_mask"]
    positions = torch.randn(len(mask) * samples, mask.shape[1], 3)
    times = torch.randn(1).expand(len(positions)) if equal else torch.randn(len(positions))
    return positions.to(mask.device), times.to(mask.device)


def run(model: nn.Module, given: dict[str, Any], samples: int) -> Any:
    """Return a function of positions and noise levels."""
    return lambda r, t: model(r_noisy=r, times=t, multiplicity=samples, **given)


def exact(model: nn.Module, given: dict[str, Any], samples: int, inputs: Any) -> Any:
    wide = moved(given, inputs[0].device.type, torch.float64)
    return exact_results(model, run(model, wide, samples), inputs)


def compare(
    model: nn.Module, given: dict[str, Any], samples: int, *, equal: bool = False, **options: Any
) -> Any:
    """Return results of the accelerated model, the original, and float64, and the mask."""
    inputs = noisy(given, samples, equal=equal)
    step = run(model, given, samples)
    truth, own = exact(model, given, samples, inputs), results(step, inputs)
    with bio.accelerated(model, **options):
        found = results(step, inputs)
        assert_same_again(found, step, inputs, options.get("backend"))
        assert [part.state for part in bio.report(model)] == ["fast"]
    return found, own, truth, (torch.ones_like(inputs[0][..., 0]),)


@pytest.mark.parametrize(
    ("lengths", "samples", "equal"),
    [((1,), 1, True), ((17,), 3, False), ((17, 13), 2, True), ((100,), 1, True)],
    ids=str,
)
def test_steps_are_those_of_boltz(lengths, samples, equal):
    assert_close(*compare(make(), trunk(lengths), samples, equal=equal, backend="torch"))


def test_a_normalization_after_layers_of_atoms():
    model = make(transformer_post_ln=True)
    with torch.no_grad():  # upstream has no normalization before the last map in this case
        assert model.atom_attention_encoder.atom_encoder.diffusion_transformer.layers[0].post_lnorm
    assert_close(*compare(model, trunk((5,)), 1, backend="torch"))


@pytest.mark.parametrize("tokens", [TOKENS, 64])
def test_kernels_agree_with_boltz(tokens, device):
    given = trunk((5,), device, tokens)
    assert_close(*compare(make(device, tokens), given, 2, backend="triton"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("lengths", "samples", "equal"),
    [((1,), 1, True), ((17,), 3, False), ((17, 13), 2, True), ((300,), 2, True)],
    ids=str,
)
def test_graphs_agree_with_boltz(lengths, samples, equal):
    assert_close(*compare(make("cuda"), trunk(lengths, "cuda"), samples, equal=equal))


@pytest.mark.gpu
def test_graphs_are_as_exact_as_boltz_with_its_channels():
    given = trunk((300,), "cuda", 384, heads=16)
    assert_as_exact(*compare(make("cuda", 384, heads=16), given, 2, equal=True))


def test_masks_keep_padding_out():
    model, given = make(), trunk((17, 13))
    inputs = noisy(given, 1)
    with bio.accelerated(model, backend="torch"):
        (found,) = results(run(model, given, 1), inputs)
        inputs[0][1, given["feats"]["atom_pad_mask"][1] == 0] += 1
        (other,) = results(run(model, given, 1), inputs)
    kept = given["feats"]["atom_pad_mask"].bool()
    torch.testing.assert_close(found[kept], other[kept], rtol=0, atol=1e-6)


def test_new_conditioning_is_noticed():
    model, inputs = make(), noisy(trunk((9,)), 1)
    bio.accelerate(model, backend="torch")
    for seed in range(2):
        given = trunk((9,))
        given["s_trunk"] = given["s_trunk"] + seed
        truth = exact(model, given, 1, inputs)
        bio.accelerate(model, backend="torch")
        for _ in range(2):
            (found,) = results(run(model, given, 1), inputs)
            torch.testing.assert_close(found, truth[0].float(), rtol=0, atol=1e-5)
            given["diffusion_conditioning"]["q"] += 0  # counts as a change


def test_changes_in_place_are_noticed():
    model, given = make(), trunk((9,))
    inputs = noisy(given, 1)
    with bio.accelerated(model, backend="torch"), torch.no_grad():
        run(model, given, 1)(*inputs)
        given["diffusion_conditioning"]["token_trans_bias"].mul_(2)
        found = run(model, given, 1)(*inputs)
        model.a_norm.weight.mul_(2)
        changed = run(model, given, 1)(*inputs)
    assert not torch.equal(found, changed)
    model.a_norm.weight.data /= 2
    torch.testing.assert_close(found, results(run(model, given, 1), inputs)[0], rtol=0, atol=1e-5)


def test_a_run_is_forgotten_with_its_conditioning():
    model, given = make(), trunk((5,))
    bio.accelerate(model, backend="torch")
    results(run(model, given, 1), noisy(given, 1))
    tensors = tuple(given["diffusion_conditioning"].values())
    assert model.forward._last._value is not None
    copied = copy.deepcopy(model)
    assert copied.forward._last._value is None
    del given, tensors
    gc.collect()
    assert model.forward._last._value is None


@pytest.mark.parametrize(("memory", "captures"), [(2**40, 1), (0, 3)], ids=["kept", "freed"])
def test_a_run_replays_the_graph_of_one_before(memory, captures, monkeypatch, device):
    backend, model = capture_without_gpu(monkeypatch), make(device)
    monkeypatch.setattr(sampling, "total_memory", lambda _: memory)
    captured = mock.Mock(wraps=graph_cache.record)
    monkeypatch.setattr(graph_cache, "record", captured)
    runs = [trunk((9,), device) for _ in range(2)]
    runs[1]["diffusion_conditioning"]["token_trans_bias"] *= 2
    steps = [noisy(runs[0], 2, seed, equal=True) for seed in range(3)]

    def all_steps(given: dict[str, Any]) -> list[Tensor]:
        return [results(run(model, given, 2), inputs)[0] for inputs in steps]

    with bio.accelerated(model, backend=backend, cuda_graph=False):
        expected = [all_steps(given) for given in runs]
    assert not captured.called
    with bio.accelerated(model, backend=backend):
        for given, others in zip((*runs, runs[0]), (*expected, expected[0]), strict=True):
            assert all(map(torch.equal, all_steps(given), others))
        assert captured.call_count == captures


def test_steps_follow_autocast():
    model, given = make(), trunk((17,))
    inputs = noisy(given, 1)
    (own,) = results(run(model, given, 1), inputs)
    with torch.autocast("cpu", torch.bfloat16), bio.accelerated(model, backend="torch"):
        (found,) = results(run(model, given, 1), inputs)
        assert "bfloat16" in bio.report(model)[0].by
    torch.testing.assert_close(found.float(), own, rtol=0.1, atol=0.3)


@pytest.mark.gpu
def test_half_precision_is_as_exact_as_autocast():
    model, given = make("cuda"), trunk((100,), "cuda")
    inputs = noisy(given, 2)
    step, truth = run(model, given, 2), exact(model, given, 2, inputs)
    with torch.autocast("cuda", torch.bfloat16):
        own = results(step, inputs)
    with bio.accelerated(model, precision="bf16"):
        found = results(step, inputs)
    mask = torch.ones_like(inputs[0][..., 0])
    assert_as_exact(found, own, truth, (mask,), torch.bfloat16)


def test_restored_models_are_as_before():
    model, given = make(), trunk((5,))
    inputs = noisy(given, 1)
    own = results(run(model, given, 1), inputs)
    bio.accelerate(model, backend="torch")
    results(run(model, given, 1), inputs)
    bio.restore(model)
    assert "forward" not in vars(model)
    assert all(map(torch.equal, own, results(run(model, given, 1), inputs)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda given: given["feats"].pop("atom_pad_mask"),
            "conditioning is not that of the score network of Boltz-2",
        ),
        (lambda given: given["feats"]["token_pad_mask"].mul_(0.5), "other than 0 and 1"),
        (lambda given: given["feats"]["atom_to_token"].add_(1), "belongs to several tokens"),
        (lambda given: given["feats"]["atom_pad_mask"].zero_(), "all padding"),
        (
            lambda given: given["diffusion_conditioning"].update(to_keys=lambda x: x),
            "keys of windows are not",
        ),
        (
            lambda given: given["diffusion_conditioning"].update(
                to_keys=lambda x, own=given["diffusion_conditioning"]["to_keys"]: own(x).flip(1)
            ),
            "keys of windows are not",
        ),
        (
            lambda given: given.update(s_trunk=given["s_trunk"][:, 1:]),
            "does not fit to tokens or atoms",
        ),
    ],
)
def test_other_inputs_are_refused(change, reason):
    model, given = make(), trunk((5,))
    bio.accelerate(model, backend="torch")
    r, t = noisy(given, 1)
    inputs = {"r_noisy": r, "times": t}
    assert model.forward.refusal(given | inputs) is None
    assert "other sizes" in model.forward.refusal(given | inputs | {"multiplicity": 2})
    change(given)
    assert reason in model.forward.refusal(given | inputs)


def test_float64_is_computed_by_the_reference():
    model, given = make(), trunk((5,))
    wide = moved(given, "cpu", torch.float64)
    inputs = tuple(x.double() for x in noisy(given, 1))
    with in_float64(model):
        own = results(run(model, wide, 1), inputs)
        with bio.accelerated(model, backend="torch"):
            found = results(run(model, wide, 1), inputs)
    torch.testing.assert_close(found, own, rtol=0, atol=1e-11)
