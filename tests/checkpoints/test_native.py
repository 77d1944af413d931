"""Native checkpoints: exact round trips, and refusal of inconsistent files."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mlff_triton import (
    Ensemble,
    load_model,
    save_model,
)
from mlff_triton.checkpoints import model_card
from mlff_triton.errors import CheckpointWarning, InputError, OutputError
from mlff_triton.model.config import ZBLConfig
from tests.support.checkpoints import (
    F,
    assert_refused,
    energy_and_forces,
    energy_of,
    lightning,
    native,
    priors_by_list,
    save,
)
from tests.support.tensornets import uncertain


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group": "SO(3)", "activation": "ssp", "cutoff_lower": 0.5, "trainable_rbf": True},
        {"zbl": ZBLConfig(cutoff=2.5, prefactor=14.4)},
        {"zbl": ZBLConfig(2.5, 14.4, 1.889, charges=(1.0, 6.0, 7.0, 8.5)), "rbf_type": "gauss"},
        {"zbl": ZBLConfig(cutoff=2.5, prefactor=14.4, is_smooth=True)},
        {"rbf_type": "bessel", "bessel_orders": 5, "self_loops": False, "head": "gated"},
    ],
    ids=["default", "options", "ZBL", "ZBL with charges", "smooth ZBL", "bessel"],
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [None, 0.3])
@pytest.mark.parametrize("head", ["scalar", "gated"])
def test_round_trip_keeps_the_uncertainty(tmp_path, head, limit, dtype):
    model = uncertain(native(head=head).to(dtype), 3, limit)
    save_model(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert torch.equal(loaded.readout.uncertainty, model.readout.uncertainty)
    assert loaded.readout.uncertainty.dtype == dtype
    assert loaded.uncertainty_limit == model.uncertainty_limit
    assert loaded.weights_hash == model.weights_hash


def test_foreign_models_survive_our_format(tmp_path):
    content = lightning()
    priors_by_list(content)
    path = save(content, tmp_path / "model.ckpt")
    with pytest.warns(CheckpointWarning, match="energies in eV, but Hartree"):
        model = load_model(path, energy_unit="Hartree")
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


def test_a_live_model_of_another_package_is_not_saved(tmp_path):
    with pytest.raises(InputError, match=r"a Linear of torch is not a TensorNet.*load_model"):
        save_model(torch.nn.Linear(1, 1), tmp_path / "model.safetensors")
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
    """Change the metadata or the tensors of a native checkpoint, and remove its digest."""
    with safetensors.safe_open(path, framework="pt") as file:
        facts = file.metadata()
    facts.pop("digest", None)
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
    "training is no JSON": lambda m: m.update(learned="{"),
    "training is a list": lambda m: m.update(learned="[]"),
    "training lacks its charges": lambda m: m.update(learned='{"closed_shells": true}'),
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


WRONG_UNCERTAINTIES = {
    "a vector": {"readout.uncertainty": torch.ones(F // 2)},
    "no rows": {"readout.uncertainty": torch.ones(0, F // 2)},
    "too many rows": {"readout.uncertainty": torch.ones(3000, F // 2)},
    "other columns": {"readout.uncertainty": torch.ones(3, F)},
    "NaN": {"readout.uncertainty": torch.full((3, F // 2), torch.nan)},
    "integers": {"readout.uncertainty": torch.ones(3, F // 2).int()},
    "results overflow": {"readout.uncertainty": torch.full((3, F // 2), 3e38)},
    "a limit alone": {"readout.uncertainty_limit": torch.tensor(0.3)},
    "a limit of zero": {
        "readout.uncertainty": torch.ones(3, F // 2),
        "readout.uncertainty_limit": torch.tensor(0.0),
    },
    "limits": {
        "readout.uncertainty": torch.ones(3, F // 2),
        "readout.uncertainty_limit": torch.ones(2),
    },
    "a limit that is an integer": {
        "readout.uncertainty": torch.ones(3, F // 2),
        "readout.uncertainty_limit": torch.tensor(1),
    },
}


@pytest.mark.parametrize("case", WRONG_UNCERTAINTIES)
def test_wrong_uncertainties_are_refused(file, case):
    rewrite(file, tensors=lambda state: state.update(WRONG_UNCERTAINTIES[case]))
    assert "uncertaint" in assert_refused(file)


def test_cards_of_other_files_are_empty(tmp_path, file):
    assert model_card(file) == "A card."
    assert not model_card(save(lightning(), tmp_path / "model.ckpt"))
    assert not model_card(tmp_path / "missing")
