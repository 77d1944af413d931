"""Summary of a run: drift, progress, table and figure."""

from __future__ import annotations

import io
from unittest import mock

import numpy as np
import pytest
from ase.build import molecule
from matplotlib.figure import Figure
from rich.console import Console

from mlff_triton._common import progress
from mlff_triton.dynamics import Settings, Simulation, Stage, draw_summary, load_restart, report
from mlff_triton.dynamics.outputs import LOG, RESTART, SUMMARY
from mlff_triton.dynamics.preparation import Minimization
from mlff_triton.dynamics.summary import StageRecord, energy_drift, read_log, unsettled
from tests.support.figures import assert_nothing_is_clipped
from tests.support.springs import Springs


def stage(time, energy):
    return StageRecord(
        "1-nve", time, time, energy, energy, time, energy, *np.full((2, len(time)), np.nan)
    )


def test_drift_is_the_slope_of_least_squares():
    rng = np.random.default_rng(6)
    time = np.linspace(1, 3, 50)
    total = -1000 + 0.3 * time + 0.01 * rng.standard_normal(50)
    (slope, _), covariance = np.polyfit(time, total / 10, 1, cov=True)
    drift = energy_drift(stage(time, total), n_atoms=10)
    assert drift.slope == pytest.approx(slope)
    assert drift.error == pytest.approx(np.sqrt(covariance[0, 0]))
    assert energy_drift(stage(time[:2], total[:2]), n_atoms=10) is None


def test_a_stage_that_drifts_is_not_settled():
    rng = np.random.default_rng(0)
    time = np.linspace(0, 5, 40)
    still = [unsettled(stage(time, rng.standard_normal(40))) for _ in range(1000)]
    assert 970 < still.count(None) < 1000
    decay = 10 * np.exp(-time) + 0.05 * rng.standard_normal(40)
    assert unsettled(stage(time, decay)) > 2
    later = np.linspace(5, 25, 40)
    settled = stage(later, 10 * np.exp(-later) + 0.05 * rng.standard_normal(40))
    assert unsettled(settled) is None
    assert unsettled(stage(time[:39], 10 * time[:39])) is not None
    assert unsettled(stage(time[:38], 10 * time[:38])) is None
    assert unsettled(stage(time, np.ones(40))) is None


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
    records = read_log(tmp_path / LOG)
    assert [record.label for record in records] == ["1-nvt", "2-nve"]
    for record in records:
        np.testing.assert_allclose(record.target, 300)
        assert np.isnan(record.volume).all()


def test_speeds_are_those_of_all_steps_of_a_run_and_no_others(tmp_path, monkeypatch):
    """Each evaluation takes a second; those before the first step do not count."""
    atoms = molecule("CH3CH2OH")
    calculator = Springs(atoms.positions)
    seconds = mock.Mock(wraps=calculator.calculate)
    monkeypatch.setattr(calculator, "calculate", seconds)
    monkeypatch.setattr(report, "time", mock.Mock(monotonic=lambda: seconds.call_count))
    settings = Settings(stages=(Stage("nve", 40),), every=100, minimize=True)
    simulation = Simulation.start(atoms, calculator, settings, tmp_path)
    for steps in (40, 20):
        console = Console(file=io.StringIO())
        with report.Reporter(console, simulation.settings, simulation.step) as reporter:
            simulation.run(reporter)
        assert (reporter.steps_done, reporter.seconds) == (steps, steps)
        snapshot = load_restart(tmp_path / RESTART).extended(20)
        simulation = Simulation.resume(snapshot, calculator, tmp_path)


HEADER = (
    "step,time_ps,stage,target_K,temperature_K,potential_eV,kinetic_eV,total_eV,conserved_eV,"
    "volume_A3,pressure_bar"
)


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw the figure of a log, and return its panels."""

    def draw(rows):
        (tmp_path / LOG).write_text("\n".join([HEADER, *rows]) + "\n")
        figures = []

        def keep(figure, *_, **__):
            figures.append(figure)

        monkeypatch.setattr(Figure, "savefig", keep)
        draw_summary(tmp_path, 10)
        assert_nothing_is_clipped(figures[0])
        return figures[0].axes

    return draw


def test_a_minimization_has_a_bar_of_its_own():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with report.Reporter(console, Settings(stages=(Stage("nve", 40),)), 0) as reporter:
        reporter.minimizing(Minimization(37, 1.5))
        reporter._bar.refresh()
        assert "37/2000" in text.getvalue()
        assert "largest force 1.500" in text.getvalue()
        reporter.stepped(0)
        reporter.stepped(5)
        reporter._bar.refresh()
        assert "5/40" in text.getvalue()


def test_the_figure_shows_targets_energies_and_volume(drawn):
    vacuum = [f"{k},{k},1-nvt,250,300,{-k},1,1,1,," for k in range(50)]
    temperature, potential, _ = drawn(vacuum)
    assert [line.get_ydata()[0] for line in temperature.lines] == [300, 250]
    np.testing.assert_allclose(potential.lines[0].get_ydata()[:2], [4900, 4800])
    assert potential.get_title() == "not equilibrated: stage 1-nvt drifts"
    box = [f"{k},{k},1-npt,250,300,{(-1) ** k},1,1,,{100 + k},1" for k in range(50)]
    _, potential, _, volume = drawn(box)
    assert volume.lines[0].get_ydata()[-1] == 149
    assert potential.get_title() == ""
    assert len(drawn([row.replace("1-nvt", "1-nve") for row in vacuum])[0].lines) == 1


@pytest.mark.parametrize("n_stages", [1, 7, 30])
@pytest.mark.parametrize("scale", [1e-9, 1e7])
def test_nothing_of_the_figure_is_clipped(drawn, n_stages, scale):
    """Stages of one row are points, as they would not be seen as lines."""
    rows = [
        f"{k},{k * scale},{k}-nvt,250,{300 * scale},{-k * scale},1,1,{k},{100 + k},1"
        for k in range(1, n_stages + 1)
    ]
    panels = drawn(rows)
    assert all(line.get_marker() == "." for line in panels[1].lines[:n_stages])
