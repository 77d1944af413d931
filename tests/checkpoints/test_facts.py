"""Facts about models by name: complete, and true of the shipped model."""

from __future__ import annotations

import csv
import re

import pytest

from mlff_triton.checkpoints import hub, load_model, shipped_models
from mlff_triton.checkpoints.facts import FACTS
from mlff_triton.model.config import SYMBOLS
from tests.docs.pages import ROOT


def test_every_model_that_has_a_name_has_facts():
    assert list(FACTS) == [*shipped_models(), *hub.NAMED]


@pytest.mark.parametrize("name", FACTS)
def test_facts_are_complete(name):
    facts = FACTS[name]
    assert all(text and "|" not in text for _, text in facts.rows())
    numbers = [SYMBOLS.index(symbol) for symbol in facts.elements]
    assert numbers == sorted(set(numbers))
    is_file = (ROOT / facts.source).is_file()
    assert is_file or facts.source.startswith("https://")


def test_many_elements_are_shown_as_ranges():
    rows = dict(FACTS["tensornet-matpes-pbe"].rows())
    assert rows["elements"] == "89: H to Bi and Ac to Pu"  # as in its model.json, without Po to Ra


@pytest.mark.parametrize("name", shipped_models())
def test_facts_about_the_shipped_models_are_true(name):
    facts, model = FACTS[name], load_model(name)
    assert [SYMBOLS[z] for z in model.config.elements] == list(facts.elements)
    charges = model.known_domain.charges
    known = f"{min(charges)} to {max(charges)}" if model.uses_charge else "0 only"
    assert facts.charge == known


def test_errors_of_the_former_default_are_those_of_its_table():
    facts = FACTS["tensornet-gfn2"]
    with (ROOT / "examples/training/results/errors.csv").open() as file:
        errors = {row["split"]: row for row in csv.DictReader(file) if row["group"] == "all"}
    measured = [
        float(errors[split][column])
        for split in ("test", "test_molecule")
        for column in ("energy_mae_kcal_mol_atom", "force_mae_kcal_mol_A")
    ]
    stated = [float(number) for number in re.findall(r"\d+\.\d+", facts.accuracy)]
    assert stated == pytest.approx(measured, abs=0.005)
