"""Random checkpoints in the formats of this package and of TorchMD-NET, and their energies."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton import (
    Ensemble,
    TensorNet,
    TensorNetCalculator,
    TensorNetConfig,
    load_model,
    save_model,
)
from mlff_triton.errors import CheckpointError
from mlff_triton.model.config import ZBLConfig
from mlff_triton.testing import random_cluster

F, MAX_Z, N_BASIS, CUTOFF = 6, 10, 5, 4.0
ATOMS = random_cluster(8, seed=1)
ZBL = {
    "cutoff_distance": 3.0,
    "max_num_neighbors": 32,
    "atomic_number": list(range(MAX_Z)),
    "distance_scale": 1e-10,
    "energy_scale": 1.602176634e-19,
}


def save_tiny_model(folder: Path, card: str = "") -> Path:
    """Write a random model with one small layer, and return the path of its file."""
    torch.manual_seed(0)
    config = TensorNetConfig(
        elements=(1, 6, 7, 8),
        hidden_channels=16,
        num_layers=1,
        num_rbf=8,
        zbl=ZBLConfig(cutoff=1.5, prefactor=14.4),
    )
    path = folder / "tiny.safetensors"
    save_model(TensorNet(config), path, card)
    return path


def energy_and_forces(model: TensorNet | Ensemble, atoms: Atoms = ATOMS) -> tuple[float, Any]:
    calculator = TensorNetCalculator(model, device="cpu", dtype="float64")
    return calculator.get_potential_energy(atoms), calculator.get_forces(atoms)


def energy_of(path: Path, **options: Any) -> float:
    return energy_and_forces(load_model(path, **options))[0]


def assert_refused(path: Path, error: type[CheckpointError] = CheckpointError) -> str:
    """Assert that loading raises a one-line error that names the file; return the line."""
    with pytest.raises(error) as refusal:
        load_model(path)
    message = str(refusal.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def lightning(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Make a random checkpoint as TorchMD-NET's trainer writes it, without any weight of 0 or 1."""
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
    """Write a zip of checkpoints, given as ``name=content``."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            member = io.BytesIO()
            torch.save(content, member)
            archive.writestr(f"{name}.ckpt", member.getvalue())
    return path


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


def native(**changes: Any) -> TensorNet:
    """Make a random model with an energy scale that needs all digits of float64."""
    torch.manual_seed(1)
    options = {"hidden_channels": F, "num_layers": 1, "num_rbf": N_BASIS, "cutoff_upper": CUTOFF}
    model = TensorNet(TensorNetConfig((1, 6, 7, 8), **{**options, **changes}))
    model.std = torch.tensor(1 / 3, dtype=torch.float64)
    model.mean = torch.tensor(-27000.123456789012, dtype=torch.float64)
    model.references = torch.tensor([-0.1, -1 / 3, 2 / 7, 1e-17], dtype=torch.float64)
    return model
