from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.bio import encoders as bio
from benchmarks.lab import figures, tables
from benchmarks.lab.schema import (
    Results,
    read_rows,
)
from tests.support.benchmark_rows import row


@pytest.fixture
def tiny_proteins(monkeypatch) -> Iterator[list[str]]:
    """Cases of two-layer models: without and with padding, and with heads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn
        pytest.importorskip("transformers", reason="transformers is not installed")
    for name, family in (("tiny-esm", "Esm"), ("tiny-bert", "Bert")):
        monkeypatch.setitem(bio.ARCHITECTURES, name, bio.Architecture(family, 2, 32, 4))
    monkeypatch.setitem(bio.FAMILIES["Bert"], "max_position_embeddings", 64)
    short = bio.ProteinLengths("padded", median=20, shortest=5, longest=40)
    made = [bio.BioCase("tiny-esm", 2, 9), bio.BioCase("tiny-bert", 3, proteins=short)]
    heads = ("tiny-esm", "tiny-bert")
    made += [bio.BioCase(name, 2, head=True, proteins=short) for name in heads]
    for case in made:
        monkeypatch.setitem(bio.CASES, case.name, case)
    bio.truth.cache_clear()
    yield [case.name for case in made]
    bio.truth.cache_clear()


@pytest.mark.parametrize("case", bio.CASES.values(), ids=lambda case: case.name)
def test_proteins_are_padded_to_the_longest(case):
    ids, mask = case.inputs("cpu").values()
    lengths = mask.sum(1)
    padding = bio.FAMILIES[bio.ARCHITECTURES[case.model].family]["pad_token_id"]
    assert int(lengths.max()) == ids.shape[1]
    assert len(ids) == case.batch
    assert torch.equal(ids != padding, mask.bool())
    if case.length is None:
        proteins = case.proteins
        assert 0.7 < float(lengths.float().median()) / proteins.median < 1.4
        assert proteins.shortest <= int(lengths.min()) < int(lengths.max()) <= proteins.longest


def test_proteins_of_a_proteome_have_the_mean_of_eukaryotes_unless_they_are_cut():
    names = [f"{model}-proteome-64" for model in ("esm2-8m", "esm2-650m", "esm2-3b")]
    assert all(bio.CASES[name].proteins is bio.PROTEOME for name in names)
    whole = bio.PROTEOME._replace(shortest=0, longest=100_000)
    lengths = whole.draw(np.random.default_rng(0), 100_000)
    assert lengths.mean() == pytest.approx(472, rel=0.02)
    cut = bio.PROTEOME.draw(np.random.default_rng(0), 10_000)
    assert (cut.min(), cut.max()) == (30, 1022)


def test_language_models_are_held_against_fp32(lab, tiny_proteins, capfd):
    bio.run_bio(lab, tiny_proteins, list(bio.IMPLEMENTATIONS))
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("bio"))
    runnable = ["accelerated-fp16", "reference", "sdpa-fp16"]
    assert [(r.case, r.impl) for r in rows] == [(n, i) for n in tiny_proteins[:2] for i in runnable]
    assert {r.gate for r in rows} == {"pass"}
    assert rows[0].atoms == 18
    errors = {r.impl: r.error for r in rows}
    assert errors["reference"] < 1e-12 < errors["sdpa-fp16"]
    asked = {(r.case, r.impl): r for r in read_rows(lab.results.path("bio-fidelity"))}
    for model in ("tiny-esm", "tiny-bert"):
        assert 0 < asked[f"{model}-hidden", "accelerated-fp32"].error < 1e-5
        for impl in ("accelerated-fp16", "sdpa-fp16"):
            assert asked[f"{model}-cosine", impl].gate == "pass"
            assert (f"{model}-top1", impl) in asked
    assert len(asked) == 12


@pytest.mark.parametrize("fault", [0.9, float("nan")])
def test_wrong_hidden_states_get_no_time(lab, tiny_proteins, monkeypatch, fault):
    def wrong(model, inputs):
        right = bio.eager(model, inputs)
        calls = itertools.count()

        def call():
            result = right()
            if next(calls):  # right only once
                result.last_hidden_state[0, 0, 0] += fault
            return result

        return call

    monkeypatch.setitem(bio.IMPLEMENTATIONS, "wrong", bio.Implementation("wrong", wrong))
    bio.run_bio(lab, tiny_proteins[:1], ["wrong"])
    (found,) = read_rows(lab.results.path("bio"))
    assert (found.gate, found.ms_p50) == ("fail", None)
    assert not found.error < 1e-4


def test_only_choices_that_stand_out_must_be_the_same():
    expected = bio.Answers(torch.zeros(3, 1), torch.tensor([[1.0, 0], [0, 1e-4], [0, 2]]))
    actual = bio.Answers(torch.zeros(3, 1), torch.tensor([[0.0, 1], [1, 0], [0, 2]]))
    assert bio.changed_choices(actual, expected) == 1


def test_language_models_are_tabulated_and_drawn(tmp_path):
    times = {"accelerated-fp16": 0.5, "reference": 4.0, "sdpa-fp16": 3.0, "compile-fp16": 1.0}
    made = [row(bench="bio", case="esm2-8m-1x128", impl=i, ms=ms) for i, ms in times.items()]
    Results(tmp_path).add(made)
    table = tables.tables(tmp_path)
    assert "| esm2-8m-1x128 | 4 | 1 (compile-fp16) | **0.5** | 8.0x | 2.0x |" in table
    (path,) = figures.draw(tmp_path)
    assert path.name == "bio.svg"
    assert "best peer, fp16" in path.read_text()
