"""Isolated checks: every way to fail is a finding, and nothing else is."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mlff_triton.errors import CheckpointError, InputError
from tests.fuzz import isolated
from tests.fuzz.isolated import Limits
from tests.fuzz.kind import Facts, Finding, Kind
from tests.fuzz.verdict import CONFIRMED, FINDING, REFUSED

LIMITS = Limits(cpu=1, wall=3.0, memory=1 << 29)


def allocate() -> None:
    try:
        bytearray(1 << 33)
    except MemoryError as error:
        raise CheckpointError("the file is damaged") from error


def refuse(message: str) -> None:
    raise InputError(message)


def spin() -> None:
    while True:
        pass


def find() -> None:
    raise Finding("two energies differ")


ACTIONS = {
    "returns": lambda: None,
    "refuses": lambda: refuse("atom 3 is at NaN"),
    "crashes": lambda: os.kill(os.getpid(), signal.SIGFPE),
    "exits": lambda: os._exit(3),
    "spins": spin,
    "waits": lambda: time.sleep(60),
    "fills the memory": lambda: bytearray(1 << 33),
    "hides a full memory": allocate,
    "raises another exception": lambda: {}["a"],
    "is wrong": find,
    "prints escapes": lambda: refuse("red: \x1b[31m"),
    "prints two lines": lambda: refuse("two\nlines"),
    "gives dangerous advice": lambda: refuse("set weights_only=False"),
}
EXPECTED = {
    "returns": (CONFIRMED, ""),
    "refuses": (REFUSED, "InputError: atom 3 is at NaN"),
    "crashes": (FINDING, "crash by SIGFPE"),
    "exits": (FINDING, "ended by itself with code 3"),
    "spins": (FINDING, "hang: 1 s of processor time"),
    "waits": (FINDING, "hang: not done after 3 s"),
    "fills the memory": (FINDING, "memory over the limit"),
    "hides a full memory": (FINDING, "memory over the limit"),
    "raises another exception": (FINDING, "foreign KeyError"),
    "is wrong": (FINDING, "two energies differ"),
    "prints escapes": (FINDING, "control characters"),
    "prints two lines": (FINDING, "more than 1 lines"),
    "gives dangerous advice": (FINDING, "disable safe loading"),
}


def generate(rng: np.random.Generator, folder: Path) -> Facts:
    (folder / "draw").write_text(str(rng.random()))
    return {}


def fail(*_: object) -> Facts:
    raise LookupError("no such case")


def act(folder: Path, _: Facts) -> None:
    action = (folder / "action").read_text() if (folder / "action").exists() else "returns"
    (folder / "draw").unlink(missing_ok=True)
    ACTIONS[action]()


KIND = Kind({"generate": generate, "fail": fail}, act)


@pytest.mark.parametrize("action", ACTIONS)
def test_verdicts(action, tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "action").write_text(action)
    (tmp_path / "input" / "facts.json").write_text("{}")
    verdict = isolated.replay(KIND, tmp_path, LIMITS)
    status, reason = EXPECTED[action]
    assert verdict.status == status
    assert reason in verdict.reason


def test_files_of_a_case_follow_from_its_seed_and_survive_the_check(tmp_path):
    draws = []
    for k, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(k)
        folder.mkdir()
        assert isolated.run(KIND, "generate", seed, folder, LIMITS).status == CONFIRMED
        draws.append((folder / "input" / "draw").read_text())
        assert not (folder / "work" / "draw").exists()
    assert draws[0] == draws[1] != draws[2]


def test_a_generator_that_fails_is_no_finding(tmp_path):
    with pytest.raises(RuntimeError, match="no such case"):
        isolated.run(KIND, "fail", 1, tmp_path, LIMITS)
