"""The site: its navigation, tables, figures and links, and tables and errors in the README."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.lab import selection
from mlff_triton.checkpoints import ALIASES
from mlff_triton.checkpoints.facts import FACTS
from tests.docs.measurements import measured
from tests.docs.pages import DOCS, README, ROOT, name_of, pages
from tools import docs_benchmarks, docs_models

COLUMNS = [["command"], ["ase"], ["openmm", "openmm-host"], ["torch-sim"]]
"""Routes in the columns of the README's table, of which the fastest one counts."""
OPTIONAL = {"mlff_triton.calculators.torch_sim_model.TorchSimModel": "torch_sim"}
"""Names that can be imported with another package only, which is not always installed."""


def test_navigation_lists_every_page():
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nhooks:")[0])
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_home_page_leads_to_every_page():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)[#)]", (DOCS / "index.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"} | {"api/index.md"}


def test_pages_name_tables_and_figures_that_exist():
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    tables = dict(docs_benchmarks.MARKER.findall(text))
    assert set(tables) == set(docs_benchmarks.TABLES)
    for name, may_be_empty in tables.items():
        found = docs_benchmarks.table(name, may_be_empty=bool(may_be_empty))
        assert found.startswith("| ") or (may_be_empty and not found)
    figures = set(re.findall(r"\]\(figures/([\w-]+\.svg)\)", text))
    assert figures == {path.name for path in docs_benchmarks.RESULTS.glob("*.svg")}


def test_markers_become_tables():
    markdown = "Text\n\n<!-- table: batch -->\n\nMore\n"
    page = docs_benchmarks.on_page_markdown(markdown, page=None, config=None, files=None)
    assert "<!--" not in page
    assert "mlff_triton" in page
    assert docs_benchmarks.table("batch", may_be_empty=True) in page
    with pytest.raises(ValueError, match="there is no table 'stpe'"):
        docs_benchmarks.table("stpe")


def test_the_page_about_models_states_the_facts_of_the_package():
    """``python -m tools.docs_models`` writes them into the page."""
    (written,) = docs_models.TABLES.findall(docs_models.PAGE.read_text())
    assert written == docs_models.tables()


def test_models_are_recommended_by_their_names():
    text = docs_models.PAGE.read_text().partition("## Facts")[0]
    names = set(re.findall(r"`(default|[a-z0-9]+-[a-z0-9.-]+)`", text)) - {"mlff-triton"}
    names |= set(re.findall(r'TensorNetCalculator\("([^"]+)"\)', text))
    assert {*ALIASES, *FACTS} >= names >= {"aceff-2.0", "tensornet-matpes-r2scan"}


def test_links_between_files_lead_somewhere():
    for page in [*pages(), ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("figures/"):
                assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


def test_links_to_the_repository_lead_somewhere():
    for page in pages():
        for path in re.findall(
            r"github\.com/mlff-triton/mlff-triton/(?:blob|tree)/main/([^)\s]+)", page.read_text()
        ):
            assert (ROOT / path).exists(), f"{name_of(page)}: {path}"


def test_simulations_in_the_readme_are_measured():
    """Each row of the table is in the committed CSV file."""
    rows = re.findall(r"^\| ([\d,]+)(.*?) \|(.*)\|$", README.read_text(), re.MULTILINE)
    assert len(rows) == 7
    cases = measured("md")
    for size, replicas, line in rows:
        *ours, peer, ratio = (cell.strip() for cell in line.split("|"))
        case = cases[f"{size}xaspirin" if replicas else size.replace(",", "")]
        assert ours == [fastest(case, names) for names in COLUMNS]
        best = selection.best_torchmd_net(case)
        assert peer == (fastest(case, [best.impl]) if best else "")
        assert ratio == (f"{best.ms_p50 / case['command'].ms_p50:.1f}x" if best else "")


def test_errors_in_the_readme_are_measured():
    text = words(README)
    simulations = {
        name: case for name, case in measured("md").items() if not name.startswith("charged")
    }
    boxes = worst([measured("step"), measured("shipped"), simulations])
    molecules = worst([measured("md17"), measured("md22")])
    assert f"at most {boxes:.1e} of".replace("e-0", "e-") in text
    assert f"at most {molecules:.1e} in".replace("e-0", "e-") in text


BIOLOGY = {  # rows of the README's table: case, best other way and ours
    "Enformer": ("enformer-196608", "half-graph", "float16", "accelerated-fp16", "float16"),
    "AlphaGenome": ("alphagenome-524288", "half", "bfloat16", "accelerated-fp16", "float16"),
    "ProteinMPNN, scores": (
        *("proteinmpnn-8x1000", "reference-graph", "float32"),
        *("accelerated-fp32", "float32"),
    ),
    "ProteinMPNN, samples": (
        *("proteinmpnn-sample-32x300", None, ""),
        *("accelerated-fp32", "float32"),
    ),
    "DualBind": ("dualbind-800x192", None, "", "accelerated-fp32", "float32"),
    "DiffDock": ("score-v1-0.1", None, "", "accelerated", "float32"),
}


@pytest.mark.parametrize("model", BIOLOGY)
def test_models_of_biology_in_the_readme_are_measured(model):
    """Each cell is the time of the fastest way, with its precision."""
    (line,) = re.findall(rf"^\| {model}.*?\|(.*)\|$", README.read_text(), re.MULTILINE)
    cells = [cell.strip() for cell in line.split("|")]
    name, other, its_precision, ours, precision = BIOLOGY[model]
    case = (measured("models") | measured("docking"))[name]
    best = selection.best_peer(case, selection.MODEL_PEERS)
    assert (best.impl if best else None) == other
    if name in measured("models"):
        assert selection.fastest(case).impl == ours
    shipped = case[selection.BIO_REFERENCE].ms_p50
    assert cells == [
        brief(shipped),
        f"{brief(best.ms_p50)}, {its_precision}" if best else "",
        f"{brief(case[ours].ms_p50)}, {precision}",
        f"{shipped / case[ours].ms_p50:.1f}x",
    ]


def test_errors_of_alpha_genome_in_the_readme_are_measured():
    case = measured("models")["alphagenome-524288"]
    text = words(README)
    assert f"off by {case['half'].error:.2f} in the measure" in text
    assert f"ours is off by {case['accelerated-fp16'].error:.0e}".replace("e-0", "e-") in text


def test_the_heads_of_alpha_genome_are_named():
    package = pytest.importorskip("alphagenome_pytorch")
    with torch.device("meta"):
        heads = package.AlphaGenome().heads
    text = words(DOCS / "benchmarks.md").partition("computes all its heads")[2]
    tracks = text.partition(", contact maps")[0]
    assert set(re.findall(r"`(\w+)`", tracks)) == set(heads)
    of_bases = {name for name, head in heads.items() if 1 in head.resolutions}
    assert set(re.findall(r"`(\w+)`", tracks.partition("for bases")[0])) == of_bases


def words(page: Path) -> str:
    """Return the text of a page, without line breaks."""
    return " ".join(page.read_text().split())


def brief(ms: float) -> str:
    return f"{float(f'{ms:.3g}'):,g}"


def fastest(case: dict, names: Sequence[str]) -> str:
    """Return the largest number of ns/day of some routes, as text; empty without any."""
    times = [case[name].ms_p50 for name in names if name in case]
    return f"{selection.NS_PER_DAY / min(times):.3g}" if times else ""


def worst(benches: Sequence[selection.Times]) -> float:
    """Return the largest error of the engine's forces."""
    cases = [case for times in benches for case in times.values()]
    return max(case["engine"].error or 0.0 for case in cases if "engine" in case)


def test_the_api_reference_names_what_exists():
    pytest.importorskip("triton", reason="modules of kernels import it")
    text = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert len(names) > 60
    for name in names:
        if name not in OPTIONAL or find_spec(OPTIONAL[name]):
            pkgutil.resolve_name(name)
