from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.engine import runner
from benchmarks.engine.cases import Case
from benchmarks.engine.implementations import Implementation, Prepared, exact
from benchmarks.lab.guards import at_most, quiet
from benchmarks.lab.schema import read_rows
from benchmarks.systems import models, systems


def energy_case(name: str = "21", **changes) -> Case:
    return replace(Case("step", name, partial(systems.random_box, 21)), **changes)


def scaled(factor: float) -> Implementation:
    """Return the exact module with its forces multiplied."""

    def prepare(*given) -> Prepared:
        right = exact(*given)

        def read(result):
            outcome = right.read(result)
            return replace(outcome, forces=outcome.forces * factor)

        return Prepared(right.step, read)

    return Implementation(f"times {factor}", prepare)


def broken(*_given) -> Prepared:
    raise RuntimeError("does not compile")


def endless(*_given) -> Prepared:
    while True:
        time.sleep(0.01)


@pytest.mark.usefixtures("small_model")
def test_what_is_wrong_gets_no_time_and_the_run_goes_on(lab, capfd):
    lab.budget.each = 1.0
    runner.run_case(lab, energy_case(), [Implementation("endless", endless)])
    lab.budget.each = 60.0  # plenty, also on a busy machine
    bad = [
        scaled(1.1),
        Implementation("broken", broken),
        Implementation("small", broken, max_atoms=20),
    ]
    runner.run_case(lab, energy_case(), [*bad, scaled(1.0)])
    found = {r.impl: r for r in read_rows(lab.results.path("step"))}
    assert {name: r.gate for name, r in found.items()} == {
        "times 1.1": "fail",
        "broken": "fail",
        "endless": "fail",
        "times 1.0": "pass",
    }
    assert found["times 1.1"].error == pytest.approx(0.1, rel=1e-3)
    assert all(r.ms_p50 is None for r in found.values() if r.gate == "fail")
    assert found["times 1.0"].ms_p20 > 0
    complaints = capfd.readouterr().err
    for reason in ("forces are off", "does not compile", "took more than 1 s", "more than 20"):
        assert reason in complaints


@pytest.mark.usefixtures("small_model")
def test_the_total_time_is_bounded(lab, capfd):
    lab.budget.total = 0.0
    runner.run_case(lab, energy_case(), [scaled(1.0)])
    assert not read_rows(lab.results.path("step"))
    assert "the time is up" in capfd.readouterr().err


def test_a_model_that_is_not_there_is_skipped(lab, monkeypatch, capfd):
    monkeypatch.setitem(models.MODELS, "matpes", partial(models.matpes_model, ()))
    models.model.cache_clear()
    runner.run_case(lab, energy_case(model="matpes"), [scaled(1.0)])
    assert "skipped, matgl-tensornet-matpes-pbe is in none" in capfd.readouterr().err
    assert not lab.results.path("step").exists()


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_large_case_passes_by_the_small_one(lab, factor):
    small = energy_case("128", build=partial(systems.random_box, 128))
    large = energy_case("256", build=partial(systems.random_box, 256), stand_in=small)
    runner.run_case(lab, large, [scaled(factor)])
    (found,) = read_rows(lab.results.path("step"))
    assert (found.atoms, found.gate) == (256, "pass" if factor == 1.0 else "fail")


def test_what_takes_too_long_is_stopped():
    with pytest.raises(TimeoutError, match="more than"), at_most(0.05):
        time.sleep(5)


def test_quiet_is_quiet_and_gives_everything_back(capfd):
    with quiet():
        sys.stdout.write("Python\n")
        os.write(1, b"C\n")
        os.write(2, b"C\n")
    sys.stdout.write("heard\n")
    out, err = capfd.readouterr()
    assert out == "heard\n"
    assert err == ""
