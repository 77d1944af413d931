"""One alignment as rows of text."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.alignment.types import DELETION, INSERTION

MIDDLE = "|.--"  # at match, mismatch, insertion and deletion, as Biopython prints them


class Rows(NamedTuple):
    """Aligned query and target, with ``-`` for gaps, and a row of symbols between them.

    The middle row has ``|`` for matches, ``.`` for mismatches and ``-`` for gaps.
    """

    query: str
    middle: str
    target: str

    @classmethod
    def of(cls, query: str, target: str, operation: Tensor) -> Rows:
        """Build rows from the aligned parts of both sequences and one operation per column."""
        operations = operation.tolist()
        a, b = iter(query), iter(target)
        return cls(
            "".join("-" if k == DELETION else next(a) for k in operations),
            "".join(MIDDLE[k] for k in operations),
            "".join("-" if k == INSERTION else next(b) for k in operations),
        )

    def lines(self, names: tuple[str, str], begin: tuple[int, int], width: int) -> list[str]:
        """Return blocks of three lines to print, with positions counted from 1."""
        before = list(begin)
        margin = max(map(len, names))
        digits = len(str(max(begin) + len(self.middle)))
        lines = []
        for column in range(0, len(self.middle), width):
            query, middle, target = (row[column : column + width] for row in self)
            sides = []
            for side, letters in enumerate((query, target)):
                first = before[side] + 1
                before[side] += len(letters) - letters.count("-")
                sides.append(f"{names[side]:<{margin}} {first:>{digits}} {letters} {before[side]}")
            lines += ["", sides[0], " " * (margin + digits + 2) + middle, sides[1]]
        return lines
