"""Tables of the page "Choosing a model", from the facts that the package holds about its models.

Usage: ``python -m tools.docs_models`` writes them into the page again.
"""

from __future__ import annotations

import re
from pathlib import Path

from mlff_triton.checkpoints.facts import FACTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "choosing-a-model.md"
TABLES = re.compile(r"(?<=<!-- facts -->\n\n).*?(?=\n<!-- end of facts -->)", re.DOTALL)
ADDRESS = re.compile(r"https://([\w.-]+)/[^\s,]*")
REPOSITORY = "https://github.com/mlff-triton/mlff-triton/blob/main"


def tables() -> str:
    """Return a heading and a table of two columns for each model that has a name."""
    sections = []
    for name, facts in FACTS.items():
        rows = "".join(f"| {fact} | {_linked(fact, text)} |\n" for fact, text in facts.rows())
        sections.append(f"### {name}\n\n| | |\n|---|---|\n{rows}")
    return "\n".join(sections)


def _linked(fact: str, text: str) -> str:
    """Make the addresses and the file in the source of a model links."""
    if fact != "source":
        return text
    if not ADDRESS.search(text):
        return f"[{Path(text).name}]({REPOSITORY}/{text})"
    return ADDRESS.sub(lambda found: f"[{found[1]}]({found[0]})", text)


def main() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLES.sub(lambda _: tables(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
