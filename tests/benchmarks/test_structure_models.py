"""Bench ``models`` with whole predictions of structures, in small sizes."""

from __future__ import annotations

import pytest

from benchmarks.bio import models, openfold3, protenix
from benchmarks.lab.schema import read_rows

STACK = "architecture.{}.no_blocks".format
SMALL = {
    protenix: protenix.Forward(
        6,
        cycles=2,
        steps=2,
        changes={
            "n_blocks": 1,
            "model.msa_module.n_blocks": 2,
            "model.confidence_head.n_blocks": 1,
            "model.diffusion_module.transformer.n_blocks": 2,
        },
    ),
    openfold3: openfold3.Forward(
        6,
        cycles=2,
        steps=2,
        changes={
            STACK("pairformer"): 1,
            STACK("msa.msa_module"): 2,
            STACK("template.template_pair_stack"): 1,
            STACK("diffusion_module.diffusion_transformer"): 2,
            STACK("heads.pairformer_embedding.pairformer"): 1,
        },
    ),
}
modules = pytest.mark.parametrize("module", SMALL, ids=lambda module: module.__name__)


@pytest.mark.filterwarnings("ignore")  # of the packages, on a CPU
@modules
def test_predictions_are_held_against_those_of_the_package(module, lab, monkeypatch, capfd):
    small = SMALL[module]
    name = small.package
    pytest.importorskip("ml_collections", reason="ml_collections is not installed")
    pytest.importorskip(name, reason=f"{name} is not installed")
    assert small.name == f"{name}-forward-6-2-cycles-2-steps"
    monkeypatch.setattr(module, "SEQUENCES", 16)
    monkeypatch.setitem(models.CASES, small.name, small)
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    models.truth.cache_clear()
    runs = ["accelerated-fp32", "accelerated-autocast", "reference", "half", "half-graph"]
    models.run_models(lab, [small.name], runs)
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    assert [row.impl for row in rows] == runs[:-1]
    assert {row.gate for row in rows} == {"pass"}


@modules
def test_atoms_of_features_belong_to_their_tokens(module):
    made = module.protein_features(5, 4)
    token = made["atom_to_token_idx" if module is protenix else "atom_to_token_index"]
    assert len(token) == len(made["ref_pos"]) == 40
    assert token.bincount().tolist() == [8] * 5
