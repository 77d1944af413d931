"""Sequences in all forms that `bio.align` reads, and files that it refuses."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
import torch
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

from mlff_triton.bio.alignment import files
from mlff_triton.bio.alignment.sequences import Alphabet
from mlff_triton.errors import InputError
from tests.support.alignments import QUERIES, SCORES, TARGETS, align, as_records

GZIPPED = gzip.compress(b">a\nACGT\n", mtime=0)  # without the time, which would be in test names


def as_tensors(texts):
    letters = "ACGTN"
    codes = torch.full((len(texts), 20), 99)
    for row, text in zip(codes, texts, strict=True):
        row[: len(text)] = torch.tensor([letters.index(x) for x in text.upper()])
    return codes, torch.tensor([len(text) for text in texts])


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        iter,
        lambda texts: [text.encode() for text in texts],
        lambda texts: [texts[0], texts[1].encode(), Seq(texts[2]), *texts[3:]],
        as_records,
        as_tensors,
        lambda texts: np.array(texts, dtype=object),
        lambda texts: {f"s{k}": text for k, text in enumerate(texts)},
        lambda texts: {record.id: record for record in as_records(texts)},
        lambda texts: (as_tensors(texts)[0], list(map(len, texts))),
    ],
)
def test_forms_of_sequences(form):
    assert align(form(QUERIES), form(TARGETS)).score.tolist() == SCORES


def test_many_strings_with_others_among_them():
    texts = [*QUERIES * 200, Seq("ACGT"), b"ACGT", *QUERIES * 200, b"ACGT"]
    letters = [text if isinstance(text, str) else bytes(text).decode() for text in texts]
    found, expected = (Alphabet("ACGTN").read(some, "query") for some in (texts, letters))
    assert torch.equal(found.letters, expected.letters)
    assert torch.equal(found.length, expected.length)
    with pytest.raises(InputError, match="query 1000 is not a sequence but of type int"):
        align([*QUERIES * 200, 3], ["A"])


def test_names_are_those_of_records():
    found = align(as_records(["AC"]), ["AC"])
    assert (found.query_names, found.target_names) == (["r0"], ["0"])
    assert align({"some": "AC"}, {5: "AC"})[0][:2] == ("some", "5")


def test_whole_numbers_may_be_floats():
    assert align(["ACGT"], ["AT"], gap_open=6.0, gap_extend=np.int64(1)).score.tolist() == [-3]


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_fasta(tmp_path, pack, end, mark):
    lines = [b"", b">one two", b"AC gt", b"", b"TT", b">three", b"N"]
    path = tmp_path / "some.fa"
    path.write_bytes(pack(mark + end.join(lines)))
    found = align(path, str(path), traceback=True)
    assert found.query_names == ["one", "three"]
    assert [found.query_letters(k) for k in range(2)] == ["ACGTTT", "N"]
    assert found.cigar == ["6=", "1X"]  # N matches nothing, not even N


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_comments_of_old_fasta_files(tmp_path, end):
    lines = [b"", b"; of the file", b">one", b";of a record", b"ACGT", b"; T", b"TT", b">two"]
    path = tmp_path / "some.fa"
    path.write_bytes(end.join([*lines, b"C", b";"]))
    assert [*files.read_records(path)] == [("one", b"ACGTTT"), ("two", b"C")]


def test_records_may_be_empty_where_each_stands_for_itself(tmp_path):
    path = tmp_path / "some.fa"
    path.write_bytes(b">a\n>b\nAC\n>c")
    expected = [("a", b""), ("b", b"AC"), ("c", b"")]
    assert [*files.read_records(path, allow_empty=True)] == expected
    path.write_bytes(b"@a\n\n+\n\n@b\nAC\n+\nII\n")
    assert [*files.read_records(path, allow_empty=True)] == expected[:2]
    with pytest.raises(InputError, match=r"record a of .* is empty"):
        next(files.read_records(path))


def test_many_sequences_keep_their_order():
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("ACGT"), size)) for size in draw.integers(0, 9, 1000)]
    assert Alphabet("ACGTN").decode(Alphabet("ACGTN").read(texts, "query")) == texts


@pytest.mark.parametrize("unknown", [None, "N"])
@pytest.mark.parametrize("form", [str, str.encode])
@pytest.mark.parametrize("longest", [0, 9])
def test_a_device_encodes_as_the_host_does(unknown, form, longest):
    draw = np.random.default_rng(0)
    letters = list("ACGTNacgtn" + "-é" * (unknown is not None))
    sizes = draw.integers(0, longest + 1, 1000)
    texts = [form("".join(draw.choice(letters, size))) for size in sizes]
    host, device = (
        Alphabet("ACGTN", unknown, device=device, upload_batch=300, encoding_batch=100).read(
            texts, "query"
        )
        for device in (None, torch.device("cpu"))
    )
    assert host.names == device.names
    assert all(map(torch.equal, host[1:], device[1:]))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ACGT", "", "ACXT"], "query 2 has 'X' at position 3, which is not one of ACGTN"),
        (["A", "Aé"], "query 1 has 'é' at position 2"),
        ([b"A", b"\xffC"], "query 1 has 'ÿ' at position 1"),
        ([], "there is no query"),
    ],
)
def test_a_device_refuses_as_the_host_does(texts, message):
    for device in (None, torch.device("cpu")):
        with pytest.raises(InputError, match=message):
            Alphabet("ACGTN", device=device).read(texts, "query")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "contains no records"),
        (b"ACGT\n", "is not a FASTA or FASTQ file: it must begin with > or @"),
        (b" \n\n", "contains no records"),
        (b">a\nACGT\n>b", "record b of .* is empty: is the file truncated"),
        (b">\nACGT\n", "a record without a name"),
        (GZIPPED[:-9], "is damaged or truncated"),
        (GZIPPED[:5], "is damaged or truncated before its first record"),
        (GZIPPED[:-8] + bytes(8), "is damaged or truncated in record a"),
        (GZIPPED + b"more", "is damaged or truncated in record a"),
        (b"@a\nACGT\n+\nIII\n", "record a of .* has 4 bases and 3 qualities: is the file trunc"),
        (b"@a\nACGT\n+\nIIIII\n", "record a of .* has 4 bases and 5 qualities"),
        (b"@a\nACGT\n", "record a of .* has 4 bases and 0 qualities"),
        (b"@a\n+\n", "record a of .* is empty"),
        (b"@a\nACGT\n+\nIIII\nACGT\n", "has no @ after record a"),
        (">a\nACGT\n".encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
        (">a\nACGT\n".encode("utf-16-le"), "bytes of value 0: it is damaged or not a text file"),
        (b">a\nAC\0GT\n", "bytes of value 0"),
        (bytes(2**20), "bytes of value 0"),
        (b">" + b"a" * 2**21 + b"\nACGT\n", "has a name line of 1048576 bytes or more"),
        (b">a\nAC-GT\n", "query a has '-' at position 3"),
        (b">a\nAC;GT\n", "query a has ';' at position 3"),
        (b";a\nACGT\n", "is not a FASTA or FASTQ file: it must begin with > or @"),
        (b"; a comment alone\n", "contains no records"),
        (b">a\n;" + b"a" * 2**21 + b"\nACGT\n", "has a comment of 1048576 bytes or more"),
        (b">a\rACGT\r>b\rAC\r", "has lines that end in a carriage return alone: convert them"),
        (b">a\n;b\rACGT\r", "has lines that end in a carriage return alone"),
    ],
)
def test_files_are_refused(tmp_path, content, message):
    path = tmp_path / "some.fa"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        align(path, ["A"])
    assert str(path) in str(refused.value) or "query a" in message


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_fastq(tmp_path, pack, end):
    lines = [b"@one two", b"ACgt", b"+", b"@+>I", b"@three", b"UU", b"T", b"+three", b"II", b"@"]
    path = tmp_path / "some.fq"
    path.write_bytes(pack(end.join([b"", *lines, b"", b""])))
    found = align(path, path)
    assert found.query_names == ["one", "three"]
    assert [found.query_letters(k) for k in range(2)] == ["ACGT", "TTT"]


def test_long_lines_are_read_in_parts(tmp_path):
    path = tmp_path / "some.fa"
    path.write_bytes(b">a\n" + b"ACGT" * 2**19 + b"\n>b\nAC\n")
    assert [len(record.seq) for record in files.read_records(path)] == [2**21, 2]


def test_implausible_sizes_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "some.fa.gz"
    path.write_bytes(gzip.compress(b">a\n" + b"A" * 10**6))
    (record,) = files.read_records(path)
    assert len(record.seq) == 10**6
    monkeypatch.setattr(files, "INFLATED", 2**18)
    with pytest.raises(InputError, match=r"inflates to more than 0\.00\d* GiB, the limit"):
        align(path, ["A"])
    monkeypatch.setattr(files, "INFLATION", 10**6)
    monkeypatch.setattr(files, "MOST_SYMBOLS", 10**6 - 1)
    with pytest.raises(InputError, match=r"record a of .* has more than 999999 residues"):
        align(path, ["A"])


def test_control_characters_in_names_are_escaped(tmp_path):
    path = tmp_path / "some.fa"
    path.write_bytes("\n".join([">a\x1b[2J", "AC", ">ä", "GT"]).encode())
    found = align(path, {"b\x07\n": "AC", "c": "GT"})
    assert found.query_names == ["a\\x1b[2J", "ä"]
    assert found.target_names == ["b\\x07\\n", "c"]
    assert str(found).replace("\n", "").isprintable()
    with pytest.raises(InputError) as refused:
        align([SeqRecord(Seq("A-"), id="\x1b[2J")], ["A"])
    assert str(refused.value).isprintable()


def test_uracil_is_thymine():
    found = align(["ACGUu"], ["ACGTT"], traceback=True)
    assert (found.score.tolist(), found.cigar) == ([10], ["5="])
    assert align(["U"], ["T"], matrix="NUC.4.4").score.tolist() == [5]


PROTEIN = "seems to be a protein: align proteins with .* matrix='BLOSUM62' .--matrix BLOSUM62.$"


@pytest.mark.parametrize("unknown", [None, "N"])
@pytest.mark.parametrize("matrix", [None, "NUC.4.4", np.eye(4), np.eye(5)])
@pytest.mark.parametrize("form", [str, str.lower, str.encode])
def test_proteins_need_a_matrix(unknown, matrix, form):
    if matrix is not None and len(matrix) == 4 and unknown is not None:
        unknown = "A"
    with pytest.raises(InputError, match=PROTEIN):
        align([form("MKTAYIAKQR")], ["ACGT"], matrix=matrix, unknown=unknown)


def test_devices_are_refused():
    with pytest.raises(InputError, match="/dev/zero is a device: save its content as a file"):
        align("/dev/zero", ["A"])


def test_paths_that_cannot_be():
    for path, reason in (("AC\0GT", "is not a path"), ("A" * 5000, "File name too long")):
        with pytest.raises(InputError, match=f"{reason}.*put a single sequence into a list") as no:
            align(path, ["A"])
        assert len(str(no.value)) < 200


def test_pipes_are_refused(tmp_path):
    """A pipe would be empty when it is opened again."""
    os.mkfifo(tmp_path / "some.fa")
    with pytest.raises(InputError, match=r"some\.fa is a pipe, which can be read only once"):
        align(tmp_path / "some.fa", ["A"])


def test_a_truncated_file_is_refused_with_the_record(tmp_path):
    draw = np.random.default_rng(0)
    records = [f">r{k}\n{''.join(draw.choice(list('ACGT'), 900))}\n" for k in range(100)]
    packed = gzip.compress("".join(records).encode())
    path = tmp_path / "some.fa.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"is damaged or truncated in record r(4|5)\d"):
        align(path, ["A"])
