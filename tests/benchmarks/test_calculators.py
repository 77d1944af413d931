from __future__ import annotations

from functools import partial

import pytest

from benchmarks.calculators import openmm_forces
from benchmarks.calculators.ase_calculator import calculator
from benchmarks.engine import runner
from benchmarks.engine.cases import Case
from benchmarks.engine.gate import Truth
from benchmarks.lab.schema import read_rows
from benchmarks.systems import models, systems
from tests.support.benchmark_rows import CPU


@pytest.mark.slow
def test_steps_of_openmm_are_held_against_the_truth(lab):
    pytest.importorskip("openmm", reason="OpenMM is not installed")
    case = Case("openmm", "21", partial(systems.water, 7), "shipped")
    runner.run_case(lab, case, [one for one in openmm_forces.OPENMM if not one.needs_self_loops])
    rows = {r.impl: r for r in read_rows(lab.results.path("openmm"))}
    ours = {"openmm-python", "openmm-reference"}
    assert rows.keys() == {*ours, "engine", "openmm-python-idle", "openmm-empty"}
    assert all(0 < rows[name].error < 1e-5 for name in (*ours, "engine"))
    assert rows["openmm-empty"].ms_p50 < rows["openmm-python"].ms_p50


def test_the_calculator_is_read_where_it_began():
    network, system = models.model("shipped"), systems.water(7)
    prepared = calculator(network, system, CPU)
    outcome = prepared.read(prepared.step())
    assert Truth.of(network, system, CPU).check(outcome, 1e-5) > 0
