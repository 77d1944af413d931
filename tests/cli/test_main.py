"""The command line as a whole: help, version, and errors of one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mlff_triton


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing command"),
        (("simulate",), "No such command 'simulate'"),
        (("info",), "Missing argument"),
        (("info", "absent"), "there is no model 'absent'"),
        (("info", "ethanol.xyz"), "ethanol.xyz"),
        (("convert", "absent", "b.safetensors"), "there is no model 'absent'"),
        (("convert", "absent", "ethanol.xyz"), "ethanol.xyz exists"),
        (("md", "ethanol.xyz", "--model", "absent"), "there is no model 'absent'"),
    ],
)
def test_other_mistakes_take_one_line(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mlff-triton: error: ")
    assert message in err


def test_help_and_version(run):
    assert run("--version")[:2] == (0, mlff_triton.__version__ + "\n")
    code, out, _ = run("md", "--help")
    assert code == 0
    assert "--restart" in out


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
