"""Paths that cannot be read or written: one line and exit code 2, by every command."""

from __future__ import annotations

from pathlib import Path

import pytest

PATHS = {
    "absent": "absent.xyz",
    "directory": "folder.xyz",
    "empty": "empty.xyz",
    "garbage": "garbage.xyz",
    "long": "x" * 300 + ".xyz",
    "deep": "/".join(["x" * 200] * 30) + ".xyz",
    "home": "~nosuchuser/structure.xyz",
    "null": "structure\0.xyz",
    "nameless": ".",
    "root": "/",
    "colored": "\x1b[31m",
}
COMMANDS = {
    "energy": ("energy", "PATH"),
    "energy --model": ("energy", "ethanol.xyz", "--model", "PATH"),
    "energy --out": ("energy", "ethanol.xyz", "--out", "PATH"),
    "predict": ("predict", "PATH", "--out", "new.xyz"),
    "predict --model": ("predict", "ethanol.xyz", "--out", "new.xyz", "--model", "PATH"),
    "predict --out": ("predict", "ethanol.xyz", "--out", "PATH"),
    "predict --scheduler": ("predict", "ethanol.xyz", "--out", "new.xyz", "--scheduler", "PATH"),
    "relax": ("relax", "PATH"),
    "relax --model": ("relax", "ethanol.xyz", "--model", "PATH"),
    "vibrations": ("vibrations", "PATH"),
    "vibrations --model": ("vibrations", "ethanol.xyz", "--model", "PATH"),
    "vibrations --out": ("vibrations", "ethanol.xyz", "--out", "PATH"),
    "md": ("md", "PATH"),
    "md --model": ("md", "ethanol.xyz", "--model", "PATH"),
    "md --restart": ("md", "--restart", "PATH"),
    "info": ("info", "PATH"),
    "explain": ("explain", "PATH"),
    "convert": ("convert", "PATH", "new.safetensors"),
    "convert --card": ("convert", "default", "new.safetensors", "--card", "PATH"),
    "align": ("align", "PATH", "PATH", "--out", "new.sam"),
    "align --out": ("align", "one.fasta", "one.fasta", "--out", "PATH"),
    "calibrate": ("calibrate", "--model", "PATH"),
    "bench --merge": ("bench", "--merge", "PATH", "--out", "results"),
}
VALID = {  # absent outputs are what these commands want, any text may be a card, folders hold files
    ("predict", "root"),
    ("energy --out", "absent"),
    ("predict --out", "absent"),
    ("energy --out", "home"),
    ("predict --out", "home"),
    ("vibrations --out", "absent"),
    ("convert --card", "empty"),
}
CASES = [(command, path) for command in COMMANDS for path in PATHS if (command, path) not in VALID]


@pytest.mark.parametrize(("command", "path"), CASES)
def test_bad_paths_take_one_line(run, command, path):
    Path("folder.xyz").mkdir()
    Path("empty.xyz").touch()
    Path("garbage.xyz").write_bytes(bytes(range(256)) * 8)
    Path("one.fasta").write_text(">one\nACGT\n")
    arguments = [PATHS[path] if word == "PATH" else word for word in COMMANDS[command]]
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("mlff-triton: error: ")
