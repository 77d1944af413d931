"""Energies, forces, charges and training gradients of random TensorNet2 models against TorchMD-NET.

Its PyTorch operations are the reference. Its Warp kernels are compared as well, and where both
disagree, a test says so.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ase import Atoms

from mlff_triton.model.tensornet2 import TensorNet2
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import assert_within, random_cluster, random_crystal
from tests.model.test_torchmd_net_parity import WARP_RELATIVE, our_prediction
from tests.support.torchmd_net import (
    ATOMREF,
    RELATIVE,
    ZBL,
    charged_arguments,
    loss,
    make_models,
    molecules,
    tensors_of,
    their_prediction,
)

DOUBLE = torch.float64
WARP = WARP_RELATIVE[DOUBLE]
SCALAR = {"output_model": "Scalar"}
COULOMB_CUTOFF = 4.8  # Å; above 4.6 Å, charges are not damped
OPTIONS: dict[str, dict[str, Any]] = {
    "O(3)": {},
    "SO(3)": {"equivariance_invariance_group": "SO(3)"},
    "no layers": {"num_layers": 0, "q_weights": [1.0]},
    "4 layers": {"num_layers": 4, "q_weights": [0, 1, 0.5, 2, 1]},
    "one charge": {"q_dim": 1, "q_weights": [0.0, 0.0, 1.0]},
    "static shapes": {"static_shapes": True},
    "trained expnorm": {"trainable_rbf": True},
    "gauss": {"rbf_type": "gauss"},
    "ssp": {"activation": "ssp"},
    "tanh": {"activation": "tanh"},
    "lower cutoff": {"cutoff_lower": 1.5},
    "deep head": {"output_mlp_num_layers": 2},
    "repulsion": {"repulsion": True},
    "ZBL and Atomref": {"prior_model": [ZBL, ATOMREF]},
    "without Coulomb": SCALAR,
    "repulsion without Coulomb": {"repulsion": True, **SCALAR},
}
WARP_OPTIONS = ["O(3)", "4 layers", "static shapes", "gauss", "repulsion", "without Coulomb"]


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    """Make float64 PyTorch's default, which TorchMD-NET takes for what it computes from integers.

    Errors of float32 are compared with one another only in a test of their own.
    """
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(torch.float32)


@functools.cache
def box(kind: str) -> Atoms:
    """Make a charged crystal as TorchMD-NET supports it: two Coulomb cutoffs high."""
    atoms = random_crystal(200, kind, seed=2)
    assert Box.of(atoms.cell.array, True).heights.min() > 2 * COULOMB_CUTOFF
    atoms.info["charge"] = 1
    return atoms


def their_charges(model: Any, images: list[Atoms], dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    """Return the weighted mean of the charges that enter TorchMD-NET's Coulomb energy."""
    inputs = tensors_of(images, dtype)
    cell = None
    if images[0].pbc.all():
        cell = torch.tensor(images[0].cell.array, dtype=dtype)
    features = model.representation_model(**inputs, box=cell)[0]
    weights = model.output_model.qweights
    charges = features[:, model.output_model.hidden_channels :]
    return (charges * weights).sum(1).detach() / weights.sum()


def assert_same(
    theirs: torch.nn.Module,
    ours: TensorNet2,
    images: list[Atoms],
    relative: float = RELATIVE[DOUBLE],
) -> None:
    energy, forces = their_prediction(theirs, images, DOUBLE)
    prediction = our_prediction(ours, images, DOUBLE)
    assert forces.abs().max() > 0.1, "the test needs a model with forces"
    assert_within(prediction.energy, energy[:, 0], relative)
    assert_within(prediction.forces, forces, relative)
    if not ours.has_charges:
        assert prediction.charges is None
        return
    charges = their_charges(theirs, images)
    assert charges.abs().max() > 0.1, "the test needs a model with charges"
    assert_within(prediction.charges, charges, relative)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("option", OPTIONS)
def test_energies_forces_and_charges_are_those_of_torchmd_net(torchmdnet, option):
    theirs, ours = make_models(torchmdnet, charged_arguments(DOUBLE, **OPTIONS[option]))
    assert type(ours) is TensorNet2
    assert_same(theirs, ours, molecules(DOUBLE))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("option", ["O(3)", "SO(3)", "static shapes", "repulsion"])
@pytest.mark.parametrize("structure", ["molecules", "cubic", "triclinic"])
def test_reaction_field_is_that_of_torchmd_net(torchmdnet, option, structure):
    options = {"coulomb_cutoff": COULOMB_CUTOFF, **OPTIONS[option]}
    theirs, ours = make_models(torchmdnet, charged_arguments(DOUBLE, **options))
    images = molecules(DOUBLE) if structure == "molecules" else [box(structure)]
    assert_same(theirs, ours, images)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("kind", ["cubic", "triclinic"])
def test_models_without_coulomb_energy_need_no_cutoff_in_boxes(torchmdnet, kind):
    theirs, ours = make_models(torchmdnet, charged_arguments(DOUBLE, **SCALAR))
    assert_same(theirs, ours, [box(kind)])


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("charge", [-3, 2])
def test_total_charge_acts_as_in_torchmd_net(torchmdnet, charge):
    theirs, ours = make_models(torchmdnet, charged_arguments(DOUBLE))
    atoms = random_cluster(8)
    atoms.info["charge"] = 0
    neutral = our_prediction(ours, [atoms], DOUBLE).energy
    atoms.info["charge"] = charge
    charged = our_prediction(ours, [atoms], DOUBLE)
    assert abs(charged.energy - neutral) > 0.1
    assert_within(charged.charges.sum(), torch.tensor(float(charge)), 1e-4)
    assert_same(theirs, ours, [atoms])


@pytest.mark.parametrize("option", WARP_OPTIONS)
def test_warp_kernels_agree(torchmdnet, option):
    theirs, ours = make_models(torchmdnet, charged_arguments(DOUBLE, **OPTIONS[option]))
    assert_same(theirs, ours, molecules(DOUBLE), WARP)


@pytest.mark.parametrize("kind", ["cubic", "triclinic"])
def test_warp_kernels_agree_in_boxes(torchmdnet, kind):
    args = charged_arguments(DOUBLE, coulomb_cutoff=COULOMB_CUTOFF)
    theirs, ours = make_models(torchmdnet, args)
    assert_same(theirs, ours, [box(kind)], WARP)


def test_warp_kernels_mirror_the_skew_parts_of_so3_models(torchmdnet):
    """As for a TensorNet, both are the same model only for O(3): ours is that without Warp."""
    args = charged_arguments(DOUBLE, equivariance_invariance_group="SO(3)")
    theirs, ours = make_models(torchmdnet, args)
    images = molecules(DOUBLE)
    with pytest.raises(AssertionError, match="off by"):
        assert_same(theirs, ours, images, WARP)
    for kind in ("weight", "bias"):
        ours.get_parameter(f"embedding.radial.{kind}").data[16:32] *= -1
    assert_same(theirs, ours, images, WARP)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("option", ["O(3)", "SO(3)", "repulsion"])
@pytest.mark.parametrize("structure", ["molecules", "triclinic"])
def test_training_gradients_are_those_of_torchmd_net(torchmdnet, option, structure):
    cutoff = None if structure == "molecules" else COULOMB_CUTOFF
    args = charged_arguments(DOUBLE, coulomb_cutoff=cutoff, **OPTIONS[option])
    theirs, ours = make_models(torchmdnet, args)
    images = molecules(DOUBLE) if structure == "molecules" else [box(structure)]

    energy, forces = their_prediction(theirs.train(), images, DOUBLE)
    loss(energy[:, 0], forces).backward()
    prediction = our_prediction(ours.train(), images, DOUBLE, create_graph=True)
    loss(prediction.energy, prediction.forces).backward()

    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    network = "representation_model."
    for name, part, their_name in (
        ("embedding.element.weight", ..., "tensor_embedding.emb.weight"),
        ("embedding.tensor.weight", 2, "tensor_embedding.linears_tensor.2.weight"),
        ("layers.0.radial.0.weight", ..., "layers.0.linears_scalar.0.weight"),
        ("layers.1.radial.2.weight", ..., "layers.1.linears_scalar.2.weight"),
        ("layers.1.tensor_in.weight", 1, "layers.1.linears_tensor.1.weight"),
        ("layers.1.tensor_out.weight", 0, "layers.1.linears_tensor.3.weight"),
        ("charges.0.norm.weight", ..., "charge_predict_0.q_norm.weight"),
        ("charges.0.linears.2.weight", ..., "charge_predict_0.q_mlp.layers.4.weight"),
        ("charges.2.linears.0.weight", ..., "charge_predicts.1.q_mlp.layers.0.weight"),
        ("readout.norm.weight", ..., "out_norm.weight"),
    ):
        expected = gradients[network + their_name]
        assert expected.abs().max() > 1e-3
        assert_within(ours.get_parameter(name).grad[part], expected, RELATIVE[DOUBLE])


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("structure", ["molecules", "cubic"])
def test_errors_in_float32_are_those_of_torchmd_net(torchmdnet, structure):
    """The geometric mean of their ratio over several models is near 1, as it is a random number."""
    single = torch.float32
    torch.set_default_dtype(single)
    cutoff = None if structure == "molecules" else COULOMB_CUTOFF
    images = molecules(single) if structure == "molecules" else [box(structure)]
    ratios = []
    for seed in range(8):
        torch.manual_seed(seed)
        theirs, ours = make_models(torchmdnet, charged_arguments(single, coulomb_cutoff=cutoff))
        energy, forces = their_prediction(theirs, images, single)
        charges = their_charges(theirs, images, single)
        found = our_prediction(ours, images, single)
        true = our_prediction(copy.deepcopy(ours).double(), images, single)
        ratios.append(
            [
                rms(found.energy - true.energy) / rms(energy[:, 0] - true.energy),
                rms(found.forces - true.forces) / rms(forces - true.forces),
                rms(found.charges - true.charges) / rms(charges - true.charges),
            ]
        )
    means = torch.tensor(ratios).log().mean(0).exp()
    assert means.max() < 1.6, means


def rms(values: torch.Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())
