"""AlphaGenome, accelerated, compared with the package."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from mlff_triton import bio
from mlff_triton.bio.core import graph_cache
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.bio.core.graph_cache import GraphCache
from mlff_triton.bio.core.operators import genomic_operators
from mlff_triton.bio.models.alpha_genome.head_weights import HeadWeights, Junctions
from mlff_triton.bio.models.alpha_genome.heads import predict_junctions
from mlff_triton.bio.models.alpha_genome.tower import (
    TowerWeights,
    level_features,
    level_index,
)
from mlff_triton.bio.models.alpha_genome.weights import ConvolutionWeights
from mlff_triton.errors import UnsupportedModelError
from tests.support.alpha_genome import BASES, BINS, LENGTH, TRUNK, make_model, sequences
from tests.support.strides import assert_strides_do_not_matter

attention, embeddings, heads = (
    pytest.importorskip(f"alphagenome_pytorch.{name}")
    for name in ("attention", "embeddings", "heads")
)
DtypePolicy = pytest.importorskip("alphagenome_pytorch.config").DtypePolicy
transfer = pytest.importorskip("alphagenome_pytorch.extensions.finetuning.transfer")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return make_model()


@pytest.fixture(scope="module")
def fast(model: nn.Module) -> nn.Module:
    """Return an accelerated copy of the model."""
    return bio.accelerate(copy.deepcopy(model), backend="torch")


@torch.inference_mode()
def results(model: nn.Module, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    return model(**given, **options)


def flat(outputs: Any, path: str = "") -> dict[str, Tensor]:
    """Return all tensors of nested outputs by their paths."""
    if isinstance(outputs, Tensor):
        return {path: outputs}
    return {k: v for name, part in outputs.items() for k, v in flat(part, f"{path}/{name}").items()}


def assert_same(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    """Compare all outputs, relative to the largest value of each."""
    found, expected = flat(found), flat(expected)
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype, name
        assert found[name].shape == wanted.shape, name
        assert found[name].is_contiguous() or not wanted.is_contiguous(), name
        scale = wanted.abs().max().clamp(min=1e-3)
        error = ((found[name] - wanted).abs().max() / scale).item()
        assert error < tolerance, f"{name}: {error:.1e}"


CHOSEN = {"resolutions": (128,), "heads": ("chip_tf", "contact_maps")}
OPTIONS = {
    "channels first": {"channels_last": False, "return_embeddings": True, "heads": ("rna_seq",)},
    "bins": {"resolutions": (128,), "return_scaled_predictions": True},
    "embeddings": {"resolutions": (128,), "embeddings_only": True},
    "encoder": {"encoder_only": True},
}


def test_all_outputs_are_the_same(model, fast):
    given = sequences(2)
    assert_same(results(fast, given), results(model, given))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options, model, fast):
    given = sequences(1)
    assert_same(results(fast, given, **options), results(model, given, **options))


def test_heads_of_bins_need_no_decoder(model, fast, monkeypatch):
    monkeypatch.setattr("mlff_triton.bio.models.alpha_genome.runner.decode", None)
    given, options = sequences(), {"heads": CHOSEN["heads"]}
    assert_same(results(fast, given, **options), results(model, given, **options))


def test_graphs_return_nested_outputs(fast, monkeypatch):
    """A cache of graphs runs a shape that it sees for the first time without a graph."""
    given = sequences()
    expected = results(fast, given, **CHOSEN)
    network = vars(fast)["forward"].weights
    monkeypatch.setattr(network, "_graphs", GraphCache(network._flat))
    found = results(fast, given, **CHOSEN)
    assert_same(found, expected, tolerance=1e-6)
    assert found.keys() == expected.keys()


def test_captures_of_the_caller_use_no_graphs(fast, monkeypatch):
    """A second graph within a capture would be an error."""
    given = sequences()
    expected = results(fast, given, **CHOSEN)
    network = vars(fast)["forward"].weights
    monkeypatch.setattr(network, "_graphs", GraphCache(network._flat))
    monkeypatch.setattr(graph_cache, "is_capturing", lambda _: True)
    for _ in range(3):
        assert_same(results(fast, given, **CHOSEN), expected, tolerance=1e-6)


def transferred(model: nn.Module, **tracks: nn.Module) -> nn.Module:
    """Return a copy with other heads in place of all."""
    twin = transfer.remove_all_heads(copy.deepcopy(model))
    for name, head in tracks.items():
        transfer.add_head(twin, name, head)
    return twin.eval()


@pytest.mark.parametrize("names", [None, ("bases", "bins")])
@pytest.mark.parametrize("resolutions", [(128,), (1, 128)])
def test_heads_have_the_resolutions_and_the_order_of_the_model(names, resolutions, model):
    bins = heads.GenomeTracksHead({128: BINS}, 4, (128,))
    twin = transferred(model, bins=bins, bases=heads.GenomeTracksHead({1: BASES}, 4, (1,)))
    given, options = sequences(), {"resolutions": resolutions, "heads": names}
    expected = results(twin, given, **options)
    with bio.accelerated(twin, backend="torch"):
        found = results(twin, given, **options)
        network = vars(twin)["forward"].weights
        network._graphs = GraphCache(network._flat)
        repeated = results(twin, given, **options)
        assert bio.report(twin)[0].state == "fast"
    for each in (found, repeated):
        assert list(each) == list(expected)
        assert [list(each[k]) for k in each] == [list(expected[k]) for k in expected]
        assert_same(each, expected)


def test_added_heads_are_served(model):
    """Other organisms than those of the model need the original, for calls of that head."""
    twin, given = transferred(model), sequences()
    with bio.accelerated(twin, backend="torch", strict=True):
        results(twin, given, embeddings_only=True, resolutions=(128,))
        transfer.add_head(twin, "mine", heads.GenomeTracksHead({128: BINS}, 4, (128,)).eval())
        found = results(twin, given, heads=("mine",))
        assert bio.report(twin)[0].state == "fast"
        human = heads.GenomeTracksHead({128: BINS}, 4, (128,), num_organisms=1).eval()
        transfer.add_head(twin, "human", human)
        results(twin, given, heads=("mine",))
        assert bio.report(twin)[0].state == "fast"
        with pytest.warns(FallbackWarning, match="head 'human'"):
            assert list(results(twin, given)) == ["mine", "human"]
    assert_same(found, results(twin, given, heads=("mine",)))


HUMAN = {  # parts with weights for one organism
    "contact_maps_head": heads.ContactMapsHead(128, 5, 1),
    "embedder_pair": embeddings.OutputPair(128, 1),
    "splice_sites_classification_head": heads.SpliceSitesClassificationHead(BASES, 1),
    "splice_sites_usage_head": heads.SpliceSitesUsageHead(BASES, 8, 1),
    "splice_sites_junction_head": heads.SpliceSitesJunctionHead(BASES, 16, 5, 1),
}


@pytest.mark.parametrize("part", HUMAN)
def test_heads_without_all_organisms_need_the_original(part, model):
    twin, given = copy.deepcopy(model), sequences()
    setattr(twin, part, copy.deepcopy(HUMAN[part]).eval())
    others = {"heads": ("atac", "rna_seq")}
    expected, known = results(twin, given), results(twin, given, **others)
    with bio.accelerated(twin, backend="torch", strict=True):
        assert_same(results(twin, given, **others), known)
        assert bio.report(twin)[0].state == "fast"
        with pytest.warns(FallbackWarning, match="does not have weights for all organisms"):
            assert_same(results(twin, given), expected, tolerance=1e-12)


def test_junctions_without_sites_need_sites_of_all_organisms(model):
    twin, given = copy.deepcopy(model), sequences()
    part = "splice_sites_classification_head"
    setattr(twin, part, copy.deepcopy(HUMAN[part]).eval())
    junctions = {"heads": ("splice_junctions",)}
    sites = {"splice_site_positions": torch.randint(LENGTH, (1, 4, 9)).sort(2).values}
    with bio.accelerated(twin, backend="torch", strict=True):
        results(twin, given, **junctions, **sites)
        assert bio.report(twin)[0].state == "fast"
        with pytest.warns(FallbackWarning, match="'splice_sites' does not have weights"):
            results(twin, given, **junctions)


@pytest.mark.parametrize("change", ["normalized weight", "no skip"])
def test_other_embeddings_are_served(change, model):
    twin, given = copy.deepcopy(model), sequences()
    if change == "no skip":
        twin.embedder_1bp.project_skip = None
    else:
        weight_norm(twin.decoder.up_blocks[0].pointwise.conv).eval()
    options = {"heads": ("atac",)}
    expected = results(twin, given, **options)
    with bio.accelerated(twin, backend="torch", strict=True):
        assert_same(results(twin, given, **options), expected)


def test_longer_sequences(model, fast):
    given = sequences(1, 3 * LENGTH)
    assert_same(results(fast, given, **CHOSEN), results(model, given, **CHOSEN))


def test_splice_sites_may_be_given(model, fast):
    given = sequences(2)
    positions = torch.randint(LENGTH, (2, 4, 9)).sort(2).values
    positions[:, 1, 6:] = -1
    options = {"heads": ("splice_junctions",), "splice_site_positions": positions}
    assert_same(results(fast, given, **options), results(model, given, **options))


def test_sequences_may_share_splice_sites(model, fast):
    given = sequences(2)
    shared = torch.randint(LENGTH, (1, 9, 4)).sort(1).values.mT
    options = {"heads": ("splice_junctions",), "splice_site_positions": shared}
    assert_same(results(fast, given, **options), results(model, given, **options))


def test_kernels_take_shared_splice_sites(device):
    torch.manual_seed(5)
    options = {"dtype": torch.float16, "device": device}
    pairs = [[(torch.randn(2, 3, 8, **options),) * 2] * 2 for _ in range(2)]
    mask = torch.ones(2, 3, dtype=torch.bool, device=device)
    maps = torch.randn(2, 8, 6, **options), torch.randn(2, 8, **options)
    weights = Junctions(*maps, *pairs, mask, 1 << 20)
    x, organism = torch.randn(2, 50, 6, **options), torch.tensor([1, 0], device=device)
    shared = torch.randint(50, (1, 4, 5), device=device)
    given = genomic_operators("triton"), x, weights, organism
    expected = predict_junctions(*given, shared.repeat(2, 1, 1), torch.float32)
    for sites in (shared, shared.int(), shared.expand(2, -1, -1)):
        found = predict_junctions(*given, sites, torch.float32)
        assert torch.equal(found["pred_counts"], expected["pred_counts"])


@pytest.mark.parametrize("organism", [torch.tensor([1]).expand(2), torch.tensor([1, 0, 0, 1])[::2]])
def test_organisms_may_have_any_stride(organism, model, fast, monkeypatch):
    """Kernels read organisms that are next to each other in memory."""
    network = vars(fast)["forward"]
    given = sequences(2) | {"organism_index": organism}
    expected = results(model, given, **CHOSEN)
    assert_same(results(fast, given, **CHOSEN), expected)
    seen = []
    monkeypatch.setattr(network.weights, "_compute", lambda inputs, _: seen.append(inputs[1]) or {})
    results(fast, given, **CHOSEN)
    assert seen[0].is_contiguous()


def test_distances_have_the_features_of_the_model():
    index = level_index(512, torch.device("cpu"))
    distance = torch.arange(-511, 512)
    features = attention._central_mask_features(distance.abs().float(), 32, 512)
    features = torch.cat([features, distance.sign()[:, None] * features], 1)
    found = level_features(torch.device("cpu"))[index.long()]
    assert torch.equal(found.float(), features)


@pytest.mark.parametrize("with_bases", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_kernels_agree_with_the_model(with_bases, device, monkeypatch):
    """Outputs in half precision point the same way; convolutions have tests of their own."""
    if device == "cpu":
        quicken(monkeypatch)
    model = make_model()
    model.tower.blocks = model.tower.blocks[:1]
    model.to(device)
    given = {name: value.to(device) for name, value in sequences(1).items()}
    positions = torch.randint(LENGTH, (1, 4, 9), device=device).sort(2).values
    options = {"splice_site_positions": positions}
    if not with_bases:
        options |= {"resolutions": (128,)}
    expected = flat(results(model, given, **options))
    with bio.accelerated(model, precision="fp16", backend="triton"):
        found = flat(results(model, given, **options))
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        pair = found[name].double().flatten(), wanted.double().flatten()
        assert nn.functional.cosine_similarity(*pair, 0) > 1 - 2e-5, name


@pytest.mark.gpu
def test_graphs_give_the_same(device):
    """The third call replays a graph, with other inputs."""
    model = make_model().to(device)
    options = {"heads": ("atac", "contact_maps", "splice_sites")}
    batches = [{k: v.to(device) for k, v in sequences(1).items()} for _ in range(3)]
    batches[2]["dna_sequence"] = batches[2]["dna_sequence"].roll(5, 1)
    with bio.accelerated(model, precision="fp16", backend="triton", cuda_graph=False):
        expected = [results(model, given, **options) for given in batches]
    with bio.accelerated(model, precision="fp16", backend="triton", cuda_graph=True):
        found = [results(model, given, **options) for given in batches]
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, tolerance=1e-6)


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace convolutions by their reference, as the interpreter needs minutes for them."""
    from mlff_triton.kernels.genomics import operators
    from mlff_triton.kernels.genomics.reference.convolution import convolution

    monkeypatch.setattr(operators, "convolution", convolution)


def test_predictions_in_mixed_precision():
    """The method ``predict`` uses autocast, which needs no fallback."""
    model = make_model(dtype_policy=DtypePolicy.mixed_precision())
    given = sequences(1)
    options = {"resolutions": (128,)}
    with torch.inference_mode():
        expected = model.predict(**given, **options)
        with bio.accelerated(model, backend="torch"):
            found = model.predict(**given, **options)
            assert "bfloat16" in str(bio.report(model))
            assert bio.report(model)[0].state == "fast"
    assert_same(found, expected, tolerance=0.1)


def test_models_are_restored_and_copied(model, fast):
    twin = pickle.loads(pickle.dumps(fast))
    assert "AlphaGenome" in str(bio.report(twin))
    given = sequences()
    assert_same(results(twin, given, **CHOSEN), results(model, given, **CHOSEN))
    bio.restore(twin)
    assert "forward" not in vars(twin)


def test_changed_weights_are_read_again(model):
    twin, given = copy.deepcopy(model), sequences()
    with bio.accelerated(twin, backend="torch"):
        before = results(twin, given, **CHOSEN)
        with torch.no_grad():
            twin.tower.blocks[2]["mha"].norm.running_var *= 3
            twin.heads["chip_tf"].track_means += 1
        found = results(twin, given, **CHOSEN)
    assert not torch.equal(before["chip_tf"][128], found["chip_tf"][128])
    assert_same(found, results(twin, given, **CHOSEN))


def test_changed_settings_are_noticed(model):
    twin, given = copy.deepcopy(model), sequences()
    twin.dtype_policy = DtypePolicy(torch.float32, torch.bfloat16, torch.float32)
    options = {"heads": ("atac", "rna_seq"), "resolutions": (128,)}
    with bio.accelerated(twin, backend="torch"):
        results(twin, given, **options)
        twin.dtype_policy.compute_dtype = torch.float32
        twin.heads["rna_seq"].apply_squashing = False
        twin.heads["atac"].resolutions.remove(1)
        found = results(twin, given, **options)
    assert_same(found, results(twin, given, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("weights", [ConvolutionWeights, TowerWeights, HeadWeights])
def test_weights_may_have_any_stride(weights, dtype, model):
    assert_strides_do_not_matter(lambda each: weights.of(each, dtype), model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dna_sequence": torch.zeros(1, 2049, 4)}, "multiple of 2048"),
        ({"organism_index": torch.zeros(2).long()}, "organism_index"),
        ({"organism_index": torch.tensor([-1])}, "not from 0 to 1"),
        ({"organism_index": torch.tensor([2])}, "not from 0 to 1"),
        ({"organism_index": torch.zeros(1)}, "integer tensor"),
        ({"organism_index": torch.zeros(1).bool()}, "integer tensor"),
        ({"splice_site_positions": torch.zeros(1, 2, 9).long()}, "splice_site_positions"),
        ({"heads": ("nothing",)}, "unknown heads"),
    ],
    ids=["length", "count", "negative", "large", "float", "bool", "sites", "head"],
)
def test_what_the_model_refuses_is_left_to_it(options, message, fast):
    given = sequences() | options
    vars(fast)["forward"].fallback_reasons.clear()  # each of which is announced once
    with (
        pytest.warns(FallbackWarning, match=message),
        suppress(AssertionError, IndexError, RuntimeError, ValueError),
    ):
        results(fast, given)


def test_gradients_need_the_original(fast):
    with pytest.warns(FallbackWarning, match="gradients"):
        fast(**sequences(), **CHOSEN)


def test_kernels_need_half_precision(model, device):
    twin = copy.deepcopy(model).to(device)
    given = {name: value.to(device) for name, value in sequences(1).items()}
    with (
        bio.accelerated(twin, backend="triton"),
        pytest.warns(FallbackWarning, match="precision='fp16'"),
    ):
        results(twin, given, **CHOSEN)


@pytest.mark.parametrize("module", ["alphagenome_pytorch.alphagenome", "elsewhere"])
def test_other_models_of_that_name_are_refused(module, model):
    """Version 0.2 has its model in ``alphagenome_pytorch.alphagenome``."""
    other = copy.deepcopy(model)
    other.__class__ = type("AlphaGenome", (type(model),), {"__module__": module})
    with pytest.raises(UnsupportedModelError, match="AlphaGenome of alphagenome-pytorch"):
        bio.accelerate(other, strict=True)


def test_heads_of_other_embeddings_are_refused(model):
    other = copy.deepcopy(model)
    other.heads["own"] = heads.GenomeTracksHead(TRUNK, 6, (128,))
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(other, strict=True)


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        ("encoder.pool", {"method": "avg"}),
        ("encoder.dna_embedder.conv1", {"padding_mode": "circular"}),
        ("decoder.up_blocks.0.conv_in.conv", {"pad_mode": "none"}),
        ("tower.blocks.0.pair_update.row_attn.norm", {"rms_norm": False}),
    ],
)
def test_other_settings_are_refused(path, setting, model):
    other = copy.deepcopy(model)
    vars(other.get_submodule(path)).update(setting)
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(other, strict=True)


def test_adapters_within_the_model_are_refused(model):
    other = copy.deepcopy(model)
    other.tower.blocks[0]["mha"].q_proj = type("LoRA", (nn.Linear,), {})(TRUNK, 1024, bias=False)
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(other, strict=True)
