"""A small campaign with fixed seeds, and what a campaign does with findings."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz import campaign
from tests.fuzz.cases import KINDS, commands
from tests.fuzz.isolated import Limits
from tests.fuzz.verdict import CONFIRMED, REFUSED

CASES = 6  # of each name
SEED = 1

LEFT_OUT: dict[str, dict[str, str]] = {
    "checkpoints": {"tensor changed": "parameters in place of the energy scale cannot be copied"},
    "structures": {
        "damaged file": "messages repeat control characters of the file",
        "odd atoms": "complex charges are accepted",
        "odd arrays": "messages repeat whole arrays",
        "odd lines in a file": "a count of 10^30 atoms takes forever",
        "special file": "a device, or a file of 10 GB, is read",
    },
    "sequences": {
        "whole": "U is not T",
        "gzip bomb": "the size is not limited",
        "special file": "a device, or a file of 10 GB, is read",
    },
}
"""Cases with known findings: the reason by kind and name."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_case_is_a_finding(kind, tmp_path):
    names = campaign.names_of(kind, LEFT_OUT.get(kind, {}))
    cases = islice(campaign.all_cases(names, SEED), CASES * len(names))
    report = campaign.run(cases, Limits(), failures=tmp_path)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert report.total(kind, CONFIRMED)
    assert report.total(kind, REFUSED)


def test_all_commands_have_arguments_that_succeed():
    assert commands.commands().keys() == commands.USUAL.keys() | commands.SLOW.keys()
