"""The writing thread: order, memory, errors, interruptions."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import ase.io
import pytest

from mlff_triton.dynamics.trajectories import Recorder, TrajectoryFile
from mlff_triton.errors import InputError, OutputError
from tests.dynamics.trajectories.frames import SUFFIXES, frame, opened
from tests.support.disks import largest_file


class Gated(TrajectoryFile):
    """A file that writes only steps, once a gate is open."""

    def __init__(self, path, fails_at=None):
        super().__init__(path, 0)
        self.gate = threading.Event()
        self.fails_at = fails_at
        self.threads = set()

    def _encode(self, each):
        self.threads.add(threading.current_thread())
        assert self.gate.wait(60)
        if each.step == self.fails_at:
            raise InputError("this frame is odd")
        return b"%d\n" % each.step


def append_all(recorder, steps):
    for step in steps:
        recorder.append(frame(step))


def test_files_are_the_same_as_without_a_thread(tmp_path):
    threaded = [opened(tmp_path / f"a{suffix}") for suffix in SUFFIXES]
    direct = [opened(tmp_path / f"b{suffix}") for suffix in SUFFIXES]
    with Recorder(threaded) as recorder:
        for step in range(3):
            for index, file in enumerate(direct):
                recorder.append(frame(step), index)
                file.append(frame(step))
            assert recorder.flush() == tuple(file.size for file in direct)
    for one, other in zip(threaded, direct, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


def test_frames_wait_in_order_without_blocking(tmp_path):
    file = Gated(tmp_path / "t")
    seen = []
    with Recorder([file]) as recorder:
        for step in range(20):
            recorder.append(frame(step))
            if step == 9:
                recorder.call(seen.append)
        assert not file.path.exists()
        file.gate.set()
        assert recorder.flush() == (file.path.stat().st_size,)
        assert seen == [(len("".join(f"{100 * step}\n" for step in range(10))),)]
    assert file.path.read_text().split() == [str(100 * step) for step in range(20)]
    assert len(file.threads) == 1
    assert threading.current_thread() not in file.threads
    assert not any(thread.is_alive() for thread in file.threads)


def test_append_blocks_when_memory_is_used_up(tmp_path):
    file = Gated(tmp_path / "t")
    recorder = Recorder([file], max_bytes=2 * frame(0).nbytes)
    recorder.append(frame(0))
    recorder.append(frame(1))
    third = threading.Thread(target=recorder.append, args=(frame(2),))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    file.gate.set()
    third.join(60)
    assert not third.is_alive()
    recorder.close()
    assert file.path.read_text().split() == ["0", "100", "200"]


def test_memory_is_released_when_frames_are_written(tmp_path):
    file = Gated(tmp_path / "t")
    file.gate.set()
    with Recorder([file], max_bytes=2 * frame(0).nbytes) as recorder:
        append_all(recorder, range(6))
        recorder.flush()
        file.gate.clear()
        more = threading.Thread(target=append_all, args=(recorder, range(6, 8)))
        more.start()
        more.join(5)
        is_blocked = more.is_alive()
        file.gate.set()
        more.join()
    assert not is_blocked
    assert len(file.path.read_text().split()) == 8


def test_a_frame_larger_than_the_memory_is_written_alone(tmp_path):
    file = opened(tmp_path / "t.xyz")
    with Recorder([file], max_bytes=1) as recorder:
        for step in range(3):
            recorder.append(frame(step))
    assert len(ase.io.read(file.path, ":")) == 3


def test_an_error_is_raised_by_every_later_call(tmp_path):
    file = Gated(tmp_path / "t", fails_at=200)
    calls = []
    recorder = Recorder([file])
    append_all(recorder, range(5))
    file.gate.set()
    for call in [
        recorder.flush,
        lambda: recorder.append(frame(7)),
        lambda: recorder.call(calls.append),
        recorder.flush,
        recorder.close,
    ]:
        with pytest.raises(InputError, match="odd"):
            call()
    assert file.path.read_text().split() == ["0", "100"]
    assert calls == []


def test_an_error_is_raised_by_the_next_frame(tmp_path):
    file = Gated(tmp_path / "t", fails_at=0)
    file.gate.set()
    recorder = Recorder([file])
    with pytest.raises(InputError, match="odd"):
        append_all(recorder, range(10_000))
    with pytest.raises(InputError, match="odd"):
        recorder.close()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_complete_frames(tmp_path, suffix):
    expected = opened(tmp_path / f"expected{suffix}")
    for step in range(2):
        expected.append(frame(step))
    file = opened(tmp_path / f"t{suffix}")
    recorder = Recorder([file])
    with largest_file(expected.size + 30):
        append_all(recorder, range(3))
        with pytest.raises(OutputError, match="cannot write"):
            recorder.flush()
    with pytest.raises(OutputError, match="cannot write"):
        recorder.close()
    assert file.size == expected.size
    assert file.path.read_bytes() == expected.path.read_bytes()
    file.append(frame(2))
    expected.append(frame(2))
    assert file.path.read_bytes() == expected.path.read_bytes()


def test_an_error_of_a_called_function_is_raised(tmp_path):
    def fail(sizes):
        raise OutputError(f"cannot write a restart file after {sizes}")

    recorder = Recorder([opened(tmp_path / "t.xyz")])
    recorder.call(fail)
    with pytest.raises(OutputError, match=r"restart file after \(0,\)"):
        recorder.flush()
    with pytest.raises(OutputError, match="restart file"):
        recorder.close()


def test_an_exception_of_the_simulation_is_not_replaced(tmp_path):
    file = Gated(tmp_path / "t", fails_at=100)

    def simulate(recorder):
        append_all(recorder, range(2))
        file.gate.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Recorder([file]) as recorder:
        simulate(recorder)
    assert file.path.read_text() == "0\n"


INTERRUPTED = """
import sys
from pathlib import Path
from mlff_triton.dynamics.trajectories import Recorder
from tests.dynamics.trajectories.frames import frame, opened

recorder = Recorder([opened(Path(sys.argv[1]))])
for index in range(30):
    recorder.append(frame(index, count=3000))
raise KeyboardInterrupt
"""


def test_python_writes_what_is_waiting_before_it_ends(tmp_path):
    path = tmp_path / "t.xyz"
    done = subprocess.run(  # noqa: S603 - the command is above
        [sys.executable, "-c", INTERRUPTED, str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stderr
    assert len(ase.io.read(path, ":")) == 30
