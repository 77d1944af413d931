"""The set-up of ``make run``, with a stand-in for Python that installs nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERSION = "import sys; sys.version_info = ({}, {}, 0); exec(sys.argv[1])"
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exec {python} -c '{version}' "$2"; fi
mkdir -p .venv/bin
cp "$0" .venv/bin/python
cp pip .venv/bin/pip
chmod +x .venv/bin/pip
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, name)
    write_python(3, 10)
    Path("pip").write_text("#!/bin/sh\ntouch .venv/packages\n")
    return tmp_path


def write_python(*version):
    path = Path("python")
    path.write_text(PYTHON.format(python=sys.executable, version=VERSION.format(*version)))
    path.chmod(0o755)


def start():
    return subprocess.Popen(  # noqa: S603 - the Makefile is that of the repository
        ["make", ".venv/installed", f"PYTHON={Path('python').absolute()}"],  # noqa: S607
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a signal then reaches the whole group, as from a terminal
    )


def make():
    process = start()
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def stop_during_the_installation(number):
    """Send a signal while packages are being installed."""
    Path("pip").write_text("#!/bin/sh\ntouch .venv/begun\nexec sleep 60\n")
    process = start()
    while not Path(".venv/begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode != 0


@pytest.mark.usefixtures("checkout")
def test_a_set_up_happens_once():
    assert make()[0] == 0
    assert Path(".venv/packages").exists()
    assert not Path(".venv/unfinished").exists()
    Path(".venv/packages").unlink()
    assert make()[0] == 0
    assert not Path(".venv/packages").exists()


@pytest.mark.usefixtures("checkout")
def test_modules_are_compiled_by_those_that_import_them(monkeypatch):
    """Compiling all modules takes longer than installing them."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    Path("pip").write_text('#!/bin/sh\necho "[$PYTHONDONTWRITEBYTECODE] $*" > .venv/packages\n')
    assert make()[0] == 0
    keeps, arguments = Path(".venv/packages").read_text().split(" ", 1)
    assert keeps == "[]"
    assert "--no-compile" in arguments


@pytest.mark.parametrize("version", [(2, 7), (3, 9)])
@pytest.mark.usefixtures("checkout")
def test_an_old_python_is_refused_before_anything_is_made(version):
    write_python(*version)
    code, text = make()
    assert code != 0
    assert "mlff_triton needs Python 3.10 or later, but " in text
    assert "is {}.{}: ".format(*version) in text
    assert "Traceback" not in text
    assert not Path(".venv").exists()


@pytest.mark.usefixtures("checkout")
def test_a_failed_set_up_leaves_nothing():
    Path("pip").write_text("#!/bin/sh\necho no network >&2; exit 1\n")
    code, text = make()
    assert code != 0
    assert "no network" in text
    assert not Path(".venv").exists()


@pytest.mark.usefixtures("checkout")
def test_ctrl_c_during_a_set_up_leaves_nothing():
    stop_during_the_installation(signal.SIGINT)
    assert not Path(".venv").exists()


@pytest.mark.usefixtures("checkout")
def test_a_set_up_that_was_killed_starts_anew():
    stop_during_the_installation(signal.SIGKILL)
    assert Path(".venv/begun").exists()
    Path("pip").write_text("#!/bin/sh\ntouch .venv/packages\n")
    assert make()[0] == 0
    assert Path(".venv/packages").exists()
    assert not Path(".venv/begun").exists()


@pytest.mark.usefixtures("checkout")
def test_an_environment_of_the_user_is_kept():
    assert make()[0] == 0
    Path(".venv/installed").unlink()
    Path(".venv/mine").touch()
    Path(".venv/bin/pip").write_text("#!/bin/sh\nexit 1\n")
    assert make()[0] != 0
    assert Path(".venv/mine").exists()
