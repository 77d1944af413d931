"""Code blocks of the README and the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:^[ \t]*<!-- skip: (?P<skip>[^\n]+?) -->\n)?"
    r"^(?P<indent>[ \t]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
INCLUDE = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes
    ----------
    language : str
        The word behind the fence; empty without one.
    code : str
        Its lines, without the indentation of the fence.
    line : int
        Line of its first line of code in the page, from 1.
    skip : str or None
        Reason why it cannot run in the tests, from the comment directly above.
    """

    language: str
    code: str
    line: int
    skip: str | None


def pages() -> list[Path]:
    """Return the README and every page of the documentation."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def text_of(page: Path) -> str:
    """Read a page, with the files that it includes."""
    return INCLUDE.sub(lambda found: (ROOT / found[1]).read_text(), page.read_text())


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    blocks = []
    for found in BLOCK.finditer(text):
        indent = len(found["indent"])
        lines = [line[indent:] for line in found["code"].splitlines(keepends=True)]
        number = text.count("\n", 0, found.start("code")) + 1
        blocks.append(Block(found["language"], "".join(lines), number, found["skip"]))
    return blocks


def name_of(page: Path) -> str:
    """Return the name of a page relative to the repository."""
    return str(page.relative_to(ROOT))
