"""``mlff-triton md``: runs, restarts, interrupts and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import ase.io
import pytest
import torch

import mlff_triton
from mlff_triton import save_model
from mlff_triton.cli.md import _on_device
from mlff_triton.dynamics import load_restart
from mlff_triton.dynamics.restart import save_restart
from mlff_triton.dynamics.systems import name_atom
from tests.support.checkpoints import native


def short(model, *more):
    return (
        "md",
        "ethanol.xyz",
        "--model",
        model,
        "--device",
        "cpu",
        "--every",
        4,
        "--reactive",
        *more,
    )


def contents(directory):
    return [(Path(directory) / name).read_bytes() for name in ("trajectory.xyz", "log.csv")]


def test_md_runs_stages_and_reports(run, model):
    code, out, err = run(
        *short(model, "--minimize", "--out", "runs/a"),
        *("--ensemble", "nvt", "--steps", 10, "--ensemble", "nve", "--steps", 12),
    )
    assert (code, err) == (0, "")
    for expected in ("22 of 22", "largest force", "stage 1-nvt", "eV/atom/ps", "ns/day"):
        assert expected in out
    names = sorted(path.name for path in Path("runs/a").iterdir())
    assert names == ["log.csv", "restart.npz", "summary.png", "trajectory.xyz"]
    stages = [frame.info["stage"] for frame in ase.io.read("runs/a/trajectory.xyz", index=":")]
    assert stages == ["1-nvt"] * 4 + ["2-nve"] * 4


def test_md_starts_from_the_shipped_structure(run, model):
    name = "alanine-dipeptide-water"
    code, _, _ = run("md", name, "--model", model, "--steps", 1, "--charge", 0, "--out", "a")
    assert code == 0
    assert len(ase.io.read("a/trajectory.xyz")) == 166


WRONG = {
    "no structure": ((), "give a STRUCTURE to simulate, or --restart FILE"),
    "missing file": (("absent.xyz",), "there is no structure 'absent.xyz'"),
    "not a number": (("nan.xyz",), "the position of atom 1 is NaN"),
    "unknown element": (("gold.xyz",), "the model does not know Au"),
    "no atoms": (("none.xyz",), "contains no atoms"),
    "one point": (("same.xyz",), "atoms 0 and 1 are 0.0e+00 Å apart"),
    "ensemble": (("ethanol.xyz", "--ensemble", "nph"), "use one of nve, nvt, npt"),
    "timestep": (("ethanol.xyz", "--timestep", "-0.5"), "timestep must be a positive number"),
    "steps": (("ethanol.xyz", "--steps", "0"), "at least one step"),
    "counts": (("ethanol.xyz", "--steps", "1", "--steps", "2"), "give one for all"),
    "vacuum": (("ethanol.xyz", "--ensemble", "npt"), "periodic in three directions"),
    "compressibility": (("ethanol.xyz", "--compressibility", "0"), "must be a positive number"),
    "barostat time": (("ethanol.xyz", "--barostat-time", "nan"), "must be a positive number"),
    "charge": (("ethanol.xyz", "--charge", "0.5"), "Invalid value for '--charge'"),
    "dtype": (("ethanol.xyz", "--dtype", "float16"), "use one of float32, float64"),
    "device": (("ethanol.xyz", "--device", "gpu"), "use 'auto', 'cpu' or 'cuda'"),
    "devices": (("ethanol.xyz", "--device", "cpu,cpu"), "2 devices cannot share 1 simulation"),
    "some device": (
        ("ethanol.xyz", "--replicas", "2", "--device", "cpu,gpu"),
        "device='gpu' is unknown: use 'auto', 'cpu' or 'cuda'",
    ),
    "option": (("ethanol.xyz", "--presure", "3"), "No such option: --presure"),
    "another": (("ethanol.xyz", "more.xyz"), "there is no structure 'more.xyz'"),
    "replicas": (("ethanol.xyz", "--replicas", "0"), "--replicas must be 1 to 100,000, not 0"),
    "countless": (("ethanol.xyz", "--replicas", "2147483648"), "must be 1 to 100,000, not 2147483"),
    "ladder": (("ethanol.xyz", "--temperature", "300:400"), "needs two or more --replicas"),
    "temperature": (("ethanol.xyz", "--temperature", "hot"), "a number, or LOWEST:HIGHEST"),
    "exchange": (("ethanol.xyz", "--exchange-every", "5"), "two or more are needed"),
    "thermostat": (("ethanol.xyz", "--thermostat", "nose"), "use one of langevin, rescaling"),
    "format": (("ethanol.xyz", "--trajectory", "pdb"), "use one of xyz, dcd, xtc"),
    "mass": (("ethanol.xyz", "--hydrogen-mass", "9"), "leaves atom"),
    "file as directory": (("ethanol.xyz", "--out", "gold.xyz"), "gold.xyz is a file"),
    "below a file": (("ethanol.xyz", "--out", "gold.xyz/x"), "cannot write gold.xyz/x"),
    "occupied": (
        ("ethanol.xyz", "--out", "."),
        "is not empty: choose another --out, or use --overwrite",
    ),
    "temperatures": (
        ("ethanol.xyz", *("--temperature", "300") * 2),
        "1 ensembles and 2 temperatures: give one for all",
    ),
    "extension": (("ethanol.xyz", "--extend", "5"), "--extend needs --restart"),
    "threads": (("ethanol.xyz", "--threads", "0"), "threads must be at least 1"),
    "no restart": (("--restart", "absent.npz"), "there is no restart file 'absent.npz'"),
    "bad restart": (("--restart", "gold.xyz"), "not a valid restart file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_in_md_take_one_line(run, model, case):
    for name, text in {
        "nan.xyz": "2\n\nH 0 0 0\nH nan 0 0\n",
        "gold.xyz": "1\n\nAu 0 0 0\n",
        "none.xyz": "0\n\n",
        "same.xyz": "2\n\nH 0 0 0\nH 0 0 0\n",
    }.items():
        Path(name).write_text(text)
    before = sorted(Path().iterdir())
    arguments, message = WRONG[case]
    code, out, err = run("md", "--model", model, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mlff-triton: error: ")
    assert message in err
    assert sorted(Path().iterdir()) == before


def test_restart_needs_nothing_else_and_accepts_no_contradiction(run, model):
    plan = ("--ensemble", "nvt", "--ensemble", "nve", "--steps", 6, "--out", "a")
    assert run(*short(model, *plan))[0] == 0
    before = contents("a")
    again = ("md", "--restart", "a/restart.npz")
    assert run(*again)[0] == 0
    same = ("--steps", 6, "--every", 4, "--model", model, "--out", "a", "--ensemble", "nvt")
    assert run(*again, *same, "--ensemble", "nve")[0] == 0
    assert contents("a") == before
    for more, message in (
        (("--temperature", 310), "--temperature contradicts the restart file, which says 300.0"),
        (("--steps", 7), "--steps contradicts"),
        (("--ensemble", "nve"), "--ensemble contradicts"),
        (("--charge", 1), "--charge contradicts"),
        (("--minimize",), "--minimize contradicts"),
        (("--out", "b"), "--out contradicts"),
        (("--overwrite",), "leave out overwrite"),
        (("ethanol.xyz",), "leave out structure"),
    ):
        code, _, err = run(*again, *more)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_conditions_of_stages_and_extensions(run, model):
    """Values that are given once per stage, and a stage that goes on."""
    plan = ("--ensemble", "nvt", "--ensemble", "nvt", "--steps", 6, "--threads", 1)
    heated = (*plan, "--temperature", 100, "--temperature", 200)
    assert run(*short(model, *heated, "--out", "a"))[0] == 0
    targets = [row.split(",")[3] for row in Path("a/log.csv").read_text().splitlines()[1:]]
    assert targets == ["100.0000"] * 3 + ["200.0000"] * 2
    again = ("md", "--restart", "a/restart.npz")
    code, _, err = run(*again, "--temperature", 100)
    assert (code, "which says 100.0, 200.0: leave it out" in err) == (2, True)
    same = ("--temperature", 100, "--temperature", 200, "--threads", 1)
    assert run(*again, *same, "--extend", 5)[0] == 0
    steps = ("--ensemble", "nvt", "--ensemble", "nvt", "--steps", 6, "--steps", 11)
    assert run(*short(model, *steps, *same, "--out", "whole"))[0] == 0
    assert contents("a") == contents("whole")


def test_frames_and_failures_name_their_inputs(run, model):
    """Also after a restart; a file alone needs no name."""
    Path("other one.xyz").write_bytes(Path("ethanol.xyz").read_bytes())
    inputs = ["ethanol.xyz", "other one.xyz"]
    plan = ("--model", model, "--device", "cpu", "--reactive", "--every", 4, "--steps", 4)
    assert run("md", *inputs, *plan, "--replicas", 2, "--out", "a")[0] == 0
    assert run("md", "--restart", "a/restart.npz", "--extend", 4)[0] == 0
    for k in range(4):
        frames = ase.io.read(f"a/trajectory-00{k}.xyz", index=":")
        assert [frame.info["input"] for frame in frames] == [inputs[k // 2]] * 3
    systems = load_restart("a/restart.npz").systems
    assert name_atom(20, systems) == "atom 2 (O) of replica 2 (other one.xyz)"
    assert run(*short(model, "--steps", 4, "--out", "b"))[0] == 0
    assert "input" not in ase.io.read("b/trajectory.xyz").info


def test_a_cell_can_be_dropped(run, model):
    atoms = ase.io.read("ethanol.xyz")
    atoms.set_cell([20.0, 20.0, 20.0])
    atoms.set_pbc(True)
    ase.io.write("ethanol.xyz", atoms, format="extxyz")
    assert run(*short(model, "--steps", 4, "--out", "box"))[0] == 0
    assert run(*short(model, "--steps", 4, "--out", "vacuum", "--no-pbc"))[0] == 0
    for name, is_periodic in (("box", True), ("vacuum", False)):
        assert ase.io.read(f"{name}/trajectory.xyz").pbc.all() == is_periodic
        code, _, err = run("md", "--restart", f"{name}/restart.npz", "--no-pbc")
        assert (code, "--no-pbc contradicts" in err) == ((2, True) if is_periodic else (0, False))


def interrupted(number, arguments, log):
    """Send a signal to all processes of a command once it has logged some steps, as Ctrl-C does."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(mlff_triton.__file__).parents[1]),
    }
    process = subprocess.Popen(  # noqa: S603
        [
            *(sys.executable, "-c", "from mlff_triton.cli.main import main; main()"),
            *map(str, arguments),
        ],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") > 4):
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    return out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_continues_exactly(run, model, number):
    plan = ("--ensemble", "nvt", "--ensemble", "nve", "--steps", 50, "--every", 7)
    out = interrupted(number, short(model, *plan, "--out", "broken"), Path("broken/log.csv"))
    assert "mlff-triton md --restart broken/restart.npz" in out
    assert Path("broken/summary.png").exists()

    assert run("md", "--restart", "broken/restart.npz")[0] == 0
    assert run(*short(model, *plan, "--out", "unbroken"))[0] == 0
    assert contents("broken") == contents("unbroken")


def test_devices_share_replicas_also_after_an_interruption(run, model):
    plan = ("--replicas", 3, "--steps", 60, "--threads", 1, "--temperature", "300:330")
    divided = (*short(model, *plan), "--device", "cpu,cpu", "--out", "broken")
    out = interrupted(signal.SIGINT, divided, Path("broken/log-000.csv"))
    assert "stopped at step" in out
    assert recipe_of("broken")["device"] == "cpu,cpu"
    assert run("md", "--restart", "broken/restart.npz")[0] == 0
    assert run(*short(model, *plan, "--out", "whole"))[0] == 0
    for path in Path("whole").glob("*.csv"):
        assert (Path("broken") / path.name).read_bytes() == path.read_bytes()


def recipe_of(directory: str) -> dict[str, str]:
    return load_restart(f"{directory}/restart.npz").recipe


def test_a_restart_stays_on_its_kind_of_device(run, model, monkeypatch):
    """A run that found a GPU by itself does not go on with a CPU unless it is told to."""
    plan = ("--steps", 6, "--out", "a", "--device", "auto")
    assert run(*short(model, *plan))[0] == 0
    assert recipe_of("a")["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    again = ("md", "--restart", "a/restart.npz")
    code, out, _ = run(*again, "--device", recipe_of("a")["device"])
    assert (code, "last bits" in out) == (0, False)

    snapshot = load_restart("a/restart.npz")
    recipe = snapshot.recipe | {"device": "cuda:0"}
    save_restart(replace(snapshot, recipe=recipe), Path("a/restart.npz"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, _, err = run(*again)
    assert (code, err.count("\n")) == (2, 1)
    assert "comes from a run with --device cuda:0, which is not usable here" in err
    code, out, _ = run(*again, "--device", "cpu", "--extend", 2)
    assert (code, "the last bits differ" in out) == (0, True)
    assert recipe_of("a")["device"] == "cpu"


def test_a_restart_goes_on_with_the_gpu_that_is_named(run, model, monkeypatch):
    assert run(*short(model, "--steps", 6, "--out", "a"))[0] == 0
    path = Path("a/restart.npz")
    snapshot = load_restart(path)
    snapshot = replace(snapshot, recipe=snapshot.recipe | {"device": "cuda"})
    monkeypatch.setattr("mlff_triton._common.devices.find_device", torch.device)
    assert _on_device(snapshot, path, None).recipe["device"] == "cuda"
    assert _on_device(snapshot, path, "cuda:1").recipe["device"] == "cuda:1"


def test_a_restart_needs_the_same_weights(run, model):
    assert run(*short(model, "--steps", 6, "--out", "a"))[0] == 0
    path = Path(recipe_of("a")["model"])
    content = path.read_bytes()
    save_model(native(num_layers=2), path)
    code, _, err = run("md", "--restart", "a/restart.npz", "--extend", 4)
    assert (code, err.count("\n")) == (2, 1)
    assert "has other weights than when the run began" in err
    path.write_bytes(content)
    assert run("md", "--restart", "a/restart.npz", "--extend", 4)[0] == 0


def test_a_restart_takes_further_stages(run, model):
    """Steps with an ensemble or a temperature follow the plan; the same command again does not."""
    plan = ("--steps", 6, "--threads", 1)
    assert run(*short(model, *plan, "--out", "a"))[0] == 0
    again = ("md", "--restart", "a/restart.npz")
    further = ("--steps", 5, "--temperature", 350, "--ensemble", "nvt")
    assert run(*again, *further)[0] == 0
    done = contents("a")
    assert run(*again, *further)[0] == 0
    assert contents("a") == done
    planned = ("--ensemble", "nvt", "--ensemble", "nvt", "--steps", 6, "--steps", 5)
    heated = ("--temperature", 300, "--temperature", 350, "--threads", 1)
    assert run(*short(model, *planned, *heated, "--out", "whole"))[0] == 0
    assert contents("whole") == done
    assert run(*again, "--steps", 4, "--ensemble", "nve")[0] == 0
    assert Path("a/log.csv").read_text().splitlines()[-1].split(",")[2] == "3-nve"
    for more, message in (
        (("--temperature", 310), "add --steps for a further stage with it"),
        (("--steps", 99), "use --extend for a longer last stage"),
        (("--steps", 9, "--ensemble", "npt"), "npt needs a cell"),
    ):
        code, _, err = run(*again, *more)
        assert (code, err.count("\n"), message in err) == (2, 1, True)


def test_velocities_of_a_structure_are_kept_or_said_to_be_drawn_anew(run, model):
    assert run(*short(model, "--steps", 4, "--out", "a"))[0] == 0
    frame = ase.io.read("a/trajectory.xyz")
    Path("ethanol.xyz").write_bytes(Path("a/trajectory.xyz").read_bytes())
    code, out, _ = run(*short(model, "--steps", 1, "--out", "drawn"))
    assert (code, "velocities are drawn anew: --keep-velocities takes" in out) == (0, True)
    kept = ("--steps", 1, "--keep-velocities", "--out", "kept")
    code, out, _ = run(*short(model, *kept))
    assert (code, "drawn anew" in out) == (0, False)
    first = ase.io.read("kept/trajectory.xyz", index=0)
    assert abs(first.get_momenta() - frame.get_momenta()).max() < 1e-7


@pytest.mark.filterwarnings("ignore::mlff_triton.dynamics.failures.TimeStepWarning")
def test_a_run_that_falls_apart_is_an_error(run):
    code, _, err = run("md", "ethanol.xyz", "--timestep", 50, "--steps", 200, "--device", "cpu")
    assert (code, err.count("\n")) == (2, 1)
    assert "the simulation blew up " in err
    assert Path("md/trajectory.xyz").exists()
    assert Path("md/log.csv").exists()
