"""Jobs on a Dask cluster of this machine: order, workers that die, and a scheduler without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from mlff_triton.errors import BackendError, InputError
from mlff_triton.jobs.cluster import Cluster
from mlff_triton.jobs.job import Workers, run
from tests.support.jobs import Texts, job, text_of

distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")

pytestmark = [
    pytest.mark.filterwarnings("ignore:three"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the cluster's own sockets
]


@pytest.fixture(scope="module")
def scheduler():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.txt"


def test_results_have_the_order_of_the_input(out, scheduler):
    stops = iter([False, True])
    places = Workers("cpu", scheduler=scheduler)
    assert not run(job(out, 60), places, stop=lambda: next(stops)).is_complete
    progress = run(job(out, 60, Texts(seconds=0.001)), places)
    assert (progress.items, progress.errors, progress.resumed) == (60, 6, 6)
    assert out.read_bytes() == text_of(list(range(60)))


def test_a_worker_that_dies_is_survived(out, scheduler):
    (out.parent / "scheduler.json").write_text(json.dumps({"address": scheduler}))
    work = Texts(str(out.parent), deaths=1)
    run(job(out, work=work), Workers("cpu", scheduler=str(out.parent / "scheduler.json")))
    assert (out.parent / "death0").exists()
    assert out.read_bytes() == text_of(list(range(30)))


def test_an_error_of_a_worker_is_one_line(out, scheduler):
    work = Texts(seconds="long")
    with pytest.raises(BackendError, match=r"a worker of tcp://.* failed with TypeError \(") as it:
        run(job(out, work=work), Workers("cpu", scheduler=scheduler))
    assert "\n" not in str(it.value)


def test_a_scheduler_without_workers():
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        pytest.raises(BackendError, match="has no workers: start some by dask worker"),
        Cluster(Texts(), cluster.scheduler_address, "cpu", patience=0.2),
    ):
        pass


def test_a_scheduler_that_ends(out, capfd, monkeypatch):
    monkeypatch.setattr("mlff_triton.jobs.cluster.CONNECT", 0.5)
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
    name = cluster.scheduler_address

    def show(progress):
        if progress.items == 3:
            cluster.close()

    with cluster, pytest.raises(BackendError, match=f"the Dask scheduler {name} has gone: the"):
        run(job(out, 60, Texts(seconds=0.2)), Workers("cpu", scheduler=name), show=show)
    assert run(job(out, 60), Workers("cpu", 1)).resumed >= 3
    assert "Traceback" not in capfd.readouterr().err


def test_a_file_that_is_not_of_a_scheduler(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="is not the file of a Dask scheduler"):
        Cluster(Texts(), str(tmp_path / "other.json"))


KILLED = """
import sys
from pathlib import Path
from mlff_triton.cli.main import main
from mlff_triton.jobs.job import Workers, run
from tests.support.jobs import Texts, job

def command(*_, **__):
    show = lambda progress: print(progress.items, flush=True)
    run(job(Path("out.txt"), 60, Texts(seconds=0.2)), Workers("cpu", scheduler="s.json"), show=show)

import mlff_triton.statics.predictions
mlff_triton.statics.predictions.predict_files = command
Path("a.xyz").write_text("1\\n\\nH 0 0 0\\n")
main(["predict", "a.xyz", "--out", "out.xyz"])
"""


def test_a_scheduler_that_is_killed_is_one_line(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    start = partial(subprocess.Popen, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    command = (sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0")
    hidden = ("--no-dashboard", "--scheduler-file", "s.json")
    worker = (sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", "s.json")
    with start([*command, *hidden]) as scheduler:
        while not (tmp_path / "s.json").exists():
            time.sleep(0.1)
        with start([*worker, "--no-dashboard", "--nworkers", "1", "--nthreads", "1"]) as served:
            with start([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as job_:
                while job_.stdout.readline() != b"3\n":
                    assert job_.poll() is None
                scheduler.kill()
                _, complaint = job_.communicate(timeout=60)
            served.kill()
    lines = [line for line in complaint.decode().splitlines() if "warning" not in line]
    assert job_.returncode == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("mlff-triton: error: the Dask scheduler s.json has gone")
