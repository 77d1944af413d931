"""One writer per directory, and files that only their writer may change."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule

from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.lock import LOCK, DirectoryLock
from mlff_triton.dynamics.outputs import LOG, RESTART
from mlff_triton.errors import InputError, OutputError
from tests.support.springs import Springs, stop_at

TRAJECTORY = "trajectory.xyz"
SETTINGS = Settings(stages=(Stage("nve", 20),), every=5)
HOLDER = f"process {os.getpid()} on {socket.gethostname()} is computing in"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def start(folder, settings=SETTINGS, **options):
    atoms = molecule("H2O")
    return Simulation.start(atoms, Springs(atoms.positions), settings, folder, **options)


def resume(folder):
    snapshot = load_restart(folder / RESTART)
    return Simulation.resume(snapshot, Springs(molecule("H2O").positions), folder)


def test_a_directory_has_one_writer(tmp_path):
    """A second run is refused until the first one ends, and changes nothing."""
    live = start(tmp_path)
    before = contents(tmp_path)

    def intrude():
        for other in (lambda: start(tmp_path, overwrite=True), lambda: resume(tmp_path)):
            with pytest.raises(OutputError, match=HOLDER):
                other()
        return live.step >= 10

    intrude()
    assert contents(tmp_path) == before
    assert not live.run(should_stop=intrude, block=1)
    assert resume(tmp_path).run()
    assert not (tmp_path / LOCK).exists()


def test_a_run_that_fails_to_start_leaves_no_lock(tmp_path):
    simulation = start(tmp_path)
    simulation.run()
    (tmp_path / LOG).write_text("")
    with pytest.raises(OutputError, match="restore the original") as failure:
        resume(tmp_path)
    assert not (tmp_path / LOCK).exists()
    assert failure  # which keeps the objects of the refused run alive
    start(tmp_path, overwrite=True).run()


def test_two_starts_at_once_do_not_share_a_directory(tmp_path, monkeypatch):
    """The directory was empty when both checked it first."""
    lock = DirectoryLock.acquire

    def slow(self):
        monkeypatch.setattr(DirectoryLock, "acquire", lock)
        start(tmp_path).run()
        lock(self)

    monkeypatch.setattr(DirectoryLock, "acquire", slow)
    with pytest.raises(OutputError, match="is not empty"):
        start(tmp_path)


HOLD = """
import sys
from pathlib import Path
from mlff_triton.dynamics.lock import DirectoryLock

lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
print(flush=True)
sys.stdin.read()
"""


def test_a_killed_process_holds_no_lock(tmp_path):
    with subprocess.Popen(  # noqa: S603 - the command is above
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        with pytest.raises(OutputError, match=f"process {process.pid} on "):
            DirectoryLock(tmp_path).acquire()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK).exists()
    start(tmp_path).run()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.ENOSYS, errno.EIO])
def test_file_systems_without_locks(tmp_path, monkeypatch, reason):
    def flock(*_):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", flock)
    if reason == errno.EIO:
        with pytest.raises(OutputError, match=rf"cannot write .*\{LOCK}"):
            start(tmp_path)
    else:
        assert start(tmp_path).run()


@pytest.mark.parametrize("name", [TRAJECTORY, LOG])
def test_records_are_not_mixed_with_those_of_others(tmp_path, name):
    """Also where nothing can be locked, as on Windows."""
    simulation = start(tmp_path)
    simulation.run(should_stop=stop_at(simulation, 10), block=1)
    with (tmp_path / name).open("a") as file:
        file.write("from elsewhere\n")
    with pytest.raises(OutputError, match=rf"{name} has \d+ bytes instead of \d+"):
        simulation.run()
    assert (tmp_path / name).read_text().endswith("from elsewhere\n")
    assert resume(tmp_path).run()
    start(tmp_path / "whole").run()
    assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_refused_continuation_changes_nothing(tmp_path):
    """All files are checked before the first one is cut."""
    simulation = start(tmp_path)
    simulation.run(should_stop=stop_at(simulation, 12), block=1)
    (tmp_path / LOG).write_text("short")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"log\.csv has 5 bytes.*restore the original"):
        resume(tmp_path)
    assert contents(tmp_path) == before
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(OutputError, match="elsewhere"):
        Simulation.resume(load_restart(tmp_path / RESTART), Springs(np.zeros((3, 3))), elsewhere)
    assert not elsewhere.exists()


@pytest.mark.parametrize("name", ["positions", "numbers", "rest", "digest"])
def test_restart_files_must_not_be_edited(tmp_path, name):
    start(tmp_path).run()
    with np.load(tmp_path / RESTART) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "same.npz", **arrays)
    assert load_restart(tmp_path / "same.npz").state.step == 20
    if name == "positions":
        arrays[name][0, 0] = np.nextafter(arrays[name][0, 0], 9)
    elif name == "numbers":
        arrays[name] = arrays[name].astype(np.int32)
    elif name == "rest":
        arrays[name] = np.array(str(arrays[name]).replace('"timestep": 0.5', '"timestep": 0.6'))
    else:
        arrays[name] = np.array("0" * 64)
    np.savez(tmp_path / "edited.npz", **arrays)
    with pytest.raises(InputError, match=r"edited\.npz was modified after a run wrote it"):
        load_restart(tmp_path / "edited.npz")


def test_restart_files_with_a_changed_byte(tmp_path):
    """They are refused, unless the byte is one of those that no one reads."""
    start(tmp_path).run()
    whole = (tmp_path / RESTART).read_bytes()
    expected = load_restart(tmp_path / RESTART)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1000):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        (tmp_path / "changed.npz").write_bytes(changed)
        try:
            found = load_restart(tmp_path / "changed.npz")
        except InputError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.state.positions, expected.state.positions)
            assert found.settings == expected.settings
    assert refused > 800


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_log_that_is_no_file_changes_nothing(tmp_path, make):
    simulation = start(tmp_path)
    simulation.run(should_stop=stop_at(simulation, 10), block=1)
    log = tmp_path / LOG
    log.unlink()
    make(log)
    before = (tmp_path / TRAJECTORY).read_bytes()
    with pytest.raises(OutputError, match="is not a file"):
        resume(tmp_path)
    assert (tmp_path / TRAJECTORY).read_bytes() == before
