"""The command line as a whole: help, version, and errors of one line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer

import mlff_triton
from mlff_triton.cli import main as cli
from mlff_triton.cli.app import app
from mlff_triton.cli.md import EXAMPLES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate",), "No such command 'simulate'"),
        (("info",), "Missing argument"),
        (("info", "absent"), "there is no model 'absent'"),
        (("info", "ethanol.xyz"), "ethanol.xyz"),
        (("convert", "absent", "ethanol.xyz"), "ethanol.xyz exists"),
    ],
)
def test_other_mistakes_take_one_line(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mlff-triton: error: ")
    assert message in err


def test_a_missing_command_shows_the_help(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out == run("--help")[1]
    assert "Commands" in out


def test_help_and_version(run):
    assert run("--version")[:2] == (0, mlff_triton.__version__ + "\n")
    code, out, _ = run("md", "--help")
    assert code == 0
    assert "--restart" in out


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_in_the_help_of_md_are_understood(example, run):
    program, name, *arguments = shlex.split(example)
    command = typer.main.get_command(app).commands[name]
    assert program == "mlff-triton"
    assert command.make_context(name, arguments).params
    assert example.split(maxsplit=2)[2][:60] in run("md", "--help")[1]


def test_help_does_not_load_a_framework():
    code = """
import sys
from mlff_triton.cli.main import main
try:
    main(["--help"])
except SystemExit as exit_:
    assert exit_.code == 0
print(*sorted({"torch", "triton", "ase", "numpy", "vesin"} & sys.modules.keys()), sep=",")
"""
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("module", ["typer", "rich.table", "numpy", "torch", "mlff_triton.model"])
def test_ctrl_c_while_a_module_is_imported_takes_one_line(module, tmp_path):
    """Imports of some modules catch every exception, which this one imitates."""
    code = f"""
    import os, signal, sys
    from mlff_triton.cli.main import main

    class Interrupt:
        def find_spec(self, name, path=None, target=None):
            if name == {module!r}:
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except BaseException:
                    pass

    sys.meta_path.insert(0, Interrupt())
    main(["info", "default"])
    """
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (130, "mlff-triton: interrupted\n")


def test_ctrl_c_in_a_command_takes_one_line(monkeypatch, capfd):
    before = signal.getsignal(signal.SIGINT)

    def load(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("mlff_triton.checkpoints.load_model", load)
    with pytest.raises(SystemExit, match="130"):
        cli.main(["info", "default"])
    assert capfd.readouterr().err == "mlff-triton: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_warnings_take_one_line(tmp_path):
    (tmp_path / "oxygen.xyz").write_text("2\n\nO 0 0 0\nO 0 0 1.21\n")
    command, model = "from mlff_triton.cli.main import main; main()", ("--model", "tensornet-gfn2")
    done = subprocess.run(  # noqa: S603 - the command line itself
        [sys.executable, "-c", command, "energy", "oxygen.xyz", *model, "--device", "cpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(mlff_triton.__file__).parents[1])},
        check=True,
    )
    start = "mlff-triton: warning: oxygen.xyz, frame 0: the training set of the model has no bond"
    assert done.stderr.startswith(start)
    assert done.stderr.count("\n") == 1


def test_control_characters_of_the_user_do_not_reach_the_terminal(run, model):
    """In errors, in messages of success, and in tables."""
    given = ("ethanol.xyz", "--model", model, "--device", "cpu")
    for expected, *arguments in (
        (2, "energy", *given, "--out", "\x1b[31m"),
        (0, "energy", *given, "--out", "\x1b[31m.xyz"),
        (1, "relax", *given, "--steps", "1", "--out", "\x1b[31mout"),
    ):
        code, out, err = run(*arguments)
        assert code == expected, err
        assert "\x1b" not in out + err
        assert "\\x1b[31m" in out + err
