"""Numbers with units of time, speed or memory on pages are those of the committed measurements."""

from __future__ import annotations

import re

import pytest

from tests.docs.claims import CLAIMS, OTHERS, measured, slower_multiplication
from tests.docs.pages import DOCS, ROOT

FENCE = re.compile(r"^[ \t]*```.*?^[ \t]*```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
UNITS = ("ms", "s", "µs", "ns/day", "GCUPS", "kB", "MB", "GB", "MiB", "GiB", "TB/s", "times", "%")
NUMBER = re.compile(
    rf"\d[\d.,]*(?:(?: to | and |, )\d[\d.,]*)* (?:{'|'.join(UNITS)})(?![\w/])"  # "2 to 3 ms"
)


def prose_of(text: str) -> str:
    """Return a page without code, tables and line breaks."""
    return " ".join(TABLE.sub("", FENCE.sub("", text)).split())


def left_over(text: str, fragments: list[str]) -> list[str]:
    """Return the numbers with units that no fragment covers."""
    for fragment in sorted(fragments, key=len, reverse=True):
        text = text.replace(fragment, "...")
    return [found[0] for found in NUMBER.finditer(text)]


@pytest.mark.parametrize("page", CLAIMS)
def test_numbers_on_pages_are_measured(page):
    text = prose_of((ROOT / page).read_text())
    claims, others = CLAIMS[page](), list(OTHERS.get(page, ()))
    assert [one for one in (*claims, *others) if one not in text] == []
    assert left_over(text, [*claims, *others]) == []


def test_the_benchmarks_say_where_multiplication_is_slower():
    text = prose_of((DOCS / "benchmarks.md").read_text())
    assert slower_multiplication() in text
    for size in (512, 1024):
        rows = measured("pairs")[f"triangle-multiplication-{size}"]
        ours, theirs = (rows[f"{name}-bf16"].ms_p50 for name in ("triton", "cuequivariance"))
        assert f"{ours:#.3g} ms instead of {theirs:#.3g}" in text


def test_numbers_without_a_measurement_are_found():
    text = prose_of(
        "It takes\n4.2 ms, and 3 to 4 times as long on 2 GPUs.\n\n| 7 ms |\n\n```text\n8 ms\n```\n"
    )
    assert left_over(text, []) == ["4.2 ms", "3 to 4 times"]
    assert left_over(text, ["takes 4.2 ms"]) == ["3 to 4 times"]
