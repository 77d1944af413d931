"""Corrections by name: the parameters of s-dftd3, and errors that name what was meant."""

from __future__ import annotations

import sys

import pytest
from ase.build import molecule

from mlff_triton._common.remedies import install
from mlff_triton.dispersion import on_cpu
from mlff_triton.dispersion.damping import ALIASES, COMPOSITE, damping_of, dampings
from mlff_triton.errors import InputError
from tests.support.dispersion import batch_of, expected_of

pytest.importorskip("dftd3", reason="s-dftd3 is an optional extra")

SPELLINGS = {
    "hf_mixed": "hf/mixed",
    "hf_sv": "hf/sv",
    "hf_minis": "hf/minis",
    "b3lyp_631gd": "b3lyp/631gd",
    "b97_1": "b97-1",
    "b97_2": "b97-2",
    "lc_whpbe": "lc-whpbe",
}
"""Names in Fortran of those that the table spells otherwise."""


def test_parameters_of_all_functionals_are_those_of_the_library():
    """The library reads names itself, in Fortran; our parameters come from its table."""
    atoms = molecule("CH3CH2OH")
    names = [*(damping.functional for damping in dampings().values()), *ALIASES]
    assert len(names) > 150
    for name in names:
        found = on_cpu.compute(batch_of(atoms), damping_of(f"d3bj:{name}"), of_atoms=False)
        expected = expected_of(atoms, SPELLINGS.get(name, name))
        assert found.energy[0] == pytest.approx(expected.energy, rel=1e-12)
    for name, spelling in SPELLINGS.items():
        assert damping_of(f"d3bj:{spelling}").functional == name


def test_case_and_marks_do_not_matter():
    assert damping_of("D3BJ:r2SCAN") is damping_of("d3bj:r2scan") is damping_of(" d3bj:R2-SCAN ")
    assert damping_of("d3bj:PBE").method == "d3bj:pbe"
    assert damping_of("d3bj:bp86").method == "d3bj:bp"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("d3bj:pbee", "did you mean d3bj:pbe or "),
        ("d3bj:r2scna", "did you mean d3bj:r2scan"),
        ("d3bj:", "give d3bj:FUNCTIONAL, such as d3bj:pbe"),
        ("d3bj", "give d3bj:FUNCTIONAL, such as d3bj:pbe"),
        ("d3bj:\x1b\n?", "give d3bj:FUNCTIONAL, such as d3bj:pbe"),
        ("pbe", "give d3bj:FUNCTIONAL, such as d3bj:pbe"),
        ("d3:pbe", "give d3bj:FUNCTIONAL, such as d3bj:pbe"),
        ("d4:pbe", "give d3bj:FUNCTIONAL, such as d3bj:pbe"),
        (True, "must be a text: give d3bj:FUNCTIONAL"),
        *((f"d3bj:{name}", "alone would be wrong") for name in COMPOSITE),
        ("d3bj:PBEh-3c", "alone would be wrong"),
    ],
)
def test_unknown_names_are_refused_in_one_line(method, message):
    with pytest.raises(InputError) as error:
        damping_of(method)
    assert message in str(error.value)
    assert str(error.value).isprintable()


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dftd3.parameters", None)
    dampings.cache_clear()
    try:
        with pytest.raises(InputError) as error:
            damping_of("d3bj:pbe")
    finally:
        dampings.cache_clear()
    assert str(error.value) == f"dispersion needs dftd3: {install('dispersion')}"
