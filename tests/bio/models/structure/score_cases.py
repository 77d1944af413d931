"""Tests of the score networks of several packages, and comparisons with float64."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core import graph_cache
from mlff_triton.bio.models.structure import sampling
from mlff_triton.bio.models.structure.remembered import tensors_in
from mlff_triton.testing.tf32 import tf32
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    assert_same_again,
    in_float64,
)
from tests.support.cpu_graphs import capture_without_gpu

Outputs = tuple[Tensor, ...]


@torch.no_grad()
def score(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """Return the output of a step in a tuple."""
    return (model(**given),)


def exact_score(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """Return the output of a step in float64."""
    with in_float64(model):
        return tuple(x.cpu() for x in score(model, _widened(given)))


def compare_scores(
    model: nn.Module, *several: dict[str, Any], **options: Any
) -> tuple[Outputs, Outputs, Outputs, Outputs]:
    """Return outputs of the accelerated model, the original, and float64, which must be close.

    Those for several inputs are joined, as the rounding errors of one are chance. The arguments for
    `assert_as_exact` end with masks that keep everything.
    """
    exact = [exact_score(model, given) for given in several]
    own = [score(model, given) for given in several]
    with bio.accelerated(model, **options):
        found = []
        for given in several:
            found.append(score(model, given))
            assert [part.state for part in bio.report(model)] == ["fast"]
            assert_same_again(found[-1], score, (model, given), options.get("backend"))
    for outputs in zip(found, own, exact, strict=True):
        assert_close(*outputs, (torch.ones(outputs[0][0].shape[:-1]),))
    first, second, third = map(_joined, (found, own, exact))
    return first, second, third, (torch.ones(len(third[0])),)


def _joined(outputs: list[Outputs]) -> Outputs:
    return (torch.cat([x.reshape(-1, 3) for (x,) in outputs]),)


def _widened(value: Any) -> Any:
    """Return nested tensors in float64, each only once, so that masks stay the same objects."""
    wide: dict[int, Tensor] = {}

    def widen(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: widen(each) for name, each in part.items()}
        if not isinstance(part, Tensor) or not part.is_floating_point():
            return part
        return wide.setdefault(id(part), part.double())

    return widen(value)


class ScoreTests:
    """Tests of a score network, whose package a subclass gives.

    Attributes
    ----------
    positions, level, trunk : str
        Names of arguments: noisy positions, noise levels, and tokens of the trunk.
    """

    positions: str
    level: str
    trunk: str

    def make(self, device: str = "cpu", *, wide: bool = False) -> nn.Module:
        """Build a network with random weights, with the channels of the package if ``wide``."""
        raise NotImplementedError

    def arguments(
        self, tokens: int, samples: int, device: str, *, wide: bool = False
    ) -> dict[str, Any]:
        """Return random arguments of a step."""
        raise NotImplementedError

    def levels(self, samples: int) -> Tensor:
        """Return different noise levels of samples."""
        raise NotImplementedError

    # 17 tokens have fewer atoms than a window has keys, 60 and 90 have more
    @pytest.mark.parametrize("size", [(1, 1), (17, 3), (60, 2), (90, 1)], ids=str)
    def test_results_are_those_of_the_package(self, size):
        compare_scores(self.make(), self.arguments(*size, "cpu"), backend="torch")

    def test_kernels_agree_with_the_package(self, device):
        several = [self.arguments(tokens, 2, device) for tokens in (9, 24)]
        compare_scores(self.make(device), *several, backend="triton")

    @pytest.mark.gpu
    def test_graphs_agree_with_the_package(self):
        sizes = (1, 16), (17, 3), (100, 4), (300, 5)
        compare_scores(self.make("cuda"), *(self.arguments(*size, "cuda") for size in sizes))

    @pytest.mark.gpu
    def test_graphs_are_as_exact_as_the_package_with_its_channels(self):
        several = [self.arguments(tokens, 3, "cuda", wide=True) for tokens in (60, 200)]
        assert_as_exact(*compare_scores(self.make("cuda", wide=True), *several))

    @pytest.mark.gpu
    def test_half_precision_is_as_exact_as_autocast(self):
        model = self.make("cuda", wide=True)
        given = self.arguments(100, 4, "cuda", wide=True)
        exact = exact_score(model, given)
        with torch.autocast("cuda", torch.bfloat16):
            own = score(model, given)
        with bio.accelerated(model, precision="bf16"):
            found = score(model, given)
            assert "bfloat16" in bio.report(model)[0].by
        masks = (torch.ones(exact[0].shape[:-1]),)
        assert_as_exact(found, own, exact, masks, torch.bfloat16)

    @pytest.mark.gpu
    def test_tf32_is_as_exact_as_the_package_with_it(self):
        model = self.make("cuda", wide=True)
        several = [self.arguments(tokens, 3, "cuda", wide=True) for tokens in (60, 200)]
        exact = _joined([exact_score(model, given) for given in several])
        with tf32(allowed=True):
            own = _joined([score(model, given) for given in several])
            with bio.accelerated(model):
                found = _joined([score(model, given) for given in several])
        masks = (torch.ones(len(exact[0])),)
        assert_as_exact(found, own, exact, masks)

    def test_the_setting_of_tf32_is_followed(self):
        model, given = self.make(), self.arguments(9, 2, "cpu")
        with bio.accelerated(model, backend="torch"):
            for allowed in (False, True, False):
                with tf32(allowed=allowed):
                    score(model, given)
                assert model.forward.weights.tf32 is allowed

    def test_samples_may_have_noise_levels_of_their_own(self):
        given = self.arguments(17, 3, "cpu") | {self.level: self.levels(3)}
        compare_scores(self.make(), given, backend="torch")

    def test_what_does_not_change_is_prepared_once(self, monkeypatch):
        model, given = self.make(), self.arguments(9, 2, "cpu")
        bio.accelerate(model, backend="torch")
        prepare = mock.Mock(wraps=model.forward.prepare)
        monkeypatch.setattr(model.forward, "prepare", prepare)
        found = score(model, given)
        noisy = given | {self.positions: given[self.positions] + 1}
        assert not torch.equal(score(model, noisy)[0], found[0])
        assert prepare.call_count == 1
        for changed in (given | {self.trunk: given[self.trunk] + 1}, given):
            found = score(model, changed)
            bio.restore(model)
            assert_close(found, score(model, changed), exact_score(model, changed), _all(found))
            bio.accelerate(model, backend="torch")

    def test_changes_are_noticed(self):
        model, given = self.make(), self.arguments(9, 2, "cpu")
        with bio.accelerated(model, backend="torch"):
            before = score(model, given)
            given[self.trunk] += 1
            changed = score(model, given)
            with torch.no_grad():
                next(model.parameters()).mul_(2)
            both = score(model, given)
        assert not torch.equal(before[0], changed[0])
        assert not torch.equal(changed[0], both[0])
        assert_close(both, score(model, given), exact_score(model, given), _all(both))

    def test_terms_are_forgotten_with_what_they_are_made_from(self):
        model, given = self.make(), self.arguments(9, 2, "cpu")
        bio.accelerate(model, backend="torch")
        score(model, given)
        kept = weakref.ref(model.forward._last._value)
        copied = copy.deepcopy(model)
        assert torch.equal(score(copied, given)[0], score(model, given)[0])
        del given[self.trunk]
        gc.collect()
        assert kept() is None

    @pytest.mark.parametrize(("memory", "captures"), [(2**40, 1), (0, 2)], ids=["kept", "freed"])
    def test_a_run_replays_the_graph_of_one_before(self, memory, captures, monkeypatch, device):
        backend, model = capture_without_gpu(monkeypatch), self.make(device)
        monkeypatch.setattr(sampling, "total_memory", lambda _: memory)
        first, second = (self.arguments(9, 2, device) for _ in range(2))
        second[self.trunk] = second[self.trunk] + 1
        captured = mock.Mock(wraps=graph_cache.record)
        monkeypatch.setattr(graph_cache, "record", captured)

        def run(given: dict[str, Any]) -> list[Tensor]:
            moved = (given | {self.positions: given[self.positions] + k} for k in range(3))
            return [score(model, each)[0] for each in moved]

        with bio.accelerated(model, backend=backend, cuda_graph=False):
            expected = run(first), run(second)
        assert not captured.called
        with bio.accelerated(model, backend=backend):
            assert all(map(torch.equal, run(first), expected[0]))
            assert all(map(torch.equal, run(second), expected[1]))
            assert captured.call_count == captures
            with torch.no_grad():
                next(model.parameters()).mul_(2)
            changed = run(second)
            assert captured.call_count == captures + 1
        with bio.accelerated(model, backend=backend, cuda_graph=False):
            assert all(map(torch.equal, run(second), changed))

    def test_inputs_are_not_overwritten(self):
        model, given = self.make(), self.arguments(9, 2, "cpu")
        tensors = list(tensors_in(given))
        before = [x.clone() for x in tensors]
        with bio.accelerated(model, backend="torch"):
            score(model, given)
            score(model, given)
        assert all(map(torch.equal, tensors, before))
        assert not any("forward" in vars(part) for part in model.modules())

    def test_other_inputs_are_refused(self):
        model, given = self.make(), self.arguments(9, 2, "cpu")
        bio.accelerate(model, backend="torch")
        forward = model.forward
        assert forward.refusal(given) is None
        for change, reason in (
            ({"use_conditioning": False}, "without conditioning"),
            ({self.positions: None}, "not tensors"),
            ({self.positions: given[self.positions][..., 0]}, "samples of one complex"),
            ({self.level: torch.ones(5)}, "samples of one complex"),
            ({self.level: torch.tensor([1, 2])}, "floating dtype"),
        ):
            assert reason in forward.refusal(given | change)
        refused = given | {"use_conditioning": False}
        with pytest.warns(bio.FallbackWarning, match="without conditioning"):
            found = score(model, refused)
        bio.restore(model)
        assert torch.equal(found[0], score(model, refused)[0])
        model.half()
        assert "not float32" in forward.refusal(given)


def _all(outputs: Outputs) -> Outputs:
    return tuple(torch.ones(x.shape[:-1]) for x in outputs)
