"""Processes that share batches take the steps of one, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from multiprocessing import active_children
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch

from mlff_triton import load_model
from mlff_triton._common.spawned import Spawned
from mlff_triton.errors import BackendError, InputError
from mlff_triton.training import run
from mlff_triton.training.ranks import ALONE, Ranks, _watched
from mlff_triton.training.run import train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from tests.support.labeled import labeled

SMALL = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0)
DATA = Data(("data.xyz",), valid=4, test=4)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ase.io.write("data.xyz", labeled(24), format="extxyz")


def train(out, device, settings, **options):
    return train_files(DATA, Path(out), SMALL, settings, device=device, **options)


def assert_alike(devices):
    """Compare trainings on one device and on several; batches of 5 have uneven shares."""
    settings = Settings(epochs=3, batch=5)
    one = train("one", devices[0], settings)
    many = train("many", ",".join(devices), settings)
    assert not torch.distributed.is_initialized()
    assert many.trainer.step == one.trainer.step == 9
    for row, other in zip(one.trainer.log, many.trainer.log, strict=True):
        for name in ("train_loss", "valid_loss", "valid_force_meV_per_A"):
            found, expected = getattr(other, name), getattr(row, name)
            assert found == pytest.approx(expected, rel=1e-3, nan_ok=True), name
    states = [load_model(Path(out, "model.safetensors")).state_dict() for out in ("one", "many")]
    assert not all(torch.equal(states[0][name], states[1][name]) for name in states[0])  # rounding
    for name, weight in states[0].items():
        if not name.startswith("readout.uncertainty"):
            torch.testing.assert_close(states[1][name], weight, rtol=1e-2, atol=1e-3)
    files = [{path.name for path in Path(out).iterdir()} for out in ("one", "many")]
    assert files[0] == files[1]


def test_processes_take_the_steps_of_one():
    assert_alike(["cpu", "cpu"])


@pytest.mark.gpu
@two_gpus
def test_gpus_take_the_steps_of_one():
    assert_alike(["cuda:0", "cuda:1"])


def test_an_interrupted_training_goes_on_with_all():
    settings = Settings(epochs=3, batch=5)
    whole = train("whole", "cpu,cpu", settings)
    steps = []
    train("parts", "cpu,cpu", settings, show=steps.append, stop=lambda: len(steps) == 4)
    assert len(steps) == 4
    said = []
    parts = train("parts", "cpu,cpu", settings, say=said.append)
    assert "continues after step 4 of 9" in said
    for row, other in zip(whole.trainer.log, parts.trainer.log, strict=True):
        assert np.array_equal(list(vars(row).values()), list(vars(other).values()), equal_nan=True)


@pytest.mark.gpu
@two_gpus
def test_gpus_stop_within_an_epoch():
    """A helper that left before its last step was done would let the others wait for ever."""
    steps = []
    stopped = train(
        "out",
        "cuda:0,cuda:1",
        Settings(epochs=999, batch=5),
        show=steps.append,
        stop=lambda: len(steps) == 400,
    )
    assert stopped.trainer.step == 400


@pytest.mark.parametrize(
    "devices", ["cpu,cpu", pytest.param("cuda:0,cuda:1", marks=[pytest.mark.gpu, two_gpus])]
)
def test_a_process_that_dies_ends_all(devices):
    def kill(trainer):
        if trainer.step == 2:
            (helper,) = active_children()
            os.kill(helper.pid, signal.SIGKILL)

    began, second = time.monotonic(), devices.split(",")[1]
    reason = f"^the training on {second} has ended, perhaps for lack of memory: the same command"
    with pytest.raises(BackendError, match=reason):
        train("out", devices, Settings(epochs=3000, batch=5), show=kill)
    assert time.monotonic() - began < 100
    assert not active_children()
    assert not torch.distributed.is_initialized()
    assert Path("out/checkpoint").exists()


def end(pipe, number):
    """End a process by a signal or an exit code."""
    del pipe
    if number < 0:
        os.kill(os.getpid(), -number)
    os._exit(number)


@pytest.mark.parametrize("number", [-signal.SIGKILL, 1])
def test_results_are_not_used_after_another_process_has_died(number):
    """A GPU that waits for it is freed, and what the GPU has computed is wrong."""
    ranks, cpu = Ranks(0, 2, threading.Event()), torch.device("cpu")
    process = Spawned(end, (number,), 1)
    with _watched([process], cpu, ranks):
        assert ranks.lost.wait(60)
    with pytest.raises(RuntimeError, match="another process has ended early"):
        ranks.settle(cpu)
    process.end()


def test_a_process_may_end_before_the_first():
    ranks, cpu = Ranks(0, 2, threading.Event()), torch.device("cpu")
    process = Spawned(end, (0,), 1)
    with _watched([process], cpu, ranks):
        assert not ranks.lost.wait(4)
        assert process.has_failed is False
    ranks.settle(cpu)
    process.end()


def test_wrong_states_are_not_saved(monkeypatch):
    """A training whose other process has died keeps its last checkpoint."""
    lost = threading.Event()
    monkeypatch.setattr(run, "together", lambda *_: nullcontext(Ranks(0, 1, lost)))
    saved = []

    def kill(trainer):
        saved.append(Path("out/checkpoint").stat().st_mtime_ns)
        if trainer.step == 5:
            lost.set()

    with pytest.raises(RuntimeError, match="another process has ended early"):
        train("out", "cpu", Settings(epochs=30, batch=5), show=kill)
    assert len(saved) == 5
    assert Path("out/checkpoint").stat().st_mtime_ns == saved[-1]


def test_errors_of_helpers_are_told(monkeypatch):
    """A helper says why it ended, here that its own GPU is missing."""
    monkeypatch.setattr(run, "find_devices", lambda _: [torch.device("cpu"), torch.device("meta")])
    with pytest.raises(BackendError, match=r"^the training on meta has ended, as .*meta"):
        train("out", "any", Settings(epochs=3000, batch=5))
    assert not active_children()


def test_a_script_that_starts_itself_again_is_told_so():
    """Python runs a script without a guard anew in each process that it starts."""
    Path("script.py").write_text(
        "from pathlib import Path\n"
        "from mlff_triton.training.run import train_files\n"
        "from mlff_triton.training.settings import Architecture, Data, Settings\n"
        "data = Data(('data.xyz',))\n"
        "train_files(data, Path('out'), Architecture(), Settings(), device='cpu,cpu')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "script.py"]
    found = subprocess.run(  # noqa: S603 - the command is ours
        command, check=False, env=environment, capture_output=True, text=True, timeout=100
    )
    assert found.returncode
    assert "the process for cpu ended as it started" in found.stderr.splitlines()[-1]


def test_errors_are_those_of_one_device():
    ase.io.write("data.xyz", labeled(3), format="extxyz")
    with pytest.raises(InputError, match="structures"):
        train("out", "cpu,cpu", Settings())
    assert not active_children()


def test_more_devices_than_structures_are_refused():
    message = "2 devices cannot share a batch of 1: use a larger --batch"
    with pytest.raises(InputError, match=message):
        train("out", "cpu,cpu", Settings(batch=1))


def test_one_process_shares_with_nobody():
    x = torch.arange(3.0)
    ALONE.add([x])
    assert x.tolist() == ALONE.share(x).tolist() == [0, 1, 2]
    assert [ALONE.agreed(answer) for answer in (False, True)] == [False, True]
    assert [Ranks(k, 2).share(x).tolist() for k in (0, 1)] == [[0, 2], [1]]
