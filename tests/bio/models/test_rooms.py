"""Models of bio have one package each, with tests in a folder of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlff_triton.bio.models
from mlff_triton.bio.models.families import FAMILIES

MODELS = Path(mlff_triton.bio.models.__file__).parent
SHARED = {
    "encoders": "adapters of several packages and of any other encoder share its code",
    "structure": "parts that several models share, without an adapter",
}
"""Packages that are not those of one model, and why."""

ROOMS = sorted(path.parent.name for path in MODELS.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_an_adapter_tests_and_a_line(room):
    assert room in SHARED or (MODELS / room / "adapter.py").exists()
    assert list((Path(__file__).parent / room).glob("test_*.py"))
    assert f"``{room}``" in (mlff_triton.bio.models.__doc__ or "")


def test_adapters_lie_in_rooms():
    adapters = [each for family in FAMILIES for each in (*family.models, *family.parts)]
    homes = {adapter.__module__.removeprefix("mlff_triton.bio.models.") for adapter in adapters}
    assert {home.split(".")[0] for home in homes} == {*ROOMS} - {"structure"}


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in SHARED])
def test_adapters_leave_the_reading_of_weights_to_others(room):
    assert (MODELS / room / "weights.py").exists()
