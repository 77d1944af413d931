from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from mlff_triton._common import timing
from mlff_triton._common.timing import measure


def test_quantiles(monkeypatch):
    durations = itertools.chain([1.0], np.linspace(0.001, 0.101, 101))
    monkeypatch.setattr(timing, "_wall_time", lambda *_args: next(durations))
    found = measure(lambda: None, "cpu", repeats=(101, 101))
    assert (found.p20, found.p50, found.p80) == pytest.approx((21, 51, 81))
    assert found.peak_mib is None


def test_warm_up_is_not_counted():
    calls = itertools.count()
    measure(lambda: next(calls), "cpu", warm_up=4, seconds=0.0, repeats=(5, 9))
    assert next(calls) == 4 + 1 + 5


def test_commit_without_git_comes_from_the_environment(monkeypatch):
    monkeypatch.setattr(timing.shutil, "which", lambda _name: None)
    monkeypatch.setenv("MLFF_TRITON_COMMIT", "fedcba9")
    assert timing.environment("cpu").commit == "fedcba9"


@pytest.mark.gpu
def test_a_gpu_is_timed_by_its_own_clock(gpu_lab):
    bandwidth = 2e3 * timing.COPY_BYTES / timing.copy_timing(gpu_lab.device).p50  # bytes/s
    assert 1e10 < bandwidth < 1e14
    timing.reset_peak(gpu_lab.device)
    x = torch.zeros(1 << 28, dtype=torch.uint8, device=gpu_lab.device)
    for options in ({}, {"flush": True}, {"wall": True}):
        found = measure(lambda: x.add_(1), gpu_lab.device, seconds=0.05, **options)
        assert 2 * x.nbytes / bandwidth * 1e3 / 3 < found.p50 < 50
        assert found.peak_mib >= 256
