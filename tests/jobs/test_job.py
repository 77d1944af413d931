"""Jobs: order, continuation after any end, workers that die, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlff_triton.errors import BackendError, InputError, OutputError
from mlff_triton.jobs import workers
from mlff_triton.jobs.division import LOSSES, TRIES
from mlff_triton.jobs.job import Task, Workers, run
from mlff_triton.jobs.journal import Entry, Journal
from mlff_triton.jobs.workers import OwnProcess
from tests.support.jobs import WHOLE, Here, Parts, Texts, job, text_of

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings("ignore:three")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.txt"


def files(out):
    return sorted(path.name for path in out.parent.iterdir())


@pytest.mark.parametrize("processes", [None, 1, 2])
def test_results_have_the_order_of_the_input(out, processes):
    shown = []
    with pytest.warns(UserWarning, match="three") as given:
        progress = run(job(out), Workers("cpu", processes), show=shown.append)
    assert len(given) == 1
    assert out.read_bytes() == WHOLE
    assert (progress.items, progress.errors, progress.resumed) == (30, 3, 0)
    assert (progress.first_error, progress.is_complete) == ("nine", True)
    assert [found.position for found in shown] == [0, *range(3, 31, 3)]
    assert files(out) == ["out.txt"]


def test_a_head_and_a_finish(out):
    def finish(payloads, path):
        path.write_bytes(b"|".join(payloads))

    run(job(out, 7, head=b"head", finish=finish))
    assert out.read_bytes() == b"|".join(
        [b"head", *(text_of(some) for some in ([0, 1, 2], [3, 4, 5], [6]))]
    )
    assert files(out) == ["out.txt"]


@pytest.mark.parametrize("head", [b"", b"head"])
def test_a_stopped_job_continues(out, head):
    stops = iter([False, False, True])
    stopped = run(job(out, head=head), stop=lambda: next(stops))
    assert (stopped.items, stopped.is_complete) == (9, False)
    assert files(out) == ["out.txt.journal", "out.txt.partial"]
    shown = []
    progress = run(job(out, head=head), show=shown.append)
    assert (shown[0].items, shown[0].resumed, shown[0].position) == (9, 9, 9)
    assert (progress.items, progress.errors, progress.resumed) == (30, 3, 9)
    assert out.read_bytes() == head + WHOLE


def test_a_complete_job_is_not_repeated(out):
    run(job(out))
    with pytest.raises(OutputError, match=r"out.txt exists: .* --overwrite"):
        run(job(out))
    assert run(job(out, 3), overwrite=True).items == 3
    assert out.read_bytes() == text_of([0, 1, 2])


def test_results_before_damage_are_kept(out):
    with pytest.raises(InputError, match="damaged at 15"):
        run(job(out, damage=15), Here())
    assert not out.exists()
    assert run(job(out)).resumed == 15
    assert out.read_bytes() == WHOLE


def test_a_job_without_results_leaves_nothing(out):
    with pytest.raises(InputError):
        run(job(out, damage=0))
    assert files(out) == []


@pytest.fixture
def unfinished(out):
    stops = iter([False, True])
    run(job(out), stop=lambda: next(stops))
    return out


def test_other_settings_or_input_are_refused(unfinished):
    with pytest.raises(OutputError, match=r"begun with dtype=None: repeat that"):
        run(job(unfinished, settings={"dtype": "float64"}))
    for n, where in ((4, "3"), (3, "ends early")):
        with pytest.raises(OutputError, match=rf"other input \(.*{where}.*\): restore"):
            run(job(unfinished, n))
    assert run(job(unfinished)).resumed == 6
    assert unfinished.read_bytes() == WHOLE


@pytest.mark.parametrize("options", [{"n": 4}, {"n": 4, "settings": {"dtype": "float64"}}])
def test_overwriting_begins_again_if_something_has_changed(unfinished, options):
    progress = run(job(unfinished, head=b"head", **options), overwrite=True)
    assert (progress.items, progress.resumed) == (4, 0)
    assert unfinished.read_bytes() == b"head" + text_of([0, 1, 2, 3])


def test_overwriting_continues_otherwise(unfinished):
    unfinished.write_text("older")
    with pytest.raises(OutputError, match="exists"):
        run(job(unfinished))
    assert run(job(unfinished), overwrite=True).resumed == 6
    assert unfinished.read_bytes() == WHOLE


def test_only_whole_lines_of_the_journal_count(unfinished):
    """At every point at which a process may have been killed between two writes or within one."""
    journal, partial = (Path(f"{unfinished}.{end}") for end in ("journal", "partial"))
    lines, payload = journal.read_bytes(), partial.read_bytes()
    for end in (*range(0, len(lines), 11), len(lines) - 1, len(lines)):
        journal.write_bytes(lines[:end])
        partial.write_bytes(payload + b"more that no line counts")
        unfinished.unlink(missing_ok=True)
        assert run(job(unfinished)).items == 30
        assert unfinished.read_bytes() == WHOLE
        assert files(unfinished) == ["out.txt"]


def test_results_that_are_lost_are_noticed(unfinished):
    Path(f"{unfinished}.partial").write_bytes(b"short")
    with pytest.raises(OutputError, match=r"partial lacks \d+ bytes"):
        run(job(unfinished))
    Path(f"{unfinished}.partial").unlink()
    assert run(job(unfinished)).resumed == 0
    assert unfinished.read_bytes() == WHOLE


def test_results_that_vanish_during_a_job_are_no_success(out):
    def remove(progress):
        if progress.items == 30:
            Path(f"{out}.partial").unlink()

    with pytest.raises(OutputError, match=r"partial was removed: the results are lost"):
        run(job(out), Here(), show=remove)
    assert run(job(out), Here()).resumed == 0
    assert out.read_bytes() == WHOLE


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_kill_at_the_very_end(out, monkeypatch, is_in_place):
    """The journal is complete, and the output is in its place or not."""

    def die(self, _):
        with self._files[1] as journal:
            journal.write(b'{"complete": true}\n')
        if is_in_place:
            self._partial.replace(self.out)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            run(job(out))
    progress = run(job(out))
    assert (progress.items, progress.resumed, progress.is_complete) == (30, 30, True)
    assert out.read_bytes() == WHOLE
    assert files(out) == ["out.txt"]


@pytest.fixture
def complete(out):
    """A job that was killed while it wrote its output."""

    def die(payloads, path):
        del payloads, path
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(job(out, finish=die))
    return out


def test_a_complete_job_does_not_answer_for_other_input(complete):
    for n in (3, 33):
        with pytest.raises(OutputError, match="was begun with other input"):
            run(job(complete, n))
    assert run(job(complete, 33), overwrite=True).resumed == 0
    assert complete.read_bytes() == text_of(list(range(33)))
    assert files(complete) == ["out.txt"]


def test_an_output_that_is_removed_is_made_anew(complete):
    Path(f"{complete}.partial").unlink()
    assert run(job(complete)).resumed == 0
    assert complete.read_bytes() == WHOLE


def test_an_output_with_another_head_is_refused(out):
    run(job(out, head=b"head"), stop=lambda: True)
    with pytest.raises(OutputError, match=r"other input \(the start of the output\)"):
        run(job(out, head=b"other"))
    assert run(job(out, head=b"other"), overwrite=True).resumed == 0
    assert out.read_bytes() == b"other" + WHOLE


def test_the_output_is_on_the_disk_before_results_are_removed(out, monkeypatch):
    synced, fsync = set(), os.fsync
    monkeypatch.setattr("os.fsync", lambda file: fsync(file) or synced.add(os.fstat(file).st_ino))
    run(job(out, finish=lambda payloads, path: path.write_bytes(b"".join(payloads))))
    assert out.stat().st_ino in synced


def test_one_process_per_output(unfinished):
    with Journal(unfinished, {"job": "texts"}), pytest.raises(OutputError, match="is writing"):
        run(job(unfinished))
    assert run(job(unfinished)).resumed == 6


def test_a_full_disk_is_one_line(out, monkeypatch):
    append = Journal.append

    def full(self, payload, entry):
        if len(self.entries) == 2:
            monkeypatch.setattr("os.fsync", raising)
        append(self, payload, entry)

    def raising(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context():
        monkeypatch.setattr(Journal, "append", full)
        with pytest.raises(OutputError, match="No space left"):
            run(job(out))
        monkeypatch.undo()
    assert run(job(out)).resumed == 6
    assert out.read_bytes() == WHOLE


def test_killed_at_random_points(out):
    """Each run is killed within the job, or at its start or end."""
    n, kills = 120, 0
    draw = np.random.default_rng(0)
    command = [sys.executable, "-m", "tests.support.jobs", str(out), str(n)]
    while not out.exists() or Path(f"{out}.journal").exists():
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:  # noqa: S603
            for _ in range(int(draw.integers(0, 12))):
                process.stdout.readline()
            time.sleep(draw.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills > 3
    assert out.read_bytes() == b"head\n" + text_of(list(range(n)))


def test_a_worker_that_dies_is_replaced(out):
    work = Texts(str(out.parent), deaths=1)
    progress = run(job(out, work=work), Workers("cpu", 2))
    assert (out.parent / "death0").exists()
    assert progress.items == 30
    assert out.read_bytes() == WHOLE


def test_a_stop_does_not_wait_for_tasks_at_work(out):
    stopped = []

    def stop():
        stopped.append(time.monotonic())
        return True

    progress = run(job(out, work=Texts(seconds=2)), Workers("cpu", 2), stop=stop)
    assert time.monotonic() - stopped[0] < 1
    assert (progress.items, len(stopped)) == (3, 1)
    assert not active_children()


def test_ctrl_c_spares_workers_even_while_they_start(capfd):
    with workers.Processes(Texts(), ["cpu"]) as pool:
        result = pool.submit([1])
        while not (children := active_children()):
            time.sleep(0.001)
        for delay in (0.01, 0.1, 0.2, 0.1):
            os.kill(children[0].pid, signal.SIGINT)
            time.sleep(delay)
        assert result.result(timeout=30).payload == text_of([1])
        assert active_children() == children
    assert capfd.readouterr().err == ""


def test_an_error_of_a_worker_tells_where_it_was(out):
    with pytest.raises(TypeError) as error:
        run(job(out, work=Texts(seconds="long")), Workers("cpu", 2))
    assert "in compute" in str(error.value.__cause__)


def test_a_task_that_kills_every_worker_ends_the_job(out):
    work = Texts(str(out.parent), deaths=100)
    with pytest.raises(BackendError, match=f"{TRIES} workers died, one after another, at "):
        run(job(out, work=work), Workers("cpu", 2))
    assert run(job(out)).resumed in (0, 3, 6)
    assert out.read_bytes() == WHOLE


class Deadly(OwnProcess):
    """Workers that die at some numbers, or at all."""

    deadly = ()

    def submit(self, content):
        if set(content) & set(self.deadly) or self.deadly == "any":
            future = Future()
            future.set_exception(BrokenExecutor("killed"))
            return future
        return super().submit(content)


class DeadlyPlace(Workers):
    def pool(self, work, *, apart=False):
        del apart
        return Deadly(work, "cpu")


def test_an_item_that_kills_every_worker_costs_itself_alone(out, monkeypatch):
    monkeypatch.setattr(Deadly, "deadly", (7, 12, 13))
    progress = run(job(out, work=Parts()), DeadlyPlace())
    assert (progress.items, progress.errors) == (30, 3 + 3)
    assert progress.first_error.startswith("7: workers die at it repeatedly")
    lines = out.read_bytes().splitlines()
    assert [k for k, line in enumerate(lines) if line == b"%d is lost" % k] == [7, 12, 13]
    assert len(lines) == 30


def assert_only_seven_is_lost(progress, payload):
    assert (progress.errors, progress.is_complete) == (3 + 1, True)
    assert payload == WHOLE.replace(text_of([7]), b"7 is lost\n")


def test_a_single_process_that_dies_costs_an_item(out):
    """A number of processes is that of processes beside this one, also if it is 1."""
    progress = run(job(out, work=Parts(str(out.parent), deaths=100)), Workers("cpu", 1))
    assert_only_seven_is_lost(progress, out.read_bytes())


def test_a_job_that_has_killed_its_own_process_continues(out):
    """It computes in another process then, and only then."""
    command = [sys.executable, "-m", "tests.support.jobs", str(out), "30", str(out.parent)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=False)  # noqa: S603
    assert done.returncode == -signal.SIGKILL
    work = Parts(str(out.parent), deaths=100)
    progress = run(job(out, work=work, head=b"head\n"), Here())
    assert progress.resumed == 6
    assert_only_seven_is_lost(progress, out.read_bytes().removeprefix(b"head\n"))


def test_a_job_that_was_stopped_continues_in_its_own_process(unfinished, monkeypatch):
    monkeypatch.setattr(workers.Processes, "__enter__", None)
    assert run(job(unfinished), Here()).resumed == 6


@pytest.mark.parametrize("deadly", ["any", tuple(range(LOSSES))])
def test_workers_that_die_at_everything_end_the_job(out, monkeypatch, deadly):
    monkeypatch.setattr(Deadly, "deadly", deadly)
    tasks = [Task(list(range(10)), 0, 10, "the task")]
    with pytest.raises(BackendError, match=r"workers died.*at the task: look for a"):
        run(replace(job(out, work=Parts()), tasks=lambda: tasks), DeadlyPlace())


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (Workers("cpu", 0), "workers=0 is not valid"),
        (Workers("cpu", 2**31), "workers=2147483648 is not valid: use 1 to"),
        (Workers("gpu"), "device='gpu' is unknown"),
        (Workers("cpu", 2, "tcp://127.0.0.1:9"), "give only one of them"),
        (Workers(scheduler="absent.json"), "there is no scheduler 'absent.json'"),
        (Workers(scheduler="tcp://127.0.0.1:9"), "no Dask scheduler answers at tcp://127.0.0.1:9"),
    ],
)
def test_workers_that_there_are_not(out, places, message, monkeypatch):
    if places.scheduler:
        cluster = pytest.importorskip("mlff_triton.jobs.cluster")
        pytest.importorskip("distributed", reason="Dask is an optional extra")
        monkeypatch.setattr(cluster, "CONNECT", 0.3)
    with pytest.raises((InputError, BackendError), match=message):
        run(job(out), places)
    assert files(out) == []


def test_gpus_share_the_workers(monkeypatch):
    monkeypatch.setattr(workers, "devices_of", lambda _: ["cuda:0", "cuda:1"])
    pool = workers.local_pool(Texts(), "auto", 4)
    assert [lane._device for lane in pool._lanes] == ["cuda:0", "cuda:1"] * 2
    assert pool.capacity == 12


def test_nothing_is_imported_that_is_not_used():
    code = (
        "import sys, mlff_triton.cli.app, mlff_triton.statics, mlff_triton.bio.embedding\n"
        "print({'distributed', 'h5py', 'pyarrow', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_entries_survive_json(out):
    with Journal(out, {"job": "texts"}) as journal:
        journal.append(b"abc", Entry(2**32 - 1, 3, 2, 1))
    with Journal(out, {"job": "texts"}) as journal:
        assert journal.entries == [Entry(2**32 - 1, 3, 2, 1)]


@pytest.mark.parametrize(
    ("device", "size", "expected"),
    [
        ("cpu", 1 << 40, None),
        ("cuda:0", 1 << 24, None),
        ("cuda:0", 5 << 24, 5),
        ("cuda:0", 1 << 40, 6),
        ("cuda:0,cuda:1", 7 << 24, 6),
        ("cuda:0,cuda:1", 1 << 40, 12),
    ],
)
def test_large_input_has_more_workers_than_gpus(monkeypatch, device, size, expected):
    """As many as input, cores and memory allow."""
    memory = SimpleNamespace(total_memory=6 * workers.SHARE_OF_MEMORY)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    monkeypatch.setattr(workers, "n_cores", lambda: 13)
    assert workers.workers_for(device, size) == expected
