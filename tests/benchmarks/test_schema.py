from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.lab.schema import (
    RESULTS,
    Results,
    Row,
    bytes_of,
    columns_of,
    kind_of,
    read_rows,
    with_bytes,
    write_rows,
)
from mlff_triton.errors import InputError, OutputError
from tests.support.benchmark_rows import row

COLUMNS = (
    "bench,case,atoms,edges,impl,gpu,torch,triton,commit,date,"
    "ms_p20,ms_p50,ms_p80,peak_mib,error,gate"
)


def test_columns_are_those_agreed(tmp_path):
    assert ",".join(columns_of(Row)) == COLUMNS
    Results(tmp_path).add([row()])
    assert (tmp_path / "step.csv").read_text().splitlines()[0] == COLUMNS


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = [row(), row(impl="torch", ms=None, error=None), row(case="128", peak_mib=None)]
    rows.append(row(case="256", error=None))
    Results(tmp_path).add(rows)
    for read, written in zip(read_rows(tmp_path / "step.csv"), rows, strict=True):
        assert read.key == written.key
        assert read.ms_p50 == written.ms_p50
        assert read.peak_mib == written.peak_mib
    gates = [read.gate for read in read_rows(tmp_path / "step.csv")]
    assert gates == ["pass", "fail", "pass", "unchecked"]


def test_a_row_without_an_error_has_not_passed(tmp_path):
    """Files of earlier versions say that it has."""
    path = tmp_path / "models.csv"
    Results(tmp_path).add([row(bench="models", error=None)])
    path.write_text(path.read_text().replace("unchecked", "pass"))
    (read,) = read_rows(path)
    assert read.gate == "unchecked"
    assert any(row.gate == "unchecked" for row in read_rows(RESULTS / "models.csv"))


def test_a_row_of_a_later_run_replaces_the_older_one(tmp_path):
    Results(tmp_path).add([row(ms=2.0), row(impl="torch", ms=9.0)])
    Results(tmp_path).add([row(ms=None)])
    found = {r.impl: r for r in read_rows(tmp_path / "step.csv")}
    assert found["torch"].ms_p50 == 9.0
    assert found["engine"].ms_p50 is None
    assert found["engine"].gate == "fail"


def test_a_foreign_file_is_refused_and_kept(tmp_path):
    (tmp_path / "step.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="columns"):
        Results(tmp_path).add([row()])
    assert (tmp_path / "step.csv").read_text() == "a,b\n1,2\n"


def test_a_failed_write_leaves_the_file_whole(tmp_path, monkeypatch):
    results = Results(tmp_path)
    results.add([row()])
    before = (tmp_path / "step.csv").read_text()

    def full_disk(*_args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OutputError, match="no space"):
        results.add([row(case="128")])
    assert (tmp_path / "step.csv").read_text() == before


def test_bandwidth_cases_carry_their_bytes():
    assert bytes_of(with_bytes("compose-1024", 4096)) == 4096
    with pytest.raises(InputError, match="bytes"):
        bytes_of("compose-1024")


def test_committed_results_are_whole():
    for path in sorted(RESULTS.glob("*.csv")):
        rows = read_rows(path)
        assert rows
        assert {r.bench for r in rows} == {path.stem}
        for r in rows:
            assert (r.ms_p50 is None) == (r.gate == "fail")
        with path.open(newline="") as file:
            columns = columns_of(kind_of(path))
            assert all(len(record) == len(columns) for record in csv.reader(file))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_committed_results_are_as_they_are_written(path, tmp_path):
    """Above all, rows without an error are unchecked in the files, too."""
    write_rows(tmp_path / path.name, read_rows(path))
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()
