"""Checkpoints: every layout loads to the same model, and nothing broken or hostile loads at all."""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import pickle
import resource
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from ase import Atoms
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mlff_triton import (
    Ensemble,
    TensorNet,
    TensorNetCalculator,
    TensorNetConfig,
    load_model,
    save_model,
)
from mlff_triton.checkpoints import model_card, shipped_models
from mlff_triton.errors import CheckpointError, InputError, OutputError, UnsupportedModelError
from mlff_triton.model.config import ZBLConfig
from mlff_triton.testing import assert_close, random_cluster
from mlff_triton.units import ENERGY_UNITS

F, MAX_Z, N_BASIS, CUTOFF = 6, 10, 5, 4.0
ATOMS = random_cluster(8, seed=1)
ZBL = {
    "cutoff_distance": 3.0,
    "max_num_neighbors": 32,
    "atomic_number": list(range(MAX_Z)),
    "distance_scale": 1e-10,
    "energy_scale": 1.602176634e-19,
}


def energy_and_forces(model: TensorNet | Ensemble, atoms: Atoms = ATOMS) -> tuple[float, Any]:
    calculator = TensorNetCalculator(model, device="cpu", dtype="float64")
    return calculator.get_potential_energy(atoms), calculator.get_forces(atoms)


def energy_of(path: Path, **options: Any) -> float:
    return energy_and_forces(load_model(path, **options))[0]


def assert_refused(path: Path, error: type[CheckpointError] = CheckpointError) -> str:
    """Assert that loading raises one line that names the file; returns the line."""
    with pytest.raises(error) as refusal:
        load_model(path)
    message = str(refusal.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# TorchMD-NET


def lightning(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A random checkpoint as TorchMD-NET's trainer writes it, with nothing trivially 0 or 1."""
    args = {
        "model": "tensornet",
        "embedding_dimension": F,
        "num_layers": 1,
        "num_rbf": N_BASIS,
        "rbf_type": "gauss",
        "trainable_rbf": False,
        "activation": "silu",
        "cutoff_lower": 0.0,
        "cutoff_upper": CUTOFF,
        "max_z": MAX_Z,
        "max_num_neighbors": 32,
        "equivariance_invariance_group": "O(3)",
        "precision": 64,
        "derivative": True,
        "output_model": "Scalar",
        "reduce_op": "sum",
        "prior_model": None,
        "prior_args": None,
        "atom_filter": -1,
        "static_shapes": False,
        "lr": 1e-3,
        **changes,
    }
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        size = shape[-1] if shape else 1
        return torch.randn(shape, generator=generator, dtype=torch.float64) / size**0.5

    linears = {"tensor_embedding.emb2": (F, 2 * F), "linear": (F, 3 * F)}
    linears |= {f"tensor_embedding.distance_proj{m}": (F, N_BASIS) for m in (1, 2, 3)}
    for block, sizes in {
        "tensor_embedding": (F, 2 * F, 3 * F),
        **{f"layers.{k}": (N_BASIS, F, 2 * F, 3 * F) for k in range(args["num_layers"])},
    }.items():
        linears |= {
            f"{block}.linears_scalar.{m}": (sizes[m + 1], sizes[m]) for m in range(len(sizes) - 1)
        }
    network = {"tensor_embedding.emb.weight": random(args["max_z"], F)}
    for name, shape in linears.items():
        network |= {f"{name}.weight": random(*shape), f"{name}.bias": random(shape[0])}
    for name, size in {"tensor_embedding.init_norm": F, "out_norm": 3 * F}.items():
        network |= {f"{name}.weight": 1 + random(size), f"{name}.bias": random(size)}
    for block, count in {"tensor_embedding": 3, "layers.0": 6}.items():
        network |= {f"{block}.linears_tensor.{m}.weight": random(F, F) for m in range(count)}
    offset = torch.linspace(0, CUTOFF, N_BASIS, dtype=torch.float64)
    network |= {
        "distance_expansion.offset": offset,
        "distance_expansion.coeff": -0.5 / (offset[1] - offset[0]) ** 2,
        "distance.box": torch.zeros(3, 3, dtype=torch.float64),
    }
    head = "output_model.output_network.layers"
    weights = {f"representation_model.{name}": value for name, value in network.items()}
    weights |= {f"{head}.0.weight": random(F // 2, F), f"{head}.0.bias": random(F // 2)}
    weights |= {f"{head}.2.weight": random(1, F // 2), f"{head}.2.bias": random(1)}
    weights |= {"mean": random() - 2.5, "std": random() + 5}
    return {
        "epoch": 3,
        "hyper_parameters": args,
        "state_dict": {f"model.{name}": value for name, value in weights.items()},
    }


ATOMREF = torch.linspace(-9, -1, MAX_Z, dtype=torch.float64)[:, None]


def add_atomref(content: dict[str, Any], position: int) -> None:
    prior = f"model.prior_model.{position}."
    content["state_dict"][prior + "initial_atomref"] = torch.zeros_like(ATOMREF)
    content["state_dict"][prior + "atomref.weight"] = ATOMREF.clone()


def add_zbl(content: dict[str, Any], position: int) -> None:
    prior = f"model.prior_model.{position}."
    content["state_dict"][prior + "atomic_number"] = torch.arange(MAX_Z)
    content["state_dict"][prior + "distance.box"] = torch.zeros(3, 3, dtype=torch.float64)


def save(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def zipped(path: Path, **members: Any) -> Path:
    """A zip of checkpoints, as ``name=content``."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            member = io.BytesIO()
            torch.save(content, member)
            archive.writestr(f"{name}.ckpt", member.getvalue())
    return path


@pytest.fixture
def their_load(monkeypatch) -> Iterator[Callable[..., Any]]:
    """TorchMD-NET's ``load_model``, with its models' energy and forces; all in float64.

    Its Warp kernels hold 1/3 in float32, so it computes with PyTorch's operations instead; and
    where these start from integers they work in PyTorch's default dtype.
    """
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Warp and of its dependencies, at the first import
        module = importlib.import_module("torchmdnet.models.model")
    network = importlib.import_module("torchmdnet.models.tensornet")
    monkeypatch.setattr(network, "OPT", False)
    for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
        monkeypatch.setattr(network, name, getattr(network, f"_{name}"))
    torch.set_default_dtype(torch.float64)

    def energy_and_forces(path: Path) -> tuple[float, Any]:
        model = module.load_model(str(path))
        numbers, positions = torch.from_numpy(ATOMS.numbers), torch.tensor(ATOMS.positions)
        energy, forces = model(numbers, positions, torch.zeros_like(numbers))
        return energy.item(), forces.detach().numpy()

    yield energy_and_forces
    torch.set_default_dtype(torch.float32)


def assert_agree(path: Path, their_load: Callable[..., Any]) -> None:
    energy, forces = energy_and_forces(load_model(path))
    their_energy, their_forces = their_load(path)
    assert np.abs(forces).max() > 0.01
    assert_close(energy, their_energy, 0)
    assert_close(forces, their_forces, 1)


def without_priors(content: dict[str, Any]) -> None:
    """Leave the checkpoint as it is."""


def old_output_names(content: dict[str, Any]) -> None:
    content["state_dict"] = {
        name.replace("output_network.layers.", "output_network."): value
        for name, value in content["state_dict"].items()
    }


def no_box(content: dict[str, Any]) -> None:
    del content["state_dict"]["model.representation_model.distance.box"]


def scale_of_one_number_each(content: dict[str, Any]) -> None:
    for name in ("model.mean", "model.std"):
        content["state_dict"][name] = content["state_dict"][name].reshape(1)


def atomref_by_name(content: dict[str, Any]) -> None:
    content["hyper_parameters"].update(prior_model="Atomref", prior_args={"max_z": MAX_Z})
    add_atomref(content, 0)


def atomref_by_dict(content: dict[str, Any]) -> None:
    content["hyper_parameters"]["prior_model"] = [{"Atomref": {"max_z": MAX_Z}}]
    add_atomref(content, 0)


def disabled_atomref(content: dict[str, Any]) -> None:
    content["hyper_parameters"]["prior_model"] = [{"Atomref": {"max_z": MAX_Z, "enable": False}}]
    add_atomref(content, 0)


def priors_by_list(content: dict[str, Any]) -> None:
    content["hyper_parameters"].update(
        prior_model=["ZBL", "Atomref"], prior_args=[ZBL, {"max_z": MAX_Z}]
    )
    add_zbl(content, 0)
    add_atomref(content, 1)


def priors_by_dicts(content: dict[str, Any]) -> None:
    content["hyper_parameters"]["prior_model"] = [{"Atomref": {"max_z": MAX_Z}}, {"ZBL": ZBL}]
    add_atomref(content, 0)
    add_zbl(content, 1)


LAYOUTS = [
    without_priors,
    old_output_names,
    no_box,
    scale_of_one_number_each,
    atomref_by_name,
    atomref_by_dict,
    disabled_atomref,
    priors_by_list,
    priors_by_dicts,
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_of_torchmd_net_loads_as_it_loads_there(tmp_path, their_load, layout):
    content = lightning()
    layout(content)
    assert_agree(save(content, tmp_path / "model.ckpt"), their_load)


@pytest.mark.parametrize("max_z", [100, 128, 200])
def test_max_z_beyond_the_periodic_table_loads(tmp_path, their_load, max_z):
    path = save(lightning(max_z=max_z), tmp_path / "model.ckpt")
    assert_agree(path, their_load)
    assert load_model(path).config.elements == tuple(range(min(max_z, 119)))


def test_ways_to_write_priors_are_one_model(tmp_path):
    energies = {}
    for layout in LAYOUTS:
        content = lightning()
        layout(content)
        energies[layout] = energy_of(save(content, tmp_path / "model.ckpt"))
    references = float(ATOMREF[ATOMS.numbers, 0].sum())
    plain = energies[without_priors]
    for layout in (old_output_names, no_box, scale_of_one_number_each, disabled_atomref):
        assert energies[layout] == pytest.approx(plain, rel=1e-13)
    for layout in (atomref_by_name, atomref_by_dict):
        assert energies[layout] == pytest.approx(plain + references, rel=1e-13)
    assert energies[priors_by_list] == pytest.approx(energies[priors_by_dicts], rel=1e-13)
    assert energies[priors_by_list] > plain + references + 1


def in_old_layout(content: dict[str, Any]) -> dict[str, Any]:
    """The same model as it was written when tensors were stored as [N, F, 3, 3]."""
    old = copy.deepcopy(content)
    old["hyper_parameters"]["check_errors"] = True
    for name, value in old["state_dict"].items():
        if "tensor_embedding.linears_scalar.1." in name or ".0.linears_scalar.2." in name:
            interleaved = value.reshape(3, F, -1).transpose(0, 1)
            old["state_dict"][name] = interleaved.reshape(value.shape)
    return old


def test_old_layout_is_the_same_model(tmp_path):
    content = lightning()
    new = save(content, tmp_path / "new.ckpt")
    old = save(in_old_layout(content), tmp_path / "old.ckpt")
    assert energy_of(old) == energy_of(new)
    mistaken = in_old_layout(content)
    del mistaken["hyper_parameters"]["check_errors"]
    assert abs(energy_of(save(mistaken, tmp_path / "mistaken.ckpt")) - energy_of(new)) > 1e-3


def test_old_layout_loads_as_it_loads_in_torchmd_net(tmp_path, their_load):
    path = save(in_old_layout(lightning()), tmp_path / "old.ckpt")
    with pytest.warns(UserWarning, match="Old-format checkpoint"):
        assert_agree(path, their_load)


def test_zip_is_the_mean_of_its_members(tmp_path):
    members = {f"m{seed}": lightning(seed) for seed in range(3)}
    ensemble = load_model(zipped(tmp_path / "ensemble.zip", **members))
    assert isinstance(ensemble, Ensemble)
    alone = [
        energy_and_forces(load_model(save(content, tmp_path / "one.ckpt")))
        for content in members.values()
    ]
    energy, forces = energy_and_forces(ensemble)
    assert_close(energy, np.mean([e for e, _ in alone]), 0)
    assert_close(forces, np.mean([f for _, f in alone], axis=0), 1)
    assert np.ptp([e for e, _ in alone]) > 1e-3


def test_zip_loads_as_it_loads_in_torchmd_net(tmp_path, their_load):
    path = zipped(tmp_path / "ensemble.zip", a=lightning(0), b=lightning(1))
    assert_agree(path, their_load)


def test_names_in_a_zip_cannot_escape(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    names = ("../escaped", "/escaped", "..\\escaped", "a/../../escaped", "C:\\escaped")
    path = zipped(folder / "ensemble.zip", **{name: lightning() for name in names})
    assert len(load_model(path).members) == len(names)
    assert [p.name for p in tmp_path.rglob("*")] == ["inner", "ensemble.zip"]
    assert not Path("/escaped.ckpt").exists()


@pytest.mark.parametrize("unit", ENERGY_UNITS)
def test_energy_unit_scales_everything(tmp_path, unit):
    content = lightning()
    priors_by_list(content)
    path = save(content, tmp_path / "model.ckpt")
    energy, forces = energy_and_forces(load_model(path, energy_unit=unit))
    in_ev, forces_in_ev = energy_and_forces(load_model(path))
    assert_close(energy, ENERGY_UNITS[unit] * in_ev, 0)
    assert_close(forces, ENERGY_UNITS[unit] * forces_in_ev, 1)


def test_unknown_energy_unit_is_refused(tmp_path):
    with pytest.raises(InputError, match="Hartree"):
        load_model(save(lightning(), tmp_path / "model.ckpt"), energy_unit="Rydberg")


def test_weights_keep_dtype_and_bits(tmp_path):
    content = lightning()
    for dtype in (torch.float32, torch.float64):
        weights = {name: value.to(dtype) for name, value in content["state_dict"].items()}
        model = load_model(save({**content, "state_dict": weights}, tmp_path / "model.ckpt"))
        assert model.dtype == dtype
        assert not model.training
        expected = weights["model.representation_model.linear.weight"]
        assert torch.equal(model.readout.linear.weight, expected)


UNSUPPORTED = {
    "tensornet2": {"model": "tensornet2"},
    "equivariant transformer": {"model": "equivariant-transformer"},
    "graph network": {"model": "graph-network"},
    "dipole head": {"output_model": "DipoleMoment"},
    "Coulomb head": {"output_model": "ScalarPlusWeightedCoulomb"},
    "D2": {"prior_model": [{"D2": {"cutoff_distance": 5.0}}]},
    "Coulomb": {"prior_model": ["Atomref", "Coulomb"]},
    "mean": {"reduce_op": "mean"},
    "activation": {"activation": "relu"},
    "atom filter": {"atom_filter": 3},
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_models_are_refused_and_told_what_is_supported(tmp_path, case):
    content = lightning()
    content["hyper_parameters"] |= UNSUPPORTED[case]
    message = assert_refused(save(content, tmp_path / "model.ckpt"), UnsupportedModelError)
    assert "supported are TensorNet" in message
    value = next(iter(UNSUPPORTED[case].values()))
    culprit = {"D2": "D2", "Coulomb": "Coulomb"}.get(case, repr(value))
    assert culprit in message


@pytest.mark.parametrize(
    "changes",
    [{"rbf_type": "bump"}, {"equivariance_invariance_group": "SU(2)"}, {"cutoff_lower": 9.0}],
)
def test_unknown_options_are_refused(tmp_path, changes):
    content = lightning()
    content["hyper_parameters"] |= changes
    assert_refused(save(content, tmp_path / "model.ckpt"), UnsupportedModelError)


def test_every_weight_is_needed_and_none_is_ignored(tmp_path):
    content, path = lightning(), tmp_path / "model.ckpt"
    priors_by_dicts(content)
    tables = ("mean", "std", "box", "initial_atomref", "atomic_number")
    for name in [n for n in content["state_dict"] if not n.endswith(tables)]:
        fewer = {k: v for k, v in content["state_dict"].items() if k != name}
        assert_refused(save({**content, "state_dict": fewer}, path))
    more = content["state_dict"] | {"model.representation_model.layers.1.x": torch.zeros(1)}
    assert "layers.1.x" in assert_refused(save({**content, "state_dict": more}, path))


def test_broken_weights_are_refused(tmp_path):
    content = lightning()
    for name, value in (
        ("linear.weight", torch.full((F, 3 * F), torch.nan)),
        ("linear.weight", torch.zeros(F, 2 * F)),
        ("linear.weight", torch.zeros(F)),
        ("linear.weight", [1.0, 2.0]),
        ("tensor_embedding.emb2.weight", torch.zeros(F, 2 * F, dtype=torch.int64)),
        ("tensor_embedding.linears_scalar.1.weight", torch.zeros(5, 2)),
    ):
        state = content["state_dict"] | {f"model.representation_model.{name}": value}
        assert_refused(save({**content, "state_dict": state}, tmp_path / "model.ckpt"))
    for name, value in (("std", torch.tensor(torch.inf)), ("mean", torch.zeros(4))):
        state = content["state_dict"] | {f"model.{name}": value}
        message = assert_refused(save({**content, "state_dict": state}, tmp_path / "model.ckpt"))
        assert name in message


@pytest.mark.parametrize(
    "change",
    [
        {"hyper_parameters": None},
        {"hyper_parameters": []},
        {"hyper_parameters": {}},
        {"state_dict": None},
        {"state_dict": []},
        {"state_dict": {}},
        {"state_dict": {1: torch.zeros(1)}},
    ],
    ids=str,
)
def test_checkpoints_without_a_model_inside_are_refused(tmp_path, change):
    assert_refused(save(lightning() | change, tmp_path / "model.ckpt"))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_z": None},
        {"max_z": -1},
        {"num_layers": "two"},
        {"embedding_dimension": -6},
        {"num_rbf": 0},
        {"cutoff_upper": "far"},
        {"activation": ["silu"]},
        {"prior_model": [["Atomref"]]},
        {"prior_model": ["Atomref"], "prior_args": [{}, {}]},
        {"prior_model": [{"ZBL": {}}]},
        {"prior_model": 7},
    ],
    ids=str,
)
def test_nonsense_hyper_parameters_are_refused(tmp_path, changes):
    content = lightning()
    content["hyper_parameters"] |= changes
    assert_refused(save(content, tmp_path / "model.ckpt"))


@pytest.mark.parametrize("name", ["max_z", "rbf_type", "num_layers", "cutoff_upper", "num_rbf"])
def test_missing_hyper_parameters_are_named(tmp_path, name):
    content = lightning()
    del content["hyper_parameters"][name]
    assert name in assert_refused(save(content, tmp_path / "model.ckpt"))


# Our own format


def native(**changes: Any) -> TensorNet:
    torch.manual_seed(1)
    options = {"hidden_channels": F, "num_layers": 1, "num_rbf": N_BASIS, "cutoff_upper": CUTOFF}
    model = TensorNet(TensorNetConfig((1, 6, 7, 8), **{**options, **changes}))
    model.std = torch.tensor(1 / 3, dtype=torch.float64)
    model.mean = torch.tensor(-27000.123456789012, dtype=torch.float64)
    model.references = torch.tensor([-0.1, -1 / 3, 2 / 7, 1e-17], dtype=torch.float64)
    return model


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(native(), path, "A card.")
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group": "SO(3)", "activation": "ssp", "cutoff_lower": 0.5, "trainable_rbf": True},
        {"zbl": ZBLConfig(cutoff=2.5, prefactor=14.4)},
        {"zbl": ZBLConfig(2.5, 14.4, 1.889, charges=(1.0, 6.0, 7.0, 8.5)), "rbf_type": "gauss"},
        {"rbf_type": "bessel", "bessel_orders": 5, "self_loops": False, "head": "gated"},
    ],
    ids=["default", "options", "ZBL", "ZBL with charges", "bessel"],
)
def test_round_trip_keeps_every_bit(tmp_path, changes, dtype):
    model, path = native(**changes).to(dtype), tmp_path / "model.safetensors"
    save_model(model, path, "What it is.")
    loaded = load_model(path)
    assert loaded.config == model.config
    assert loaded.dtype == dtype
    assert not loaded.training
    state, expected = loaded.state_dict(), model.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        assert torch.equal(state[name], value), name
    assert energy_and_forces(loaded)[0] == energy_and_forces(model)[0]
    assert model_card(path) == "What it is."


def test_foreign_models_survive_our_format(tmp_path):
    content = lightning()
    priors_by_list(content)
    model = load_model(save(content, tmp_path / "model.ckpt"), energy_unit="Hartree")
    save_model(model, tmp_path / "model.safetensors")
    assert energy_and_forces(model)[0] == energy_of(tmp_path / "model.safetensors")


def test_saving_replaces_and_leaves_nothing_else(file):
    other = native(num_layers=2)
    save_model(other, str(file))
    assert load_model(file).config.num_layers == 2
    assert contents(file.parent) == [file.name]


def test_ensembles_are_not_saved_as_one(tmp_path):
    with pytest.raises(InputError, match="one by one"):
        save_model(Ensemble([native()]), tmp_path / "model.safetensors")
    assert not contents(tmp_path)


def test_unwritable_paths_are_refused(tmp_path, file):
    (tmp_path / "folder").mkdir()
    for path in (
        tmp_path / "missing" / "model.safetensors",
        file / "model.safetensors",
        tmp_path / "folder",
    ):
        with pytest.raises(OutputError) as refusal:
            save_model(native(), path)
        assert str(path) in str(refusal.value)
        assert "\n" not in str(refusal.value)
    assert contents(tmp_path) == ["folder", file.name]
    assert not contents(tmp_path / "folder")


def test_failed_write_leaves_the_old_file_and_no_other(file):
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(OutputError, match="File too large"):
            save_model(native(num_layers=2), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before
    assert contents(file.parent) == [file.name]


def rewrite(
    path: Path,
    metadata: Callable[[dict[str, str]], Any] = lambda _: None,
    tensors: Callable[[dict[str, Tensor]], Any] = lambda _: None,
) -> None:
    """Change the metadata or the tensors of a native checkpoint in place."""
    with safetensors.safe_open(path, framework="pt") as file:
        facts = file.metadata()
    state = safetensors.torch.load(path.read_bytes())
    metadata(facts)
    tensors(state)
    safetensors.torch.save_file(state, path, facts)


def configure(**changes: Any) -> Callable[[dict[str, str]], None]:
    def change(metadata: dict[str, str]) -> None:
        metadata["config"] = json.dumps(json.loads(metadata["config"]) | changes)

    return change


METADATA = {
    "later format": lambda m: m.update(format="mlff_triton.tensornet.2"),
    "no format": lambda m: m.pop("format"),
    "no config": lambda m: m.pop("config"),
    "config is no JSON": lambda m: m.update(config="{"),
    "config is a list": lambda m: m.update(config="[]"),
    "config is null": lambda m: m.update(config="null"),
    "unknown key": configure(depth=3),
    "unknown basis": configure(rbf_type="bump"),
    "elements are a number": configure(elements=6),
    "elements are text": configure(elements=["H"]),
    "channels are text": configure(hidden_channels="many"),
    "channels are negative": configure(hidden_channels=-4),
    "other channels": configure(hidden_channels=8),
    "more layers": configure(num_layers=2),
    "fewer layers": configure(num_layers=0),
    "cutoff is null": configure(cutoff_upper=None),
    "ZBL is text": configure(zbl="yes"),
    "ZBL lacks its cutoff": configure(zbl={"prefactor": 14.4, "charges": None}),
    "other elements": configure(elements=[1, 6, 7]),
}


@pytest.mark.parametrize("case", METADATA)
def test_wrong_metadata_is_refused(file, case):
    rewrite(file, metadata=METADATA[case])
    message = assert_refused(file)
    if case == "later format":
        assert "mlff_triton.tensornet.2" in message


TENSORS = {
    "missing": lambda t: t.pop("readout.linear.weight"),
    "pair embedding missing": lambda t: t.pop("embedding.pair.weight"),
    "all missing": lambda t: t.clear(),
    "references missing": lambda t: t.pop("references"),
    "superfluous": lambda t: t.update(more=torch.zeros(2)),
    "wrong shape": lambda t: t.update({"readout.linear.weight": torch.zeros(F, F)}),
    "references of wrong length": lambda t: t.update(references=torch.zeros(5).double()),
    "NaN": lambda t: t["layers.0.tensor_in.weight"].fill_(torch.nan),
    "infinity": lambda t: t["embedding.norm.bias"].fill_(torch.inf),
    "NaN as the scale": lambda t: t["std"].fill_(torch.nan),
    "integers": lambda t: t.update({"embedding.pair.weight": torch.zeros(F, 2 * F).long()}),
}


@pytest.mark.parametrize("case", TENSORS)
def test_wrong_tensors_are_refused(file, case):
    rewrite(file, tensors=TENSORS[case])
    assert_refused(file)


def test_cards_of_other_files_are_empty(tmp_path, file):
    assert model_card(file) == "A card."
    assert not model_card(save(lightning(), tmp_path / "model.ckpt"))
    assert not model_card(tmp_path / "missing")


# Names


def test_default_model_is_shipped_and_found_by_both_its_names():
    models = shipped_models()
    assert models
    default = load_model("default")
    assert any(
        torch.equal(default.readout.linear.weight, load_model(name).readout.linear.weight)
        for name in models
    )
    for path in models.values():
        assert isinstance(load_model(path), TensorNet)


def test_paths_are_strings_objects_and_may_start_at_home(file, monkeypatch):
    monkeypatch.setenv("HOME", str(file.parent))
    monkeypatch.chdir(file.parent)
    expected = energy_of(file)
    for path in (str(file), file.name, Path(file.name), f"~/{file.name}"):
        assert energy_of(path) == expected


@pytest.mark.parametrize("name", ["tensornet-9", "missing.ckpt", "a/b/c.zip", ""])
def test_unknown_names_are_refused_with_what_there_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as refusal:
        load_model(name)
    if name:
        assert repr(name) in str(refusal.value)
        for known in ("default", *shipped_models()):
            assert known in str(refusal.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt", ".zip", ".pt", ".json", ""])
def test_content_decides_and_not_the_suffix(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    save_model(native(), path)
    assert load_model(path).config.elements == (1, 6, 7, 8)
    save(lightning(), path)
    assert load_model(path).config.elements == tuple(range(MAX_Z))
    zipped(path, a=lightning(), b=lightning(1))
    assert len(load_model(path).members) == 2


# Hostile files


class Runs:
    """A pickle of this runs a command when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda marker: Runs(os.system, f"touch {marker}"),
    "eval": lambda marker: Runs(eval, f"open({str(marker)!r}, 'w').close()"),
    "exec": lambda marker: Runs(exec, f"open({str(marker)!r}, 'w').close()"),
    "open": lambda marker: Runs(open, str(marker), "w"),
    "Path.touch": lambda marker: Runs(Path.touch, marker),
    "torch.save": lambda marker: Runs(torch.save, 1, str(marker)),
}
HIDING_PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda attack: attack,
    "as a hyper-parameter": lambda attack: {
        **lightning(),
        "hyper_parameters": lightning()["hyper_parameters"] | {"dataset": attack},
    },
    "as a weight": lambda attack: {**lightning(), "state_dict": {"model.std": attack}},
}


@pytest.mark.parametrize("place", HIDING_PLACES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_pickles_run_nothing(tmp_path, attack, place):
    marker = tmp_path / "marker"
    content = HIDING_PLACES[place](ATTACKS[attack](marker))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the file that `open` leaves open
        pickle.loads(pickle.dumps(content))
    assert marker.exists(), "an attack that does nothing proves nothing"
    marker.unlink()

    files = [save(content, tmp_path / name) for name in ("model.ckpt", "model.safetensors")]
    old = tmp_path / "old.ckpt"
    torch.save(content, old, _use_new_zipfile_serialization=False)
    bare = tmp_path / "bare.pkl"
    bare.write_bytes(pickle.dumps(content))
    matgl = tmp_path / "matgl"
    matgl.mkdir()
    (matgl / "model.json").write_text("{}")
    save(content, matgl / "state.pt")
    archive = zipped(tmp_path / "ensemble.zip", good=lightning(), hostile=content)
    for path in (*files, old, bare, matgl, archive):
        assert_refused(path)
        assert not marker.exists(), path


# Broken files


def cuts(size: int) -> list[int]:
    """Lengths to truncate a file to: all of the first and last few, and some between."""
    ends = [*range(20), *range(size - 20, size)]
    return sorted({n for n in (*ends, *range(0, size, max(1, size // 40))) if 0 <= n < size})


def assert_every_cut_is_refused(path: Path, loaded: Path | None = None) -> None:
    content = path.read_bytes()
    load_model(loaded or path)
    for length in cuts(len(content)):
        path.write_bytes(content[:length])
        assert_refused(loaded or path)


def test_truncated_checkpoints_are_refused(tmp_path):
    assert_every_cut_is_refused(save(lightning(), tmp_path / "model.ckpt"))


def test_truncated_checkpoints_of_old_torch_are_refused(tmp_path):
    path = tmp_path / "model.ckpt"
    torch.save(lightning(), path, _use_new_zipfile_serialization=False)
    assert_every_cut_is_refused(path)


def test_truncated_safetensors_are_refused(file):
    assert_every_cut_is_refused(file)


def test_truncated_zips_are_refused(tmp_path):
    assert_every_cut_is_refused(zipped(tmp_path / "ensemble.zip", a=lightning(), b=lightning()))


def test_damaged_and_encrypted_members_of_a_zip_are_refused(tmp_path):
    path = tmp_path / "ensemble.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.ckpt", save(lightning(), tmp_path / "a.ckpt").read_bytes())
    content = path.read_bytes()
    for position in range(100, len(content) - 100, len(content) // 20):
        damaged = bytearray(content)
        damaged[position : position + 8] = b"\xff" * 8
        path.write_bytes(damaged)
        assert_refused(path)
    header, entry = content.index(b"PK\x03\x04"), content.index(b"PK\x01\x02")
    encrypted = bytearray(content)
    encrypted[header + 6] |= 1
    encrypted[entry + 8] |= 1
    path.write_bytes(encrypted)
    assert_refused(path)


def test_zips_without_checkpoints_are_refused(tmp_path):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("photo.jpg", b"...")
    assert_refused(path)
    with zipfile.ZipFile(path, "w"):
        pass
    assert_refused(path)


def test_other_things_that_torch_saves_are_refused(tmp_path):
    for content in (torch.zeros(3), {}, [], None, 5, {"state_dict": {}}, {"a": torch.zeros(1)}):
        message = assert_refused(save(content, tmp_path / "model.pt"), UnsupportedModelError)
        assert "supported are" in message
    content = torch.nn.Linear(2, 2)
    assert_refused(save(content, tmp_path / "model.pt"))


HEADS = [
    b"",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x80\x02",
    b"\x80\x04\x95",
    b"\x40\x00\x00\x00\x00\x00\x00\x00{",
    b"\xff\xff\xff\xff\xff\xff\xff\xff{",
    b"\x08\x00\x00\x00\x00\x00\x00\x00{}",
    b"\x89HDF\r\n",
    b"ustar",
]


@given(st.sampled_from(HEADS), st.binary(max_size=80))
def test_random_bytes_are_refused(tmp_path_factory, head, tail):
    path = tmp_path_factory.getbasetemp() / "random.bin"
    path.write_bytes(head + tail)
    assert_refused(path)


@given(st.text(max_size=60))
def test_text_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "text.bin"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert_refused(path)


def test_empty_files_and_folders_are_refused(tmp_path):
    (tmp_path / "empty").touch()
    assert_refused(tmp_path / "empty")
    (tmp_path / "folder").mkdir()
    assert "supported are" in assert_refused(tmp_path / "folder")


def test_a_link_to_nowhere_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert_refused(tmp_path / "link")


def test_truncated_matgl_files_are_refused(tmp_path, data_folder):
    for name in ("model.json", "state.pt"):
        shutil.copyfile(data_folder / "matgl-tensornet-matpes-pbe" / name, tmp_path / name)
    description = tmp_path / "model.json"
    description.write_text(description.read_text().rstrip())
    assert_every_cut_is_refused(description, tmp_path)
