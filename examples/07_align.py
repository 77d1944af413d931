"""Alignment of two protein families, all against all, and of reads with a longer sequence.

Usage: ``python 07_align.py``. Results are the same on a GPU, with ``--device cuda``.

BLOSUM62 needs ``pip install 'mlff-triton[align]'``. The example prints its results and leaves no
files behind.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from mlff_triton import bio

SEQUENCES = Path(__file__).parent / "sequences"
MATCH, MISMATCH, GAP_OPEN, GAP_EXTEND = 2, -3, 5, 2  # the defaults, for bases
BASES = "ACGT"


def read_family(name: str) -> dict[str, str]:
    """Return the sequences of a file by name."""
    entries = (SEQUENCES / f"{name}.fasta").read_text().split(">")[1:]
    rows = (entry.split("\n", 1) for entry in entries)
    return {head.split()[0].split("|")[-1]: body.replace("\n", "") for head, body in rows}


def compare_families(device: str) -> None:
    """Print the identities of all pairs, and check that relatives score higher than others."""
    families = [read_family("globins"), read_family("lysozymes")]
    proteins = {name: text for family in families for name, text in family.items()}
    found = bio.align(
        proteins,
        proteins,
        pairs="all",
        matrix="BLOSUM62",
        gap_open=11,
        gap_extend=1,
        traceback=True,
        device=device,
    )

    print("Identity in global alignments, %")
    identities = (100 * found.identity).reshape(len(proteins), -1)
    print(" " * 14, *(f"{number:4d}" for number in range(1, len(proteins) + 1)))
    for number, (name, row) in enumerate(zip(proteins, identities.tolist(), strict=True), 1):
        print(f"{number:2d} {name:12s}", *(f"{percent:4.0f}" for percent in row))

    family_of = {name: k for k, family in enumerate(families) for name in family}
    is_within = [family_of[pair.query] == family_of[pair.target] for pair in found]
    within = [pair.score for pair, same in zip(found, is_within, strict=True) if same]
    between = [pair.score for pair, same in zip(found, is_within, strict=True) if not same]
    print(f"\nScores within families: {min(within)} and more, between: {max(between)} and less\n")
    assert min(within) > 0 > max(between)
    scores = found.score.reshape_as(identities)
    assert scores.equal(scores.T)

    names = list(proteins)
    pair = names.index("LYSC_CHICK") * len(names) + names.index("LALBA_HUMAN")
    print(found.pretty(pair), "\n")


class Read(NamedTuple):
    """Bases of a read, and the range of the target that they come from."""

    bases: str
    begin: int
    end: int


def sample_read(target: str, draw: random.Random, length: int = 100) -> Read:
    """Sample a piece of the target with two substitutions, an insertion and a deletion."""
    begin = draw.randrange(len(target) - length)
    bases = list(target[begin : begin + length])
    first, second, third, fourth = sorted(draw.sample(range(20, length - 20, 6), 4))
    for k in (first, third):
        bases[k] = draw.choice(BASES.replace(bases[k], ""))
    bases[second] *= 2
    bases[fourth] = ""
    return Read("".join(bases), begin, begin + length)


def rescore(cigar: str, query: str, target: str) -> int:
    """Compute the score of a CIGAR string, and check its operations against the bases."""
    i = j = score = 0
    for count, operation in re.findall(r"(\d+)([=XID])", cigar):
        n = int(count)
        if operation in "=X":
            facing = zip(query[i : i + n], target[j : j + n], strict=True)
            assert all((a == b) == (operation == "=") for a, b in facing)
            score += n * (MATCH if operation == "=" else MISMATCH)
        else:
            score -= GAP_OPEN + (n - 1) * GAP_EXTEND
        i += n * (operation != "D")
        j += n * (operation != "I")
    assert (i, j) == (len(query), len(target))
    return score


def find_reads(device: str, folder: Path) -> None:
    """Align complete reads to their best position, check the results, and write SAM."""
    draw = random.Random(7)  # noqa: S311 - not for cryptography
    target = "".join(draw.choices(BASES, k=5000))
    reads = [sample_read(target, draw) for _ in range(40)]
    found = bio.align(
        {f"read{k}": read.bases for k, read in enumerate(reads)},
        {"target": target},
        pairs="all",
        mode=("target_begin", "target_end"),  # the target may extend beyond the read
        traceback=True,
        device=device,
    )
    for read, pair in zip(reads, found, strict=True):
        assert (pair.target_begin, pair.target_end) == (read.begin, read.end)
        facing = target[pair.target_begin : pair.target_end]
        assert rescore(pair.cigar, read.bases, facing) == pair.score
    print(f"{len(reads)} reads are found at their origin in {len(target)} bases. The first:")
    print(*found[0])

    path = folder / "reads.sam"
    found.to_sam(path)
    lines = [line.split("\t") for line in path.read_text().splitlines() if line[0] != "@"]
    assert [line[5] for line in lines] == found.cigar
    assert [int(line[3]) for line in lines] == [read.begin + 1 for read in reads]
    print(f"{path.name} has {len(lines)} alignments")


def main() -> None:
    """Align proteins, then DNA."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or all GPUs")
    device = parser.parse_args().device
    compare_families(device)
    with tempfile.TemporaryDirectory() as folder:
        find_reads(device, Path(folder))


if __name__ == "__main__":
    main()
