"""Checkpoints of TensorNet2: every layout that TorchMD-NET 3.1 loads, our own, and bad ones."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlff_triton import Ensemble, TensorNet2, load_model, save_model
from mlff_triton.checkpoints import native
from mlff_triton.errors import InputError
from mlff_triton.testing import assert_close
from mlff_triton.units import ENERGY_UNITS
from tests.support.charged import charged_model
from tests.support.checkpoints import ATOMS, assert_refused, energy_and_forces, save, zipped
from tests.support.torchmd_net import (
    ATOMREF,
    charged_arguments,
    import_torchmdnet,
    make_models,
    use_plain_operations,
)

DOUBLE = torch.float64
NETWORK = "model.representation_model."


@pytest.fixture(autouse=True)
def torchmdnet(monkeypatch) -> Iterator[Any]:
    """TorchMD-NET with PyTorch operations, and float64 as the default dtype."""
    module = import_torchmdnet()
    use_plain_operations(module, monkeypatch)
    torch.set_default_dtype(DOUBLE)
    torch.manual_seed(0)
    yield module
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def checkpoint(torchmdnet) -> Callable[..., dict[str, Any]]:
    """Function that makes the content of a checkpoint as TorchMD-NET's trainer writes it."""

    def content(**changes: Any) -> dict[str, Any]:
        args = charged_arguments(DOUBLE, **changes)
        theirs, _ = make_models(torchmdnet, args)
        weights = {f"model.{name}": value for name, value in theirs.state_dict().items()}
        return {"epoch": 3, "hyper_parameters": args, "state_dict": weights}

    return content


def theirs(torchmdnet: Any, path: Path, **options: Any) -> tuple[float, np.ndarray]:
    """Return energy and forces of a checkpoint that TorchMD-NET has loaded."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Old-format checkpoint")
        model = torchmdnet.models.model.load_model(str(path), **options)
    numbers, positions = torch.from_numpy(ATOMS.numbers), torch.tensor(ATOMS.positions)
    energy, forces = model(numbers, positions, torch.zeros_like(numbers))
    return energy.item(), forces.detach().numpy()


def assert_agree(torchmdnet: Any, path: Path) -> None:
    model = load_model(path)
    assert isinstance(model, TensorNet2)
    energy, forces = energy_and_forces(model)
    their_energy, their_forces = theirs(torchmdnet, path)
    assert np.abs(forces).max() > 0.01
    assert_close(energy, their_energy, 0)
    assert_close(forces, their_forces, 1)


def as_it_is(content: dict[str, Any]) -> None:
    """Do not change the checkpoint."""


def named(name: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["hyper_parameters"]["model"] = name

    change.__name__ = name
    return change


def old_output_names(content: dict[str, Any]) -> None:
    content["state_dict"] = {
        name.replace("output_network.layers.", "output_network."): value
        for name, value in content["state_dict"].items()
    }


def no_boxes(content: dict[str, Any]) -> None:
    for name in [n for n in content["state_dict"] if n.endswith("distance.box")]:
        del content["state_dict"][name]


def old_tensor_layout(content: dict[str, Any]) -> None:
    """Only the embedding of a TensorNet2 has another order of outputs in the old layout."""
    content["hyper_parameters"]["check_errors"] = True
    for kind in ("weight", "bias"):
        name = f"{NETWORK}tensor_embedding.linears_scalar.1.{kind}"
        value = content["state_dict"][name]
        interleaved = value.reshape(3, len(value) // 3, -1).transpose(0, 1)
        content["state_dict"][name] = interleaved.reshape(value.shape)


LAYOUTS = [
    as_it_is,
    named("tensornetv2_alt"),
    named("tensornet-nqe"),
    old_output_names,
    no_boxes,
    old_tensor_layout,
]
KINDS: dict[str, dict[str, Any]] = {
    "all pairs": {},
    "cutoff": {"coulomb_cutoff": 5.0},
    "repulsion": {"repulsion": True},
    "deep head, Atomref": {"output_mlp_num_layers": 1, "prior_model": [ATOMREF]},
    "without Coulomb": {"output_model": "Scalar"},
}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, id=f"{kind}-{layout.__name__}")
        for kind in KINDS
        for layout in LAYOUTS
        # TorchMD-NET renames the first two layers of a head only.
        if (kind, layout) != ("deep head, Atomref", old_output_names)
    ],
)
def test_every_layout_loads_as_it_loads_in_torchmd_net(
    tmp_path, torchmdnet, checkpoint, layout, kind
):
    content = checkpoint(**KINDS[kind])
    layout(content)
    assert_agree(torchmdnet, save(content, tmp_path / "model.ckpt"))


def test_names_and_old_layout_are_one_model(tmp_path, checkpoint):
    content = checkpoint()
    energies = []
    for layout in LAYOUTS:
        changed = copy.deepcopy(content)
        layout(changed)
        model = load_model(save(changed, tmp_path / "model.ckpt"))
        energies.append(energy_and_forces(model)[0])
    assert len(set(energies)) == 1
    mistaken = copy.deepcopy(content)
    old_tensor_layout(mistaken)
    del mistaken["hyper_parameters"]["check_errors"]
    model = load_model(save(mistaken, tmp_path / "model.ckpt"))
    assert abs(energy_and_forces(model)[0] - energies[0]) > 1e-3


@pytest.mark.parametrize("max_z", [100, 128])
def test_max_z_beyond_the_periodic_table_loads(tmp_path, torchmdnet, checkpoint, max_z):
    content = checkpoint(max_z=max_z, repulsion=True)
    path = save(content, tmp_path / "model.ckpt")
    assert_agree(torchmdnet, path)
    assert load_model(path).config.elements == tuple(range(min(max_z, 119)))


def test_coulomb_cutoff_may_be_chosen(tmp_path, torchmdnet, checkpoint):
    path = save(checkpoint(), tmp_path / "model.ckpt")
    assert load_model(path).cutoff == math.inf
    model = load_model(path, coulomb_cutoff=4.7)
    assert model.config.coulomb_cutoff == model.cutoff == 4.7
    energy, forces = energy_and_forces(model)
    their_energy, their_forces = theirs(torchmdnet, path, coulomb_cutoff=4.7)
    assert_close(energy, their_energy, 0)
    assert_close(forces, their_forces, 1)
    assert abs(energy - energy_and_forces(load_model(path))[0]) > 1e-3
    with pytest.raises(InputError, match="must be above 0 and at most 100 Å"):
        load_model(path, coulomb_cutoff=-1.0)
    with pytest.raises(InputError, match="the model has no Coulomb energy"):
        load_model("default", coulomb_cutoff=9.0)


def test_zip_is_an_ensemble(tmp_path, checkpoint):
    path = zipped(
        tmp_path / "two.zip", a=checkpoint(), b=checkpoint(num_layers=1, q_weights=[0, 1])
    )
    ensemble = load_model(path, coulomb_cutoff=9.0)
    assert isinstance(ensemble, Ensemble)
    assert ensemble.has_charges
    assert ensemble.cutoff == 9.0


def test_energy_unit_scales_everything(tmp_path, checkpoint):
    path = save(checkpoint(repulsion=True, prior_model=[ATOMREF]), tmp_path / "model.ckpt")
    in_ev, forces_in_ev = energy_and_forces(load_model(path))
    for unit, value in ENERGY_UNITS.items():
        energy, forces = energy_and_forces(load_model(path, energy_unit=unit))
        assert_close(energy, value * in_ev, 0)
        assert_close(forces, value * forces_in_ev, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_conversion_keeps_the_model(tmp_path, checkpoint, kind):
    model = load_model(save(checkpoint(**KINDS[kind]), tmp_path / "model.ckpt"))
    save_model(model, tmp_path / "model.safetensors", "A card.")
    copied = load_model(tmp_path / "model.safetensors")
    assert isinstance(copied, TensorNet2)
    assert copied.config == model.config
    assert copied.weights_hash == model.weights_hash
    np.testing.assert_array_equal(energy_and_forces(copied)[1], energy_and_forces(model)[1])


def test_native_files_name_their_kind(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(charged_model(coulomb_cutoff=7.0), path)
    assert b'"mlff_triton.tensornet2.1"' in path.read_bytes()
    assert load_model(path).config.coulomb_cutoff == 7.0
    damaged = path.read_bytes().replace(b'charge_channels\\": 3', b'charge_channels\\": 4')
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    assert "damaged" in assert_refused(path)
    assert set(native.FORMATS) == {"mlff_triton.tensornet.1", "mlff_triton.tensornet2.1"}


def test_every_weight_is_needed_and_none_is_ignored(tmp_path, checkpoint):
    content, path = checkpoint(repulsion=True), tmp_path / "model.ckpt"
    state = content["state_dict"]
    for name in [n for n in state if "charge" in n or "repulsion" in n or "qweights" in n]:
        fewer = {k: v for k, v in state.items() if k != name}
        message = assert_refused(save({**content, "state_dict": fewer}, path))
        assert "lacks" in message or "missing" in message
    plain = copy.deepcopy(content)
    del plain["hyper_parameters"]["repulsion"]  # unknown to older versions of TorchMD-NET
    assert "repulsion.cutoff_ab" in assert_refused(save(plain, path))


def test_broken_weights_are_refused(tmp_path, checkpoint):
    content, path = checkpoint(repulsion=True), tmp_path / "model.ckpt"
    for name, value in (
        ("model.output_model.qweights", torch.zeros(11)),
        ("model.output_model.qweights", torch.full((12,), torch.nan)),
        ("model.output_model.qweights", torch.zeros(12)),
        (f"{NETWORK}repulsion.z_outer", torch.ones(20, 20) + torch.eye(20)),
        (f"{NETWORK}repulsion.cutoff_ab", torch.ones(4, 4)),
        (f"{NETWORK}layers.0.linears_scalar.0.weight", torch.zeros(16, 8)),
        (f"{NETWORK}charge_predicts.1.q_mlp.layers.4.weight", torch.zeros(4, 16)),
    ):
        state = content["state_dict"] | {name: value}
        assert_refused(save({**content, "state_dict": state}, path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"q_dim": 0}, "charge_channels=0"),
        ({"q_dim": 10**8}, "charge_channels"),
        ({"q_dim": "many"}, ""),
        ({"coulomb_cutoff": -3.0}, "coulomb_cutoff=-3.0"),
        ({"coulomb_cutoff": "far"}, ""),
        ({"output_mlp_num_layers": 1000}, "head_layers=1000"),
        ({"output_model": "DipoleMoment"}, "DipoleMoment"),
        ({"repulsion": 2}, "repulsion=2"),
        ({"model": "tensornet"}, "ScalarPlusWeightedCoulomb"),
    ],
    ids=str,
)
def test_nonsense_hyper_parameters_are_refused(tmp_path, checkpoint, changes, reason):
    content = checkpoint()
    content["hyper_parameters"] |= changes
    assert reason in assert_refused(save(content, tmp_path / "model.ckpt"))


def test_missing_hyper_parameters_and_older_keys_are_named(tmp_path, checkpoint):
    content, path = checkpoint(), tmp_path / "model.ckpt"
    fewer = {k: v for k, v in content["hyper_parameters"].items() if k != "q_dim"}
    assert "lacks 'q_dim'" in assert_refused(save(content | {"hyper_parameters": fewer}, path))
    older = {
        name.replace("charge_predict_0.", "charge_predict."): value
        for name, value in content["state_dict"].items()
    }
    message = assert_refused(save(content | {"state_dict": older}, path))
    assert "weights that its model does not have: 'charge_predict." in message
