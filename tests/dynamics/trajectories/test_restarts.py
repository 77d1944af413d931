"""Trajectories of killed runs are readable, and continue as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import ase.io
import MDAnalysis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.errors import InputError, OutputError
from tests.dynamics.trajectories.frames import SUFFIXES, frame, opened

FRAMES = 4


@cache
def unbroken(suffix):
    """Return the bytes of a trajectory of four frames, and its size after each of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        file, sizes = opened(path), [0]
        for index in range(FRAMES):
            file.append(frame(index))
            sizes.append(file.size)
        return path.read_bytes(), sizes


def killed(suffix, path, size):
    """Write what a killed run leaves: a prefix of the file, as it was at that time."""
    data, sizes = unbroken(suffix)
    left = bytearray(data[:size])
    if suffix == ".dcd" and size > 8:
        complete = sum(size >= after for after in sizes[1:])
        left[8:12] = max(complete, 1).to_bytes(4, sys.byteorder)
    path.write_bytes(left)


def resume(suffix, path, done):
    """Open a file after some frames, and write the others."""
    file = opened(path, unbroken(suffix)[1][done])
    for index in range(done, FRAMES):
        file.append(frame(index))


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
def test_a_run_killed_at_any_byte_continues_exactly(suffix, data):
    whole, sizes = unbroken(suffix)
    done = data.draw(st.integers(0, FRAMES))
    size = data.draw(st.integers(sizes[done], sizes[-1]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        killed(suffix, path, size)
        resume(suffix, path, done)
        assert path.read_bytes() == whole


def test_a_dcd_killed_before_it_was_counted_is_counted_on_restart(tmp_path):
    whole, sizes = unbroken(".dcd")
    stale = bytearray(whole[: sizes[3]])
    stale[8:12] = (2).to_bytes(4, sys.byteorder)
    path = tmp_path / "t.dcd"
    path.write_bytes(stale)
    opened(path, sizes[3])
    assert path.read_bytes()[8:12] == (3).to_bytes(4, sys.byteorder)
    resume(".dcd", path, 3)
    assert path.read_bytes() == whole


WRITER = """
import sys
from pathlib import Path
from mlff_triton.dynamics.trajectories import Recorder
from tests.dynamics.trajectories.frames import SUFFIXES, frame, opened

files = [opened(Path(sys.argv[1]) / f"t{suffix}") for suffix in SUFFIXES]
frames = [frame(index) for index in range(4)]
recorder = Recorder(files)
step = 0
while True:
    for index in range(len(files)):
        recorder.append(frames[step % 4], index)
    step += 1
    recorder.call(lambda sizes: print(*sizes, flush=True))
"""


@pytest.mark.parametrize("delay", [0.02, 0.3])
def test_a_process_killed_at_any_moment(tmp_path, delay):
    root = Path(__file__).parents[3]
    with subprocess.Popen(  # noqa: S603 - the command is above
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        lines = [process.stdout.readline()]
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    complete = [line for line in lines if line.endswith("\n")]
    assert complete
    for suffix, size in zip(SUFFIXES, complete[-1].split(), strict=True):
        path, expected = tmp_path / f"t{suffix}", tmp_path / f"expected{suffix}"
        file, other = opened(path, int(size)), opened(expected)
        for index in range(len(complete)):
            other.append(frame(index % 4))
        assert file.size == other.size == int(size)
        assert path.read_bytes() == expected.read_bytes()


@pytest.mark.filterwarnings("ignore::UserWarning:MDAnalysis")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")
@pytest.mark.parametrize("suffix", [".dcd", ".xtc"])
def test_complete_frames_of_a_killed_run_are_readable(tmp_path, suffix):
    sizes = unbroken(suffix)[1]
    for size in (sizes[3], sizes[3] + 1, sizes[3] + 60, sizes[4] - 1):
        path = tmp_path / f"t{size}{suffix}"
        killed(suffix, path, size)
        universe = MDAnalysis.Universe.empty(20, trajectory=False)
        universe.load_new(str(path))
        for index in range(3):
            positions = universe.trajectory[index].positions
            assert abs(positions - frame(index).positions).max() < 0.006


def test_complete_frames_of_a_killed_run_are_readable_as_text(tmp_path):
    sizes = unbroken(".xyz")[1]
    path = tmp_path / "t.xyz"
    killed(".xyz", path, sizes[3] + 500)
    read = ase.io.read(path, "0:3")
    assert [atoms.info["step"] for atoms in read] == [0, 100, 200]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_lost_frames_is_refused(tmp_path, suffix):
    sizes = unbroken(suffix)[1]
    path = tmp_path / f"t{suffix}"
    for size in (0, 50, sizes[2]):
        killed(suffix, path, size)
        before = path.read_bytes()
        with pytest.raises(OutputError, match="restore the original"):
            opened(path, sizes[3])
        assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(OutputError, match="has 0 bytes"):
        opened(path, sizes[3])


FOREIGN = {
    "zeros": bytes(5000),
    "short": b"T\x00\x00\x00CORD",
    "ones": b"T\x00\x00\x00CORD" + b"\xff" * 5000,
    "long title": b"T\x00\x00\x00CORD" + b"\x7f" * 5000,
    "negative number of atoms": b"T\x00\x00\x00CORD" + bytes(96) + b"\xfe\xff\xff\xff" * 1000,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_files_are_not_taken_for_a_dcd(tmp_path, name):
    path = tmp_path / "t.dcd"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(OutputError, match=r"t\.dcd .*: restore the original"):
        opened(path, 4000)
    assert path.read_bytes() == FOREIGN[name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_no_file_is_not_opened(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    os.mkfifo(path)  # opening it would wait for a writer
    with pytest.raises(OutputError, match="is not a file"):
        opened(path, 4000)


def test_a_dcd_does_not_continue_between_frames(tmp_path):
    whole, sizes = unbroken(".dcd")
    path = tmp_path / "t.dcd"
    path.write_bytes(whole)
    for size in (sizes[2] + 8, sizes[1] - 8, 356):
        with pytest.raises(OutputError, match="does not end with a frame"):
            opened(path, size)
    assert path.read_bytes() == whole


def test_unknown_suffixes_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"end it in .xyz, .extxyz, .dcd, .xtc"):
        opened(tmp_path / "t.trr")
