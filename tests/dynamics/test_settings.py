"""Settings and stages of a run."""

from __future__ import annotations

import pytest

from mlff_triton.dynamics import (
    Settings,
    Stage,
    stages_of,
)
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
