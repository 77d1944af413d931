"""Runs that are extended equal runs that were planned to be as long."""

from __future__ import annotations

import pytest
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import RESTART, names
from mlff_triton.errors import InputError
from mlff_triton.testing import water_box
from tests.support.springs import Springs, stop_at


def start(folder, steps, **options):
    settings = Settings(stages=(Stage("nvt", 7), Stage("nvt", steps)), **options)
    water = molecule("H2O")
    systems = [water, water] if settings.exchange_every else water
    return Simulation.start(systems, Springs(water.positions), settings, folder)


def resume(folder, steps=0):
    snapshot = load_restart(folder / RESTART)
    snapshot = snapshot.extended(steps) if steps else snapshot
    return Simulation.resume(snapshot, Springs(molecule("H2O").positions), folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("trajectory", ["xyz", "dcd", "xtc"])
@pytest.mark.parametrize("end", [10, 12, 13, 14], ids=["row", "all", "none", "exchange"])
def test_an_extended_run_equals_a_longer_one(tmp_path, end, trajectory):
    """A frame and a row are only due at the old end, unless its step is a regular one."""
    options = {"every": 6, "log_every": 5, "trajectory": trajectory}
    if end == 14:
        options |= {"exchange_every": 2, "temperature": (300.0, 301.0)}
    assert start(tmp_path / "long", 30, **options).run()
    assert start(tmp_path / "short", end - 7, **options).run()
    before = contents(tmp_path / "short")
    assert resume(tmp_path / "short").run()
    assert contents(tmp_path / "short") == before
    assert resume(tmp_path / "short", 4).run()
    extended = resume(tmp_path / "short", 33 - end)
    assert not extended.run(should_stop=stop_at(extended, 20), block=1)
    assert resume(tmp_path / "short").run()
    assert contents(tmp_path / "short") == contents(tmp_path / "long")


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # of densities
@pytest.mark.gpu
def test_an_extended_run_on_a_gpu_equals_a_longer_one(tmp_path):
    calculator = TensorNetCalculator(device="cuda")
    for name, steps in (("long", 130), ("short", 70)):
        stages = (Stage("nvt", 50), Stage("npt", steps))
        settings = Settings(stages=stages, every=50)
        Simulation.start(water_box(64), calculator, settings, tmp_path / name).run()
    folder = tmp_path / "short"
    snapshot = load_restart(folder / RESTART).extended(60)
    assert snapshot.settings == load_restart(tmp_path / "long" / RESTART).settings
    assert Simulation.resume(snapshot, calculator, folder).run()
    assert contents(folder) == contents(tmp_path / "long")


def test_an_extension_survives_the_end_of_its_process(tmp_path):
    """The restart file fits its files before and after the first step."""
    start(tmp_path / "long", 20, every=6).run()
    start(tmp_path / "short", 10, every=6).run()
    resume(tmp_path / "short", 10)
    assert load_restart(tmp_path / "short" / RESTART).settings.total_steps == 27
    assert resume(tmp_path / "short").run()
    assert contents(tmp_path / "short") == contents(tmp_path / "long")


def test_extensions_that_cannot_be_exact_are_refused(tmp_path):
    water = molecule("H2O")
    settings = Settings(stages=(Stage("nvt", 7),), heat_from=10.0)
    Simulation.start(water, Springs(water.positions), settings, tmp_path).run()
    with pytest.raises(InputError, match="heats up in its last stage cannot be extended"):
        load_restart(tmp_path / RESTART).extended(5)
    with pytest.raises(InputError, match="at least one step, not -5"):
        load_restart(tmp_path / RESTART).extended(-5)


def test_stages_have_temperatures_of_their_own(tmp_path):
    """A continued run knows the temperature of its stage, and of the next one."""
    stages = (Stage("nvt", 10, 200.0), Stage("nvt", 10), Stage("nvt", 10, (50.0, 60.0)))
    settings = Settings(stages=stages, temperature=400.0, every=5, friction=500.0)
    water = molecule("H2O")
    systems, springs = [water, water], Springs(water.positions)
    Simulation.start(systems, springs, settings, tmp_path / "whole").run()
    for stop in (8, 10, 25):
        folder = tmp_path / f"{stop}"
        broken = Simulation.start(systems, springs, settings, folder)
        assert not broken.run(should_stop=stop_at(broken, stop), block=1)
        assert resume(folder).run()
        assert contents(folder) == contents(tmp_path / "whole")
    for k, last in ((0, 50), (1, 60)):
        log = (tmp_path / "whole" / names("log.csv", 2)[k]).read_text().splitlines()[1:]
        targets = [float(row.split(",")[3]) for row in log]
        assert targets == [200] * 3 + [400] * 2 + [last] * 2
    plain = Settings(stages=(Stage("nvt", 10),), temperature=200.0, every=5, friction=500.0)
    Simulation.start(systems, springs, plain, tmp_path / "first").run()
    first = (tmp_path / "first" / "trajectory-000.xyz").read_bytes()
    assert (tmp_path / "whole" / "trajectory-000.xyz").read_bytes().startswith(first)
    exchanging = Settings(stages=(Stage("nvt", 5, 200.0),), exchange_every=5)
    with pytest.raises(InputError, match="need the same ones in all stages"):
        Simulation.start(systems, springs, exchanging, tmp_path / "refused")
