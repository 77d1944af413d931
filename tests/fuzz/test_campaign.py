"""A small campaign with fixed seeds, and what a campaign does with findings."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import campaign, isolated
from tests.fuzz.cases import KINDS, commands
from tests.fuzz.isolated import Limits
from tests.fuzz.kind import Facts, Finding, Kind
from tests.fuzz.verdict import CONFIRMED, FINDING, REFUSED, Verdict

CASES = 4  # of each name; `make fuzz` draws thousands
FEWER = {"lammps": 2}  # each of which starts a program
SEED = 1
LARGE = 1 << 26  # bytes
LOOSE = ("checkpoints", "commands")  # whose files libraries write in any order, and size
UNORDERED = ".safetensors"  # of all kinds, too


@pytest.mark.parametrize("kind", KINDS)
def test_no_case_is_a_finding(kind, tmp_path):
    names = campaign.names_of(kind)
    cases = islice(campaign.all_cases(names, SEED), FEWER.get(kind, CASES) * len(names))
    report = campaign.run(cases, Limits(), failures=tmp_path)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert report.total(kind, CONFIRMED)
    assert (report.total(kind, REFUSED) > 0) == KINDS[kind].is_refused


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_always_draws_the_same_case(kind, tmp_path):
    for name in KINDS[kind].generators:
        for seed in (1, 2):
            found = []
            for k in (1, 2):
                folder = tmp_path / f"{name}-{seed}-{k}"
                isolated.draw(KINDS[kind], name, seed, folder)
                files = {path.relative_to(folder): path for path in folder.rglob("*")}
                found.append({key: content(path, kind, name) for key, path in files.items()})
            assert found[0] == found[1], f"{name}, seed {seed}"


def content(path: Path, kind: str, name: str) -> object:
    """Return the content of a file, its size if it is huge, or None if libraries may vary it."""
    is_loose = kind in LOOSE or path.suffix == UNORDERED
    is_exact = name == "bytes changed" or path.name == isolated.FACTS or not is_loose
    if not (path.is_file() and is_exact):
        return None
    size = path.stat().st_size
    return path.read_bytes() if size < LARGE else size


def draw(rng: np.random.Generator, folder: Path) -> Facts:
    (folder / "number").write_text(str(rng.integers(10)))
    return {}


def refuse_seven(folder: Path, _: Facts) -> None:
    if (folder / "number").read_text() == "7":
        raise Finding("seven")


def test_findings_are_saved_and_reproduced(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "numbers", Kind({"draw": draw}, refuse_seven))
    shown = []
    cases = islice(campaign.all_cases(campaign.names_of("numbers"), SEED), 30)
    report = campaign.run(cases, Limits(), failures=tmp_path, show=shown.append)
    assert report.findings == shown
    assert 0 < len(shown) < 30
    assert report.total("numbers", FINDING) == len(shown)
    assert str(len(shown)) in str(report)
    first = shown[0]
    assert f"--seed {first.seed}" in str(first)
    assert campaign.replay(first.file, Limits()) == Verdict(FINDING, "seven")
    again = campaign.run_case("numbers", "draw", first.seed, Limits())[0]
    assert again == Verdict(FINDING, "seven")


def test_all_commands_have_arguments_that_succeed():
    assert commands.commands().keys() == commands.USUAL.keys() | commands.SLOW.keys()
