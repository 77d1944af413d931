"""Numbers with units of time, speed or memory on pages are those of the committed measurements."""

from __future__ import annotations

import re

import pytest

from tests.docs.claims import CLAIMS, OTHERS
from tests.docs.pages import DOCS, README, name_of

PAGES = [README, *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^[ \t]*```.*?^[ \t]*```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
UNIT = r"(?:ms|s|µs|ns/day|ns per day|GCUPS|kB|MB|GB|MiB|GiB|TB/s|times|%)(?![\w/])"
NUMBER = re.compile(rf"(?<![\w.])\d[\d.,]*(?:(?: to | and |, )\d[\d.,]*)* {UNIT}")  # or "2 to 3 ms"


def prose_of(text: str) -> str:
    """Return a page without code, tables and line breaks."""
    return " ".join(TABLE.sub("", FENCE.sub("", text)).split())


def left_over(text: str, fragments: list[str]) -> list[str]:
    """Return the numbers with units that no fragment covers."""
    covered = {
        position
        for fragment in fragments
        for found in re.finditer(re.escape(fragment), text)
        for position in range(*found.span())
    }
    return [
        found[0] for found in NUMBER.finditer(text) if not covered.issuperset(range(*found.span()))
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_on_pages_are_measured(page):
    text, name = prose_of(page.read_text()), name_of(page)
    claims, others = CLAIMS.get(name, list)(), list(OTHERS.get(name, ()))
    assert [one for one in (*claims, *others) if one not in text] == []
    assert left_over(text, [*claims, *others]) == []


def test_pages_with_claims_exist():
    assert {*CLAIMS, *OTHERS} <= {name_of(page) for page in PAGES}


def test_numbers_without_a_measurement_are_found():
    text = prose_of(
        "It takes\n4.2 ms, and 3 to 4 times as long on 2 GPUs.\n\n| 7 ms |\n\n```text\n8 ms\n```\n"
    )
    assert left_over(text, []) == ["4.2 ms", "3 to 4 times"]
    assert left_over(text, ["takes 4.2 ms"]) == ["3 to 4 times"]
