"""Particle-mesh Ewald in the engine, against the exact module, and the choice of meshes."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms, units

from mlff_triton import Engine, Ensemble, Prediction, TensorNet2
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.calibration import droplet
from mlff_triton.engine.dispatch import choose, explain
from mlff_triton.engine.host_operators import PACKAGES
from mlff_triton.engine.mesh import STRETCH, MeshChoice, MeshPlan
from mlff_triton.engine.motion import Conditions
from mlff_triton.errors import InputError, UnknownElementError
from mlff_triton.kernels.types.motion import Barostat, Integration
from mlff_triton.model.mesh_coulomb import ChargedCellWarning
from mlff_triton.model.tensornet2 import with_coulomb
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.charged import charged_model, crystal
from tests.support.device_steps import at_start, batch_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:the cell has the charge"),
    pytest.mark.filterwarnings("ignore:each cell of the slab has the charge"),
]

MESH = {"coulomb_cutoff": 5.0, "pme_error": 1e-4}
ORDERS = {"energy": 0, "atom_energies": 0, "charges": 0, "forces": 1, "virial": 1}
VARIANTS = {
    "O(3)": {"num_layers": 2, **MESH},
    "SO(3)": {"group": "SO(3)", "charge_channels": 17, "repulsion": True, **MESH},
    "shorter than the network": {"cutoff_upper": 5.0, "coulomb_cutoff": 4.6, "pme_error": 1e-3},
}
CRYSTALS = [random_crystal(n, k, seed=n) for n, k in ((5, "triclinic"), (1, "cubic"), (3, "small"))]
CHARGES = [0, 1, -2]


@pytest.fixture(params=PACKAGES)
def backend(request) -> str:
    return request.param


def evaluate(engine: Engine, *images: Atoms, charge: list[int] | None = None) -> Prediction:
    return engine.evaluate(batch_of(*images, charge=charge))


def exact(model: TensorNet2 | Ensemble) -> Engine:
    return Engine(model, "cpu", "float64", "exact")


def assert_same(found: Prediction, expected: Prediction) -> None:
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert_close(found.tensors[name], tensor, ORDERS[name])


@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_exact_module(backend, variant):
    model = charged_model(**VARIANTS[variant])
    engine, truth = Engine(model, "cpu", "float64", backend), exact(model)
    for charge in (CHARGES, [1, 0, 1]):
        expected = evaluate(truth, *CRYSTALS, charge=charge)
        assert_same(evaluate(engine, *CRYSTALS, charge=charge), expected)
    assert expected.virial.abs().max() > 1


SLABS = [random_crystal(n, "slab", seed=n) for n in (5, 3, 40)]


@pytest.mark.parametrize("slabs", [SLABS[:2], SLABS[2:]])
def test_slabs_agree_with_the_exact_module(backend, slabs):
    model, charge = charged_model(num_layers=2, **MESH), [1, -2][: len(slabs)]
    engine, truth = Engine(model, "cpu", "float64", backend), exact(model)
    expected = evaluate(truth, *slabs, charge=charge)
    assert_same(evaluate(engine, *slabs, charge=charge), expected)


def test_slabs_may_become_thicker(backend):
    model, atoms = charged_model(**MESH), SLABS[0].copy()
    engine = Engine(model, "cpu", "float64", backend)
    for shift in (0.0, 0.5, 30.0, 90.0, 0.0):
        atoms.positions[0] = SLABS[0].positions[0] + [0.0, 0.0, shift]
        found, expected = evaluate(engine, atoms), evaluate(exact(model), atoms)
        assert_close(found.energy, expected.energy, 0, floor=100.0)
        assert (found.forces - expected.forces).norm() < 1e-5 * expected.forces.norm()


def test_liquids_of_many_sorted_atoms(backend):
    model, atoms = charged_model(**MESH), random_crystal(300, "triclinic", seed=2)
    expected = evaluate(exact(model), atoms, charge=[-1])
    assert_same(evaluate(Engine(model, "cpu", "float64", backend), atoms, charge=[-1]), expected)


def test_the_mesh_matters():
    model, atoms = charged_model(**MESH), crystal()
    by_field = with_coulomb(model, "reaction-field", 4.0)
    forces, others = (evaluate(exact(m), atoms).forces for m in (model, by_field))
    assert (forces - others).norm() > 0.02 * forces.norm()


def test_ensembles_of_different_energies(backend):
    members = [charged_model(**MESH), charged_model(seed=1, coulomb_cutoff=3.5)]
    model = Ensemble(members)
    expected = evaluate(exact(model), crystal(), charge=[1])
    assert_same(evaluate(Engine(model, "cpu", "float64", backend), crystal(), charge=[1]), expected)


def test_float32_is_as_exact_as_the_modules(backend, rng):
    model = charged_model(hidden_channels=32, num_layers=2, charge_channels=8, **MESH)
    truth = exact(model)
    engines = [Engine(model, "cpu", "float32", each) for each in (backend, "exact")]
    squares = {name: np.zeros(2) for name in ("forces", "charges", "virial", "energy")}
    for _ in range(4):
        images = [atoms.copy() for atoms in CRYSTALS]
        for atoms in images:
            atoms.positions += rng.uniform(-0.05, 0.05, atoms.positions.shape)
        expected = evaluate(truth, *images, charge=CHARGES)
        found = [evaluate(engine, *images, charge=CHARGES) for engine in engines]
        for name, total in squares.items():
            value, *values = (getattr(prediction, name) for prediction in (expected, *found))
            total += [float((each - value).norm() / value.norm()) ** 2 for each in values]
    for name, total in squares.items():
        of_step, of_module = np.sqrt(total / 4)
        assert of_step <= max(2 * of_module, 2e-7), name


def test_bits_do_not_depend_on_threads_or_earlier_atoms():
    engine = Engine(charged_model(num_layers=2, **MESH), "cpu", "float32", "cpu")
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            found.append(evaluate(engine, crystal(), charge=[1]))
            evaluate(engine, crystal().repeat((2, 1, 1)))
    finally:
        torch.set_num_threads(before)
    for name, tensor in found[0].tensors.items():
        assert all(torch.equal(tensor, other.tensors[name]) for other in found[1:]), name


def test_cells_that_change_keep_their_mesh(backend):
    """Differences from the module, which chooses a mesh for each cell, are within the error."""
    model = charged_model(**MESH)
    engine, truth = Engine(model, "cpu", "float64", backend), exact(model)
    for scale in (1.0, 0.97, 1.02, 1.4, 1.35):
        atoms = crystal().copy()
        atoms.set_cell(scale * atoms.cell.array, scale_atoms=True)
        found, expected = evaluate(engine, atoms), evaluate(truth, atoms)
        assert_close(found.charges, expected.charges, 0)
        assert (found.forces - expected.forces).norm() < 1e-4 * expected.forces.norm()


def in_boxes(*boxes: tuple[float, ...], pbc: list[bool] | bool = True, top: float = 1.0) -> Batch:
    """Return two atoms in each box, one of them at a height in Å."""
    n = len(boxes)
    points = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, top]] * n)
    cells = np.stack([np.diag(lengths) for lengths in boxes])
    return Batch.of([1, 1] * n, points, cells, pbc, np.repeat(np.arange(n), 2))


def test_choice_of_meshes():
    choice = MeshChoice(charged_model(coulomb_cutoff=9.0, pme_error=1e-4).config)
    first, differs = choice.update(in_boxes((40.0, 30.0, 20.0)), is_new=True)
    mesh = first.parameters.mesh
    assert differs
    assert mesh[0] > mesh[1] > mesh[2]
    assert choice.update(in_boxes((39.0, 29.0, 19.0)), is_new=False) == (first, False)
    larger, differs = choice.update(in_boxes((39.0, 29.0, 50.0)), is_new=False)
    assert differs
    assert larger.parameters.mesh[2] > mesh[2]
    assert larger.parameters.splitting == first.parameters.splitting
    assert choice.update(in_boxes((40.0, 30.0, 20.0)), is_new=False) == (larger, False)
    assert choice.update(in_boxes((40.0, 30.0, 20.0)), is_new=True) == (first, True)
    assert choice.update(in_boxes((40.0, 30.0, 20.0)), is_new=True) == (first, False)
    small, differs = choice.update(in_boxes((15.0, 15.0, 15.0)), is_new=False)
    assert differs
    assert max(small.parameters.mesh) < mesh[0]
    both, _ = choice.update(in_boxes((40.0, 30.0, 20.0), (10.0, 60.0, 10.0)), is_new=True)
    assert both.parameters.mesh[0] == mesh[0]
    assert both.parameters.mesh[1] > mesh[1]


def test_choice_of_meshes_for_slabs():
    """They need a height that depends on the positions, and keep one that is a little too large."""
    choice = MeshChoice(charged_model(coulomb_cutoff=9.0, pme_error=1e-4).config)
    plane, thin = (20.0, 20.0, 1.0), [True, True, False]

    def update(top: float, *, is_new: bool = False) -> tuple[MeshPlan, bool]:
        return choice.update(in_boxes(plane, pbc=thin, top=top), is_new=is_new)

    first, _ = update(8.0, is_new=True)
    assert first.parameters.slab == 2
    assert 8.0 + 20.0 < first.height < 48.0
    assert update(9.9) == (first, False)
    assert update(0.5) == (first, False)
    thicker, differs = update(20.0)
    assert differs
    assert thicker.height >= first.height + 8.0
    assert thicker.parameters.mesh[2] > first.parameters.mesh[2]
    assert thicker.parameters.mesh[:2] == first.parameters.mesh[:2]
    assert update(8.0) == (thicker, False)
    assert update(8.0, is_new=True) == (first, True)
    choice.check(in_boxes(plane, pbc=thin, top=9.9))
    with pytest.raises(
        InputError, match=r"the slab has become too thick .* atoms have left"
    ) as error:
        choice.check(in_boxes(plane, pbc=thin, top=20.0))
    assert "\n" not in str(error.value)
    crystal_again, differs = choice.update(in_boxes((20.0, 20.0, 20.0)), is_new=False)
    assert differs
    assert crystal_again.parameters.slab is None


def test_barostats_stretch_cells_only_so_far():
    choice = MeshChoice(charged_model(coulomb_cutoff=9.0, pme_error=1e-4).config)
    choice.update(in_boxes((40.0, 40.0, 40.0)), is_new=True)
    choice.check(in_boxes((40.0 * 0.99 * STRETCH,) * 3))
    with pytest.raises(InputError, match=r"stretched the cell .*: continue from the last") as error:
        choice.check(in_boxes((40.0, 40.0, 60.0)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_auto_takes_the_engine(device):
    model = charged_model(hidden_channels=32, **MESH)
    best = "triton-graph" if device == "cuda" else "cpu"
    assert choose("auto", [model], torch.device(device), torch.float32) == best
    assert "TensorNet2 with particle-mesh Ewald" in explain(model, device)


def test_calibration_has_cells(backend):
    model = charged_model(**MESH)
    batch = droplet(model, 20)
    assert Engine(model, "cpu", backend=backend).evaluate(batch).forces.isfinite().all()


def test_residents_queues_and_copies(backend):
    model, atoms = charged_model(**MESH), crystal().copy()
    engine = pickle.loads(pickle.dumps(Engine(model, "cpu", "float64", backend)))
    system = engine.resident(atoms.numbers, atoms.cell.array, True, charge=1)
    for scale in (1.0, 1.4):
        atoms.set_cell(scale * crystal().cell.array, scale_atoms=True)
        points, cell = torch.tensor(atoms.positions), torch.tensor(atoms.cell.array)
        expected = evaluate(exact(model), atoms, charge=[1])
        energy, forces = system.step(points, cell)
        assert_close(energy, expected.energy[0], 0)
        assert_close(forces, expected.forces, 1)
        numbers, charge = torch.tensor(atoms.numbers), torch.ones(1)
        batch = torch.zeros_like(numbers)
        queued = engine.queue(numbers, points, cell[None], True, batch, charge)
        assert_close(queued.forces, expected.forces, 1)


def test_a_barostat_moves_cells(backend):
    """Forces after some steps are those of where atoms and cells are then."""
    model, atoms = charged_model(**MESH), crystal().copy()
    engine = Engine(model, "cpu", "float64", backend)
    dynamics = engine.dynamics(batch_of(atoms), atoms.get_masses())
    if backend == "torch":
        assert dynamics is None
        return
    barostat = Barostat(-0.5, 1.0, 20 * units.fs, 2, isotropic=True)
    stage = Conditions(
        Integration(0.5 * units.fs, friction=0.01 / units.fs, seed=3),
        np.tile([0.025, 1e-5], (1, 1)),
        np.zeros(1, dtype=np.int32),
        np.full(1, 3, dtype=np.int32),
        None,
        barostat,
    )
    state = at_start(atoms.positions, np.full((24, 3), 0.02), atoms.cell.array[None])
    dynamics.begin(state, stage, is_continued=False)
    dynamics.queue(9, is_observed=True)
    seen = dynamics.collect()
    assert seen is not None
    atoms.positions = seen.state.positions
    atoms.set_cell(seen.state.cell[0])
    assert atoms.get_volume() > 1.01 * crystal().get_volume()
    expected = evaluate(exact(model), atoms)
    assert (torch.tensor(seen.forces) - expected.forces).norm() < 1e-3 * expected.forces.norm()


def test_charged_cells_have_a_background(backend):
    engine = Engine(charged_model(**MESH), "cpu", backend=backend)
    with warnings.catch_warnings(record=True) as every:
        warnings.simplefilter("always")
        evaluate(engine, crystal())
        assert not [w for w in every if w.category is ChargedCellWarning]
        for charge in (-2, 1):
            evaluate(engine, crystal(), crystal(), charge=[0, charge])
    seen = [w for w in every if w.category is ChargedCellWarning]
    (warning,) = seen
    assert str(warning.message).startswith("the cell has the charge -2 e: its energy includes")
    assert "\n" not in str(warning.message)


def test_batches_that_fail_leave_nothing_behind(backend):
    """They have other cells, or atoms that the model does not know, and as many atoms."""
    engine, good = Engine(charged_model(**MESH), "cpu", "float64", backend), crystal()
    expected = evaluate(engine, good, charge=[1])
    for scale, number, error in ((300, 1, InputError), (2, 79, UnknownElementError)):
        bad = good.copy()
        bad.set_cell(scale * good.cell.array, scale_atoms=scale < 3)
        bad.numbers[0] = number
        with pytest.raises(error):
            evaluate(engine, bad)
        found = evaluate(engine, good, charge=[1])
        for name, tensor in expected.tensors.items():
            assert torch.equal(found.tensors[name], tensor), name


@pytest.mark.parametrize("name", [*PACKAGES, "exact"])
def test_what_has_no_mesh_is_refused(name):
    engine = Engine(charged_model(**MESH), "cpu", backend=name)
    with pytest.raises(InputError, match="needs a periodic cell") as refusal:
        evaluate(engine, random_cluster(4))
    assert "\n" not in str(refusal.value)
    given, cell = batch_of(crystal()), crystal().cell.array
    slab, wire = (Box.of(cell, [True, in_plane, False]) for in_plane in (True, False))
    with pytest.raises(InputError, match="two for a slab, not one"):
        engine.evaluate(replace(given, boxes=(wire,)))
    with pytest.raises(InputError, match="in batches of their own"):
        engine.evaluate(Batch.concatenate([given, replace(given, boxes=(slab,))]))
    with pytest.raises(InputError, match=r"how thick a slab is.*call compute\(\) or evaluate"):
        engine.resident(given.numbers, cell, slab.pbc)
