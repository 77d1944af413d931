"""Runs that go on: with further stages, in another format, and from velocities that are given."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.emt import EMT

from mlff_triton.dynamics import Settings, Simulation, Stage, draw_summary, load_restart
from mlff_triton.dynamics.outputs import RESTART
from mlff_triton.dynamics.summary import energy_drift, read_log
from mlff_triton.dynamics.systems import repartition_masses
from mlff_triton.errors import InputError
from tests.support.springs import Springs, stop_at

OLD = Path(__file__).parent / "data" / "format_2.npz"
"""Restart file of the version before fixed atoms, after 7 of 40 steps of nve, nvt and npt."""
OLD_LOG = """\
step,time_ps,stage,target_K,temperature_K,potential_eV,kinetic_eV,total_eV,conserved_eV,volume_A3,\
pressure_bar
0,0,1-nve,100.0000,192.4122,-0.022726045,0.099484747,0.076758701,0.076758701,47.045881,-19561.7919
5,0.01,1-nve,100.0000,169.7050,-0.010970457,0.087744218,0.076773761,0.076773761,47.045881,-18282.71\
28
"""
FIRST = (Stage("nvt", 14),)
FURTHER = (Stage("nvt", 9, 350.0), Stage("nve", 7))


def start(folder, atoms=None, **options):
    atoms = molecule("H2O") if atoms is None else atoms
    settings = Settings(**{"stages": FIRST, "every": 5, "friction": 100.0} | options)
    return Simulation.start(atoms, Springs(molecule("H2O").positions), settings, folder)


def resume(folder, snapshot=None, **options):
    snapshot = snapshot or load_restart(folder / RESTART)
    return Simulation.resume(snapshot, Springs(molecule("H2O").positions), folder, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows(folder):
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("stop", [None, 8])
def test_further_stages_equal_planned_ones(tmp_path, stop):
    """They follow a run that is complete, or one that has yet to end."""
    assert start(tmp_path / "planned", stages=FIRST + FURTHER).run()
    first = start(tmp_path / "first")
    first.run(**({} if stop is None else {"should_stop": stop_at(first, stop), "block": 1}))
    snapshot = load_restart(tmp_path / "first" / RESTART).continued(*FURTHER)
    assert resume(tmp_path / "first", snapshot).run()
    assert contents(tmp_path / "first") == contents(tmp_path / "planned")
    stages = dict.fromkeys(
        (row["stage"], float(row["target_K"])) for row in rows(tmp_path / "first")
    )
    assert list(stages) == [("1-nvt", 300.0), ("2-nvt", 350.0), ("3-nve", 300.0)]


def test_further_stages_must_suit_the_systems(tmp_path):
    start(tmp_path / "run").run()
    with pytest.raises(InputError, match="npt needs a cell"):
        load_restart(tmp_path / "run" / RESTART).continued(Stage("npt", 5))


def test_targets_follow_a_ramp(tmp_path):
    """In the log, and in frames; further stages keep their temperature."""
    start(tmp_path / "run", heat_from=30.0, stages=(*FIRST, Stage("nvt", 6))).run()
    found = {int(row["step"]): float(row["target_K"]) for row in rows(tmp_path / "run")}
    for step, target in found.items():
        expected = 300.0 if step >= 14 else 30 + 270 * step / 14
        assert target == pytest.approx(expected, abs=1e-3)
    frames = ase.io.read(tmp_path / "run" / "trajectory.xyz", index=":")
    assert [frame.info["target_K"] for frame in frames] == pytest.approx(list(found.values()))


@pytest.mark.parametrize(("old", "new"), [("xyz", "dcd"), ("dcd", "xyz"), ("xtc", "xyz")])
def test_a_run_goes_on_in_another_format(tmp_path, old, new):
    """The old file keeps its frames, the new one has those that follow, and the log has all."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    start(whole).run()
    first = start(folder, trajectory=old)
    first.run(should_stop=stop_at(first, 10), block=1)
    before = (folder / f"trajectory.{old}").read_bytes()
    with (folder / f"trajectory.{old}").open("ab") as file:
        file.write(b"half a frame")
    again = resume(folder, trajectory=new)
    again.run(should_stop=stop_at(again, 12), block=1)
    assert resume(folder).run()
    assert (folder / f"trajectory.{old}").read_bytes() == before
    assert (folder / "log.csv").read_bytes() == (whole / "log.csv").read_bytes()
    assert (folder / "topology.pdb").exists()
    if new == "xyz":
        last = ase.io.read(whole / "trajectory.xyz", index=":")[3:]
        found = ase.io.read(folder / "trajectory.xyz", index=":")
        assert [frame.info["step"] for frame in found] == [14]
        np.testing.assert_array_equal(found[0].positions, last[0].positions)
    with pytest.raises(InputError, match="holds an earlier part"):
        resume(folder, trajectory=old)


def test_velocities_can_be_kept(tmp_path):
    atoms = molecule("H2O")
    with pytest.raises(InputError, match="has no velocities: leave out --keep-velocities"):
        start(tmp_path / "none", keep_velocities=True)
    with pytest.raises(InputError, match="minimize takes velocities away"):
        Settings(keep_velocities=True, minimize=True)
    velocities = np.random.default_rng(0).normal(0, 0.01, (3, 3))
    atoms.set_velocities(velocities)
    start(tmp_path / "kept", atoms, keep_velocities=True).run()
    start(tmp_path / "drawn", atoms).run()
    start(tmp_path / "random").run()
    assert contents(tmp_path / "drawn") == contents(tmp_path / "random")
    frame = ase.io.read(tmp_path / "kept" / "trajectory.xyz", index=0)
    np.testing.assert_allclose(frame.get_velocities(), velocities, rtol=0, atol=1e-7)
    repartition_masses(atoms, 3.0)
    np.testing.assert_allclose(atoms.get_velocities(), velocities, rtol=1e-12)


def test_settings_of_older_restarts_are_complete():
    """Settings that were added since have their defaults."""
    values = Settings().to_dict()
    for name in ("keep_velocities", "reactive"):
        del values[name]
    assert Settings.from_dict(values) == replace(Settings())


def test_information_of_structures_is_in_all_frames(tmp_path):
    """A run that is continued writes what an unbroken one does."""
    atoms = molecule("H2O")
    atoms.info |= {"name": "two words", "id": "007", "weights": np.array([0.1, 1 / 3]), "charge": 0}
    start(tmp_path / "whole", atoms).run()
    first = start(tmp_path / "broken", atoms)
    first.run(should_stop=stop_at(first, 7), block=1)
    assert resume(tmp_path / "broken").run()
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    for frame in ase.io.read(tmp_path / "broken" / "trajectory.xyz", index=":"):
        assert (frame.info["name"], frame.info["id"]) == ("two words", "007")
        np.testing.assert_array_equal(frame.info["weights"], atoms.info["weights"])


def test_runs_of_the_last_format_go_on(tmp_path):
    """In nve and nvt, as that version would have; in npt, with the barostat of this one."""
    shutil.copy(OLD, tmp_path / RESTART)
    (tmp_path / "log.csv").write_text(OLD_LOG)
    snapshot = load_restart(tmp_path / RESTART)
    (tmp_path / "trajectory.xyz").write_bytes(b" " * snapshot.sizes["trajectory.xyz"])
    assert Simulation.resume(snapshot, EMT(), tmp_path).run()
    found = {row["step"]: row for row in rows(tmp_path)}
    assert list(found) == [str(step) for step in range(0, 41, 5)]
    assert found["10"]["potential_eV"] == "0.018467504"
    assert found["20"]["potential_eV"] == "0.068653933"
    assert found["20"]["conserved_eV"] == "0.076864032"
    assert all(np.isfinite(float(row["conserved_eV"])) for row in found.values())
    assert float(found["40"]["volume_A3"]) != float(found["20"]["volume_A3"])
    assert load_restart(tmp_path / RESTART).settings == snapshot.settings


def test_rows_without_a_conserved_energy_count_in_no_drift(tmp_path):
    """Earlier versions left it out in npt."""
    assert start(tmp_path / "run", stages=(*FIRST, Stage("nve", 20))).run()
    log = tmp_path / "run" / "log.csv"
    header, *lines = [line.split(",") for line in log.read_text().splitlines()]
    expected = [energy_drift(record, 3) for record in read_log(log)]
    column = header.index("conserved_eV")
    for line in lines[: lines.index(next(line for line in lines if line[2] == "2-nve"))]:
        line[column] = ""
    lines.insert(-5, [*lines[-5][:column], "", *lines[-5][column + 1 :]])
    log.write_text("\n".join(map(",".join, [header, *lines])) + "\n")
    assert [energy_drift(record, 3) for record in read_log(log)] == [None, expected[1]]
    draw_summary(tmp_path / "run", 3)
