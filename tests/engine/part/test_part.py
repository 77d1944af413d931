"""Parts of systems: they add up to the whole system, as the exact module computes it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine import host_part
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.steps import Units
from mlff_triton.errors import InputError, OverlappingAtomsError, UnknownElementError
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import assert_close, random_cluster, random_crystal, water_box
from tests.support.parts import assert_whole, divide, slabs, stepper, sum_of_parts
from tests.support.tensornets import ZBL, model_of, uncertain

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

SMALL = {"hidden_channels": 32, "num_rbf": 6, "cutoff_upper": 3.0}
BACKENDS = [
    ("cpu", "torch"),
    ("cpu", "cpu"),
    ("cpu", "exact"),
    pytest.param("cuda", "exact", marks=pytest.mark.gpu),
    pytest.param("cuda", "torch", marks=pytest.mark.gpu),
    pytest.param("cuda", "triton", marks=pytest.mark.gpu),
    pytest.param("cuda", "triton-graph", marks=pytest.mark.gpu),
]
VARIANTS = {
    "one layer": {"num_layers": 1},
    "three layers": {"num_layers": 3, "cutoff_upper": 2.0},
    "gated": {"group": "SO(3)", "head": "gated", "readout_activation": False},
    "nuclear repulsion": {"num_layers": 1, "zbl": ZBL},
    "nuclear repulsion, farther than the network": {"zbl": replace(ZBL, cutoff=4.0)},
}
backends = pytest.mark.parametrize(("device", "backend"), BACKENDS)


@cache
def model(variant: str = "") -> TensorNet:
    return uncertain(model_of(**{**SMALL, **VARIANTS.get(variant, {})}))


@cache
def engine_of(
    device: str, backend: str, dtype: torch.dtype = torch.float64, variant: str = ""
) -> Engine:
    return Engine(model(variant), device, dtype, backend)


def whole(atoms: Atoms, charge: int = 0, variant: str = "") -> Prediction:
    engine = engine_of("cpu", "exact", variant=variant)
    box = atoms.cell.array, atoms.pbc
    return engine.compute(atoms.numbers, atoms.positions, *box, charge=charge)


def check(engine: Engine, atoms: Atoms, n_parts: int, charge: int = 0, variant: str = "") -> None:
    owners = slabs(atoms, n_parts)
    parts = divide(atoms, owners, engine.part().reach, n_parts)
    sums = sum_of_parts(stepper(engine, atoms, charge), atoms, parts)
    assert_whole(sums, whole(atoms, charge, variant), engine.dtype)


@backends
@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize("kind", ["cubic", "triclinic", "slab", "small"])
def test_parts_of_crystals_add_up(kind, n_parts, device, backend):
    check(engine_of(device, backend), random_crystal(10, kind), n_parts)


@backends
def test_thin_parts(device, backend):
    """Ghosts of a part are images of atoms in all other parts, and of its own."""
    atoms = random_crystal(12, "triclinic")
    check(engine_of(device, backend), atoms, 6)


@backends
def test_parts_of_molecules_add_up(device, backend):
    check(engine_of(device, backend), random_cluster(60), 4, charge=1)


@backends
@pytest.mark.parametrize("variant", VARIANTS)
def test_models(variant, device, backend):
    engine = engine_of(device, backend, variant=variant)
    check(engine, random_crystal(8, "triclinic"), 2, variant=variant)


@pytest.mark.parametrize("backend", ["torch", "cpu", "exact"])
def test_single_precision(backend):
    check(engine_of("cpu", backend, torch.float32), random_crystal(10, "cubic"), 2)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "triton-graph"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_water_on_a_gpu(backend, dtype):
    engine = engine_of("cuda", backend, dtype)
    check(engine, water_box(1000), 3)


def test_any_division_adds_up():
    """Own atoms may be scattered."""
    atoms, engine = random_crystal(12, "cubic"), engine_of("cpu", "torch")
    owners = np.random.default_rng(0).integers(0, 3, 12)
    parts = divide(atoms, owners, engine.part().reach, 3)
    assert_whole(sum_of_parts(stepper(engine, atoms), atoms, parts), whole(atoms))


@pytest.mark.parametrize("backend", ["torch", "cpu", "exact"])
def test_the_reach_is_what_is_needed(backend):
    atoms, engine = random_crystal(10, "cubic"), engine_of("cpu", backend)
    reach = engine.part().reach
    assert reach == 3 * model().cutoff
    owners = slabs(atoms, 2)
    step = stepper(engine, atoms)
    least, more = (
        sum_of_parts(step, atoms, divide(atoms, owners, r, 2)) for r in (reach, 1.3 * reach)
    )
    assert_close(more.forces, least.forces, 1)
    less = sum_of_parts(step, atoms, divide(atoms, owners, reach - model().cutoff, 2))
    assert_whole(least, whole(atoms))
    with pytest.raises(AssertionError):
        assert_whole(less, whole(atoms))


def test_shells_change_nothing(monkeypatch):
    """Results are the same as if all layers computed all atoms."""
    atoms, engine = random_crystal(10, "triclinic"), engine_of("cpu", "torch")
    part = divide(atoms, slabs(atoms, 2), engine.part().reach, 2)[0]
    step, counts = stepper(engine, atoms), []
    in_shells = step(part, part.positions(atoms))

    def one_shell(graph, n_own, n_layers):
        counts.extend(shells(graph, n_own, n_layers)[1])
        order = torch.arange(graph.n_atoms, dtype=torch.int32)
        return order, [n_own] + [graph.n_atoms] * n_layers

    shells = host_part.shells
    monkeypatch.setattr(host_part, "shells", one_shell)
    in_full = step(part, part.positions(atoms))
    assert part.n_own == counts[0] < counts[1] < counts[2] < len(part.index)
    for name in ("forces", "virial", "atom_energies", "atom_virials"):
        assert_close(getattr(in_shells, name), getattr(in_full, name), 1)


@backends
def test_steps_of_moving_atoms(device, backend):
    """They equal those of a new part, to the bit, whenever their neighbor list was built."""
    atoms, engine = random_crystal(10, "cubic"), engine_of(device, backend, torch.float32)
    part = divide(atoms, slabs(atoms, 2), 1.2 * engine.part().reach, 2)[0]
    system = engine.part()
    system.set_atoms(atoms.numbers[part.index], part.n_own, len(atoms))
    for seed in range(4):
        atoms.rattle(0.15, seed=seed)
        positions = part.positions(atoms)
        found, again = system.step(positions), stepper(engine, atoms)(part, positions)
        for name in ("forces", "virial", "atom_energies"):
            if (device, backend) == ("cuda", "exact"):  # which uses atomic additions
                assert_close(getattr(found, name), getattr(again, name), 1, torch.float32)
            else:
                np.testing.assert_array_equal(getattr(found, name), getattr(again, name))
        assert found.atom_virials is None


@backends
def test_atoms_may_be_replaced(device, backend):
    engine = engine_of(device, backend)
    system = engine.part()
    for n_atoms in (9, 60, 3, 30):
        atoms = random_cluster(n_atoms)
        system.set_atoms(atoms.numbers, n_atoms, n_atoms)
        found, expected = system.step(atoms.positions), whole(atoms)
        assert_close(found.energy, expected.energy[0], 0)
        assert_close(found.forces, expected.forces, 1)


@backends
def test_no_own_atoms(device, backend):
    system = engine_of(device, backend).part()
    system.set_atoms([8, 1], 0, 100)
    found = system.step([[0, 0, 0], [0, 0, 1]], per_atom=True)
    assert found.energy == 0
    assert not found.forces.any()
    assert not found.virial.any()
    assert (found.forces.shape, found.atom_energies.shape) == ((2, 3), (0,))
    assert found.atom_virials.shape == (2, 3, 3)
    system.set_atoms([], 0, 100)
    for nothing in ([], np.zeros((0, 3))):
        found = system.step(nothing)
        assert (found.energy, found.forces.shape) == (0, (0, 3))


@backends
def test_lonely_atoms(device, backend):
    system = engine_of(device, backend).part()
    system.set_atoms([8], 1, 1)
    found = system.step([[1e6, 0, 0]])
    assert_close(found.energy, whole(Atoms("O", [[0, 0, 0]])).energy[0], 0)
    assert not found.forces.any()


@pytest.mark.parametrize("backend", ["torch", "cpu", "exact"])
def test_edges_share_their_virials_equally(backend):
    """LAMMPS, too, gives half of what a pair contributes to either atom."""
    atoms, engine = Atoms("CO", [[0, 0, 0], [0.3, 0.5, 0.9]]), engine_of("cpu", backend)
    system = engine.part()
    system.set_atoms(atoms.numbers, 2, 2)
    found = system.step(atoms.positions, per_atom=True)
    for share in found.atom_virials:
        assert_close(share, found.virial / 2, 1)
    r = atoms.positions[1] - atoms.positions[0]
    assert_close(found.virial, -np.outer(r, found.forces[1]), 1)


@pytest.mark.parametrize("backend", ["torch", "cpu", "exact"])
def test_each_atom_has_its_share_of_constant_energy(backend):
    atoms, engine = Atoms("CO", [[0, 0, 0], [0, 0, 1.1]]), engine_of("cpu", backend)
    system = engine.part()
    energies = []
    for n_total in (2, 7):
        system.set_atoms(atoms.numbers, 1, n_total)
        energies.append(system.step(atoms.positions).energy)
    mean = float(model().mean)
    assert mean != 0
    assert_close(energies[1] - energies[0], mean / 7 - mean / 2, 1)


@pytest.mark.parametrize("backend", ["torch", "cpu", "exact"])
def test_units(backend):
    atoms, units = random_cluster(7), Units(length=0.5, energy=0.25)
    engine = engine_of("cpu", backend)
    system, other = engine.part(), engine.part(units=units)
    assert other.reach == system.reach / 0.5
    for s in (system, other):
        s.set_atoms(atoms.numbers, 4, 7)
    found = other.step(atoms.positions / 0.5, per_atom=True)
    expected = system.step(atoms.positions, per_atom=True)
    assert_close(found.energy, expected.energy / 0.25, 0)
    assert_close(found.forces, expected.forces * 0.5 / 0.25, 1)
    for name in ("virial", "atom_energies", "atom_virials"):
        assert_close(getattr(found, name), getattr(expected, name) / 0.25, 1)


@pytest.mark.parametrize("backend", ["torch", "cpu", "exact"])
def test_ensembles(backend):
    far = model_of(**{**SMALL, "cutoff_upper": 3.5})
    far.mean += 1.0
    members = Ensemble([model(), far])
    engine = Engine(members, "cpu", "float64", backend)
    exact = Engine(members, "cpu", "float64", "exact")
    assert engine.part().reach == 3 * 3.5
    atoms = random_crystal(8, "triclinic")
    parts = divide(atoms, slabs(atoms, 2), engine.part().reach, 2)
    expected = exact.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    assert_whole(sum_of_parts(stepper(engine, atoms), atoms, parts), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([8, 1], 3, 9), "n_own must lie between 0 and the numbers of atoms of the part, 2"),
        (([8, 1], -1, 9), "n_own must lie between 0"),
        (([8, 1], 2, 1), "and of the whole system, 1, not 2"),
        (([8, 1], 1.0, 9), "n_own must be an integer, not 1.0"),
        (([8, 1], 1, None), "n_total must be an integer, not None"),
        (([8.0, 1.0], 1, 9), "atomic numbers must be a list of integers, not float64 [2]"),
        (([[8, 1]], 1, 9), "atomic numbers must be a list of integers, not int64 [1, 2]"),
    ],
)
def test_wrong_atoms_are_refused(arguments, message):
    with pytest.raises(InputError) as error:
        engine_of("cpu", "torch").part().set_atoms(*arguments)
    assert message in str(error.value)


@backends
def test_wrong_steps_are_refused(device, backend):
    system = engine_of(device, backend).part()
    points = np.array([[0, 0, 0], [0, 0, 1.0], [0, 1.0, 0]])
    with pytest.raises(InputError, match=r"0 atoms need positions \[0, 3\], not \[3, 3\]: call"):
        system.step(points)
    system.set_atoms([8, 1, 1], 2, 3)
    with pytest.raises(InputError, match=r"3 atoms need positions \[3, 3\], not \[2, 3\]: call"):
        system.step(points[:2])
    with pytest.raises(InputError, match="the position of atom 2 is NaN or infinite"):
        system.step(np.where([[False], [False], [True]], np.nan, points))
    with pytest.raises(OverlappingAtomsError):
        system.step(points[[0, 1, 1]])
    with pytest.raises(UnknownElementError):
        system.set_atoms([8, 1, 92], 2, 3)
    with pytest.raises(InputError, match="call set_atoms"):  # those before are forgotten
        system.step(points)
    system.set_atoms([8, 1, 1], 3, 3)
    expected = whole(Atoms("OHH", points))
    assert_close(system.step(points).energy, expected.energy[0], 0)


def test_charges_that_the_model_does_not_know_are_refused():
    neutral = Engine(model_of(**SMALL, uses_charge=False), "cpu", "float64", "torch")
    with pytest.raises(InputError, match="neutral"):
        neutral.part(charge=1)


@pytest.mark.parametrize("charge", [0.5, "a", None])
def test_charges_that_are_no_integers_are_refused(charge):
    with pytest.raises(InputError, match="the total charge must be an integer"):
        engine_of("cpu", "torch").part(charge=charge)
