"""The number of threads on a CPU: chosen by size, recorded, and the same after a restart."""

from __future__ import annotations

import os

import pytest
import torch
from ase.build import molecule

from mlff_triton._common.torch_settings import using_threads
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import RESTART
from mlff_triton.dynamics.threads import choose_threads, warn_if_busy
from tests.support.springs import Springs, stop_at


class Watching(Springs):
    """Springs that note PyTorch's number of threads, from the first evaluation of a run on."""

    def __init__(self, anchors):
        super().__init__(anchors)
        self.seen = set()

    def calculate(self, *given):
        self.seen.add(torch.get_num_threads())
        super().calculate(*given)


@pytest.fixture
def _eight():
    with using_threads(8):
        yield


@pytest.mark.usefixtures("_eight")
@pytest.mark.parametrize(("atoms", "threads"), [(1, 1), (255, 1), (256, 2), (800, 6), (9999, 8)])
def test_small_systems_get_few_threads(atoms, threads):
    assert choose_threads(atoms) == threads
    with using_threads(1):
        assert choose_threads(atoms) == 1


@pytest.mark.usefixtures("_eight")
@pytest.mark.parametrize(("given", "expected"), [(None, 1), (3, 3)])
def test_a_continued_run_uses_as_many_threads(tmp_path, given, expected):
    water = molecule("H2O")
    settings = Settings(stages=(Stage("nvt", 20),), every=5, minimize=True, threads=given)
    calculator = Watching(water.positions)
    simulation = Simulation.start(water, calculator, settings, tmp_path)
    assert not simulation.run(should_stop=stop_at(simulation, 10), block=1)
    assert calculator.seen == {expected}
    assert torch.get_num_threads() == 8
    with using_threads(5):
        calculator = Watching(water.positions)
        resumed = Simulation.resume(load_restart(tmp_path / RESTART), calculator, tmp_path)
        assert resumed.run()
        assert torch.get_num_threads() == 5
    assert calculator.seen == {expected}


@pytest.mark.parametrize(
    ("threads", "load", "warns"), [(2, 0.5, False), (2, 1.5, True), (1, 6, False)]
)
def test_other_busy_programs_are_named_once(monkeypatch, caplog, threads, load, warns):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    warn_if_busy.cache_clear()
    for _ in range(2):
        warn_if_busy(threads)
    expected = ["other programs keep 1.5 of 2 cores busy"] if warns else []
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == expected
    warn_if_busy.cache_clear()
