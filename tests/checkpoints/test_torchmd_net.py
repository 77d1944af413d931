"""TorchMD-NET checkpoints: agreement with TorchMD-NET, and refusal of unsupported models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import Ensemble, TensorNetCalculator, load_model, save_model
from mlff_triton.cli.main import main
from mlff_triton.errors import (
    CheckpointWarning,
    InputError,
    UnknownElementError,
    UnsupportedModelError,
)
from mlff_triton.testing import assert_close
from mlff_triton.units import ENERGY_UNITS
from tests.support.checkpoints import (
    ATOMREF,
    ATOMS,
    MAX_Z,
    ZBL,
    F,
    add_atomref,
    add_zbl,
    assert_refused,
    energy_and_forces,
    energy_of,
    lightning,
    priors_by_dicts,
    priors_by_list,
    save,
    zipped,
)
from tests.support.torchmd_net import import_torchmdnet, use_plain_operations


@pytest.fixture
def their_load(monkeypatch) -> Iterator[Callable[..., Any]]:
    """Function that loads a checkpoint with TorchMD-NET and computes energy and forces in float64.

    It uses PyTorch operations, because the Warp kernels store 1/3 in float32. The default dtype is
    float64, because PyTorch uses it for results computed from integers.
    """
    torchmdnet = import_torchmdnet()
    use_plain_operations(torchmdnet, monkeypatch)
    torch.set_default_dtype(torch.float64)

    def energy_and_forces(path: Path) -> tuple[float, Any]:
        model = torchmdnet.models.model.load_model(str(path))
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
    """Do not change the checkpoint."""


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
    """Return the same model in the old layout, of tensors [N, F, 3, 3]."""
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


@pytest.mark.parametrize("unit", ENERGY_UNITS)
def test_energy_unit_scales_everything(tmp_path, unit):
    content = lightning()
    atomref_by_name(content)
    path = save(content, tmp_path / "model.ckpt")
    energy, forces = energy_and_forces(load_model(path, energy_unit=unit))
    in_ev, forces_in_ev = energy_and_forces(load_model(path))
    assert_close(energy, ENERGY_UNITS[unit] * in_ev, 0)
    assert_close(forces, ENERGY_UNITS[unit] * forces_in_ev, 1)


def test_the_unit_that_a_zbl_prior_records_is_used(tmp_path):
    """The repulsion is the same in all units, and everything else scales."""
    repulsions = []
    for unit, value in ENERGY_UNITS.items():
        content = lightning()
        alone = energy_of(save(content, tmp_path / "model.ckpt"), energy_unit=unit)
        zbl = {**ZBL, "energy_scale": value * ZBL["energy_scale"]}
        content["hyper_parameters"].update(prior_model=["ZBL"], prior_args=[zbl])
        add_zbl(content, 0)
        path = save(content, tmp_path / "model.ckpt")
        assert energy_of(path) == energy_of(path, energy_unit=unit)
        repulsions.append(energy_of(path) - alone)
    assert repulsions[0] > 1
    assert repulsions == pytest.approx([repulsions[0]] * 4, rel=1e-9)


@pytest.mark.parametrize("unit", [unit for unit in ENERGY_UNITS if unit != "eV"])
def test_another_unit_than_the_recorded_one_warns(tmp_path, unit):
    content = lightning()
    priors_by_list(content)
    path = save(content, tmp_path / "model.ckpt")
    with pytest.warns(CheckpointWarning, match=f"records energies in eV, but {unit} is used"):
        load_model(path, energy_unit=unit)


def test_lengths_in_other_units_are_refused(tmp_path):
    content = lightning()
    content["hyper_parameters"]["prior_model"] = [{"ZBL": {**ZBL, "distance_scale": 1e-9}}]
    add_zbl(content, 0)
    message = assert_refused(save(content, tmp_path / "model.ckpt"), UnsupportedModelError)
    assert "lengths of 1e-09 m" in message


def two_zbls(content: dict[str, Any]) -> None:
    """Add priors of other cutoffs and charges, also within a list of other priors."""
    charges = [0, 1, 2, 3, 4, 5, 4, 5, 6, 9]
    second = {**ZBL, "cutoff_distance": 1.8, "atomic_number": charges}
    content["hyper_parameters"].update(
        prior_model=["ZBL", "Atomref", "ZBL"], prior_args=[ZBL, {"max_z": MAX_Z}, second]
    )
    add_zbl(content, 0)
    add_atomref(content, 1)
    add_zbl(content, 2)
    content["state_dict"]["model.prior_model.2.atomic_number"] = torch.tensor(charges)


def test_several_zbl_priors_are_added_up(tmp_path, their_load):
    content = lightning()
    two_zbls(content)
    path = save(content, tmp_path / "model.ckpt")
    assert_agree(path, their_load)
    model = load_model(path)
    save_model(model, tmp_path / "model.safetensors")
    energy, forces = energy_and_forces(load_model(tmp_path / "model.safetensors"))
    expected = energy_and_forces(model)
    assert (energy, forces.tolist()) == (expected[0], expected[1].tolist())


@pytest.mark.parametrize("backend", ["exact", "torch"])
def test_backends_add_up_several_repulsions(tmp_path, backend):
    content = lightning()
    two_zbls(content)
    model = load_model(save(content, tmp_path / "model.ckpt"))
    expected = energy_and_forces(model)
    calculator = TensorNetCalculator(model, device="cpu", dtype="float64", backend=backend)
    assert_close(calculator.get_potential_energy(ATOMS), expected[0], 0)
    assert_close(calculator.get_forces(ATOMS), expected[1], 1)


def short_atomref(content: dict[str, Any], size: int) -> None:
    atomref_by_name(content)
    for kind in ("initial_atomref", "atomref.weight"):
        name = f"model.prior_model.0.{kind}"
        content["state_dict"][name] = content["state_dict"][name][:size]


def short_zbl(content: dict[str, Any], size: int) -> None:
    zbl = {**ZBL, "atomic_number": ZBL["atomic_number"][:size]}
    content["hyper_parameters"]["prior_model"] = [{"ZBL": zbl}]
    add_zbl(content, 0)


@pytest.mark.parametrize("shorten", [short_atomref, short_zbl])
def test_elements_beyond_a_table_are_unknown(tmp_path, shorten):
    """TorchMD-NET raises an IndexError for them."""
    content = lightning()
    shorten(content, 8)
    model = load_model(save(content, tmp_path / "model.ckpt"))
    assert model.config.elements == tuple(range(8))
    calculator = TensorNetCalculator(model, device="cpu")
    with pytest.raises(UnknownElementError, match="does not know O"):
        calculator.get_potential_energy(Atoms("O"))


@pytest.mark.parametrize("where", ["hyper_parameters", "state_dict"])
def test_a_box_in_the_file_is_mentioned(tmp_path, where):
    content, box = lightning(), torch.diag(torch.tensor([9.0, 10.0, 11.0], dtype=torch.float64))
    if where == "hyper_parameters":
        content["hyper_parameters"]["box_vecs"] = box.tolist()
    content["state_dict"]["model.representation_model.distance.box"] = box
    with pytest.warns(CheckpointWarning, match=r"box of its own \(9 x 10 x 11 Å\)"):
        load_model(save(content, tmp_path / "model.ckpt"))


def test_priors_without_arguments_are_left_out_aloud(tmp_path, their_load):
    content = lightning()
    content["hyper_parameters"].update(
        prior_model=["Atomref", "ZBL"], prior_args=[{"max_z": MAX_Z}]
    )
    add_atomref(content, 0)
    path = save(content, tmp_path / "model.ckpt")
    with pytest.warns(CheckpointWarning, match="'ZBL' is left out, as by TorchMD-NET"):
        assert_agree(path, their_load)
    add_zbl(content, 1)
    message = assert_refused(save(content, path), UnsupportedModelError)
    assert "has weights of 'ZBL'" in message


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0


def test_energies_of_atoms_can_be_added_to_a_model_without_them(tmp_path, capsys):
    content = lightning()
    atomref_by_name(content)
    total = energy_of(save(content, tmp_path / "model.ckpt"))
    content = lightning()
    disabled_atomref(content)
    path = save(content, tmp_path / "model.ckpt")
    assert energy_of(path, add_references=True) == pytest.approx(total, rel=1e-13)
    assert abs(energy_of(path) - total) > 1
    run("info", str(path))
    shown = " ".join(capsys.readouterr().out.split())
    assert "left out" in shown
    assert "H -8.1111" in shown
    target = str(tmp_path / "total.safetensors")
    run("convert", str(path), target, "--add-references")
    assert energy_of(Path(target)) == pytest.approx(total, rel=1e-13)


@pytest.mark.parametrize("make", [without_priors, atomref_by_name])
def test_no_energies_of_atoms_are_added_twice(tmp_path, make):
    content = lightning()
    make(content)
    path = save(content, tmp_path / "model.ckpt")
    with pytest.raises(UnsupportedModelError, match="already adds"):
        load_model(path, add_references=True)


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
    "tensornet3": {"model": "tensornet3"},
    "equivariant transformer": {"model": "equivariant-transformer"},
    "graph network": {"model": "graph-network"},
    "dipole head": {"output_model": "DipoleMoment"},
    "dipole head of a TensorNet2": {"output_model": "DipoleMoment", "model": "tensornet2"},
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
