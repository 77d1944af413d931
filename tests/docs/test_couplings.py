"""Pictures of couplings and Coulomb sums, and the numbers beside them."""

from __future__ import annotations

import csv
import re
import runpy
import shutil
from collections import defaultdict

import pytest

from tests.docs.pages import DOCS, ROOT

TABLE = DOCS / "images" / "couplings.csv"
SLAB = "pme, pbc=[True, True, False]"

Curves = dict[tuple[str, str], dict[float, float]]


@pytest.fixture(scope="module")
def curves() -> Curves:
    """Return energies by distance, of each system and choice."""
    found: Curves = defaultdict(dict)
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["system"], row["choice"]][float(row["distance_A"])] = float(
                row["energy_kcal_mol"]
            )
    return found


def words(name: str) -> str:
    return " ".join((DOCS / name).read_text().split())


def test_figures_are_drawn_from_the_table(tmp_path):
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    draw = runpy.run_path(str(ROOT / "examples" / "21_couplings.py"))["draw"]
    shutil.copy(TABLE, tmp_path)
    for path in draw(tmp_path):
        committed = (DOCS / "images" / path.name).read_text()
        texts = [re.findall(r"<text[^>]*>([^<]+)<", text) for text in (path.read_text(), committed)]
        assert texts[0] == texts[1]
        assert len(texts[0]) > 20


def test_couplings_on_the_page_are_in_the_table(curves):
    assert curves["water dimer", "mechanical"] == curves["water dimer", "force field"]
    assert curves["ion pair", "mechanical"] == curves["ion pair", "force field"]
    lowest = {key: -min(curve.values()) for key, curve in curves.items()}
    page = words("mlmm.md")
    classical, reference, coupled, both = (
        lowest["water dimer", choice]
        for choice in ("force field", "CCSD(T)", "ml-charges", "all-pairs")
    )
    assert f"binds water by {classical:.1f} kcal/mol, and CCSD(T) by {reference:.1f}" in page
    assert f"`ml-charges` bind it by {coupled:.1f} kcal/mol" in page
    assert f"the model alone by {both:.1f}" in page
    damped, points = (
        curves["water dimer", choice] for choice in ("ml-charges", "ml-charges, damping=0")
    )
    assert f"takes {damped[2.4] - points[2.4]:.1f} kcal/mol at 2.4 Å" in page
    assert (
        f"and {max(abs(damped[x] - points[x]) for x in damped if x >= 2.85):.2f} beyond 2.85 Å"
        in page
    )
    far = [-curves["ion pair", choice][12] for choice in ("ml-charges", "force field", "all-pairs")]
    assert "by {:.1f} kcal/mol with `ml-charges`, {:.1f} in the force field".format(*far) in page
    assert f"and {far[2]:.1f} if the model computes both" in page


def test_sums_on_the_page_are_in_the_table(curves):
    page = words("charges.md")
    pair, periodic, screened = (
        curves["ion pair", choice] for choice in ("all-pairs", "pme", "reaction-field")
    )
    assert f"attract each other by {-pair[12]:.1f} kcal/mol" in page
    assert f"and their images add {pair[12] - periodic[12]:.1f} kcal/mol" in page
    assert f"leaves {-min(screened.values()):.1f} of {-min(pair.values()):.1f} kcal/mol" in page
    (alone,) = set(curves["slab", SLAB].values())
    images, short = curves["slab", "pme"], curves["slab", "reaction-field"]
    assert list(short.values()) == pytest.approx([short[56]] * len(short), abs=2e-4)
    near, far = alone - images[20], alone - images[56]
    assert f"by {near:.1f} kcal/mol per molecule at 20 Å, and by {far:.1f} at 56 Å" in page
    assert f"it differs from the slab by {abs(short[56] - alone):.1f} kcal/mol" in page
