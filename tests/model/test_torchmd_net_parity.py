"""Energies, forces and training gradients of random models against TorchMD-NET 3.1.

The random models are TorchMD-NET's own, converted by the reader of its checkpoints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_within, random_cluster
from tests.support.torchmd_net import (
    OPTIONS,
    RELATIVE,
    STRUCTURES,
    arguments,
    loss,
    make_models,
    molecules,
    tensors_of,
    their_prediction,
)


def our_prediction(
    model: TensorNet, images: list[Atoms], dtype: torch.dtype, **options: Any
) -> Prediction:
    inputs = tensors_of(images, dtype)
    positions = inputs["pos"].double()
    parts = positions.split([len(atoms) for atoms in images])
    graphs = [
        neighbor_list(part.numpy(), model.cutoff, atoms.cell.array, atoms.pbc)
        for part, atoms in zip(parts, images, strict=True)
    ]
    cells = np.stack([Box.of(atoms.cell.array, atoms.pbc).cell for atoms in images])
    return predict(
        model,
        inputs["z"],
        positions,
        concatenate(graphs),
        cell=torch.from_numpy(cells.astype(str(dtype).removeprefix("torch."))).double(),
        batch=inputs["batch"],
        charge=inputs["q"],
        **options,
    )


def assert_same(
    theirs: torch.nn.Module,
    ours: TensorNet,
    images: list[Atoms],
    dtype: torch.dtype,
    relative: dict[torch.dtype, float] = RELATIVE,
) -> None:
    energy, forces = their_prediction(theirs, images, dtype)
    prediction = our_prediction(ours, images, dtype)
    assert forces.abs().max() > 0.1, "the test needs a model with forces"
    assert_within(prediction.energy, energy[:, 0], relative[dtype])
    assert_within(prediction.forces, forces, relative[dtype])


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("option", OPTIONS)
def test_energies_and_forces_are_those_of_torchmd_net(torchmdnet, dtype, option, structure):
    theirs, ours = make_models(torchmdnet, arguments(dtype, **OPTIONS[option]))
    assert ours.dtype == dtype
    assert_same(theirs, ours, STRUCTURES[structure](dtype), dtype)


# TorchMD-NET's Warp kernels store 1/3 in float32, even in a float64 model.
WARP_RELATIVE = {torch.float64: 1e-7, torch.float32: 1e-5}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_energies_and_forces_are_those_of_its_warp_kernels(torchmdnet, dtype, structure):
    theirs, ours = make_models(torchmdnet, arguments(dtype))
    assert_same(theirs, ours, STRUCTURES[structure](dtype), dtype, WARP_RELATIVE)


def test_its_warp_kernels_mirror_the_skew_parts_of_its_own_operations(torchmdnet, dtype):
    """Only for O(3) are both the same model. For SO(3), ours is that of the PyTorch operations."""
    args = arguments(dtype, equivariance_invariance_group="SO(3)")
    theirs, ours = make_models(torchmdnet, args)
    images = molecules(dtype)
    with pytest.raises(AssertionError, match="off by"):
        assert_same(theirs, ours, images, dtype, WARP_RELATIVE)
    for kind in ("weight", "bias"):
        ours.get_parameter(f"embedding.radial.{kind}").data[16:32] *= -1
    assert_same(theirs, ours, images, dtype, WARP_RELATIVE)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("charge", [-3, 2])
def test_charge_acts_as_in_torchmd_net(torchmdnet, dtype, charge):
    theirs, ours = make_models(torchmdnet, arguments(dtype))
    atoms = random_cluster(8)
    atoms.info["charge"] = 0
    neutral = our_prediction(ours, [atoms], dtype).energy
    atoms.info["charge"] = charge
    charged = our_prediction(ours, [atoms], dtype).energy
    assert abs(charged - neutral) > 1e-4
    assert_same(theirs, ours, [atoms], dtype)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("option", ["O(3)", "SO(3)", "trained expnorm", "gauss", "ZBL"])
@pytest.mark.parametrize("structure", ["molecules", "triclinic"])
def test_training_gradients_are_those_of_torchmd_net(torchmdnet, dtype, option, structure):
    theirs, ours = make_models(torchmdnet, arguments(dtype, **OPTIONS[option]))
    images = STRUCTURES[structure](dtype)

    energy, forces = their_prediction(theirs.train(), images, dtype)
    loss(energy[:, 0], forces).backward()
    prediction = our_prediction(ours.train(), images, dtype, create_graph=True)
    loss(prediction.energy, prediction.forces).backward()

    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    network = "representation_model."
    for name, part, their_name in (
        ("embedding.element.weight", ..., network + "tensor_embedding.emb.weight"),
        ("embedding.pair.weight", ..., network + "tensor_embedding.emb2.weight"),
        (
            "embedding.radial.weight",
            slice(16, 32),
            network + "tensor_embedding.distance_proj2.weight",
        ),
        ("embedding.tensor.weight", 2, network + "tensor_embedding.linears_tensor.2.weight"),
        ("embedding.norm.bias", ..., network + "tensor_embedding.init_norm.bias"),
        ("layers.0.radial.2.weight", ..., network + "layers.0.linears_scalar.2.weight"),
        ("layers.1.tensor_in.weight", 1, network + "layers.1.linears_tensor.1.weight"),
        ("layers.1.tensor_out.weight", 0, network + "layers.1.linears_tensor.3.weight"),
        ("readout.norm.weight", ..., network + "out_norm.weight"),
        ("readout.head.linear1.weight", ..., "output_model.output_network.layers.0.weight"),
    ):
        expected = gradients[their_name]
        assert expected.abs().max() > 1e-3
        assert_within(ours.get_parameter(name).grad[part], expected, RELATIVE[dtype])
    if option == "trained expnorm":
        assert_within(
            ours.basis.means.grad,
            gradients[network + "distance_expansion.means"],
            RELATIVE[dtype],
        )
