from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.engine.cases import CASES
from benchmarks.kernels import cases as operators
from benchmarks.lab.schema import Results, read_rows
from mlff_triton.cli import bench as bench_command
from mlff_triton.errors import InputError
from tests.support.benchmark_rows import row


@pytest.mark.usefixtures("small_model")
def test_the_lab_from_end_to_end(tmp_path, capfd):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    out = tmp_path / "new" / "results"
    options = ["--only", "exact,torch,warp-graph", "--device", "cpu", "--sampling", "0.01"]
    options += ["--out", str(out)]
    assert command.main(["step", "md17", "--cases", "21", "ethanol", *options]) == 0
    rows = read_rows(out / "step.csv") + read_rows(out / "md17.csv")
    assert [(r.case, r.impl, r.gate) for r in rows] == [
        ("21", "exact", "pass"),
        ("21", "torch", "pass"),
        ("ethanol", "exact", "pass"),
        ("ethanol", "torch", "pass"),
    ]
    assert all(r.error < 1e-5 for r in rows)
    assert "warp-graph: skipped, no GPU" in capfd.readouterr().err


def test_results_of_other_machines_are_merged(measured, tmp_path, capsys):
    out = tmp_path / "merged"
    assert command.main(["--merge", str(measured), "--out", str(out), "--figures"]) == 0
    assert (out / "step.csv").read_text() == (measured / "step.csv").read_text()
    assert "**0.1**" in capsys.readouterr().out
    assert command.main(["--merge", str(tmp_path / "nowhere"), "--out", str(out)]) == 2


def test_a_folder_merged_into_itself_is_written_anew(tmp_path):
    """Rows of earlier versions say that they passed, although they have no error."""
    Results(tmp_path).add(row(case=case, error=None, gate="pass") for case in ("21", "128", "64"))
    path = tmp_path / "step.csv"
    earlier = path.read_text()
    assert command.main(["--merge", str(tmp_path), "--out", str(tmp_path)]) == 0
    assert path.read_text() == earlier.replace(",pass\n", ",unchecked\n") != earlier


@pytest.mark.parametrize(
    ("arguments", "cases_of", "operators_of", "sizes"),
    [
        (["step", "--cases", "21"], {"step"}, 0, []),
        (["step", "ops", "--cases", "4096"], {"step"}, len(operators.OPERATORS), [4096]),
        (["step", "ops", "--cases", "21"], {"step"}, 0, []),
        (["ops", "--cases", "compose"], set(), 1, list(operators.SIZES)),
        (["md17", "md22"], {"md17", "md22"}, 0, []),
        (["bio", "ops", "--cases", "esm2-8m-1x128"], set(), 0, []),
        (["alignment", "--cases", "dna-512"], set(), 0, []),
        ([], set(command.STEP_BENCHES), len(operators.OPERATORS), list(operators.SIZES)),
    ],
)
def test_cases_are_selected_by_name(arguments, cases_of, operators_of, sizes):
    selected, chosen, found = command.select(command.parse(arguments))
    assert {case.bench for case in selected} == cases_of
    assert (len(chosen), found) == (operators_of, sizes)


@pytest.mark.parametrize(
    ("peers_of", "names"),
    [
        ("all", ["engine", "exact", "torch", "warp", "warp-graph", "warp-compile"]),
        ("none", ["engine", "exact"]),
        ("warp,torch", ["engine", "exact", "torch", "warp"]),
    ],
)
def test_peers_are_selected_by_name(peers_of, names):
    options = command.parse(["--peers", peers_of])
    assert [one.name for one in command.implementations_of(CASES[0], options)] == names
    ase = next(case for case in CASES if case.bench == "ase")
    names = [one.name for one in command.implementations_of(ase, options)]
    assert names == ["calculator", "engine"]


def test_profilers_are_told_how_to_run(capsys):
    assert command.main(["step", "--cases", "4096", "--only", "engine", "--ncu", "--nsys"]) == 0
    ncu, nsys = capsys.readouterr().out.splitlines()
    assert ncu.startswith("ncu ")
    assert nsys.startswith("nsys profile ")
    for line in (ncu, nsys):
        assert line.endswith("-m benchmarks step --cases 4096 --only engine --trace")


@pytest.mark.usefixtures("small_model")
def test_a_profile_is_printed(capsys):
    options = ["--cases", "21", "--only", "exact", "--device", "cpu", "--profile"]
    assert command.main(["step", *options]) == 0
    assert "aten::" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["stop"],
        ["step", "--cases", "22"],
        ["step", "--peers", "us"],
        ["step", "--only", "us"],
        ["bio", "--only", "us"],
        ["alignment", "--cases", "dna"],
    ],
)
def test_unknown_names_are_refused_in_one_line(arguments, capsys):
    assert command.main([*arguments, "--device", "cpu"]) == 2
    complaint = capsys.readouterr().err
    assert "is unknown: use " in complaint
    assert complaint.count("\n") == 1


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command(context_settings=bench_command.PASS_ON)(bench_command.bench)
    made.command("other")(lambda: None)
    return made


def test_the_cli_passes_everything_on(app, measured):
    result = CliRunner().invoke(app, ["bench", "--figures", "--out", str(measured)])
    assert result.exit_code == 0
    assert "**0.1**" in result.output
    assert "--peers" in CliRunner().invoke(app, ["bench", "--help"]).output


def test_the_cli_needs_a_checkout(app, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_command.mlff_triton, "__file__", str(tmp_path / "a" / "__init__.py"))
    with pytest.raises(InputError, match="needs a checkout"):
        CliRunner().invoke(app, ["bench", "step"], catch_exceptions=False)
