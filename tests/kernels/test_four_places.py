"""An operator is one stem in four places: kernel, reference, test and benchmark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "mlff_triton" / "kernels"
STEMS = sorted(
    set(re.findall(r"\| `(\w+\.\w+)` \|", (KERNELS / "README.md").read_text())),
)
BENCHMARKS = "\n".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
LAUNCHES = "\n".join(path.read_text() for path in (ROOT / "tests").glob("support/*launch_cases.py"))

LOOPS = sorted(
    f"{path.parents[1].name}.{path.stem}"
    for path in KERNELS.glob("*/cpu/*.py")
    if path.parents[1].name not in ("common", "neighbors")  # helpers, and lists for CPUs alone
    if path.stem not in ("__init__", "operators")
)

PARTS = {  # of another operator, which has their reference and their test
    "alignment.edit_distance": "alignment.alignment",
    "pairs.gated_update": "pairs.attention_update",
    "pairs.projections": "pairs.attention_update",
    "pairs.wide_rows": "pairs.attention_update",
    "residues.message_sums": "residues.residue_update",
    "tensornet2.charge_terms": "tensornet2.edge_messages",
    "tensornet2.edge_messages_backward": "tensornet2.edge_messages",
    "tensornet2.edge_rows": "tensornet2.edge_messages",
    "tensornet2.normalized_product": "tensornet2.charge_prediction",
    "transformer.wide_linear": "transformer.token_linear",
}
IN_MODELS = {  # families that are measured in whole models, and the benchmarks of these
    "binding": "bio/dualbind.py",
    "genomics": "bio/genomes.py",
    "residues": "bio/protein_mpnn.py",
    "tensornet2": "engine/cases.py",
    "transformer": "bio/encoders.py",
}
UNMEASURED = {  # parts of steps or blocks that are measured, and the cases that contain them
    "convolution.edge_network": "docking",
    "electrostatics.cross_pairs": "ml-charges",
    "electrostatics.mesh_field": "ml-charges",
    "ops.edge_tensors": "pair_embedding",
    "ops.radial_embedding": "radial_message_passing",
    "ops.radial_factors": "radial_message_passing",
    "pairs.conditioning": "boltz2",
    "pairs.outer_product_mean": "boltz2",
    "pairs.pair_average": "boltz2",
    "pairs.split_linear": "boltz2",
    "pairs.wide_rows": "boltz2",
    "pairs.window_attention": "boltz2",
}
stems = pytest.mark.parametrize("stem", STEMS)


def test_exceptions_are_operators():
    assert {*PARTS, *PARTS.values(), *UNMEASURED} <= set(STEMS)


@stems
def test_each_operator_has_a_kernel_a_reference_and_a_test(stem):
    family, name = stem.split(".")
    assert (KERNELS / family / f"{name}.py").exists()
    family, name = PARTS.get(stem, stem).split(".")
    assert (KERNELS / family / "reference" / f"{name}.py").exists()
    assert (ROOT / "tests" / "kernels" / family / f"test_{name}.py").exists()


@pytest.mark.parametrize("stem", LOOPS)
def test_each_loop_for_cpus_has_a_reference_and_a_test(stem):
    family, name = PARTS.get(stem, stem).split(".")
    assert (KERNELS / family / "reference" / f"{name}.py").exists()
    assert (ROOT / "tests" / "kernels" / family / f"test_{name}.py").exists()


@stems
def test_each_operator_is_measured(stem):
    family, name = stem.split(".")
    if stem in UNMEASURED:
        assert is_named(UNMEASURED[stem], BENCHMARKS)
    elif family in IN_MODELS:
        assert (ROOT / "benchmarks" / IN_MODELS[family]).exists()
    else:
        assert is_named(name, BENCHMARKS)


@stems
def test_each_operator_is_compiled_for_all_targets(stem):
    names = [each.split(".")[1] for each in (stem, PARTS.get(stem, stem))]
    assert any(is_named(name, LAUNCHES) for name in names)


def is_named(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
