"""Enformer, accelerated, compared with the package."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FallbackWarning, Options
from mlff_triton.bio.models.enformer.runner import EnformerRunner, Request
from mlff_triton.bio.models.enformer.weights import EnformerWeights
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.testing import assert_within
from tests.support.enformer import BASES_PER_BIN, bases, make_model
from tests.support.strides import assert_strides_do_not_matter


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return make_model()


def compare(model: nn.Module, *args: Any, relative: float = 1e-5, **options: Any) -> None:
    """Compare all tensors that the model returns with those of the original."""
    with torch.inference_mode():
        expected = flatten(model(*args, **options))
        with bio.accelerated(model, backend="torch"):
            found = flatten(model(*args, **options))
            assert bio.report(model)[0].state == "fast"
    assert found.keys() == expected.keys()
    for key, each in found.items():
        assert (each.dtype, each.stride()) == (expected[key].dtype, expected[key].stride())
        assert_within(each, expected[key], relative, floor=0.1)


def flatten(value: Any, path: str = "") -> dict[str, Tensor]:
    """Return the tensors in nested dictionaries and tuples by their paths."""
    if isinstance(value, Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, part in items for k, v in flatten(part, f"{path}/{key}").items()}


@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 128)], ids=str)
def test_tracks_are_the_same(shape, model):
    compare(model, bases(*shape))


def test_float64_is_exact():
    compare(make_model(torch.float64), bases(2, 64, dtype=torch.float64), relative=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"return_embeddings": True},
        {"return_only_embeddings": True},
        {"head": "mouse"},
        {"head": "mouse", "return_embeddings": True},
        {"head": "mouse", "target": torch.arange(30.0).view(2, 5, 3)},
        {"head": "human", "target": torch.arange(70.0).view(2, 5, 7), "return_corr_coef": True},
    ],
    ids="-".join,
)
def test_options_are_served(options, model):
    compare(model, bases(2, 72), **options)


@pytest.mark.parametrize("target_length", [-1, 1, 2, 3, 9])
def test_bins_are_dropped(target_length):
    model = make_model()
    compare(model, bases(72), target_length=target_length)
    assert model.crop_final.target_length == target_length
    compare(model, bases(72))


def test_the_target_length_may_change():
    """A call with another target length sets that of the model, as upstream."""
    model, x = bio.accelerate(make_model(), backend="torch"), bases(72)
    with torch.inference_mode():
        lengths = [model(x, target_length=n)["human"].shape[-2] for n in (3, 5, 5, 1)]
    assert lengths == [3, 5, 5, 1]
    assert bio.report(model)[0].state == "fast"


def test_indices_and_strings_are_sequences(model):
    indices = torch.randint(-1, 5, (2, 64))
    compare(model, indices)
    compare(model, indices[0])
    compare(model, ["ACGTNacgtn.." * 4 + "GATTACAGATTACAGG", "T" * 64])


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint", "ignore:None of the inputs")
@pytest.mark.parametrize(
    "options", [{"num_downsamples": 4, "depth": 1, "heads": 1}, {"use_checkpointing": True}]
)
def test_other_configurations_are_served(options):
    compare(make_model(**options), bases(96))


def test_stored_positional_features_are_used():
    model = make_model(use_tf_gamma=True, dim=384, heads=2, depth=1)
    x = bases(BASES_PER_BIN * 1536)
    compare(model, x)
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        before = model(x)["human"]
        model.transformer[0][0].fn[1].use_tf_gamma = False
        after = model(x)["human"]
    assert not torch.equal(before, after)


def test_half_precision_is_close(model):
    with torch.inference_mode():
        x = bases(2, 64)
        expected = model(x, return_embeddings=True)
        with bio.accelerated(model, backend="torch", precision="bf16"):
            found = model(x, return_embeddings=True)
    assert found[1].dtype == torch.float32
    assert_within(found[1], expected[1], 0.05)
    assert_within(found[0]["human"], expected[0]["human"], 0.05)


@pytest.mark.parametrize("n_sequences", [None, 2])
def test_kernels_agree_with_the_package(n_sequences, device):
    model = make_model().to(device)
    x = bases(32) if n_sequences is None else bases(n_sequences, 32)
    with torch.inference_mode():
        expected = model(x.to(device), target_length=2, return_embeddings=True)
        with bio.accelerated(model, backend="triton", precision="fp16", cuda_graph=False):
            found = model(x.to(device), target_length=2, return_embeddings=True)
            assert bio.report(model)[0].state == "fast"
    for key, each in flatten(found).items():
        exact = flatten(expected)[key]
        assert each.dtype == torch.float32
        assert_within(each, exact, 0.01)
        cosine = nn.functional.cosine_similarity(each.flatten(), exact.flatten(), dim=0)
        assert cosine > 0.99999


def test_replays_keep_a_length(model, monkeypatch):
    """The length that was used least recently is dropped, also after replays."""
    monkeypatch.setattr("mlff_triton.bio.models.enformer.runner.N_LENGTHS", 2)
    runner = EnformerRunner(model, "torch", torch.float32, Options())
    request = Request(dropped=0, heads=("human",), embeddings=False)
    graphs = SimpleNamespace(replay=lambda *_: ())
    for length in (64, 72):
        runner._length(bases(1, length))
    for key, each in runner._lengths.items():
        runner._lengths[key] = each._replace(graphs=graphs)
    assert runner.replay(bases(1, 64), request) == ()
    runner._length(bases(1, 80))
    assert [n_bins for n_bins, _ in runner._lengths] == [8, 10]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_repeat_the_result():
    model = make_model().cuda()
    calls = [
        (bases(2, 64), {"head": "human"}),
        (bases(64), {"return_embeddings": True}),
        (bases(2, 128), {"target_length": 7}),
        (bases(2, 64), {"head": "human", "target_length": 5}),
    ]

    def results(repetitions: int) -> list[dict[str, Tensor]]:
        found = [model(x.cuda(), **options) for x, options in calls * repetitions]
        assert bio.report(model)[0].state == "fast"
        return list(map(flatten, found))

    with torch.inference_mode():
        with bio.accelerated(model, backend="triton", precision="fp16", cuda_graph=False):
            expected = results(1)
        with bio.accelerated(model, backend="triton", precision="fp16"):
            found = results(4)
    for each, exact in zip(found, expected * 4, strict=True):
        assert each.keys() == exact.keys()
        assert all(torch.equal(each[key], exact[key]) for key in each)


@pytest.mark.parametrize(
    ("x", "options", "reason"),
    [
        (bases(60), {}, f"not a multiple of {BASES_PER_BIN}"),
        (bases(64).half(), {}, "float16"),
        (bases(64), {"head": "rat"}, "no head 'rat'"),
        (bases(64), {"target": torch.zeros(5, 7)}, "needs the name of a head"),
        (bases(32), {}, "number of bins, 4"),
        (bases(64), {"target_length": 5.0}, "number of bins, 8"),
        (bases(16), {"target_length": 1}, "no bins are left"),
        (["ACGT", "ACG"], {}, "not strings of one length"),
        (torch.zeros(1, 64, 5), {}, "neither strings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_inputs_go_to_the_original(x, options, reason):
    model = make_model()
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        with pytest.warns(FallbackWarning, match=reason):
            found = outcome(model, x, options)
        expected = outcome(make_model(), x, options)
    assert found == expected


def outcome(model: nn.Module, x: Any, options: dict[str, Any]) -> object:
    """Return the tracks as lists, or the class of the error."""
    try:
        return {key: each.tolist() for key, each in flatten(model(x, **options)).items()}
    except Exception as error:  # noqa: BLE001 - the original raises many types
        return type(error)


def test_kernels_need_half_precision(device):
    model = make_model().to(device)
    with (
        torch.inference_mode(),
        bio.accelerated(model, backend="triton"),
        pytest.warns(FallbackWarning, match="computes in float32"),
    ):
        model(bases(64).to(device))


def test_changed_weights_are_read_again(model):
    model = copy.deepcopy(model)
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        before = model(bases(64), head="human")
        model.stem[1].fn[0].running_mean.add_(1.0)
        after = model(bases(64), head="human")
    with torch.inference_mode():
        assert_within(after, model(bases(64), head="human"), 1e-5)
    assert not torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_may_have_any_stride(dtype, model):
    assert_strides_do_not_matter(lambda each: EnformerWeights.of(each, dtype), model)


def test_models_are_copied_and_restored(model):
    model = copy.deepcopy(model)
    bio.accelerate(model, backend="torch")
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert "Enformer" in str(bio.report(twin))
    bio.restore(model)
    assert "forward" not in vars(model)
    with torch.inference_mode():
        assert_within(twin(bases(64), head="human"), model(bases(64), head="human"), 1e-5)


def test_models_within_others_are_found(model):
    wrapper = nn.ModuleDict({"enformer": copy.deepcopy(model)})
    bio.accelerate(wrapper, backend="torch", strict=True)
    assert [part.path for part in bio.report(wrapper)] == ["enformer"]


def test_gradients_need_the_original():
    model = make_model().requires_grad_()
    with bio.accelerated(model, backend="torch"), pytest.warns(FallbackWarning, match="gradients"):
        assert model(bases(64), head="human").requires_grad


def test_changed_settings_are_noticed():
    model = make_model()
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        model(bases(64))
        model.heads["human"][1].beta = 2.0
        with pytest.warns(FallbackWarning, match="beta has changed"):
            model(bases(64))


@pytest.mark.parametrize(
    "change", ["trunk", "activation", "head", "width", "dilation", "padding", "pool", "keys"]
)
def test_changed_structures_are_refused(change):
    sizes = {"width": {"dim_divisible_by": 4, "dim": 24}, "keys": {"attn_dim_key": 136}}
    model = make_model(**sizes.get(change, {}))
    if change == "trunk":
        model._trunk[-1] = nn.Identity()
    elif change == "activation":
        model.stem[1].fn[1] = nn.GELU()
    elif change == "dilation":
        convolution = model.conv_tower[0][0][2]
        convolution.dilation, convolution.padding = (2,), (4,)
    elif change == "padding":
        model.stem[0].padding_mode = "circular"
    elif change == "pool":
        model.stem[2].pool_size = 4
    elif change == "head":
        model.heads["human"][1] = nn.ReLU()
    with pytest.raises(UnsupportedModelError, match="Enformer contains no module"):
        bio.accelerate(model, strict=True)
