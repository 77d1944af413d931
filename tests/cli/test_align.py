"""``mlff-triton align``: complete output files, or none."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mlff_triton import bio
from mlff_triton._common import progress
from mlff_triton.bio.alignment import command
from mlff_triton.cli import main as cli
from mlff_triton.jobs.job import Workers

ERROR, INTERRUPTED = 2, 130
ROOT = Path(__file__).parents[2]


def write_fasta(path, names, texts):
    content = "".join(f">{n}\n{t}\n" for n, t in zip(names, texts, strict=True)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def texts():
    draw = np.random.default_rng(0)
    return ["".join(draw.choice(list("ACGT"), size)) for size in draw.integers(5, 30, 14)]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, texts):
    """Run the command next to a.fa and b.fa.gz. It returns the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    write_fasta(tmp_path / "a.fa", [f"a{k}" for k in range(7)], texts[:7])
    write_fasta(tmp_path / "b.fa.gz", [f"b{k}" for k in range(7)], texts[7:])

    def run_command(*arguments, files=("a.fa", "b.fa.gz")):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["align", *files, "--device", "cpu", *map(str, arguments)])
        shown = capsys.readouterr()
        return exit_.value.code, shown.out, shown.err

    return run_command


def rows_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_scores_of_pairs(run, tmp_path, texts, batch):
    code, out, err = run("--out", "out.tsv", "--batch", batch)
    assert (code, err) == (0, "")
    assert out.startswith("wrote out.tsv: 7 pairs, ")
    assert "GCUPS" in out
    head, *rows = rows_of(tmp_path / "out.tsv")
    assert head == ["query", "target", "score"]
    scores = bio.align(texts[:7], texts[7:], device="cpu").score.tolist()
    assert rows == [[f"a{k}", f"b{k}", str(score)] for k, score in enumerate(scores)]
    assert len(list(tmp_path.iterdir())) == 3


@dataclass(frozen=True)
class Given(command.Aligning):
    """The computation with another function for `align`."""

    align: Callable[..., bio.Alignments]

    def aligner(self, device):
        assert device == "cpu"
        return self.align


@pytest.fixture
def run_batches(run, tmp_path):  # noqa: ARG001 - for its files
    """Run the body of the command with batches of limited length."""

    def command_body(align, pairs, batch_letters):
        files = Path("a.fa"), Path("b.fa.gz"), Path(f"{pairs}.tsv")
        request = command.Request(*files, pairs, batch=16384, batch_letters=batch_letters)
        work = Given((("pairs", pairs),), is_sam=False, align=align)
        command.run(request, work, Workers("cpu"), Console(), lambda: False)
        return rows_of(tmp_path / f"{pairs}.tsv")[1:]

    return command_body


@pytest.mark.parametrize("pairs", ["zip", "all"])
def test_long_sequences_come_in_smaller_batches(run_batches, texts, pairs):
    """A batch limits the bases that it reads, and the bases of its pairs' queries."""
    sizes = []

    def align(queries, targets):
        sizes.append([sum(len(record.seq) for record in some) for some in (queries, targets)])
        assert sizes[-1][0] * (len(targets) if pairs == "all" else 1) <= 60
        assert sum(sizes[-1]) <= (120 if pairs == "all" else 60)
        return bio.align(queries, targets, pairs=pairs, device="cpu")

    rows = run_batches(align, pairs, 60)
    assert len(sizes) > 3
    found = bio.align(texts[:7], texts[7:], pairs=pairs, device="cpu")
    scores = sorted((f"a{row.query}", f"b{row.target}", str(row.score)) for row in found)
    assert sorted(map(tuple, rows)) == scores
    assert sum(queries for queries, _ in sizes) >= sum(map(len, texts[:7]))


@pytest.mark.parametrize(("pairs", "n"), [("zip", 7), ("all", 49)])
def test_a_sequence_beyond_the_limit_is_a_batch(run_batches, pairs, n):
    align = partial(bio.align, pairs=pairs, device="cpu")
    assert len(run_batches(align, pairs, 1)) == n


@pytest.mark.parametrize("batch", [1, 10, 1000])
def test_all_pairs_in_any_batches(run, tmp_path, texts, batch):
    assert run("--out", "out.tsv", "--batch", batch, "--pairs", "all")[0] == 0
    found = bio.align(texts[:7], texts[7:], pairs="all", device="cpu").score.tolist()
    expected = {(f"a{k // 7}", f"b{k % 7}"): str(score) for k, score in enumerate(found)}
    rows = rows_of(tmp_path / "out.tsv")[1:]
    assert {(a, b): score for a, b, score in rows} == expected
    assert len(rows) == 49


def test_a_band(run, tmp_path, texts):
    write_fasta(tmp_path / "c.fa", range(7), [text[::-1] for text in texts[:7]])
    assert run("--out", "out.tsv", "--band", 2, files=("a.fa", "c.fa"))[0] == 0
    found = bio.align(texts[:7], [text[::-1] for text in texts[:7]], band=2, device="cpu")
    assert [int(row[2]) for row in rows_of(tmp_path / "out.tsv")[1:]] == found.score.tolist()


def test_traceback_in_a_table(run, tmp_path, texts):
    options = ("--traceback", "--mode", "target_begin, target_end", "--match", 1)
    assert run("--out", "out.tsv", *options)[0] == 0
    head, *rows = rows_of(tmp_path / "out.tsv")
    assert head[-2:] == ["identity", "cigar"]
    mode = ("target_begin", "target_end")
    found = bio.align(texts[:7], texts[7:], mode=mode, match=1, traceback=True, device="cpu")
    assert [row[-1] for row in rows] == found.cigar


@pytest.mark.parametrize("batch", [1, 1000])
def test_sam(run, tmp_path, batch):
    options = ("--pairs", "all", "--batch", batch, "--mode", "local")
    assert run("--out", "out.sam", *options)[0] == 0
    rows = rows_of(tmp_path / "out.sam")
    assert [row[0] for row in rows[:9]] == ["@HD", *["@SQ"] * 7, "@PG"]
    assert len(rows) == 9 + 49
    for row in rows[9:]:
        assert row[1] in ("4", "0" if row[2] == "b0" else "256")


@pytest.mark.parametrize("gaps", [(), ("--gap-open", 11, "--gap-extend", 1)])
def test_proteins(run, tmp_path, gaps):
    write_fasta(tmp_path / "p.fa", ["p"], ["MKWVTFISLL"])
    write_fasta(tmp_path / "q.fa", ["q"], ["MKWVISLL"])
    options = ("--matrix", "BLOSUM62", *gaps)
    assert run("--out", "out.tsv", *options, files=("p.fa", "q.fa"))[0] == 0
    expected = bio.align(["MKWVTFISLL"], ["MKWVISLL"], matrix="BLOSUM62", device="cpu")
    assert rows_of(tmp_path / "out.tsv")[1] == ["p", "q", str(expected.score.item())]


@pytest.mark.parametrize("options", [(), ("--unknown", "N")])
def test_proteins_without_a_matrix(run, tmp_path, options):
    write_fasta(tmp_path / "p.fa", ["p"], ["MKWVTFISLL"])
    code, _, err = run("--out", "out.tsv", *options, files=("p.fa", "p.fa"))
    assert code == ERROR
    assert "query p has" in err
    assert "and seems to be a protein: align proteins with a matrix" in err
    assert "(--matrix BLOSUM62)" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("suffix", ["sam", "tsv"])
def test_two_targets_of_one_name(run, tmp_path, suffix):
    write_fasta(tmp_path / "t.fa", ["t", "t"], ["ACGT", "ACGA"])
    code, _, err = run("--out", f"out.{suffix}", "--pairs", "all", files=("a.fa", "t.fa"))
    assert code == ERROR
    assert "two targets are called t: rename one to tell them apart" in err
    assert not (tmp_path / f"out.{suffix}").exists()


def test_wide_bands_and_reads(run, tmp_path):
    """A band of any size, and FASTQ files as queries."""
    (tmp_path / "r.fq").write_text("@r\nACGT\n+\nIIII\n")
    write_fasta(tmp_path / "t.fa", ["t"], ["CGT"])
    options = ("--band", 2**63, "--out", "out.tsv")
    assert run(*options, files=("r.fq", "t.fa"))[0] == 0
    assert rows_of(tmp_path / "out.tsv")[1] == ["r", "t", "1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "out.txt"), "the suffix of out.txt is unknown: use .sam or .tsv"),
        (("--out", "a.fa"), "the suffix of a.fa is unknown"),
        (("--out", "out.tsv", "--pairs", "some"), "--pairs some is unknown"),
        (("--out", "out.tsv", "--batch", 0), "--batch 0 is not valid"),
        (("--out", "out.tsv", "--mode", "best"), "mode='best'"),
        (("--out", "out.tsv", "--gap-open", -5), "gap_open=-5 is a penalty"),
        (("--out", "out.tsv", "--gap-extend", -1), "gap_extend=-1 is a penalty"),
        (("--out", "out.tsv", "--gap-open", 5.5), "Invalid value for '--gap-open'"),
        (("--out", "out.tsv", "--unknown", "NN"), "unknown='NN' is not one of"),
        (("--out", "out.tsv", "--band", 0), "more than band=0 allows"),
        (("--out", "out.tsv", "--matrix", "BLOSUM1"), "matrix BLOSUM1 is unknown"),
        (("--out", "none/out.tsv"), "none is not a directory"),
        (("--out", "out.tsv", "--match", -4), "mismatch=-3 is above match=-4"),
    ],
)
def test_refused_options(run, tmp_path, options, message):
    code, _, err = run(*options)
    assert code == ERROR
    assert message in err
    assert err.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_an_existing_file_is_kept(run, tmp_path):
    (tmp_path / "out.tsv").write_text("mine")
    code, _, err = run("--out", "out.tsv")
    assert (code, "out.tsv exists" in err) == (ERROR, True)
    assert (tmp_path / "out.tsv").read_text() == "mine"
    assert run("--out", "out.tsv", "--overwrite")[0] == 0
    assert len(rows_of(tmp_path / "out.tsv")) == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(b">b0\nACGT\n" * 7, mtime=0)[:-9],
            "c.fa is damaged or truncated in record b0",
        ),
        (b">b0\nACGT\n>b1\n", "record b1 of c.fa is empty"),
        (b">b0\nACGT\n", "a.fa has 7 records and c.fa 1: use --pairs all"),
        (b">b0\nACGT\n" * 6 + b">b6\nAQGT\n", "target b6 has 'Q' at position 2"),
        (b"", "c.fa contains no records"),
    ],
)
@pytest.mark.parametrize("suffix", ["sam", "tsv"])
def test_bad_input_leaves_no_output(run, tmp_path, content, message, suffix):
    """Only what is already aligned is kept, for when the file is repaired."""
    (tmp_path / "c.fa").write_bytes(content)
    code, _, err = run("--out", f"out.{suffix}", "--batch", 1, files=("a.fa", "c.fa"))
    assert code == ERROR
    assert message in err
    begun = [f"out.{suffix}.journal", f"out.{suffix}.partial"] * ("position 2" in message)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.fa", "b.fa.gz", "c.fa", *begun]


def test_a_missing_file(run):
    code, _, err = run("--out", "out.tsv", files=("a.fa", "c.fa"))
    assert (code, err) == (
        ERROR,
        "mlff-triton: error: c.fa cannot be read: No such file or directory\n",
    )


def test_an_interrupt_is_continued(run, tmp_path, monkeypatch):
    original, batches = bio.align, []

    def align(*arguments, **options):
        batches.append(1)
        if len(batches) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(command, "align", align)
    code, _, err = run("--out", "out.tsv", "--batch", 2)
    assert code == INTERRUPTED
    assert "stopped after 4 pairs: the same command continues" in err
    assert not (tmp_path / "out.tsv").exists()
    rows = rows_of(tmp_path / "out.tsv.partial")
    assert [row[0] for row in rows] == ["query", "a0", "a1", "a2", "a3"]
    code, out, _ = run("--out", "out.tsv", "--batch", 2)
    assert (code, out[:22]) == (0, "wrote out.tsv: 7 pairs")
    names = [row[0] for row in rows_of(tmp_path / "out.tsv")]
    assert names == ["query", *(f"a{k}" for k in range(7))]


def test_a_second_interrupt_leaves_nothing(run, tmp_path, monkeypatch):
    def align(*_, **__):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "align", align)
    assert run("--out", "out.tsv")[0] == INTERRUPTED
    assert len(list(tmp_path.iterdir())) == 2


def test_ctrl_c_in_a_terminal(tmp_path):
    """A separate process with enough work to be interrupted before it is done."""
    arguments = ["a.fa", "b.fa.gz", "--out", "out.sam", "--device", "cpu", "--batch", "1"]
    code = (
        "import sys; from mlff_triton._common import progress; from mlff_triton.cli import main; "
        "progress.SECONDS_BETWEEN_LINES = 0.0; main.main(sys.argv[1:])"
    )
    many = [f"a{k}" for k in range(3000)]
    write_fasta(tmp_path / "a.fa", many, ["ACGTTGCAACGT"] * 3000)
    write_fasta(tmp_path / "b.fa.gz", many, ["ACGTGCAACGTT"] * 3000)
    process = subprocess.Popen(  # noqa: S603 - the code is above
        [sys.executable, "-c", code, "align", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout.readline().startswith("1 of 3000 pairs")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    partial = tmp_path / "out.sam.partial"
    rows = [row for row in rows_of(partial) if not row[0].startswith("@")]
    assert process.returncode == INTERRUPTED, out
    assert err == f"mlff-triton: stopped after {len(rows)} pairs: the same command continues\n"
    assert 0 < len(rows) < 3000
    assert [row[0] for row in rows] == many[: len(rows)]
    assert {len(row) for row in rows} == {13}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a.fa", "b.fa.gz", "out.sam.journal", "out.sam.partial"}


def test_progress_without_a_terminal(run, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    lines = run("--out", "out.tsv", "--batch", 3)[1].splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == [f"{k} of 7 pairs" for k in (3, 6, 7)]


def test_several_workers(run, tmp_path):
    options = ("--pairs", "all", "--batch", 9)
    assert run("--out", "one.sam", *options)[0] == 0
    assert run("--out", "two.sam", *options, "--workers", 2)[0] == 0
    assert (tmp_path / "two.sam").read_bytes() == (tmp_path / "one.sam").read_bytes()
