"""Settings and stages of a run."""

from __future__ import annotations

import json

import pytest

from mlff_triton.dynamics import Settings, Stage, stages_of
from mlff_triton.errors import InputError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a positive number, not -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"timestep": 0.0}, "timestep"),
        ({"friction": float("inf")}, "friction"),
        ({"pressure": float("nan")}, "pressure"),
        ({"every": 0}, "every"),
        ({"seed": -1}, "seed"),
        ({"stages": ()}, "at least one stage"),
    ],
)
def test_settings_refuse_nonsense(values, message):
    with pytest.raises(InputError, match=message):
        Settings(**values)


def test_stages_refuse_nonsense():
    with pytest.raises(InputError, match="'nph' is unknown: use one of nve, nvt, npt"):
        Stage("nph", 10)
    with pytest.raises(InputError, match="at least one step"):
        Stage("nve", 0)
    with pytest.raises(InputError, match="2 ensembles and 3 step counts"):
        stages_of(["nvt", "nve"], [1, 2, 3])
    assert stages_of(["nvt", "nve"], [5]) == (Stage("nvt", 5), Stage("nve", 5))


def test_settings_know_the_clock():
    settings = Settings(stages=(Stage("nvt", 30), Stage("nve", 25)), every=20)
    assert [settings.span_of(step).label for step in (0, 30, 31, 55)] == [
        "1-nvt",
        "1-nvt",
        "2-nve",
        "2-nve",
    ]
    assert [step for step in range(56) if settings.is_due(step)] == [0, 20, 30, 40, 55]
    assert Settings.from_dict(settings.to_dict()) == settings


def test_stages_have_conditions_of_their_own_or_those_of_the_run():
    stages = stages_of(["nvt", "npt"], [5], [100.0, (200.0, 210.0)], [None, 3.0])
    settings = Settings(stages=(*stages, Stage("nvt", 5)), temperature=400.0, pressure=2.0)
    assert [span.temperatures(2) for span in settings.spans] == [
        (100.0, 100.0),
        (200.0, 210.0),
        (400.0, 400.0),
    ]
    assert [span.pressure for span in settings.spans] == [2.0, 3.0, 2.0]
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    for given in ((["nvt"], [1], [300.0, 310.0]), (["npt"], [1], [None], [1.0, 2.0, 3.0])):
        with pytest.raises(InputError, match=r"1 ensembles and \d (temperatures|pressures)"):
            stages_of(*given)
    with pytest.raises(InputError, match="temperature must be a positive number, not -3"):
        Stage("nvt", 5, temperature=-3.0)
    with pytest.raises(InputError, match="pressure must be a number, not inf"):
        Stage("npt", 5, pressure=float("inf"))


@pytest.mark.parametrize(("threads", "limit"), [(0, "at least 1"), (2**31, "at most 1024")])
def test_threads_have_limits(threads, limit):
    with pytest.raises(InputError, match=f"threads must be {limit}, not {threads}"):
        Settings(threads=threads)
