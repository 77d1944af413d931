from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.engine import first_step
from benchmarks.engine.implementations import Outcome
from benchmarks.lab.schema import read_rows


@pytest.mark.slow  # as a process compiles all loops
def test_stages_of_new_processes_become_rows(tmp_path):
    first_step.main(["--cases", "21", "--device", "cpu", "--repeats", "1", "--out", str(tmp_path)])
    rows = {(row.case, row.impl): row for row in read_rows(tmp_path / "first-step.csv")}
    stages = (*first_step.STAGES, "total")
    assert set(rows) == {(f"21 {state}", s) for state in ("cold", "warm") for s in stages}
    for state in ("cold", "warm"):
        parts = [rows[f"21 {state}", stage].ms_p50 for stage in first_step.TOTAL]
        assert rows[f"21 {state}", "total"].ms_p50 == pytest.approx(sum(parts), rel=1e-3)
    assert all(row.gate == "pass" and row.error < 1e-5 for row in rows.values())


def test_wrong_forces_have_no_times(tmp_path, monkeypatch, capsys):
    def run(system, *_given):
        outcome = Outcome(torch.ones(1), torch.ones(system.n_atoms, 3))
        return np.ones(len(first_step.STAGES)), outcome

    monkeypatch.setattr(first_step, "run_process", run)
    first_step.main(["--cases", "21", "--device", "cpu", "--repeats", "1", "--out", str(tmp_path)])
    rows = read_rows(tmp_path / "first-step.csv")
    assert {(row.gate, row.ms_p50) for row in rows} == {("fail", None)}
    assert "off by" in capsys.readouterr().err
