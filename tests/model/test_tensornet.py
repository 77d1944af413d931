"""The TensorNet module: exact derivatives, symmetries, limits, and the scale of energies."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.data import chemical_symbols
from torch import Tensor
from torch.func import functional_call

from mlff_triton import Ensemble, Prediction, TensorNet, TensorNetConfig, neighbor_list, predict
from mlff_triton.errors import InputError, UnknownElementError
from mlff_triton.model.config import SYMBOLS, ZBLConfig, symbols_of
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import concatenate
from mlff_triton.testing import (
    assert_close,
    assert_within,
    finite_difference_forces,
    finite_strain_stress,
    random_cluster,
    random_crystal,
    random_rotation,
)

CUTOFF = 4.0
SCALE = 10.0  # eV; gives random models forces of about 1 eV/Å
MATGL = {
    "rbf_type": "bessel-smooth",
    "self_loops": False,
    "readout_activation": False,
    "head": "gated",
    "uses_charge": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "O(3)": {},
    "SO(3)": {"group": "SO(3)"},
    "no layers": {"num_layers": 0},
    "two layers, gauss, tanh": {"num_layers": 2, "rbf_type": "gauss", "activation": "tanh"},
    "lower cutoff": {"cutoff_lower": 1.0},
    "ZBL": {"zbl": ZBLConfig(cutoff=3.0, prefactor=14.4)},
    "smooth ZBL": {"zbl": ZBLConfig(cutoff=3.0, prefactor=14.4, is_smooth=True)},
    "as MatGL": MATGL,
    "as MatGL, bessel": {**MATGL, "rbf_type": "bessel", "bessel_orders": 2, "group": "SO(3)"},
}
VACUUM = random_cluster(5, seed=1)
TRICLINIC = random_crystal(4, "triclinic", seed=2)
TWO_ATOMS = random_crystal(2, "small", seed=3)
DTYPES = [torch.float64, torch.float32]


def make(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> TensorNet:
    """Make a small model without any weight of 0 or 1."""
    torch.manual_seed(seed)
    options = {"hidden_channels": 6, "num_layers": 1, "num_rbf": 6, "cutoff_upper": CUTOFF}
    model = TensorNet(TensorNetConfig((1, 6, 7, 8), **{**options, **changes}))
    for name, parameter in model.named_parameters():
        if not name.startswith("basis"):
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.std, model.mean = torch.tensor(SCALE).double(), torch.tensor(-0.7).double()
    model.references = torch.tensor([-1.0, -5.0, -7.0, -9.0]).double()
    return model.to(dtype)


def evaluate(
    model: TensorNet | Ensemble, *images: Atoms, charge: list[float] | None = None
) -> Prediction:
    """Predict one or several structures."""
    graphs = [
        neighbor_list(atoms.positions, model.cutoff, atoms.cell.array, atoms.pbc)
        for atoms in images
    ]
    cells = np.stack([Box.of(atoms.cell.array, atoms.pbc).cell for atoms in images])
    counts = torch.tensor([len(atoms) for atoms in images])
    is_slab = all(atoms.pbc.sum() == 2 for atoms in images)
    return predict(
        model,
        torch.from_numpy(np.concatenate([atoms.numbers for atoms in images])),
        torch.from_numpy(np.concatenate([atoms.positions for atoms in images])),
        concatenate(graphs),
        cell=torch.from_numpy(cells),
        batch=torch.arange(len(images)).repeat_interleave(counts),
        charge=None if charge is None else torch.tensor(charge),
        slab=int(np.flatnonzero(~images[0].pbc)[0]) if is_slab else None,
    )


def energy(model: TensorNet | Ensemble, atoms: Atoms) -> float:
    return evaluate(model, atoms).energy.item()


def moved(atoms: Atoms, matrix: np.ndarray) -> Atoms:
    """Copy atoms, and map every position and cell vector ``v`` to ``v @ matrix``."""
    result = atoms.copy()
    result.set_cell(atoms.cell.array @ matrix)
    result.positions = atoms.positions @ matrix
    return result


def assert_same(
    actual: Prediction, expected: Prediction, dtype: torch.dtype = torch.float64
) -> None:
    """Assert equality to the dtype's tolerance, relative to the network's scale or to 1 eV/Å."""
    n_atoms = len(expected.forces)
    assert_close(actual.energy, expected.energy, 0, dtype, floor=SCALE * n_atoms)
    assert_close(actual.atom_energies, expected.atom_energies, 0, dtype, floor=SCALE)
    assert_close(actual.forces, expected.forces, 1, dtype, floor=1.0)
    assert_close(actual.virial, expected.virial, 1, dtype, floor=n_atoms)


def function_of_edges(model: TensorNet, atoms: Atoms) -> tuple[Any, Tensor]:
    """Return atom energies as a function of edge vectors and weights, and the edge vectors."""
    graph = neighbor_list(atoms.positions, model.cutoff, atoms.cell.array, atoms.pbc)
    cell = torch.from_numpy(Box.of(atoms.cell.array, atoms.pbc).cell)[None]
    vectors = graph.vectors(torch.from_numpy(atoms.positions), cell, None)
    numbers = torch.from_numpy(atoms.numbers)
    charge = torch.full((len(atoms),), 0.5)

    def atom_energies(vectors: Tensor, **weights: Tensor) -> Tensor:
        return functional_call(model, weights, (numbers, vectors, graph, charge))

    return atom_energies, vectors.requires_grad_()


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_and_second_derivatives_by_geometry_are_exact(variant):
    model = make(hidden_channels=4, num_rbf=4, **VARIANTS[variant]).requires_grad_(False)
    function, vectors = function_of_edges(model, random_cluster(3))
    assert len(vectors) > 0
    assert torch.autograd.gradcheck(function, (vectors,))
    assert torch.autograd.gradgradcheck(function, (vectors,))


@pytest.mark.parametrize("variant", VARIANTS)
def test_derivatives_of_forces_by_weights_are_exact(variant):
    options = {"hidden_channels": 4, "num_rbf": 4, **VARIANTS[variant]}
    model = make(**options)
    function, vectors = function_of_edges(model, random_cluster(3))
    names = ["embedding.norm.weight", "readout.linear.bias"]
    names += ["layers.0.radial.0.weight"] if model.config.num_layers else []

    def forces(*weights: Tensor) -> Tensor:
        energies = function(vectors, **dict(zip(names, weights, strict=True)))
        return torch.autograd.grad(energies.sum(), vectors, create_graph=True)[0]

    weights = tuple(model.get_parameter(name).detach().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(forces, weights)


@pytest.mark.parametrize("atoms", [VACUUM, TWO_ATOMS], ids=["vacuum", "small"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_forces_are_minus_the_energys_derivative(variant, atoms):
    model = make(**VARIANTS[variant])
    forces = evaluate(model, atoms).forces
    expected = finite_difference_forces(lambda atoms: energy(model, atoms), atoms)
    assert_within(forces, expected, 1e-6, floor=1.0)


@pytest.mark.parametrize("atoms", [TRICLINIC, TWO_ATOMS], ids=["triclinic", "small"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_virial_is_the_energys_derivative_by_strain(variant, atoms):
    model = make(**VARIANTS[variant])
    assert Box.of(atoms.cell.array, True).heights.min() < CUTOFF
    virial = evaluate(model, atoms).virial[0]
    assert torch.equal(virial, virial.mT)
    expected = finite_strain_stress(lambda atoms: energy(model, atoms), atoms)
    expected = expected * atoms.get_volume()
    voigt = virial.flatten()[[0, 4, 8, 5, 2, 1]]
    assert_within(voigt, expected, 1e-6, floor=len(atoms))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "atoms", [VACUUM, TRICLINIC, TWO_ATOMS], ids=["vacuum", "triclinic", "small"]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rotation_turns_forces_and_virial(variant, atoms, dtype, rng):
    model, turn = make(dtype, **VARIANTS[variant]), random_rotation(rng)
    expected = evaluate(model, atoms)
    assert expected.forces.abs().max() > 1e-2
    assert_same(evaluate(model, moved(atoms, turn)), turned(expected, turn), dtype)


def turned(prediction: Prediction, matrix: np.ndarray) -> Prediction:
    by = torch.from_numpy(matrix)
    return Prediction(
        prediction.energy,
        prediction.forces.double() @ by,
        by.T @ prediction.virial @ by,
        prediction.atom_energies,
    )


REFLECTION = np.diag([1.0, 1.0, -1.0])


@pytest.mark.parametrize("variant", [n for n, v in VARIANTS.items() if v.get("group") != "SO(3)"])
def test_reflection_reflects_the_results_of_o3_models(variant):
    model = make(**VARIANTS[variant])
    for atoms in (VACUUM, TRICLINIC):
        expected = turned(evaluate(model, atoms), REFLECTION)
        assert_same(evaluate(model, moved(atoms, REFLECTION)), expected)


def test_reflection_changes_the_energy_of_so3_models():
    model = make(group="SO(3)")
    assert abs(energy(model, VACUUM) - energy(model, moved(VACUUM, REFLECTION))) > 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "atoms", [VACUUM, TRICLINIC, TWO_ATOMS], ids=["vacuum", "triclinic", "small"]
)
def test_translation_changes_nothing(atoms, dtype):
    model, shifted = make(dtype), atoms.copy()
    shifted.positions += (3.7, -12.1, 55.5)
    assert_same(evaluate(model, shifted), evaluate(model, atoms), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("atoms", [TRICLINIC, TWO_ATOMS], ids=["triclinic", "small"])
def test_periodic_images_are_the_same_atom(atoms, dtype, rng):
    model, other = make(dtype), atoms.copy()
    other.positions += rng.integers(-3, 4, size=(len(atoms), 3)) @ atoms.cell.array
    assert_same(evaluate(model, other), evaluate(model, atoms), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_permutation_permutes_results(dtype, rng):
    model, order = make(dtype), rng.permutation(len(TRICLINIC))
    expected = evaluate(model, TRICLINIC)
    expected = Prediction(
        expected.energy, expected.forces[order], expected.virial, expected.atom_energies[order]
    )
    assert_same(evaluate(model, TRICLINIC[order]), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_supercell_is_its_cells(dtype):
    model = make(dtype)
    one, three = evaluate(model, TWO_ATOMS), evaluate(model, TWO_ATOMS.repeat((3, 1, 1)))
    mean = float(model.mean)
    assert_close(three.energy - mean, 3 * (one.energy - mean), 0, dtype)
    assert_close(three.forces, one.forces.repeat(3, 1), 1, dtype, floor=1.0)
    assert_close(three.virial, 3 * one.virial, 1, dtype, floor=6.0)


def test_order_of_elements_in_the_embedding_does_not_matter():
    model, order = make(), [2, 0, 3, 1]
    other = TensorNet(
        TensorNetConfig(tuple(model.config.elements[i] for i in order), **small_options())
    ).double()
    state = model.state_dict()
    for name in ("embedding.element.weight", "references"):
        state[name] = state[name][order]
    other.load_state_dict(state)
    other.references = state["references"]
    assert_same(evaluate(other, VACUUM), evaluate(model, VACUUM))


def small_options() -> dict[str, Any]:
    return {"hidden_channels": 6, "num_layers": 1, "num_rbf": 6, "cutoff_upper": CUTOFF}


@pytest.mark.parametrize("variant", VARIANTS)
def test_isolated_atoms_keep_their_energies_and_feel_nothing(variant):
    model = make(**VARIANTS[variant])
    mean = float(model.mean)
    alone = [energy(model, Atoms(symbol)) - mean for symbol in "HCNO"]
    apart = Atoms("HCNO", 100.0 * np.arange(12).reshape(4, 3))
    prediction = evaluate(model, apart)
    assert_close(prediction.energy - mean, [sum(alone)], 0)
    assert_close(prediction.atom_energies - mean / 4, alone, 0)
    assert not prediction.forces.any()
    assert not prediction.virial.any()
    pair = Atoms("HC", [[0, 0, 0], [1.5, 0, 0]])
    together = evaluate(model, pair + apart[3:])
    assert_close(together.atom_energies[2] - mean / 3, alone[3], 0)
    assert not together.forces[2].any()
    assert together.forces[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_batched_is_one_by_one(variant, dtype):
    model = make(dtype, **VARIANTS[variant])
    images = [VACUUM, TWO_ATOMS, Atoms("O"), random_crystal(5, "slab", seed=4), TRICLINIC]
    together = evaluate(model, *images)
    start = 0
    for k, atoms in enumerate(images):
        stop = start + len(atoms)
        part = Prediction(
            together.energy[k : k + 1],
            together.forces[start:stop],
            together.virial[k : k + 1],
            together.atom_energies[start:stop],
        )
        assert_same(part, evaluate(model, atoms), dtype)
        start = stop


def test_each_system_of_a_batch_has_its_own_charge():
    model, charges = make(), [0.0, 1.0, -2.0]
    together = evaluate(model, VACUUM, VACUUM, VACUUM, charge=charges)
    for k, charge in enumerate(charges):
        alone = evaluate(model, VACUUM, charge=[charge])
        assert_close(together.energy[k : k + 1], alone.energy, 0)
    assert len({round(e, 6) for e in together.energy.tolist()}) == 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_energies_of_atoms_add_up_to_the_energy(variant):
    prediction = evaluate(make(**VARIANTS[variant]), VACUUM, TRICLINIC)
    atoms = prediction.atom_energies.split([len(VACUUM), len(TRICLINIC)])
    assert_close(torch.stack([part.sum() for part in atoms]), prediction.energy, 0)


def test_same_input_gives_the_same_bits():
    for dtype in DTYPES:
        model = make(dtype, num_layers=2)
        first, second = (evaluate(model, VACUUM, TRICLINIC, TWO_ATOMS) for _ in range(2))
        for name in ("energy", "forces", "virial", "atom_energies"):
            assert torch.equal(getattr(first, name), getattr(second, name))


def test_prediction_works_where_gradients_are_off():
    model = make()
    expected = evaluate(model, VACUUM)
    with torch.no_grad():
        assert_same(evaluate(model.requires_grad_(False), VACUUM), expected)
    assert not expected.energy.requires_grad
    assert not expected.forces.requires_grad


def test_unknown_elements_are_refused_by_symbol():
    model = make()
    with pytest.raises(UnknownElementError, match="know S; it knows H, C, N, O"):
        evaluate(model, Atoms("CHS", np.eye(3)))
    for number in (-1, 119):
        graph = neighbor_list([[0.0, 0.0, 0.0]], CUTOFF)
        with pytest.raises(UnknownElementError, match=r"0\.\.118"):
            predict(model, torch.tensor([number]), torch.zeros(1, 3), graph)


def test_charge_is_refused_by_models_of_neutral_systems():
    model = make(uses_charge=False)
    with pytest.raises(InputError, match="neutral"):
        evaluate(model, VACUUM, charge=[1.0])
    assert_same(evaluate(model, VACUUM, charge=[0.0]), evaluate(model, VACUUM))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rbf_type": "fourier"}, "rbf_type='fourier' is unknown: use one of expnorm"),
        ({"activation": "relu"}, "activation='relu' is unknown: use one of silu"),
        ({"group": "SU(2)"}, r"group='SU\(2\)' is unknown: use one of O\(3\)"),
        ({"head": "dipole"}, "head='dipole' is unknown: use one of scalar"),
        ({"cutoff_lower": 5.0}, "0 <= lower < upper"),
        ({"cutoff_lower": -0.1}, "0 <= lower < upper"),
        ({"cutoff_upper": float("nan")}, "0 <= lower < upper"),
        ({"rbf_type": "bessel"}, "self_loops=False"),
        ({"elements": ()}, "at least one"),
        ({"elements": (1, 119)}, "atomic numbers"),
        ({"elements": (-1,)}, "atomic numbers"),
        ({"elements": (1, 6, 1)}, "elements must differ: H occurs"),
        ({"hidden_channels": 20_000}, r"hidden_channels=20000 must lie in 1\.\.2048"),
        ({"num_layers": 10**9}, r"num_layers=1000000000 must lie in 0\.\.64"),
        ({"num_rbf": 10**8}, r"num_rbf=100000000 must lie in 1\.\.1024"),
        ({"num_rbf": 1, "rbf_type": "gauss"}, r"num_rbf=1 must lie in 2\.\.1024"),
        (
            {"rbf_type": "bessel", "self_loops": False, "num_rbf": 1000, "bessel_orders": 500},
            r"bessel_orders=500 must lie in 1\.\.16",
        ),
        ({"num_rbf": 5, "bessel_orders": 2}, "bessel_orders=2 must divide num_rbf=5"),
        ({"cutoff_upper": 1e6}, "upper <= 100 Å, not 0.0, 1000000.0"),
        ({"cutoff_upper": 1e308}, "upper <= 100 Å"),
        ({"zbl": ZBLConfig(3.0, 14.4, charges=(1.0,))}, "one charge for each element"),
    ],
)
def test_impossible_configurations_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        TensorNetConfig(**{"elements": (1, 6), **changes})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("name", ["cutoff", "prefactor", "length_scale", "charges"])
def test_impossible_repulsions_are_refused(name, value):
    constants = {"cutoff": 3.0, "prefactor": 14.4}
    with pytest.raises(InputError, match=f"{name}.* of zbl must"):
        ZBLConfig(**{**constants, name: (1.0, value) if name == "charges" else value})


def test_messages_show_symbols_and_short_values():
    assert symbols_of([0, 1, 11, 17, 118]) == "X, H, Na, Cl, Og"
    assert symbols_of([-1, 119]) == "atomic number -1, atomic number 119"
    assert [SYMBOLS.index(symbol) for symbol in chemical_symbols] == list(range(119))
    many: list[Any] = ["ha"]
    for _ in range(40):
        many = [many] * 10
    with pytest.raises(InputError) as refusal:
        TensorNetConfig((1, 6), activation=many)
    assert len(str(refusal.value)) < 300


CASTS = {
    "float": lambda model: model.float(),
    "half": lambda model: model.half(),
    "to": lambda model: model.to(torch.float32),
    "to and back": lambda model: model.to("cpu", torch.float32).double(),
    "deepcopy": lambda model: copy.deepcopy(model.float()),
    "inside an ensemble": lambda model: Ensemble([model]).float().members[0],
}


@pytest.mark.parametrize("cast", CASTS)
def test_energy_scale_stays_in_float64(cast):
    model = make()
    model.references = torch.tensor([-27000.123456789012, -1.0, -2.0, -3.0]).double()
    model.mean = torch.tensor(-1 / 3, dtype=torch.float64)
    expected = {name: getattr(model, name).clone() for name in ("std", "mean", "references")}
    other = CASTS[cast](model)
    if cast != "to and back":
        assert other.dtype in (torch.float32, torch.float16)
    for name, value in expected.items():
        assert getattr(other, name).dtype == torch.float64
        assert torch.equal(getattr(other, name), value)


def test_large_references_keep_the_digits_of_a_float32_model():
    model = make(torch.float32)
    atoms = Atoms("H4", VACUUM.positions[:4])
    model.references = torch.zeros(4, dtype=torch.float64)
    small = energy(model, atoms)
    model.references = torch.full((4,), -27000.123456789012, dtype=torch.float64)
    assert energy(model, atoms) == pytest.approx(small - 4 * 27000.123456789012, rel=0, abs=1e-9)


def approach(model: TensorNet, distance: float, across: str = "C") -> tuple[float, float]:
    """Compute the energy of a pair and an atom equally far from both, and the force on it."""
    pair = Atoms("HO", [[0, 0.6, 0], [0, -0.6, 0]])
    third = Atoms(across, [[np.sqrt(distance**2 - 0.36), 0, 0]])
    prediction = evaluate(model, pair + third)
    return prediction.energy.item(), prediction.forces[2, 0].item()


@pytest.mark.parametrize(
    ("variant", "radius"),
    [(name, CUTOFF) for name in VARIANTS] + [("lower cutoff", 1.0), ("ZBL", 3.0)],
)
def test_energy_and_forces_are_continuous_across_cutoffs(variant, radius):
    model = make(**VARIANTS[variant])
    changes = []
    for step in (1e-2, 1e-4):
        (e0, f0), (e1, f1) = (approach(model, radius + s) for s in (-step, step))
        changes.append((abs(e1 - e0), abs(f1 - f0)))
    (energy_far, force_far), (energy_near, force_near) = changes
    slope = abs(approach(model, radius)[1])
    assert energy_near < 0.02 * energy_far + 4e-4 * slope + 1e-12
    assert force_near < 0.02 * force_far + 1e-10


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_felt_beyond_the_cutoff(variant):
    model = make(**VARIANTS[variant])
    near, far = approach(model, CUTOFF + 1e-9), approach(model, 50.0)
    assert near[0] == pytest.approx(far[0], rel=1e-14)
    assert near[1] == far[1] == 0.0
    assert abs(approach(model, CUTOFF - 0.5)[0] - far[0]) > 1e-8


def test_ensemble_is_the_mean_of_its_members_with_their_own_cutoffs():
    members = [
        make(seed=1, cutoff_upper=3.0),
        make(seed=2, cutoff_upper=4.5, group="SO(3)"),
        make(seed=3, **MATGL),
    ]
    members[1].mean = torch.tensor(2.5).double()
    ensemble = Ensemble(members)
    assert ensemble.cutoff == 4.5
    for atoms in (VACUUM, TRICLINIC, TWO_ATOMS, Atoms("N")):
        alone = [evaluate(member, atoms) for member in members]
        names = ("energy", "forces", "virial", "atom_energies")
        mean = [torch.stack([getattr(p, name) for p in alone]).mean(0) for name in names]
        assert_same(evaluate(ensemble, atoms), Prediction(*mean))


def test_ensemble_serves_charges_and_elements_that_all_its_members_do():
    neutral = Ensemble([make(), make(uses_charge=False)])
    assert not neutral.uses_charge
    with pytest.raises(InputError, match="neutral"):
        evaluate(neutral, VACUUM, charge=[1.0])
    hydrogen = TensorNet(TensorNetConfig((1,), **small_options())).double()
    with pytest.raises(UnknownElementError, match="know C, N, O; it knows H"):
        evaluate(Ensemble([make(), hydrogen]), VACUUM)
    with pytest.raises(InputError, match="at least one"):
        Ensemble([])
