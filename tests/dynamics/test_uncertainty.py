"""Simulations with a model that knows its uncertainty: logs, trajectories, figures and stops."""

from __future__ import annotations

import csv
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, draw_summary, load_restart
from mlff_triton.dynamics.outputs import LogRow, Records
from mlff_triton.dynamics.settings import Stage
from mlff_triton.dynamics.summary import read_log
from mlff_triton.errors import InputError, SimulationError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from tests.support.tensornets import model_of, uncertain

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

BACKENDS = ["cpu", "torch"]
MODEL = uncertain(model_of(num_layers=1), 5, None)


HOT = {"steps": 30, "temperature": 1500.0, "seed": 2}
"""Settings of a run that becomes less certain in every step."""


def calculator(backend: str = "cpu", model=MODEL) -> TensorNetCalculator:
    return TensorNetCalculator(model, device="cpu", dtype="float64", backend=backend)


def settings(steps: int = 12, **changes: object) -> Settings:
    stages = (Stage("nve", steps),)
    usual = {"temperature": 200.0, "timestep": 0.2, "every": 4, "log_every": 2}
    return Settings(stages=stages, **{**usual, **changes})


def start(folder: Path, *systems: Atoms, backend: str = "cpu", **changes: object) -> Simulation:
    given = list(systems) or molecule("CH3OH")
    return Simulation.start(given, calculator(backend), settings(**changes), folder)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def known(atoms: Atoms) -> np.ndarray:
    return calculator().get_property("uncertainty", atoms.copy())


@pytest.mark.parametrize("backend", BACKENDS)
def test_logs_and_trajectories_hold_it(tmp_path, backend):
    assert start(tmp_path / "md", backend=backend).run()
    frames = ase.io.read(tmp_path / "md" / "trajectory.xyz", ":")
    rows = rows_of(tmp_path / "md" / "log.csv")
    assert len(rows) == 7
    of_frames = [row for row in rows if int(row["step"]) % 4 == 0]
    for atoms, row in zip(frames, of_frames, strict=True):
        expected = known(atoms)
        np.testing.assert_allclose(atoms.arrays["uncertainty"], expected, rtol=1e-5)
        largest = float(row["largest_uncertainty_eV_per_A"])
        assert largest == pytest.approx(expected.max(), rel=1e-4)
        assert float(row["mean_uncertainty_eV_per_A"]) == pytest.approx(expected.mean(), rel=1e-4)
    draw_summary(tmp_path / "md", 6)
    record = read_log(tmp_path / "md" / "log.csv")[0]
    assert np.isfinite(record.uncertainty).all()


def test_replicas_have_their_own(tmp_path):
    start(tmp_path / "md", molecule("CH3OH"), molecule("H2O")).run()
    for k in range(2):
        last = ase.io.read(tmp_path / "md" / f"trajectory-00{k}.xyz")
        np.testing.assert_allclose(last.arrays["uncertainty"], known(last), rtol=1e-5)
        row = rows_of(tmp_path / "md" / f"log-00{k}.csv")[-1]
        assert float(row["largest_uncertainty_eV_per_A"]) == pytest.approx(
            known(last).max(), rel=1e-4
        )


def test_frames_with_more_columns_hold_it(tmp_path):
    atoms = molecule("CH3OH")
    atoms.set_masses([12.0, 16.0, 2.0, 2.0, 2.0, 2.0])
    start(tmp_path / "md", atoms).run()
    last = ase.io.read(tmp_path / "md" / "trajectory.xyz")
    np.testing.assert_allclose(last.arrays["uncertainty"], known(last), rtol=1e-5)
    np.testing.assert_allclose(last.get_masses(), atoms.get_masses())


def test_logs_of_other_models_are_as_before(tmp_path):
    plain = calculator(model=model_of(num_layers=1))
    Simulation.start(molecule("CH3OH"), plain, settings(), tmp_path / "md").run()
    assert "uncertainty" not in (tmp_path / "md" / "log.csv").read_text()
    assert "uncertainty" not in ase.io.read(tmp_path / "md" / "trajectory.xyz").arrays
    assert LogRow.header() in (tmp_path / "md" / "log.csv").read_text()
    draw_summary(tmp_path / "md", 6)


def test_a_run_that_goes_on_keeps_its_columns(tmp_path):
    folder = tmp_path / "md"
    start(folder).run()
    snapshot = load_restart(folder / "restart.npz").extended(4)
    again = Simulation.resume(snapshot, calculator(), folder)
    assert again.run()
    rows = rows_of(folder / "log.csv")
    assert len(rows) == 9
    assert all(row["largest_uncertainty_eV_per_A"] for row in rows)


def test_logs_of_earlier_versions_keep_their_columns(tmp_path):
    start(tmp_path / "md").run()
    rows = rows_of(tmp_path / "md" / "log.csv")
    log = tmp_path / "old" / "log.csv"
    log.parent.mkdir()
    log.write_text(LogRow.header())
    sizes = {"log.csv": log.stat().st_size}
    records = Records(log.parent, settings(), 1, sizes, has_uncertainty=True)
    values = [*range(2), "1-nve", *range(8), 0.5, 0.25]
    records.log([LogRow(*values)])
    records.flush()
    lines = log.read_text().splitlines()
    assert [line.count(",") for line in lines] == [10, 10]
    assert len(rows[0]) == 13


def largest_by_step(folder: Path, backend: str) -> np.ndarray:
    """Return the largest uncertainty in each step of a run of its own."""
    start(folder, backend=backend, log_every=1, **HOT).run()
    column = "largest_uncertainty_eV_per_A"
    return np.array([float(row[column]) for row in rows_of(folder / "log.csv")])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_stops_in_the_first_step_above_the_limit(tmp_path, backend):
    largest = largest_by_step(tmp_path / "whole", backend)
    step = 17
    assert largest[step] > largest[:step].max()
    limit = float(largest[:step].max() + largest[step]) / 2
    run = start(tmp_path / "md", backend=backend, **HOT)
    with pytest.raises(
        SimulationError, match=rf"stopped in step {step}: the model expects"
    ) as seen:
        run.run(most_uncertain=limit)
    line = str(seen.value)
    assert "\n" not in line
    saved = ase.io.read(tmp_path / "md" / "uncertain.xyz")
    assert saved.info["step"] == step
    assert not saved.has("momenta")  # which would be those of an earlier step
    found = known(saved)
    np.testing.assert_allclose(saved.arrays["uncertainty"], found, rtol=1e-4)
    assert f"atom {found.argmax()}" in line
    assert found.max() == pytest.approx(largest[step], rel=1e-4)
    rows = rows_of(tmp_path / "md" / "log.csv")
    assert int(rows[-1]["step"]) < step
    snapshot = load_restart(tmp_path / "md" / "restart.npz")
    again = Simulation.resume(snapshot, calculator(backend), tmp_path / "md")
    assert again.run()  # without the limit


def test_a_run_may_stop_before_its_first_step(tmp_path):
    with pytest.raises(SimulationError, match="stopped in step 0: the model expects an error of"):
        start(tmp_path / "md").run(most_uncertain=1e-6)
    saved = ase.io.read(tmp_path / "md" / "uncertain.xyz")
    np.testing.assert_allclose(saved.positions, molecule("CH3OH").positions, atol=1e-7)


def test_runs_warn_once_of_an_atom_above_the_limit_of_the_model(tmp_path):
    largest = [known(molecule(name)).max() for name in ("CH3OH", "H2O")]
    limited = uncertain(model_of(num_layers=1), 5, float(sum(largest)) / 2)
    systems = [molecule("H2O"), molecule("CH3OH"), molecule("CH3OH")]
    strange = int(np.argmax(largest[::-1]))
    assert known(systems[1 - strange]).max() < limited.uncertainty_limit
    with pytest.warns(UnknownChemistryWarning, match="expects an error of") as seen:
        Simulation.start(systems, calculator(model=limited), settings(), tmp_path / "md").run()
    assert len(seen) == 1


def test_a_limit_that_is_never_reached_changes_nothing(tmp_path):
    for name, limit in (("plain", None), ("limited", 1e6)):
        assert start(tmp_path / name).run(most_uncertain=limit)
    for name in ("log.csv", "trajectory.xyz"):
        plain, limited = ((tmp_path / run / name).read_bytes() for run in ("plain", "limited"))
        assert plain == limited


def test_wrong_limits_are_refused_in_one_line(tmp_path):
    for k, limit in enumerate((0.0, -1.0, np.nan, np.inf)):
        with pytest.raises(InputError, match="must be above 0 eV/Å"):
            start(tmp_path / f"md{k}").run(most_uncertain=limit)
    plain = calculator(model=model_of(num_layers=1))
    run = Simulation.start(molecule("H2O"), plain, settings(), tmp_path / "plain")
    with pytest.raises(InputError, match="the model does not know its uncertainty"):
        run.run(most_uncertain=0.3)
