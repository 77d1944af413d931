"""The site: its navigation, tables, figures and links, and the numbers in the README."""

from __future__ import annotations

import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.lab.schema import read_rows
from tests.docs.pages import DOCS, README, ROOT, name_of, pages
from tools import docs_benchmarks

EAGER, OURS = "torch", "engine"
PEERS = {
    "Warp": "warp",
    "Warp + CUDA graph": "warp-graph",
    "Warp + torch.compile": "warp-compile",
}
OPTIONAL = {"mlff_triton.calculators.torch_sim_model.TorchSimModel": "torch_sim"}
"""Names that can be imported with another package only, which is not always installed."""


def test_navigation_lists_every_page():
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nhooks:")[0])
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_pages_name_tables_and_figures_that_exist():
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    tables = set(docs_benchmarks.MARKER.findall(text))
    assert tables == set(docs_benchmarks.TABLES)
    for name in tables:
        assert docs_benchmarks.table(name).startswith("| ")
    figures = set(re.findall(r"\]\(figures/([\w-]+\.svg)\)", text))
    assert figures == {path.name for path in docs_benchmarks.RESULTS.glob("*.svg")}


def test_markers_become_tables():
    markdown = "Text\n\n<!-- table: batch -->\n\nMore\n"
    page = docs_benchmarks.on_page_markdown(markdown, page=None, config=None, files=None)
    assert "<!--" not in page
    assert "mlff_triton" in page
    with pytest.raises(ValueError, match="there is no table 'stpe'"):
        docs_benchmarks.table("stpe")


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


def test_numbers_in_the_readme_are_measured():
    """Each row of the table of steps is in the committed CSV files."""
    rows = {row.case: {} for row in measured("step")}
    for row in measured("step"):
        rows[row.case][row.impl] = row
    lines = re.findall(r"^\| ([\d,]+) \|(.*)\|$", README.read_text(), re.MULTILINE)
    assert len(lines) == 8
    for atoms, line in lines:
        eager, peer, ours, ratio = (cell.strip() for cell in line.split("|"))
        case = rows[atoms.replace(",", "")]
        assert ours.split(",")[0] == f"{case[OURS].ms_p50:.3g}"
        if eager and eager[0].isdigit():
            assert float(eager) == pytest.approx(case[EAGER].ms_p50, rel=5e-3)
        if peer:
            time, name = peer.split(", ")[:2]
            fastest = min((case[p] for p in PEERS.values() if p in case), key=lambda r: r.ms_p50)
            assert (PEERS[name], time) == (fastest.impl, f"{fastest.ms_p50:.3g}")
            assert ratio == f"{fastest.ms_p50 / case[OURS].ms_p50:.1f}x"


def measured(bench: str) -> list:
    rows = read_rows(Path(docs_benchmarks.RESULTS) / f"{bench}.csv")
    return [row for row in rows if row.ms_p50 is not None]


def test_the_api_reference_names_what_exists():
    pytest.importorskip("triton", reason="modules of kernels import it")
    text = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert len(names) > 60
    for name in names:
        if name not in OPTIONAL or find_spec(OPTIONAL[name]):
            pkgutil.resolve_name(name)
