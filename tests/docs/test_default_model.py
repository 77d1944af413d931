"""Table and figures of the default model's errors, and the numbers in texts about it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from mlff_triton.checkpoints import DEFAULT_MODEL
from mlff_triton.checkpoints.facts import FACTS
from mlff_triton.units import EV_TO_KCAL_PER_MOL
from tests.docs.pages import DOCS

WEIGHTS = Path(__file__).parents[2] / "mlff_triton" / "weights"


@pytest.fixture
def figures(training_modules):
    return training_modules("acceptance_figures")


def words(path: Path) -> str:
    return " ".join(path.read_text().split())


def errors(figures, *checks: str) -> list[float]:
    return figures.numbers(figures.findings(figures.read(figures.MODEL), *checks), "error")


def test_figures_are_drawn_from_the_table(figures, tmp_path):
    for path in figures.draw(tmp_path):
        committed = (DOCS / "images" / path.name).read_text()
        texts = [re.findall(r"<text[^>]*>([^<]+)<", text) for text in (path.read_text(), committed)]
        assert texts[0] == texts[1]
        assert len(texts[0]) > 20


def test_the_page_has_the_table(figures):
    assert f"\n{figures.table()}\n" in (DOCS / "choosing-a-model.md").read_text()


def test_errors_in_the_card_and_the_facts_are_in_the_table(figures):
    card = words(WEIGHTS / f"{figures.MODEL}.md")
    dimers = f"{np.mean(errors(figures, *figures.INTERACTIONS)):.2f} kcal/mol"
    assert f"differ from CCSD(T) by {dimers}" in card
    assert f"S22: {dimers} from CCSD(T)" in FACTS[figures.MODEL].accuracy
    assert f"the teacher's by {np.mean(errors(figures, 'vibrations')):.0f} /cm" in card
    assert f"profiles by {np.mean(errors(figures, 'torsions')):.2f} kcal/mol" in card
    assert f"rattled molecules by {np.mean(errors(figures, 'forces')):.2f} kcal/mol/Å" in card
    ice, urea = errors(figures, "crystals")
    assert f"ice Ih by {ice:.0f} %, urea by {urea:.0f} %" in card


def test_errors_of_the_test_set_in_the_card_and_the_facts_are_those_of_the_training(figures):
    with (figures.RESULTS / "default-report.csv").open(newline="") as file:
        parts = {row["name"]: row for row in csv.DictReader(file) if row["section"] == "parts"}
    energy, force = (
        float(parts["test"][name]) for name in ("energy_mae_meV_per_atom", "force_mae_meV_per_A")
    )
    card = words(WEIGHTS / f"{figures.MODEL}.md")
    assert f"the test set of {int(parts['test']['structures']):,} structures" in card
    assert f"{energy:.1f} meV per atom and {force:.0f} meV/Å in components" in card
    assert f"({force * EV_TO_KCAL_PER_MOL / 1000:.1f} kcal/mol/Å)" in card
    assert f"{int(parts['train']['structures']):,} structures to train on" in card
    accuracy = FACTS[figures.MODEL].accuracy
    assert f"scaffolds: {energy:.1f} meV per atom, {force:.0f} meV/Å" in accuracy


def test_flagged_molecules_on_the_page_are_in_the_table(figures):
    bad, good = (
        row["item"] for row in figures.findings(figures.read(figures.MODEL), "uncertainty")
    )
    flagged, count = re.findall(r"\d+", bad)
    others, rest = re.findall(r"\d+", good)
    assert f"flags {flagged} of {count} held-out" in words(DOCS / "choosing-a-model.md")
    assert f"and {others} of {rest} others" in words(DOCS / "choosing-a-model.md")


def test_the_file_says_what_the_model_is_not_for(figures):
    with safe_open(WEIGHTS / f"{figures.MODEL}.safetensors", "pt") as file:
        card = file.metadata()["card"]
    assert card.startswith(f"# {figures.MODEL}\n")
    assert "not trained for liquids" in " ".join(card.split())
    assert DEFAULT_MODEL == figures.MODEL
