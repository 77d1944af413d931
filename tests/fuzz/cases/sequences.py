"""FASTA and FASTQ files of any bytes, and their alignments."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import parasail

from mlff_triton import bio
from tests.fuzz.damage import (
    SPECIAL_FILES,
    STRINGS,
    choice,
    damaged,
    deflated_zeros,
    make_special,
)
from tests.fuzz.kind import Facts, Finding, Kind

DNA, PROTEIN = "ACGTN", "ARNDCQEGHILKMFPSTWYVBZX*"
MODES = {"global": parasail.nw, "local": parasail.sw, "semiglobal": parasail.sg}
GAPS, SCORES = (5, 2), (2, -3)
NAMES = (*STRINGS, "a", "a", "read/1 a comment", ">", "@", "a\tb", "\x00", "é" * 100, "x" * 10**5)
Record = tuple[str, str]


def random_records(rng: np.random.Generator, letters: str) -> list[Record]:
    """Draw names and sequences."""
    records = []
    for k in range(int(rng.integers(1, 6))):
        length = int(10 ** rng.uniform(0, 2.5))
        sequence = "".join(rng.choice(list(letters), length))
        records.append((f"r{k}", sequence if rng.random() < 0.8 else sequence.lower()))
    return records


def fasta(rng: np.random.Generator, records: list[Record]) -> bytes:
    """Write records with lines of any length and any line ends."""
    end = choice(rng, ("\n", "\n", "\n", "\r\n", "\n\n"))
    width = int(10 ** rng.uniform(0.5, 3))
    lines = []
    for name, sequence in records:
        lines.append(f">{name}")
        lines += [sequence[k : k + width] for k in range(0, len(sequence), width)]
    return (end.join(lines) + choice(rng, (end, ""))).encode(errors="surrogatepass")


def fastq(rng: np.random.Generator, records: list[Record]) -> bytes:
    """Write records with qualities, among them those that look like headers."""
    parts = []
    for name, sequence in records:
        quality = "".join(chr(33 + int(q)) for q in rng.integers(0, 41, len(sequence)))
        quality = choice(rng, (quality, "@" * len(sequence), "+" * len(sequence)))
        parts.append(f"@{name}\n{sequence}\n+{choice(rng, ('', name))}\n{quality}\n")
    return "".join(parts).encode(errors="surrogatepass")


def facts(rng: np.random.Generator, letters: str, **others: object) -> Facts:
    """Draw the options of an alignment."""
    return {
        "mode": choice(rng, MODES),
        "matrix": "BLOSUM62" if letters == PROTEIN else None,
        "unknown": choice(rng, (None, None, "N" if letters == DNA else "X")),
        "letters": letters,
        "gaps": GAPS,
        "scores": SCORES,
        **others,
    }


def write_pair(rng: np.random.Generator, folder: Path, content: bytes, letters: str) -> None:
    """Write queries with this content, and undamaged targets."""
    (folder / "queries").write_bytes(content)
    (folder / "targets").write_bytes(fasta(rng, random_records(rng, letters)))


def whole(rng: np.random.Generator, folder: Path) -> Facts:
    """Write undamaged files, plain or gzipped, with or without a byte order mark."""
    letters = choice(rng, (DNA, PROTEIN, "ACGUN"))
    records = random_records(rng, letters)
    content = choice(rng, (fasta, fastq))(rng, records)
    content = choice(rng, (b"", b"", b"\xef\xbb\xbf")) + content
    packed = gzip.compress(content[:10]) + gzip.compress(content[10:])
    write_pair(rng, folder, choice(rng, (content, gzip.compress(content), packed)), letters)
    return facts(rng, PROTEIN if letters == PROTEIN else DNA, records=records)


def odd_scores(rng: np.random.Generator, folder: Path) -> Facts:
    """Write one long sequence, for scores and gap penalties of any size."""
    match, mismatch, gap_open, gap_extend = (int(x) for x in 10 ** rng.uniform(0, 4, 4))
    records = [("long", "".join(rng.choice(list("ACGT"), int(10 ** rng.uniform(1, 4)))))]
    files = (fasta(rng, records), fasta(rng, random_records(rng, DNA)))
    for name, content in zip(rng.permutation(["queries", "targets"]), files, strict=True):
        (folder / name).write_bytes(content)
    gaps = (gap_open, min(gap_open, gap_extend))
    return facts(rng, DNA) | {"gaps": gaps, "scores": (match, -mismatch)}


def bytes_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Damage the bytes of a file, plain or gzipped."""
    letters = choice(rng, (DNA, PROTEIN))
    content = choice(rng, (fasta, fastq))(rng, random_records(rng, letters))
    packed = damaged(rng, gzip.compress(content))
    write_pair(rng, folder, choice(rng, (damaged(rng, content), packed)), letters)
    return facts(rng, letters)


def any_bytes(rng: np.random.Generator, folder: Path) -> Facts:
    """Write random bytes, other encodings and formats, and lines that hardly end."""
    content = fasta(rng, random_records(rng, DNA))
    long = int(10 ** rng.uniform(3, 7))
    options = (
        rng.bytes(int(10 ** rng.uniform(0, 4))),
        b">" + rng.bytes(100) + b"\n" + rng.bytes(100),
        content.decode().encode("utf-16"),
        content.decode().encode("utf-32"),
        bz2.compress(content),
        b">a\n" + b"A" * min(long, 10**6),  # more take longer to align than a case may
        b">a\n" + b"A\n" * min(long, 10**6),
        b">a\n" + b"\n" * long + b"A",
        b">" + b"a" * long + b"\nACGT\n",
        b">a\nACGT\n" * (long // 1000),
        b">a\n" + bytes(long),
        b">a\nAC\0GT\n",
        b"\n" * long,
        b">\n>\n>\n",
        b"",
        b"@a\nACGT\n+\n!!\n",
        b"@a\nACGT\n",
        b"ACGT",
    )
    write_pair(rng, folder, choice(rng, options), DNA)
    return facts(rng, DNA)


def odd_names(rng: np.random.Generator, folder: Path) -> Facts:
    """Give records names with control characters, and lengths from nothing to a million."""
    records = []
    for _ in range(int(rng.integers(1, 4))):
        length = int(choice(rng, (0, 1, 10, 10**6)))
        records.append((choice(rng, NAMES), "ACGT" * (length // 4) + "A" * (length % 4)))
    write_pair(rng, folder, choice(rng, (fasta, fastq))(rng, records), DNA)
    (folder / "targets").write_bytes(b">t\nACGTACGT\n")
    return facts(rng, DNA)


def gzip_bomb(rng: np.random.Generator, folder: Path) -> Facts:
    """Write a small gzip that inflates to up to 3 GB."""
    size = int(2 ** rng.uniform(26, 31.5)) >> 20 << 20
    head = gzip.compress(choice(rng, (b"", b">a\nACGT\n", b">a")))
    (folder / "targets").write_bytes(b">t\nACGT\n")
    bomb = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + deflated_zeros(size) + bytes(8)
    (folder / "queries").write_bytes(head + bomb)
    return facts(rng, DNA)


def special_file(rng: np.random.Generator, folder: Path) -> Facts:
    """Name something that is not an ordinary file."""
    (folder / "targets").write_bytes(b">t\nACGT\n")
    return facts(rng, DNA, special=choice(rng, SPECIAL_FILES))


def check(folder: Path, facts: Facts) -> None:
    """Align all queries with all targets, and compare scores with parasail."""
    if facts.get("special"):
        make_special(facts["special"], folder / "queries")
    found = bio.align(
        folder / "queries",
        folder / "targets",
        pairs="all",
        mode=facts["mode"],
        matrix=facts["matrix"],
        unknown=facts["unknown"],
        match=facts["scores"][0],
        mismatch=facts["scores"][1],
        gap_open=facts["gaps"][0],
        gap_extend=facts["gaps"][1],
        device="cpu",
    )
    queries, targets = (parsed((folder / name).read_bytes()) for name in ("queries", "targets"))
    if "records" in facts and queries != [sequence for _, sequence in facts["records"]]:
        raise RuntimeError("the parser of the campaign is wrong")
    pairs = [(query, target) for query in queries for target in targets]
    if len(found) != len(pairs):
        raise Finding(f"{len(found)} pairs were aligned, not {len(pairs)}")
    for score, (query, target) in zip(found.score.tolist(), pairs, strict=True):
        expected = score_of(query, target, facts)
        if score != expected:
            raise Finding(f"a score is {score}, not {expected}")


def score_of(query: str, target: str, facts: Facts) -> int:
    """Return the score by parasail."""
    texts = [encoded(text, facts) for text in (query, target)]
    if facts["matrix"]:
        matrix = parasail.blosum62
    else:
        matrix = parasail.matrix_create(DNA, *facts["scores"])
        matrix[4, 4] = facts["scores"][1]  # N matches nothing
    return int(MODES[facts["mode"]](*texts, *facts["gaps"], matrix).score)


def encoded(text: str, facts: Facts) -> str:
    """Replace unknown symbols, or raise `Finding` if they should have been refused."""
    upper = text.encode("latin-1").upper().decode("latin-1")  # only ASCII
    if facts["letters"] == DNA:
        upper = upper.replace("U", "T")
    odd = set(upper) - set(facts["letters"])
    if odd and facts["unknown"] is None:
        raise Finding(f"the symbols {sorted(odd)[:5]} were accepted")
    return upper.translate(dict.fromkeys(map(ord, odd), facts["unknown"]))


def parsed(content: bytes) -> list[str]:
    """Return the sequences of a file."""
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    text = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1").replace("\r\n", "\n")
    if text.startswith("@"):
        return reads(text)
    text = "\n".join(line for line in text.split("\n") if not line.startswith(";"))
    bodies = ("\n" + text).split("\n>")[1:]
    return [without_blanks("".join(body.split("\n")[1:])) for body in bodies]


def reads(text: str) -> list[str]:
    """Return the sequences of a FASTQ file.

    A sequence ends before a line that begins with a plus sign, and has as many qualities as bases,
    whatever lines they are on. A damaged file may thus have fewer records.
    """
    found, lines = [], text.split("\n")
    while lines:
        if not without_blanks(lines.pop(0)):
            continue
        plus = next((k for k, line in enumerate(lines) if line.startswith("+")), len(lines))
        found.append(without_blanks("".join(lines[:plus])))
        qualities, lines = 0, lines[plus + 1 :]
        while lines and qualities < len(found[-1]):
            qualities += len(without_blanks(lines.pop(0)))
    return found


def without_blanks(text: str) -> str:
    """Remove blanks from a text."""
    return text.translate({ord(c): None for c in " \t\r"})


KIND = Kind(
    {
        "whole": whole,
        "odd scores": odd_scores,
        "bytes changed": bytes_changed,
        "any bytes": any_bytes,
        "odd names": odd_names,
        "gzip bomb": gzip_bomb,
        "special file": special_file,
    },
    check,
)
