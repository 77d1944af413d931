"""Terminals, environments and pipes that are not as usual: no traceback, and the right code."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule

import mlff_triton
from mlff_triton.cli import _streams
from tests.support.checkpoints import save_tiny_model

MODEL = "--model tiny.safetensors --device cpu"
COMMANDS = {
    "md": f"md Ethanol-Å.xyz --steps 2 {MODEL}",
    "energy": f"energy Ethanol-Å.xyz --out new.xyz {MODEL}",
    "predict": f"predict Ethanol-Å.xyz --out new.xyz {MODEL}",
    "relax": f"relax Ethanol-Å.xyz --fmax 100 {MODEL}",
    "vibrations": f"vibrations Ethanol-Å.xyz --out new.xyz {MODEL}",
    "align": "align one.fa one.fa --out new.tsv --device cpu",
    "info": "info tiny.safetensors",
    "models": "models",
    "explain": "explain tiny.safetensors --device cpu",
    "convert": "convert tiny.safetensors new.safetensors",
    "bench": "bench --help",
    "help": "--help",
}
HOSTILE = {
    "PYTHONIOENCODING": "ascii",
    "MPLBACKEND": "nonsense",
    "HOME": "/proc/nobody",
    "XDG_CACHE_HOME": "/proc/nobody",
    "TERM": "dumb",
}
PYTHON = f"{shlex.quote(sys.executable)} -c 'from mlff_triton.cli.main import main; main()'"


ALL_AT_ONCE = """
import os, shlex, sys
import mlff_triton.calculators, mlff_triton.dynamics, mlff_triton.statics
from mlff_triton._common.figures import figure_class
from mlff_triton.cli.main import main

figure_class()
for folder, line in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(os.open(f"../{folder}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
        try:
            code = main(shlex.split(line)) or 0
        except SystemExit as exit_:
            code = exit_.code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # as only the first process may remove temporary folders of libraries
    print(folder, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs commands in folders, in processes that need not import PyTorch and matplotlib again."""


def fill(folder):
    """Write the files that commands read."""
    save_tiny_model(folder, "# Å\n\nA model of some Å.")
    ase.io.write(folder / "Ethanol-Å.xyz", molecule("CH3CH2OH"))
    (folder / "one.fa").write_text(">one\nACGT\n")


def run_shell(line, folder, **variables):
    root = str(Path(mlff_triton.__file__).parents[1])
    return subprocess.run(  # noqa: S603 - the command line itself
        ["/bin/bash", "-c", f"umask 077; set -o pipefail; {line}"],
        capture_output=True,
        cwd=folder,
        timeout=300,
        env={**os.environ, "PYTHONPATH": root, **variables},
        check=False,
    )


@pytest.fixture
def shell(tmp_path):
    fill(tmp_path)
    return partial(run_shell, folder=tmp_path)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Folder in which all commands have run, each in a folder of its name, and their exit codes."""
    top = tmp_path_factory.mktemp("hostile")
    (top / "files").mkdir()
    fill(top / "files")
    words = []
    for name, line in COMMANDS.items():
        shutil.copytree(top / "files", top / name)
        words += [name, line]
    done = run_shell(shlex.join([sys.executable, "-c", ALL_AT_ONCE, *words]), top, **HOSTILE)
    assert done.returncode == 0, done.stderr
    return top, dict(line.split() for line in done.stdout.decode().splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_hostile_environments(hostile, name):
    """Not UTF-8, without a home, with a backend that matplotlib does not know, and umask 077."""
    top, codes = hostile
    complaint = (top / f"{name}.2").read_bytes().decode("ascii")
    assert (codes[name], "Traceback" in complaint) == ("0", False), complaint
    assert (top / f"{name}.1").read_bytes().decode("ascii")
    given = {path.name for path in (top / "files").iterdir()}
    for path in (top / name).rglob("*"):
        if path.name not in given:
            assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o700), path


@pytest.mark.parametrize("encoding", ["gbk", pytest.param("latin-1", marks=pytest.mark.slow)])
def test_other_encodings(shell, encoding):
    done = shell(f"{PYTHON} {COMMANDS['energy']}", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "eV/" in done.stdout.decode(encoding)


@pytest.mark.parametrize(
    ("command", "rest", "code"),
    [
        ("md", "| head -n 0", 0),
        ("predict", "2>&1 | true", 0),
        ("energy", ">&-", 0),
        ("energy", ">&- 2>&- <&-", 0),
        ("models", "> /dev/full", 2),
        ("info", "> /dev/full 2> /dev/full", 2),
    ],
)
def test_nobody_reads_the_output(shell, tmp_path, command, rest, code):
    done = shell(f"{PYTHON} {COMMANDS[command]} {rest}")
    complaint = done.stderr.decode()
    assert (done.returncode, "Traceback" in complaint) == (code, False), complaint
    if rest == "> /dev/full":
        line = "mlff-triton: error: cannot write the standard output: No space left on device\n"
        assert complaint == line
    if command != "md" and code == 0:
        assert len(ase.io.read(tmp_path / "new.xyz")) == 9


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("±3 Å³, 90°", "ascii", b"+/-3 A3, 90 deg"),
        ("┏━┳━┓ │ ╸", "ascii", b"+-+-+ | -"),
        ("é水 \udc80", "ascii", b"e\\u6c34 \\udc80"),
        ("5 Å\udc80", "utf-8", "5 Å\\udc80".encode()),
        ("水 Å", "gbk", "水 A".encode("gbk")),
    ],
)
def test_characters_that_a_terminal_does_not_know(text, encoding, expected):
    with _streams.Streams():
        assert text.encode(encoding, _streams.HANDLER) == expected
