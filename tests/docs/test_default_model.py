"""Table and figures of the errors of the default models, and the numbers in texts about them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from mlff_triton.checkpoints import CHARGED_MODEL, DEFAULT_MODEL
from mlff_triton.checkpoints.facts import FACTS
from mlff_triton.units import EV_TO_KCAL_PER_MOL
from tests.docs.pages import DOCS

WEIGHTS = Path(__file__).parents[2] / "mlff_triton" / "weights"
REPORTS = {DEFAULT_MODEL: "default-report.csv", CHARGED_MODEL: "charged-report.csv"}

of_each_model = pytest.mark.parametrize("model", REPORTS)


@pytest.fixture
def figures(training_modules):
    return training_modules("acceptance_figures")


def words(path: Path) -> str:
    return " ".join(path.read_text().split())


def errors(figures, model: str, *checks: str) -> list[float]:
    return figures.numbers(figures.findings(figures.read(model), *checks), "error")


def test_figures_are_drawn_from_the_table(figures, tmp_path):
    for path in figures.draw(tmp_path):
        committed = (DOCS / "images" / path.name).read_text()
        texts = [re.findall(r"<text[^>]*>([^<]+)<", text) for text in (path.read_text(), committed)]
        assert texts[0] == texts[1]
        assert len(texts[0]) > 20


def test_the_page_has_the_table(figures):
    assert f"\n{figures.table()}\n" in (DOCS / "choosing-a-model.md").read_text()


@of_each_model
def test_errors_in_the_card_and_the_facts_are_in_the_table(figures, model):
    card = words(WEIGHTS / f"{model}.md")
    dimers = f"{np.mean(errors(figures, model, *figures.INTERACTIONS)):.2f} kcal/mol"
    assert f"differ from CCSD(T) by {dimers}" in card
    assert f"S22: {dimers} from CCSD(T)" in FACTS[model].accuracy
    assert f"the teacher's by {np.mean(errors(figures, model, 'vibrations')):.0f} /cm" in card
    assert f"profiles by {np.mean(errors(figures, model, 'torsions')):.2f} kcal/mol" in card
    forces = np.mean(errors(figures, model, "forces"))
    assert f"rattled molecules by {forces:.2f} kcal/mol/Å" in card
    ice, urea = errors(figures, model, "crystals")
    assert f"ice Ih by {ice:.0f} %, urea by {urea:.0f} %" in card
    (transfer,) = figures.findings(figures.read(model), "proton transfer of the teacher")
    barrier, of_teacher = float(transfer["model"]), float(transfer["reference"])
    assert f"{barrier:.1f} kcal/mol in malonaldehyde, where AIMNet2 has {of_teacher:.1f}" in card


def test_errors_of_ions_in_the_card_are_in_the_table(figures):
    ions = errors(figures, CHARGED_MODEL, "ions")
    card = words(WEIGHTS / f"{CHARGED_MODEL}.md")
    assert f"forces of {len(ions)} rattled ions by {np.mean(ions):.2f} kcal/mol/Å" in card


@of_each_model
def test_errors_of_the_test_set_in_the_card_and_the_facts_are_those_of_the_training(figures, model):
    with (figures.RESULTS / REPORTS[model]).open(newline="") as file:
        parts = {row["name"]: row for row in csv.DictReader(file) if row["section"] == "parts"}
    energy, force = (
        float(parts["test"][name]) for name in ("energy_mae_meV_per_atom", "force_mae_meV_per_A")
    )
    card = words(WEIGHTS / f"{model}.md")
    assert f"the test set of {int(parts['test']['structures']):,} structures" in card
    assert f"{energy:.1f} meV per atom and {force:.0f} meV/Å in components" in card
    assert f"({force * EV_TO_KCAL_PER_MOL / 1000:.1f} kcal/mol/Å)" in card
    assert f"{round(int(parts['train']['structures']), -3):,} structures to train on" in card
    accuracy = FACTS[model].accuracy
    assert f"scaffolds: {energy:.1f} meV per atom, {force:.0f} meV/Å" in accuracy
    if model == CHARGED_MODEL:
        charge, dipole = (float(parts["test"][name]) for name in ("charge_mae_e", "dipole_mae_e_A"))
        assert f"{charge:.3f} e in partial charges and {dipole:.2f} e Å in dipoles" in card
        assert f"{charge:.3f} e;" in accuracy


def test_flagged_molecules_on_the_page_are_in_the_table(figures):
    bad, good = (
        row["item"] for row in figures.findings(figures.read(figures.MODEL), "uncertainty")
    )
    flagged, count = re.findall(r"\d+", bad)
    others, rest = re.findall(r"\d+", good)
    assert f"flags {flagged} of {count} held-out" in words(DOCS / "choosing-a-model.md")
    assert f"and {others} of {rest} others" in words(DOCS / "choosing-a-model.md")


@of_each_model
def test_the_file_says_what_the_model_is_not_for(model):
    with safe_open(WEIGHTS / f"{model}.safetensors", "pt") as file:
        card = file.metadata()["card"]
    assert card.startswith(f"# {model}\n")
    assert "not trained for liquids" in " ".join(card.split())


def test_figures_are_of_the_default(figures):
    assert figures.MODEL == DEFAULT_MODEL
