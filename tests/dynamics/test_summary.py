"""Summary of a run: drift, progress, table and figure."""

from __future__ import annotations

import io

import numpy as np
import pytest
from ase.build import molecule
from rich.console import Console

from mlff_triton._common import progress
from mlff_triton.dynamics import (
    Settings,
    Simulation,
    Stage,
    draw_summary,
    report,
)
from mlff_triton.dynamics.outputs import LOG, SUMMARY
from mlff_triton.dynamics.summary import StageRecord, energy_drift, read_log
from tests.support.springs import Springs


def test_drift_is_the_slope_of_least_squares():
    rng = np.random.default_rng(6)
    time = np.linspace(1, 3, 50)
    total = -1000 + 0.3 * time + 0.01 * rng.standard_normal(50)
    (slope, _), covariance = np.polyfit(time, total / 10, 1, cov=True)
    drift = energy_drift(StageRecord("1-nve", time, time, total, total), n_atoms=10)
    assert drift.slope == pytest.approx(slope)
    assert drift.error == pytest.approx(np.sqrt(covariance[0, 0]))
    short = StageRecord("1-nve", time[:2], time[:2], total[:2], total[:2])
    assert energy_drift(short, n_atoms=10) is None


@pytest.mark.parametrize("terminal", [True, False])
def test_report_and_picture(tmp_path, monkeypatch, terminal):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nvt", 20), Stage("nve", 20)), every=5, minimize=True)
    simulation = Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path)
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100)
    with report.Reporter(console, settings, simulation.step) as reporter:
        simulation.run(reporter)
    console.print(report.summary_table(simulation, reporter))
    shown = text.getvalue()
    for expected in ("ns/day", "eV", " K", "2-nve", "eV/atom/ps", "largest force 0.000 eV/Å"):
        assert expected in shown
    assert ("2-nve: step 40 of 40" in shown) == (not terminal)

    draw_summary(tmp_path, len(atoms))
    assert (tmp_path / SUMMARY).read_bytes().startswith(b"\x89PNG")
    assert [record.label for record in read_log(tmp_path / LOG)] == ["1-nvt", "2-nve"]
