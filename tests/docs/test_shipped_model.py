"""Tables and figures of the former default's errors, and numbers on the page that shows them."""

from __future__ import annotations

import re
from importlib.util import find_spec

import numpy as np
import pytest

from mlff_triton import TensorNetCalculator
from tests.conftest import TRAINING
from tests.docs.pages import DOCS


def page() -> str:
    return " ".join((DOCS / "choosing-a-model.md").read_text().split())


def profile(rows, molecule, method):
    return {
        int(row["degrees"]): float(row["energy_kcal_mol"])
        for row in rows
        if (row["molecule"], row["method"]) == (molecule, method)
    }


def test_figures_are_drawn_from_the_tables(training_modules, tmp_path):
    for path in training_modules("figures").draw(tmp_path):
        committed = (DOCS / "images" / path.name).read_text()
        texts = [re.findall(r"<text[^>]*>([^<]+)<", text) for text in (path.read_text(), committed)]
        assert texts[0] == texts[1]
        assert len(texts[0]) > 20


def test_errors_on_the_page_are_in_the_table(training_modules):
    figures = training_modules("figures")
    rows = figures.read("parity.csv")
    assert len({row["molecule"] for row in rows}) == 10
    found = []
    for is_unknown in (False, True):
        for quantity in ("energy", "force"):
            chosen = [
                row
                for row in rows
                if row["quantity"] == quantity
                and (row["molecule"] in figures.UNKNOWN) == is_unknown
            ]
            reference, model = figures.points(chosen, "reference", "model")
            found.append(f"{np.abs(model - reference).mean():.2g}")
    text = page()
    assert f"is {found[0]} kcal/mol in energies and {found[1]} kcal/mol/Å" in text
    assert f"it is {found[2]} kcal/mol and {found[3]} kcal/mol/Å" in text


def test_torsions_on_the_page_are_in_the_table(training_modules):
    rows = training_modules("figures").read("torsions.csv")
    differences = [
        profile(rows, name, "gfn2")[degrees] - energy
        for name in ("butane", "phenethylamine")
        for degrees, energy in profile(rows, name, "model").items()
    ]
    text = page()
    assert f"too low by up to {max(differences):.1f} kcal/mol" in text
    assert min(differences) > -0.15  # no barrier is too high
    assert f"gauche {profile(rows, 'butane', 'gfn2')[120]:.1f} kcal/mol above trans" in text
    assert f"spectroscopy {profile(rows, 'butane', 'published')[120]:.1f} kcal/mol" in text


def test_published_values_are_those_of_the_papers(training_modules):
    """Barriers of butane in 1/cm are stated beside its coefficients."""
    rows = training_modules("figures").read("torsions.csv")
    butane = profile(rows, "butane", "published")
    assert butane[120] / training_modules("torsions").CM_TO_KCAL_PER_MOL == pytest.approx(
        1266, abs=20
    )
    assert profile(rows, "biphenyl", "published") == {0: 2.28, 90: 2.13}


@pytest.mark.parametrize("method", ["model", "gfn2"])
def test_torsions_can_be_computed_again(training_modules, method):
    if method == "gfn2" and not find_spec("tblite"):
        pytest.skip("tblite is not installed")
    torsions = training_modules("torsions")
    table = profile(training_modules("figures").read("torsions.csv"), "butane", method)
    name, *molecule, end = next(torsions.molecules(TRAINING / "structures.xyz"))
    assert (name, end) == ("butane", 180)
    calculator = (
        torsions.gfn2()
        if method == "gfn2"
        else TensorNetCalculator("tensornet-gfn2", dtype="float64")
    )
    found = torsions.profile(*molecule, calculator, end)
    energies = [next(found)[1] for _ in range(3)]
    relative = (np.array(energies) - energies[0]) * torsions.EV_TO_KCAL_PER_MOL
    assert relative == pytest.approx([table[degrees] for degrees in (180, 165, 150)], abs=0.005)


def test_biphenyl_gets_no_warning_of_unknown_chemistry(training_modules):
    """As the page says; a warning is an error here."""
    atoms, *_ = training_modules("torsions").biphenyl()
    atoms.calc = TensorNetCalculator("tensornet-gfn2")
    assert atoms.get_potential_energy() < 0
    assert "No [warning](ase.md#unknown-chemistry) says so" in page()
