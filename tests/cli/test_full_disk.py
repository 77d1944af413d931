"""A full disk: one line that names the file, exit code 2, no lock, and the job can go on."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from mlff_triton import Engine
from mlff_triton.errors import OutputError
from mlff_triton.jobs.job import run as run_job
from tests.support.disks import largest_file
from tests.support.jobs import WHOLE, Here, job

CPU = ("--device", "cpu")
COMMANDS = {
    "predict .xyz": ("new.xyz", "predict", "ethanol.xyz", "--out", "new.xyz"),
    "predict .h5": ("new.h5", "predict", "ethanol.xyz", "--out", "new.h5"),
    "predict .parquet": ("new.parquet", "predict", "ethanol.xyz", "--out", "new.parquet"),
    "energy": ("new.xyz", "energy", "ethanol.xyz", "--out", "new.xyz"),
    "vibrations": ("new.xyz", "vibrations", "ethanol.xyz", "--out", "new.xyz"),
    "relax": ("relax/", "relax", "ethanol.xyz", "--steps", 1),
    "md": ("md/", "md", "ethanol.xyz", "--steps", 2),
    "md dcd": ("md/", "md", "ethanol.xyz", "--steps", 2, "--trajectory", "dcd"),
    "align .sam": ("new.sam", "align", "one.fa", "one.fa", "--out", "new.sam"),
    "align .tsv": ("new.tsv", "align", "one.fa", "one.fa", "--out", "new.tsv"),
    "convert": ("new.safetensors", "convert", "default", "new.safetensors"),
}
NEEDS = {".h5": "h5py", ".parquet": "pyarrow", "dcd": "MDAnalysis"}


@pytest.fixture
def command(run, model, request):
    Path("one.fa").write_text(">one\nACGT\n")
    name, *arguments = COMMANDS[request.param]
    for word, library in NEEDS.items():
        if request.param.endswith(word):
            pytest.importorskip(library, reason=f"{library} is an optional extra")
    if arguments[0] not in ("align", "convert"):
        arguments += ["--model", model]
    if arguments[0] != "convert":
        arguments += CPU

    return name, lambda: run(*arguments)


@pytest.mark.parametrize("size", [0, 90])
@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_full_disk_is_one_line_that_names_the_file(command, size, recwarn):
    name, start = command
    with largest_file(size):
        code, _, err = start()
    gc.collect()  # what libraries complain about when they are collected
    *_, line = err.splitlines()
    assert (code, "Traceback" in err) == (2, False), err
    assert line.startswith(f"mlff-triton: error: cannot write {name}")
    assert not list(Path().glob("**/*lock"))
    assert not recwarn.list
    if not name.endswith("/"):
        assert start()[0] == 0
        assert Path(name).exists()
        assert not list(Path().glob(f"{name}.*"))


@pytest.mark.parametrize(
    "command",
    ["predict .xyz", "predict .h5", "energy", "vibrations", "align .sam", "convert"],
    indirect=True,
)
def test_a_folder_that_is_read_only_is_refused_first(command, monkeypatch):
    """Root may write to a folder without such permission, but not to a file system."""
    monkeypatch.setattr("os.access", lambda _, mode, **__: mode != os.W_OK)
    monkeypatch.setattr(Engine, "evaluate", None)
    name, start = command
    before = set(Path().iterdir())
    code, out, err = start()
    assert (code, out) == (2, "")
    assert err == f"mlff-triton: error: cannot write {name}: its folder is read-only\n"
    assert set(Path().iterdir()) == before


@pytest.mark.filterwarnings("ignore:three")
@pytest.mark.parametrize("size", range(0, len(WHOLE), 41))
def test_a_job_on_a_full_disk_goes_on_later(tmp_path, size):
    out = tmp_path / "out.txt"
    with largest_file(size), pytest.raises(OutputError, match=r"out\.txt: File too large") as kept:
        run_job(job(out), Here())
    assert not Path(f"{out}.lock").exists()
    run_job(job(out), Here())
    assert out.read_bytes() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    del kept  # with its traceback, as in a notebook


@pytest.mark.filterwarnings("ignore:three")
def test_a_disk_that_is_full_at_the_end_of_a_job(tmp_path):
    out = tmp_path / "out.txt"

    def finish(payloads, path):
        path.write_bytes(b"".join(payloads))
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left on device"):
        run_job(job(out, finish=finish), Here())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.txt.journal",
        "out.txt.partial",
    ]
    assert run_job(job(out), Here()).resumed == 30
    assert out.read_bytes() == WHOLE


def test_results_that_are_cleared_on_a_full_disk(tmp_path):
    out = tmp_path / "out.txt"
    run_job(job(out), Here(), stop=lambda: True)
    with largest_file(0), pytest.raises(OutputError, match=r"out\.txt: File too large"):
        run_job(job(out, 2), Here(), overwrite=True)
    assert not list(tmp_path.iterdir())
