"""The TensorNet2 module: exact derivatives, symmetries, charges, and the limits of its energies."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.data import covalent_radii
from torch import Tensor

from mlff_triton import Ensemble, Prediction, TensorNet, TensorNet2, TensorNet2Config
from mlff_triton.errors import InputError
from mlff_triton.model.charges import equilibrate
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.coulomb import COULOMB, coulomb_energy
from mlff_triton.model.repulsion import Repulsion
from mlff_triton.model.tensornet2 import with_coulomb
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import (
    assert_close,
    assert_within,
    finite_difference_forces,
    finite_strain_stress,
    random_cluster,
    random_crystal,
    random_rotation,
)
from tests.model.test_tensornet import (
    DTYPES,
    REFLECTION,
    assert_same,
    energy,
    evaluate,
    function_of_edges,
    moved,
    turned,
)
from tests.support.charged import CUTOFF, SCALE, charged_model

FIELD = {"coulomb_cutoff": 6.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "all pairs": {},
    "reaction field": FIELD,
    "short reaction field": {"coulomb_cutoff": 3.0},
    "SO(3)": {"group": "SO(3)", **FIELD},
    "no layers": {"num_layers": 0, **FIELD},
    "two layers, gauss, tanh": {"num_layers": 2, "rbf_type": "gauss", "activation": "tanh"},
    "deep head": {"head_layers": 2, **FIELD},
    "repulsion": {"repulsion": True, **FIELD},
    "ZBL": {"zbl": ZBLConfig(cutoff=4.5, prefactor=14.4), **FIELD},
    "without Coulomb": {"coulomb": False},
    "least softness": {"softness_floor": 0.02, **FIELD},
    "without self-loops": {"self_loops": False, "head": "gated", **FIELD},
}
PERIODIC = [name for name, v in VARIANTS.items() if "coulomb" in v or "coulomb_cutoff" in v]
VACUUM = random_cluster(5, seed=1)
TRICLINIC = random_crystal(4, "triclinic", seed=2)
TWO_ATOMS = random_crystal(2, "small", seed=3)


def assert_equal(actual: Prediction, expected: Prediction, dtype=torch.float64) -> None:
    assert_same(actual, expected, dtype)
    if expected.charges is not None:
        assert_close(actual.charges, expected.charges, 0, dtype, floor=1.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_and_second_derivatives_by_geometry_are_exact(variant):
    options = {"hidden_channels": 4, "num_rbf": 4, "charge_channels": 2, **VARIANTS[variant]}
    model = charged_model(**options).requires_grad_(False)
    function, vectors = function_of_edges(model, random_cluster(3))
    assert len(vectors) > 0
    assert torch.autograd.gradcheck(function, (vectors,))
    assert torch.autograd.gradgradcheck(function, (vectors,))


@pytest.mark.parametrize("variant", ["all pairs", "reaction field", "repulsion"])
def test_derivatives_of_forces_by_weights_are_exact(variant):
    model = charged_model(hidden_channels=4, num_rbf=4, charge_channels=2, **VARIANTS[variant])
    function, vectors = function_of_edges(model, random_cluster(3))
    names = ["charges.0.linears.2.weight", "charges.1.norm.bias", "layers.0.radial.0.weight"]

    def forces(*weights: Tensor) -> Tensor:
        energies = function(vectors, **dict(zip(names, weights, strict=True)))
        return torch.autograd.grad(energies.sum(), vectors, create_graph=True)[0]

    weights = tuple(model.get_parameter(name).detach().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(forces, weights)


@pytest.mark.parametrize("variant", VARIANTS)
def test_forces_are_minus_the_energys_derivative(variant):
    model = charged_model(**VARIANTS[variant])
    images = [VACUUM, TWO_ATOMS] if variant in PERIODIC else [VACUUM]
    for atoms in images:
        expected = finite_difference_forces(lambda atoms: energy(model, atoms), atoms)
        assert_within(evaluate(model, atoms).forces, expected, 1e-6, floor=1.0)


@pytest.mark.parametrize("variant", PERIODIC)
def test_virial_is_the_energys_derivative_by_strain(variant):
    model = charged_model(**VARIANTS[variant])
    virial = evaluate(model, TRICLINIC).virial[0]
    expected = finite_strain_stress(lambda atoms: energy(model, atoms), TRICLINIC)
    voigt = virial.flatten()[[0, 4, 8, 5, 2, 1]]
    assert_within(voigt, expected * TRICLINIC.get_volume(), 1e-6, floor=len(TRICLINIC))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rotation_turns_forces_and_leaves_charges(variant, dtype, rng):
    model, turn = charged_model(dtype, **VARIANTS[variant]), random_rotation(rng)
    for atoms in [VACUUM, TRICLINIC] if variant in PERIODIC else [VACUUM]:
        expected = evaluate(model, atoms)
        assert expected.forces.abs().max() > 1e-2
        found = evaluate(model, moved(atoms, turn))
        assert_same(found, turned(expected, turn), dtype)
        if model.has_charges:
            assert expected.charges.abs().max() > 0.01
            assert_close(found.charges, expected.charges, 0, dtype, floor=1.0)


def test_reflection_changes_so3_models_only():
    for group, is_changed in (("O(3)", False), ("SO(3)", True)):
        model = charged_model(group=group)
        mirrored = energy(model, moved(VACUUM, REFLECTION))
        assert (abs(energy(model, VACUUM) - mirrored) > 1e-4) == is_changed


@pytest.mark.parametrize("variant", PERIODIC)
def test_periodic_images_and_supercells_are_the_same(variant, rng):
    model, other = charged_model(**VARIANTS[variant]), TWO_ATOMS.copy()
    other.positions += rng.integers(-3, 4, size=(2, 3)) @ TWO_ATOMS.cell.array
    one = evaluate(model, TWO_ATOMS)
    assert_equal(evaluate(model, other), one)
    three = evaluate(model, TWO_ATOMS.repeat((3, 1, 1)))
    mean = float(model.mean)
    # The small number in the equilibration of charges does not grow with the system.
    assert_within(three.energy - mean, 3 * (one.energy - mean), 1e-5)
    assert_within(three.forces, one.forces.repeat(3, 1), 1e-5, floor=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_batched_is_one_by_one(variant, dtype):
    model = charged_model(dtype, **VARIANTS[variant])
    images = [VACUUM, Atoms("O"), random_cluster(7, seed=9), Atoms("HF".replace("F", "N"))]
    images[-1].positions[1, 2] = 1.1
    if variant in PERIODIC:
        images += [TWO_ATOMS, random_crystal(5, "slab", seed=4), TRICLINIC]
    charges = [1.0, 0.0, -2.0, 1.0, 0.0, 1.0, 0.0][: len(images)]
    together = evaluate(model, *images, charge=charges)
    start = 0
    for k, atoms in enumerate(images):
        stop = start + len(atoms)
        part = Prediction(
            together.energy[k : k + 1],
            together.forces[start:stop],
            together.virial[k : k + 1],
            together.atom_energies[start:stop],
            together.charges[start:stop] if model.has_charges else None,
        )
        assert_equal(part, evaluate(model, atoms, charge=charges[k : k + 1]), dtype)
        start = stop


@pytest.mark.parametrize("charge", [-2.0, 0.0, 3.0])
def test_partial_charges_add_up_to_the_total(charge):
    for atoms in (VACUUM, TRICLINIC, Atoms("O")):
        found = evaluate(charged_model(**FIELD), atoms, charge=[charge])
        assert_within(found.charges.sum(), torch.tensor(charge).double(), 1e-5, floor=1.0)
    assert found.charges.dtype == torch.float64


def test_equilibration_serves_each_system_and_channel():
    charges, softness = torch.rand(5, 3).double(), torch.rand(5, 3).double()
    softness[1, 0] = 0.0
    total = torch.tensor([1.0, 1.0, 1.0, -2.0, -2.0]).double()[:, None]
    found = equilibrate(charges, softness, total, torch.tensor([0, 0, 0, 1, 1]), 2)
    expected = torch.tensor([[1.0] * 3, [-2.0] * 3]).double()
    assert_within(torch.stack([found[:3].sum(0), found[3:].sum(0)]), expected, 1e-4)
    assert found[1, 0] == charges[1, 0]  # an atom that does not take any
    nobody = equilibrate(charges, 0 * softness, total, torch.tensor([0, 0, 0, 1, 1]), 2)
    assert torch.equal(nobody, charges)


@pytest.mark.parametrize(("floor", "largest"), [(0.0, math.inf), (0.01, 1e-3)])
def test_alike_atoms_of_a_neutral_pair_have_no_charge(floor, largest):
    """Without a least softness, they keep what is predicted where their softness vanishes."""
    model = charged_model(softness_floor=floor)
    for network in model.charges:
        for parameter in network.linears[-1].parameters():
            parameter.data[model.config.charge_channels :] = 0.0  # softness
    charges = evaluate(model, Atoms("O2", [[0, 0, 0], [0, 0, 1.2]])).charges
    assert charges.abs().max() < largest
    assert floor or charges.abs().min() > 0.01


def test_charge_of_a_part_depends_on_far_atoms():
    """Equilibration has no cutoff: an ion far away takes its share of the total charge."""
    model = charged_model(coulomb_cutoff=5.0)
    alone = evaluate(model, VACUUM, charge=[1.0]).charges
    apart = VACUUM + Atoms("O", [[500.0, 0, 0]])
    together = evaluate(model, apart, charge=[1.0]).charges
    assert (together[:-1] - alone).abs().max() > 1e-3
    assert not model.is_local


def test_far_ions_attract_as_point_charges():
    """Beyond all cutoffs, only Coulomb's law is left."""
    model = charged_model(num_layers=0)
    distances = (40.0, 80.0)
    near, far = (evaluate(model, Atoms("HO", [[0, 0, 0], [d, 0, 0]])) for d in distances)
    assert_close(near.charges, far.charges, 0)
    force, quarter = near.forces[0, 0], far.forces[0, 0]
    assert abs(force) > 1e-6
    assert_close(force / quarter, torch.tensor(4.0).double(), 0)
    weights = model.charge_weights = torch.zeros_like(model.charge_weights)
    weights[0, 1] = 1.0  # one charge alone counts
    found = evaluate(model, Atoms("HO", [[0, 0, 0], [40.0, 0, 0]]))
    expected = -SCALE * COULOMB * found.charges.prod() / 40.0**2
    assert_close(found.forces[0, 0], expected, 0)


def test_coulomb_energy_is_damped_and_ends_at_the_cutoff():
    d = torch.linspace(0.05, 20, 400).double()
    plain = coulomb_energy(d, None)
    assert_close(plain[d > 4.6], COULOMB / d[d > 4.6], 0)
    assert (plain[d < 4.2] < 0.999 * COULOMB / d[d < 4.2]).all()
    assert coulomb_energy(torch.tensor(1e-3).double(), None) < 0.01
    at_cutoff = torch.tensor(9.0).double().requires_grad_()
    energy = coulomb_energy(at_cutoff, 9.0)
    assert abs(energy.item()) < 1e-12
    (slope,) = torch.autograd.grad(energy, at_cutoff)
    assert abs(float(slope)) < 0.03 * COULOMB / 81  # all but 1 / 157.6 of it
    assert torch.autograd.gradgradcheck(
        lambda x: coulomb_energy(x, 9.0), (d[:170:10].requires_grad_(),)
    )


def test_repulsion_has_the_radii_of_ase_and_ends_with_two_derivatives():
    config = TensorNet2Config(tuple(range(119)), repulsion=True)
    table = Repulsion(config).double()
    assert_close(table.radii.diagonal() / 2, torch.tensor(covalent_radii), 0, torch.float32)
    h, c = torch.tensor([1]), torch.tensor([6])
    end = float(table.radii[1, 6])
    d = torch.tensor([end - 1e-6]).double().requires_grad_()
    energy = table(d, h, c)
    for _ in range(2):
        assert abs(energy.item()) < 1e-3
        (energy,) = torch.autograd.grad(energy, d, create_graph=True)
    assert table(torch.tensor([end + 0.1]).double(), h, c) == 0
    assert table(torch.tensor([0.3]).double(), h, c) > 10


def test_repulsion_acts_between_close_atoms_only():
    model = charged_model(repulsion=True)
    other = charged_model()
    for distance, acts in ((0.8, True), (1.2, False)):
        atoms = Atoms("CH", [[0, 0, 0], [0, 0, distance]])
        assert (energy(model, atoms) - energy(other, atoms) > 1.0) == acts


def test_longer_lists_change_nothing():
    """Edges beyond a cutoff are ignored, so that members of an ensemble may share a list."""
    model = charged_model(coulomb_cutoff=3.0)
    pair = Ensemble([model, charged_model(seed=1)])
    assert (model.cutoff, pair.cutoff) == (CUTOFF, math.inf)
    atoms = random_cluster(9, seed=3)
    alone = [evaluate(member, atoms) for member in pair.members]
    assert_equal(evaluate(pair, atoms), Prediction.mean(alone))


def test_ensembles_have_charges_if_all_members_do():
    models = [charged_model(), charged_model(seed=1)]
    both, mixed = Ensemble(models), Ensemble([*models, TensorNet(TensorNetConfig((1, 6, 7, 8)))])
    assert (both.has_charges, mixed.has_charges) == (True, False)
    assert (both.is_local, mixed.is_local) == (False, False)
    expected = torch.stack([evaluate(m, VACUUM).charges for m in models]).mean(0)
    assert_close(evaluate(both, VACUUM).charges, expected, 0)
    assert evaluate(mixed.double(), VACUUM).charges is None


def test_charges_can_be_trained_on():
    model = charged_model()
    atoms = random_cluster(5)
    from mlff_triton import neighbor_list, predict

    graph = neighbor_list(atoms.positions, model.cutoff)
    inputs = torch.tensor(atoms.numbers), torch.tensor(atoms.positions), graph
    predict(model, *inputs, create_graph=True).charges.square().sum().backward()
    assert model.charges[-1].linears[2].weight.grad.abs().max() > 1e-3
    assert not predict(model, *inputs).charges.requires_grad


def test_same_input_gives_the_same_bits():
    for dtype in DTYPES:
        model = charged_model(dtype, **FIELD)
        first, second = (evaluate(model, VACUUM, TRICLINIC) for _ in range(2))
        for name, tensor in first.tensors.items():
            assert torch.equal(tensor, second.tensors[name])


def test_boxes_need_a_cutoff_of_at_most_half_their_height():
    vacuum, slab = Box.of(None, False), Box.of(np.diag([9.0, 15.0, 7.0]), [True, True, False])
    everything = charged_model()
    everything.check_box(vacuum)
    with pytest.raises(InputError, match=r"load_model\(..., coulomb='pme'\)") as refusal:
        everything.check_box(slab)
    assert "\n" not in str(refusal.value)
    charged_model(coulomb_cutoff=4.5).check_box(slab)
    with pytest.raises(InputError, match=r"9 Å high, less than twice the Coulomb cutoff of 4.6 Å"):
        charged_model(coulomb_cutoff=4.6).check_box(slab)
    charged_model(coulomb=False).check_box(slab)


@pytest.mark.parametrize("kind", ["cubic", "triclinic"])
def test_boxes_of_exactly_two_cutoffs_are_high_enough(kind, rng):
    for _ in range(20):
        turned_cell = random_crystal(4, kind).cell.array @ random_rotation(rng)
        box = Box.of(turned_cell, True)
        charged_model(coulomb_cutoff=float(box.heights.min()) / 2 + 1e-8).check_box(box)
        with pytest.raises(InputError, match="less than twice"):
            charged_model(coulomb_cutoff=float(box.heights.min()) / 2 + 1e-5).check_box(box)


def test_cutoff_can_be_changed():
    model = charged_model()
    changed = with_coulomb(model, coulomb_cutoff=4.5)
    assert (model.cutoff, changed.cutoff) == (math.inf, 4.5)
    expected = evaluate(charged_model(coulomb_cutoff=4.5), VACUUM)
    assert_equal(evaluate(changed, VACUUM), expected)
    assert abs(expected.energy - evaluate(model, VACUUM).energy) > 1e-3
    assert changed.weights_hash != model.weights_hash
    both = with_coulomb(Ensemble([model, model]), coulomb_cutoff=4.5)
    assert both.cutoff == 4.5
    for other in (charged_model(coulomb=False), TensorNet(TensorNetConfig((1,)))):
        with pytest.raises(InputError, match="no Coulomb energy: leave coulomb_cutoff out"):
            with_coulomb(other, coulomb_cutoff=9.0)


def test_copies_are_the_same_model():
    model = charged_model(repulsion=True, head_layers=1)
    copied = pickle.loads(pickle.dumps(model))
    assert_equal(evaluate(copied, VACUUM), evaluate(model, VACUUM))
    assert copied.weights_hash == model.weights_hash


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"charge_channels": 0}, "charge_channels=0"),
        ({"charge_channels": 10**9}, "charge_channels"),
        ({"head_layers": -1}, "head_layers=-1"),
        ({"head_layers": 1, "head": "gated"}, "head='scalar'"),
        ({"coulomb": 1}, "coulomb=1 must be True or False"),
        ({"repulsion": "yes"}, "repulsion='yes'"),
        ({"repulsion": True, "cutoff_lower": 1.0}, "cutoff_lower=0"),
        ({"coulomb_cutoff": 0.0}, "coulomb_cutoff=0.0"),
        ({"coulomb_cutoff": math.inf}, "coulomb_cutoff=inf"),
        ({"coulomb_cutoff": math.nan}, "coulomb_cutoff=nan"),
        ({"coulomb_cutoff": 9.0, "coulomb": False}, "leave coulomb_cutoff out"),
        ({"softness_floor": -0.1}, "softness_floor=-0.1"),
        ({"softness_floor": math.nan}, "softness_floor=nan"),
        ({"softness_floor": "0.1"}, "softness_floor='0.1' must be a number"),
        ({"coulomb_cutoff": "9", "pme_error": 1e-3}, "coulomb_cutoff='9' must be a number"),
        ({"coulomb_cutoff": 9.0, "pme_error": "1e-3"}, "pme_error='1e-3' must be a number"),
    ],
)
def test_impossible_architectures_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        TensorNet2Config((1, 8), **options)


def test_neutral_models_refuse_charges():
    with pytest.raises(InputError, match="neutral systems"):
        evaluate(charged_model(uses_charge=False), VACUUM, charge=[1.0])
    assert isinstance(charged_model(), TensorNet2)
