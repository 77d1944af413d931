"""DiffDock, accelerated, compared with structural doubles on top of e3nn, and with a checkout.

Where the environment variable DIFFDOCK is the path of a checkout of gcorso/DiffDock, its own
classes are tested, too.
"""

from __future__ import annotations

import copy
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.errors import UnsupportedModelError
from tests.support.changed_attributes import check_changed_attributes, check_unusual_attributes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TorchScript, which e3nn compiles when it is imported
    e3nn = pytest.importorskip("e3nn", reason="e3nn is not installed")
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    from tests.bio.models.diffdock import batches, neighbors, support

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("quick_products"),
]

LAYERS = ["shared", "groups", "separate", "faster", "depthwise", "first release"]
MODELS = {
    "v1": ("CGOldModel", {}),
    "v1 with language": ("CGOldModel", {"language": True, "num_conv_layers": 2}),
    "v1 second order": (
        "CGOldModel",
        {"num_conv_layers": 2, "use_second_order_repr": True, "smooth_edges": True},
    ),
    "v1 confidence": ("CGOldModel", {"confidence_mode": True}),
    "L": ("CGModel", {"num_conv_layers": 2}),
    "L with language": ("CGModel", {"language": True, "sidechain_pred": True}),
    "L first order": ("CGModel", {"sh_lmax": 1, "reduce_pseudoscalars": True}),
    "L one network": (
        "CGModel",
        {"differentiate_convolutions": False, "odd_parity": True, "smooth_edges": True},
    ),
    "L depthwise": (
        "CGModel",
        {"depthwise_convolution": True, "tp_weights_layers": 3, "dynamic_max_cross": False},
    ),
    "L without torsions": ("CGModel", {"no_torsion": True, "fixed_center_conv": False}),
    "L confidence": ("CGModel", {"confidence_mode": True, "atom_confidence": True}),
}
FAR = "far from the receptor"
COMPLEXES = {
    "batch": ([(6, 9), (4, 7), (9, 5)], 3.0),
    FAR: ([(6, 9), (4, 7)], 500.0),
    "single atom": ([(1, 7), (5, 6)], 3.0),
    "rigid": ([(2, 7), (3, 6)], 3.0),
}


def outputs(found: Any) -> list[Tensor]:
    found = found if isinstance(found, tuple) else (found,)
    return [x for x in found if x is not None]


def run(model: nn.Module, *arguments: Any, **options: Any) -> list[Tensor]:
    """Call a model with copies of what it may change."""
    with torch.no_grad():
        return outputs(model(*copy.deepcopy(arguments), **options))


def run_fast(
    model: nn.Module, *arguments: Any, backend: str = "torch", **options: Any
) -> list[Tensor]:
    """Call a model that is accelerated as a whole, without any fallback."""
    with warnings.catch_warnings(), bio.accelerated(model, backend=backend):
        warnings.simplefilter("error", FallbackWarning)
        found = run(model, *arguments, **options)
        assert [part.path for part in bio.report(model)] == ["."]
        assert bio.report(model)[0].state == "fast"
    return found


def error_of(found: list[Tensor], truth: list[Tensor]) -> float:
    """Return the largest error, relative to the largest value of an output."""
    errors = [0.0]
    for x, y in zip(found, truth, strict=True):
        assert x.shape == y.shape
        assert torch.equal(x.isnan(), y.isnan())
        if x.numel() and not x.isnan().all():
            scale = y.nan_to_num().abs().max().clamp(min=1e-30)
            errors.append(float((x.double() - y).nan_to_num().abs().max() / scale))
    return max(errors)


def in_both_dtypes(make: Any) -> tuple[nn.Module, nn.Module]:
    """Make a model in float64, and another with its weights in float32."""
    with support.default_dtype(torch.float64):
        exact = make()
    return exact, support.with_weights_of(exact, make())


@cache
def double(name: str) -> tuple[nn.Module, nn.Module]:
    """Return a structural double in both dtypes, for all tests that do not change it."""
    return in_both_dtypes(lambda: support.make_model(*MODELS[name]))


def fresh(name: str) -> nn.Module:
    """Return a structural double in float32 that a test may change."""
    return support.make_model(*MODELS[name])  # type: ignore[no-any-return]


def check(models: Any, given: Any, backend: str = "torch", device: str = "cpu") -> None:
    """Compare results in float64 with the original's, and the errors of both in float32."""
    exact, model = models
    with support.default_dtype(torch.float64):
        truth = run(exact, *given(torch.float64))
        if backend == "torch":
            assert error_of(run_fast(exact, *given(torch.float64)), truth) < 1e-12
    arguments = given(torch.float32)
    own = run(model, *arguments)
    arguments = [[y.to(device) for y in x] if type(x) is list else x.to(device) for x in arguments]
    found = [x.cpu() for x in run_fast(model.to(device), *arguments, backend=backend)]
    assert all(x.dtype == y.dtype for x, y in zip(found, own, strict=True))
    assert error_of(found, truth) <= max(4 * error_of(own, truth), 2e-6)


@pytest.mark.parametrize(
    ("kind", "second_order"),
    [(kind, order) for kind in LAYERS for order in (False, True) if kind != "faster" or not order],
)
@pytest.mark.parametrize("step", [0, 1, 3])
def test_layers(kind: str, step: int, second_order: bool) -> None:
    check(
        in_both_dtypes(lambda: support.make_layer(kind, step, second_order)),
        support.edges_of(kind, step, second_order),
    )


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("weight", [1.0, 0.5, "tensor"])
def test_arguments_of_layers(weight: Any, reduce: str) -> None:
    given = support.edges_of("separate", 1, False)
    n_edges = len(given(torch.float32)[3])
    if weight == "tensor":
        weight = torch.linspace(0, 1, n_edges)[:, None]
    layer = support.make_layer("separate", 1, False, residual=False)
    options = {"out_nodes": 9, "reduce": reduce, "edge_weight": weight}
    own = run(layer, *given(torch.float32), **options)
    found = run_fast(layer, *given(torch.float32), **options)
    assert error_of(found, [x.double() for x in own]) < 1e-5


@pytest.mark.parametrize("kind", ["shared", "groups"])
def test_layers_without_edges(kind: str) -> None:
    node, index, features, harmonics = support.edges_of(kind, 1, False)(torch.float32)
    features = [x[:0] for x in features] if kind == "groups" else features[:0]
    layer = support.make_layer(kind, 1, False)
    given = node, index[:, :0], features, harmonics[:0]
    assert all(map(torch.equal, run(layer, *given), run_fast(layer, *given)))


def test_edges_that_do_not_exist_give_nan() -> None:
    node, index, features, harmonics = support.edges_of("shared", 1, False)(torch.float32)
    layer = support.make_layer("shared", 1, False)
    for wrong in (-1, len(node)):
        for row in (0, 1):
            bad = index.clone()
            bad[row, 3] = wrong
            (found,) = run_fast(layer, node, bad, features, harmonics)
            assert found[index[0]].isnan().all()


@pytest.mark.parametrize("kind", ["groups", "depthwise"])
@pytest.mark.usefixtures("quick_interpreter")
def test_kernels_of_layers(kind: str, device: str) -> None:
    check(
        in_both_dtypes(lambda: support.make_layer(kind, 1, False)),
        support.edges_of(kind, 1, False),
        backend="triton",
        device=device,
    )


@pytest.mark.parametrize(
    ("name", "complexes"),
    [
        (name, complexes)
        for name in MODELS
        for complexes in COMPLEXES
        if not (name.startswith("v1") and complexes == FAR)  # which the original does not compute
    ],
)
def test_models(name: str, complexes: str) -> None:
    sizes, away = COMPLEXES[complexes]
    width = 1280 if "language" in name else 0
    check(
        double(name),
        lambda dtype: [batches.make_batch(sizes, away, width, dtype)],
    )


@pytest.mark.parametrize("name", ["v1", "L"])
@pytest.mark.usefixtures("quick_interpreter")
def test_kernels_of_models(name: str, device: str) -> None:
    kind, options = MODELS[name]
    options = options | {"num_conv_layers": 1, "no_torsion": True}
    check(
        in_both_dtypes(lambda: support.make_model(kind, options)),
        lambda dtype: [batches.make_batch([(3, 4)], 3.0, 0, dtype)],
        backend="triton",
        device=device,
    )


def test_first_release_computes_ligands_far_from_the_receptor() -> None:
    """Atoms without neighbors count as those of a batch in which others have some."""
    model = fresh("v1")
    far = batches.make_batch([(6, 9)], 500.0)
    near = batches.make_batch([(6, 9)], 3.0)
    with pytest.raises(ValueError, match="larger than 0"):
        run(model, far)
    together = batches.join([far, near])
    expected = [x[:1] for x in run(model, together)[:2]]
    assert error_of(run_fast(model, far)[:2], [x.double() for x in expected]) < 1e-4


@pytest.mark.parametrize("name", ["v1", "L"])
def test_everything_is_restored(name: str) -> None:
    model, data = fresh(name), batches.make_batch([(6, 9), (4, 5)])
    before, state = run(model, data), copy.deepcopy(model.state_dict())
    attributes = {path: set(vars(part)) for path, part in model.named_modules()}
    bio.accelerate(model, backend="torch")
    run(model, data)
    copied = copy.deepcopy(model)
    assert all(map(torch.equal, run(copied, data), run(model, data)))
    bio.restore(model)
    assert attributes == {path: set(vars(part)) for path, part in model.named_modules()}
    assert all(map(torch.equal, run(model, data), before))
    assert all(torch.equal(x, state[key]) for key, x in model.state_dict().items())


def test_models_are_pickled() -> None:
    model, data = fresh("L"), batches.make_batch([(5, 6)])
    bio.accelerate(model, backend="torch")
    found = run(model, data)
    loaded = pickle.loads(pickle.dumps(model))
    assert all(map(torch.equal, run(loaded, data), found))


def test_results_do_not_depend_on_the_order_of_edges() -> None:
    layer = support.make_layer("separate", 1, False)
    node, index, features, harmonics = support.edges_of("separate", 1, False)(torch.float64)
    layer = layer.double()
    order = torch.randperm(index.shape[1])
    first = run_fast(layer, node, index, features, harmonics)
    second = run_fast(layer, node, index[:, order], features[order], harmonics[order])
    assert error_of(first, second) < 1e-14


def test_receptors_that_were_embedded_once_fit_the_original() -> None:
    model = support.make_model("CGModel", {"num_prot_emb_layers": 2, "smooth_edges": True})
    data = batches.make_batch([(6, 9), (4, 7)])
    own = run(model, data)
    with torch.no_grad():
        with bio.accelerated(model, backend="torch"):
            first, second = outputs(model(data)), outputs(model(data))
        assert all(map(torch.equal, first, second))
        kept = data["receptor", "receptor"]
        assert kept.edge_sh.shape[0] == kept.edge_index.shape[1]
        after = outputs(model(data))  # with what the accelerated model has left in the data
    truth = [x.double() for x in own]
    assert error_of(first, truth) < 1e-5
    assert error_of(after, truth) < 1e-5


def test_new_weights_are_read() -> None:
    model, data = fresh("L"), batches.make_batch([(5, 6)])
    bio.accelerate(model, backend="torch")
    before = run(model, data)
    with torch.no_grad():
        model.conv_layers[0].fc[0][0].weight.mul_(2)
        model.lig_node_embedding.atom_embedding_list[0].weight.mul_(2)
        model.conv_layers[0].batch_norm.eps = 1.0
    found = run(model, data)
    bio.restore(model)
    expected = run(model, data)
    assert error_of(found, [x.double() for x in expected]) < 1e-5
    assert error_of(before, [x.double() for x in expected]) > 1e-3


FALLBACKS: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "gradients": (lambda *_: None, "gradients are required"),
    "training": (lambda model, _: model.train(), "training mode"),
    "hook": (
        lambda model, _: model.conv_layers[0].register_forward_hook(lambda *_: None),
        "has hooks",
    ),
    "radius": (
        lambda model, _: setattr(model, "lig_max_radius", 4.0),
        "radius has changed",
    ),
    "time": (lambda _, data: delattr(data, "complex_t"), "set_time"),
    "features": (
        lambda _, data: setattr(data["ligand"], "x", data["ligand"].x[:, :5]),
        "x of ligand does not have as many features",
    ),
    "positions": (
        lambda _, data: setattr(data["ligand"], "pos", data["ligand"].pos.double()),
        "positions are not of the dtype",
    ),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_fallbacks(name: str) -> None:
    model, data = fresh("L"), batches.make_batch([(5, 6)])
    bio.accelerate(model, backend="torch")
    change, reason = FALLBACKS[name]
    change(model, data)
    context = torch.enable_grad() if name == "gradients" else torch.no_grad()
    with context, pytest.warns(FallbackWarning, match=reason), suppress(Exception):
        model(data)
    assert reason in bio.report(model)[0].state


def test_gradients_toward_positions_are_noticed() -> None:
    model, data = fresh("v1"), batches.make_batch([(5, 6)])
    model.requires_grad_(False)
    data["ligand"].pos.requires_grad_()
    bio.accelerate(model, backend="torch")
    with pytest.warns(FallbackWarning, match="gradients are required"):
        score = model(data)[0]
    assert score.requires_grad


def test_other_precisions_fall_back() -> None:
    model, data = fresh("L"), batches.make_batch([(5, 6)])
    own = run(model, data)
    bio.accelerate(model, backend="torch", precision="bf16")
    with pytest.warns(FallbackWarning, match="other precisions"):
        assert all(map(torch.equal, run(model, data), own))


def test_unknown_categories_give_nan() -> None:
    model, data = fresh("v1"), batches.make_batch([(5, 6)])
    for wrong in (-1, 119, 200):
        data["ligand"].x[2, 0] = wrong
        assert run_fast(model, data)[0].isnan().any()


CHANGES: dict[str, Callable[[Any], object]] = {
    "activation": lambda layer: setattr(layer.fc[0], "1", nn.GELU()),
    "forward": lambda layer: setattr(layer, "forward", lambda *_, **__: None),
    "normalization": lambda layer: setattr(layer.batch_norm, "instance", True),
    "bias": lambda layer: setattr(layer.fc[0][0], "bias", None),
    "product": lambda layer: setattr(layer.tp, "shared_weights", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_layers_with_other_parts_are_refused(change: str) -> None:
    layer = support.make_layer("groups", 0, False)
    CHANGES[change](layer)
    with pytest.raises(UnsupportedModelError, match="DiffDock"):
        bio.accelerate(layer, backend="torch")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("include_miscellaneous_atoms", True), ("embed_also_ligand", False), ("sh_irreps", None)],
)
def test_models_with_other_settings_keep_their_forward(attribute: str, value: Any) -> None:
    """Their convolutions are replaced alone."""
    model = support.make_model("CGModel", {"num_conv_layers": 2, "no_torsion": True})
    value = e3nn.o3.Irreps("1x0e + 1x1e") if value is None else value
    setattr(model, attribute, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bio.accelerate(model, backend="torch")
    paths = [part.path for part in bio.report(model)]
    assert "." not in paths
    assert "conv_layers.0" in paths


def test_convolutions_of_all_atom_models_are_replaced() -> None:
    kinds = ["separate", "shared"]
    model = nn.ModuleDict({kind: support.make_layer(kind, 1, False) for kind in kinds})
    bio.accelerate(model, backend="torch")
    assert [part.path for part in bio.report(model)] == kinds
    assert not bio.report(model).rest


def test_products_in_torchscript() -> None:
    e3nn.set_optimization_defaults(jit_script_fx=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = support.make_layer("separate", 0, False)
        copied = copy.deepcopy(layer)
    assert any(isinstance(part, torch.jit.ScriptModule) for part in layer.modules())
    given = support.edges_of("separate", 0, False)(torch.float32)
    own = run(layer, *given)
    assert error_of(run_fast(layer, *given), [x.double() for x in own]) < 1e-5
    assert all(map(torch.equal, run(layer, *given), own))
    assert error_of(run_fast(copied, *given), [x.double() for x in own]) < 1e-5


@pytest.mark.parametrize(
    "kind",
    [
        *("groups", "depthwise", "faster"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("CGModel", "CGOldModel")),
    ],
)
def test_attributes(kind: str) -> None:
    """Attributes that change, before or after acceleration, are followed or run the original."""
    if kind.startswith("CG"):
        model = support.make_model(kind, {"num_conv_layers": 1})
        given: list[Any] = [batches.make_batch([(4, 5)])]
    else:
        model = support.make_layer(kind, 1, False)
        given = support.edges_of(kind, 1, False)(torch.float32)

    def call(model: nn.Module) -> list[Tensor]:
        own = [copy.copy(x) for x in given]  # models keep tensors with data
        return [x for x in outputs(model(*own)) if x.numel()]

    check_changed_attributes(model, call)
    check_unusual_attributes(model, call)


@contextmanager
def checkout() -> Iterator[Any]:
    """Import the modules in a checkout, and forget them afterwards."""
    path = os.environ.get("DIFFDOCK")
    if not path:
        pytest.skip("DIFFDOCK is not the path of a checkout of gcorso/DiffDock")
    modules, paths = dict(sys.modules), list(sys.path)
    try:
        neighbors.install(Path(path))
        yield support.repository(Path(path))
    finally:
        sys.path[:] = paths
        for name in sys.modules.keys() - modules.keys():
            del sys.modules[name]


@cache
def real_cases() -> list[tuple[str, dict[str, Any]]]:
    old = {"use_old_atom_encoder": True}
    new = {"embed_also_ligand": True, "num_prot_emb_layers": 1}
    return [
        ("CGOldModel", old),
        ("CGOldModel", old | {"lm_embedding_type": "esm", "confidence_mode": True}),
        ("CGModel", new | {"lm_embedding_type": "precomputed"}),
        ("CGModel", new | {"depthwise_convolution": True, "sidechain_pred": True}),
        ("CGModel", new | {"confidence_mode": True, "atom_confidence": True}),
        ("TensorProductScoreModel", {"lm_embedding_type": "esm"}),
        ("TensorProductScoreModel", {"confidence_mode": True, "use_second_order_repr": True}),
    ]


@pytest.mark.parametrize("index", range(len(real_cases())))
@pytest.mark.parametrize("complexes", COMPLEXES)
def test_checkout(index: int, complexes: str) -> None:
    name, options = real_cases()[index]
    sizes, away = COMPLEXES[complexes]
    width = 1280 if options.get("lm_embedding_type") else 0
    with checkout() as classes:
        if name not in classes:
            pytest.skip(f"this release has no {name}")
        if name == "CGOldModel" and complexes == FAR:
            pytest.skip("the original does not compute this")
        check(
            in_both_dtypes(lambda: support.make_original(classes[name], options)),
            lambda dtype: [batches.make_batch(sizes, away, width, dtype)],
        )
