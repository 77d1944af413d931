"""Random TorchMD-NET models, structures for them, and their predictions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.checkpoints.torchmd_net import from_checkpoint
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import random_cluster, random_crystal

CUTOFF = 3.2
MAX_Z = 20
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-5}
PRECISION = {torch.float64: 64, torch.float32: 32}
ZBL = {
    "ZBL": {
        "cutoff_distance": 3.0,
        "max_num_neighbors": 64,
        "atomic_number": list(range(MAX_Z)),
        "distance_scale": 1e-10,
        "energy_scale": 1.602176634e-19,
    }
}
ATOMREF = {"Atomref": {"max_z": MAX_Z}}
DISABLED_ATOMREF = {"Atomref": {"max_z": MAX_Z, "enable": False}}
OPTIONS: dict[str, dict[str, Any]] = {
    "O(3)": {},
    "SO(3)": {"equivariance_invariance_group": "SO(3)"},
    "no layers": {"num_layers": 0},
    "1 layer": {"num_layers": 1},
    "4 layers": {"num_layers": 4},
    "SO(3), 4 layers": {"equivariance_invariance_group": "SO(3)", "num_layers": 4},
    "trained expnorm": {"trainable_rbf": True},
    "gauss": {"rbf_type": "gauss"},
    "trained gauss": {"rbf_type": "gauss", "trainable_rbf": True},
    "ssp": {"activation": "ssp"},
    "tanh": {"activation": "tanh"},
    "sigmoid": {"activation": "sigmoid"},
    "swish": {"activation": "swish"},
    "mish": {"activation": "mish"},
    "lower cutoff": {"cutoff_lower": 1.5},
    "lower cutoff, gauss": {"cutoff_lower": 1.5, "rbf_type": "gauss"},
    "Atomref": {"prior_model": [ATOMREF]},
    "disabled Atomref": {"prior_model": [DISABLED_ATOMREF]},
    "ZBL": {"prior_model": [ZBL]},
    "ZBL and Atomref": {"prior_model": [ZBL, ATOMREF]},
    "Atomref and ZBL": {"prior_model": [ATOMREF, ZBL]},
}


def import_torchmdnet() -> ModuleType:
    """Import the package without the warnings of Warp, or skip the test."""
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchmdnet.models.model
        import torchmdnet.models.tensornet
        import torchmdnet.models.tensornet2
    return torchmdnet


def import_tensornet2() -> ModuleType:
    """Import TorchMD-NET's module of TensorNet2, or skip the test."""
    import_torchmdnet()
    from torchmdnet.models import tensornet2

    return tensornet2


def use_plain_operations(torchmdnet: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace TorchMD-NET's Warp kernels by its PyTorch operations."""
    plain = torchmdnet.models.tensornet
    for module in (plain, torchmdnet.models.tensornet2):
        monkeypatch.setattr(module, "OPT", False)
        for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
            monkeypatch.setattr(module, name, getattr(plain, f"_{name}"))


@pytest.fixture(scope="module")
def torchmdnet() -> ModuleType:
    return import_torchmdnet()


@pytest.fixture
def plain(torchmdnet, monkeypatch) -> None:
    use_plain_operations(torchmdnet, monkeypatch)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request) -> Iterator[torch.dtype]:
    """A floating-point type, which is also made PyTorch's default.

    TorchMD-NET computes ``atomic_number ** 0.23`` and ``0.1 * charge`` from integers, for which
    PyTorch uses its default dtype. Float64 models are therefore exact only if that is float64.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def arguments(precision: torch.dtype, **changes: Any) -> dict[str, Any]:
    """Make hyper-parameters as TorchMD-NET's trainer writes them."""
    return {
        "model": "tensornet",
        "embedding_dimension": 16,
        "num_layers": 2,
        "num_rbf": 8,
        "rbf_type": "expnorm",
        "trainable_rbf": False,
        "activation": "silu",
        "cutoff_lower": 0.0,
        "cutoff_upper": CUTOFF,
        "max_z": MAX_Z,
        "max_num_neighbors": 64,
        "equivariance_invariance_group": "O(3)",
        "precision": PRECISION[precision],
        "derivative": True,
        "output_model": "Scalar",
        "reduce_op": "sum",
        "prior_model": None,
        "atom_filter": -1,
        "static_shapes": False,
        **changes,
    }


def charged_arguments(precision: torch.dtype, **changes: Any) -> dict[str, Any]:
    """Make hyper-parameters of a TensorNet2 with a Coulomb energy."""
    return arguments(
        precision,
        **{
            "model": "tensornet2",
            "output_model": "ScalarPlusWeightedCoulomb",
            "q_dim": 4,
            "q_weights": [0.2, [1.0, 2.0, 0.0, 0.5], 1.0],
            "coulomb_cutoff": None,
            **changes,
        },
    )


def make_models(torchmdnet: ModuleType, args: dict[str, Any]) -> tuple[torch.nn.Module, TensorNet]:
    """Make a random TorchMD-NET model without any weight of 0 or 1, and the equivalent of ours."""
    mean, std = torch.tensor(-3.7), torch.tensor(2.3)
    theirs = torchmdnet.models.model.create_model(args, mean=mean, std=std).eval()
    for name, parameter in theirs.named_parameters():
        noise = torch.randn_like(parameter)
        if "distance_expansion" in name:
            parameter.data *= 1 + 0.05 * noise
        else:
            parameter.data += (1.0 if "atomref" in name else 0.1) * noise
        if args["model"] == "tensornet2" and "representation_model" in name:
            # Fresh ones are so small that the tensors of atoms would hardly matter to its charges.
            parameter.data *= 2.0 if re.search("tensor|distance_proj|scalar", name) else 1.0
    content = {"hyper_parameters": args, "state_dict": theirs.state_dict()}
    ours = from_checkpoint(content, "checkpoint", energy_unit="eV")
    return theirs, ours


def molecules(_dtype: torch.dtype) -> list[Atoms]:
    """Make molecules of different sizes and charges, including a single atom."""
    images = [random_cluster(n, seed=n) for n in (9, 1, 14, 5)]
    for atoms, charge in zip(images, (1, 0, -2, 0), strict=True):
        atoms.info["charge"] = charge
    return images


def crystal(kind: str, dtype: torch.dtype) -> list[Atoms]:
    """Make a charged crystal with a cell that TorchMD-NET supports, reduced and two cutoffs high.

    In float64, atoms also lie outside the cell. In float32 they do not, because TorchMD-NET
    subtracts lattice vectors in the dtype of the model, with a loss of precision that we avoid.
    """
    atoms = random_crystal(64, kind, seed=2)
    assert Box.of(atoms.cell.array, atoms.pbc).heights.min() > 2 * CUTOFF
    if dtype == torch.float64:
        steps = np.random.default_rng(0).integers(-2, 3, size=(len(atoms), 3))
        atoms.positions += steps @ atoms.cell.array
    atoms.info["charge"] = 1
    return [atoms]


STRUCTURES = {
    "molecules": molecules,
    "cubic": partial(crystal, "cubic"),
    "triclinic": partial(crystal, "triclinic"),
}


def tensors_of(images: list[Atoms], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Make the arguments of a TorchMD-NET model: numbers, positions, batch and charges."""
    positions = np.concatenate([atoms.positions for atoms in images])
    counts = torch.tensor([len(atoms) for atoms in images])
    return {
        "z": torch.tensor(np.concatenate([atoms.numbers for atoms in images])),
        "pos": torch.tensor(positions, dtype=dtype),
        "batch": torch.arange(len(images)).repeat_interleave(counts),
        "q": torch.tensor([atoms.info["charge"] for atoms in images]),
    }


def their_prediction(
    model: torch.nn.Module, images: list[Atoms], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute energies and forces with a TorchMD-NET model."""
    box = None
    if images[0].pbc.all():
        box = torch.tensor(images[0].cell.array, dtype=dtype)
    return model(**tensors_of(images, dtype), box=box)


def loss(energy: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
    """Compute squared errors relative to arbitrary targets."""
    target = torch.linspace(-1, 1, forces.numel(), dtype=forces.dtype).view_as(forces)
    return ((forces - target) ** 2).sum() + ((energy - 1.0) ** 2).sum()
