"""Runs that were interrupted, and whose files were damaged before they are continued."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from ase.build import molecule

from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import LOG, RESTART
from tests.fuzz.damage import EXTREMES, choice, damaged, extreme, make_special, replace_one
from tests.fuzz.kind import Facts, Finding, Kind
from tests.support.springs import Springs

STAGES = (Stage("nvt", 4), Stage("nve", 4))
STEPS = sum(stage.steps for stage in STAGES)
WHOLE, RUN = "whole", "run"


def calculator() -> Springs:
    """Return a calculator that takes next to no time."""
    return Springs(molecule("H2O").positions)


def interrupted(rng: np.random.Generator, folder: Path) -> Path:
    """Write a run and one that was interrupted, and return the directory of the second."""
    systems = [molecule("H2O")] * int(rng.integers(1, 3))
    settings = Settings(
        stages=STAGES, every=2, log_every=1, trajectory=choice(rng, ("xyz", "dcd", "xtc"))
    )
    Simulation.start(systems, calculator(), settings, folder / WHOLE).run(block=1)
    last = int(rng.integers(1, STEPS))
    simulation = Simulation.start(systems, calculator(), settings, folder / RUN)
    simulation.run(should_stop=lambda: simulation.step >= last, block=1)
    return folder / RUN


def undamaged(rng: np.random.Generator, folder: Path) -> Facts:
    """Change nothing."""
    interrupted(rng, folder)
    return {}


def bytes_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Damage the bytes of the restart file."""
    file = interrupted(rng, folder) / RESTART
    file.write_bytes(damaged(rng, file.read_bytes()))
    return {}


def array_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace an array by one of another shape or dtype, or with other values."""
    file = interrupted(rng, folder) / RESTART
    with np.load(file) as content:
        arrays = dict(content)
    name = choice(rng, arrays)
    array = arrays[name]
    options = [
        array[None],
        array.ravel()[:0],
        array.ravel()[:-1] if array.ndim else array,
        np.concatenate([array, array]) if array.ndim else array,
        array.astype(choice(rng, ("U9", object))),
        np.array(choice(rng, EXTREMES)),
    ]
    if array.ndim and array.dtype.kind in "iufb":
        options += [array.astype(np.complex128), array.astype(np.bool_)]
        with np.errstate(all="ignore"):
            other = array.copy().ravel()
            other[int(rng.integers(other.size))] += choice(rng, (1, 2, 3))
            options += [other.reshape(array.shape)] * 6
            options.append(array.astype(np.float64) * choice(rng, EXTREMES[:16]))
    arrays[name] = choice(rng, options)
    if rng.random() < 0.1:
        del arrays[name]
    np.savez(file, **arrays)
    return {}


def value_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace or remove a setting or another value."""
    file = interrupted(rng, folder) / RESTART
    with np.load(file) as content:
        arrays = dict(content)
    rest = json.loads(str(arrays["rest"]))
    replace_one(rng, rest, choice(rng, (extreme(rng), int(rng.integers(1, 20)), 0.25)))
    arrays["rest"] = np.array(json.dumps(rest))
    np.savez(file, **arrays)
    return {}


def records_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Cut, extend or remove a trajectory or a log."""
    file = any_record(rng, interrupted(rng, folder))
    content = file.read_bytes()
    action = choice(rng, ("cut", "extend", "remove"))
    if action == "cut":
        file.write_bytes(content[: int(rng.integers(len(content)))])
    elif action == "extend":
        file.write_bytes(content + choice(rng, (rng.bytes(100), content, b"\n")))
    else:
        file.unlink()
    return {"action": action}


def special_file(rng: np.random.Generator, folder: Path) -> Facts:
    """Put something that is not an ordinary file in place of a trajectory or a log."""
    file = any_record(rng, interrupted(rng, folder))
    file.unlink()
    return {"special": choice(rng, ("fifo", "directory", "loop", "zero")), "path": file.name}


def any_record(rng: np.random.Generator, directory: Path) -> Path:
    """Draw one of the logs and trajectories of a run."""
    suffixes = (".csv", ".xyz", ".dcd", ".xtc")
    return choice(rng, sorted(path for path in directory.iterdir() if path.suffix in suffixes))


def check(folder: Path, facts: Facts) -> None:
    """Continue the run, and compare its files with those of a run that was not interrupted."""
    if facts.get("special"):
        make_special(facts["special"], folder / RUN / facts["path"])
    before = contents(folder / RUN)
    try:
        snapshot = load_restart(folder / RUN / RESTART)
        simulation = Simulation.resume(snapshot, calculator(), folder / RUN)
    except Exception:
        if contents(folder / RUN) != before:
            raise Finding("a run that was refused has been changed") from None
        raise
    simulation.run()
    expected, found = contents(folder / WHOLE), contents(folder / RUN)
    for name, content in expected.items():
        if found.get(name) != content:
            raise Finding(f"{name} differs from that of a run that was not interrupted")


def contents(directory: Path) -> dict[str, bytes]:
    """Return the logs and trajectories in a directory."""
    stems = ("trajectory", Path(LOG).stem)
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.name.startswith(stems) and path.is_file() and not path.is_symlink()
    }


KIND = Kind(
    {
        "undamaged": undamaged,
        "bytes changed": bytes_changed,
        "array changed": array_changed,
        "value changed": value_changed,
        "records changed": records_changed,
        "special file": special_file,
    },
    check,
)
