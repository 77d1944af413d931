"""Parts of systems with charges: they exchange tensors and charges, and sum charges together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import Ensemble, TensorNet2
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.mesh import MeshChoice, MeshPlan, PartMesh
from mlff_triton.engine.part import OwnImages
from mlff_triton.engine.steps import Units
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.config import ZBLConfig
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.charged import charged_model
from tests.support.exchanges import Board, ExchangingParts
from tests.support.parts import Part, assert_whole, divide, slabs, sum_of_parts
from tests.support.tensornets import uncertain

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:the cell has the charge"),
    pytest.mark.filterwarnings("ignore:each cell of the slab has the charge"),
]

ZBL = ZBLConfig(cutoff=4.5, prefactor=14.4, charges=(1.0, 5.5, 7.0, 0.0))
FIELD = {"num_layers": 2, "cutoff_upper": 3.0, "coulomb_cutoff": 3.7}
NO_COULOMB = {"num_layers": 2, "cutoff_upper": 3.0, "coulomb": False}
PAIRS = {"num_layers": 2, "cutoff_upper": 3.0}
MESH = FIELD | {"coulomb_cutoff": 4.6, "pme_error": 1e-3}
VARIANTS = {
    "reaction field within the network": FIELD | {"coulomb_cutoff": 2.8},
    "one layer, tanh": FIELD | {"num_layers": 1, "activation": "tanh"},
    "three layers, SO(3)": FIELD | {"num_layers": 3, "group": "SO(3)", "cutoff_upper": 2.5},
    "many charges": FIELD | {"charge_channels": 17, "cutoff_lower": 0.5},
    "nuclear repulsions": FIELD | {"repulsion": True, "zbl": ZBL},
    "least softness": FIELD | {"softness_floor": 0.02},
}
backends = pytest.mark.parametrize("backend", ["cpu", "torch"])


@cache
def model(*changes: tuple[str, object]) -> TensorNet2:
    return uncertain(charged_model(**dict(changes)))


def engines(
    backend: str, n_parts: int, changes: dict[str, object], dtype: torch.dtype = torch.float64
) -> list[Engine]:
    """Return an engine per part, as one computes a part at a time."""
    return [Engine(model(*changes.items()), "cpu", dtype, backend) for _ in range(n_parts)]


def check(
    made: list[Engine],
    atoms: Atoms,
    model: TensorNet2 | Ensemble,
    charge: int = -1,
    owners: np.ndarray | None = None,
) -> list[Part]:
    """Assert that parts add up to what the exact module finds, and return them."""
    owners = slabs(atoms, len(made)) if owners is None else owners
    reach = made[0].part().exchange_reach
    assert reach is not None
    parts = divide(atoms, owners, reach, len(made))
    results = iter(ExchangingParts(made, atoms, parts, charge).step(atoms))
    sums = sum_of_parts(lambda *_: next(results), atoms, parts)
    exact = Engine(model, "cpu", "float64", "exact")
    box = atoms.cell.array, atoms.pbc
    whole = exact.compute(atoms.numbers, atoms.positions, *box, charge=charge)
    assert_whole(sums, whole, made[0].dtype)
    assert_close(sums.atom_virials.sum(0), whole.virial[0], 1, made[0].dtype, floor=1e-2)
    return parts


@backends
@pytest.mark.parametrize("n_parts", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cubic", "triclinic", "slab"])
def test_reaction_fields(kind, n_parts, backend):
    atoms = random_crystal(120, kind)
    check(engines(backend, n_parts, FIELD), atoms, model(*FIELD.items()))


@backends
@pytest.mark.parametrize("n_parts", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cubic", "triclinic", "slab", "small"])
def test_meshes(kind, n_parts, backend):
    """Results are those of one process, whose tables are the same."""
    atoms, made = random_crystal(9 if kind == "small" else 120, kind), engines(backend, 3, MESH)
    parts = check(made[:n_parts], atoms, model(*MESH.items()))
    results = iter(ExchangingParts(made[:n_parts], atoms, parts, -1).step(atoms))
    sums = sum_of_parts(lambda *_: next(results), atoms, parts)
    whole = made[2].compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, charge=-1)
    assert sums.energy == pytest.approx(float(whole.energy[0]), rel=1e-13)
    for name in ("forces", "atom_energies"):
        given = getattr(sums, name), getattr(whole, name)
        np.testing.assert_allclose(*given, rtol=1e-10, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(sums.virial, whole.virial[0], rtol=1e-10, atol=1e-9)


@backends
@pytest.mark.parametrize("kind", ["cubic", "slab"])
def test_meshes_follow_cells_and_atoms(kind, backend):
    """Parts choose another mesh together when the cell has grown, or a slab has become thick."""
    atoms, made = random_crystal(40, kind), engines(backend, 2, MESH)
    parts = divide(atoms, slabs(atoms, 2), 7.0, 2)
    together = ExchangingParts(made, atoms, parts)
    one = engines(backend, 1, MESH)[0]
    for scale, lift in ((1.0, 0.0), (1.02, 0.0), (1.2, 30.0), (1.0, 0.0)):
        now = atoms.copy()
        now.set_cell(scale * atoms.cell.array, scale_atoms=True)
        if kind == "slab":
            now.positions[parts[0].index[0], 2] += lift
        moved = [part._replace(offsets=scale * part.offsets) for part in parts]
        together._parts = moved
        results = iter(together.step(now))
        sums = sum_of_parts(lambda *_, found=results: next(found), now, moved)
        whole = one.compute(now.numbers, now.positions, now.cell.array, now.pbc)
        np.testing.assert_allclose(sums.forces, whole.forces, rtol=1e-10, atol=1e-10)
        assert sums.energy == pytest.approx(float(whole.energy[0]), rel=1e-13)


def test_parts_that_saw_other_cells_agree_on_a_mesh():
    """A mesh that some parts do not have is given up when atoms are replaced."""
    board, boxes = Board(2), [Box.of(length * np.eye(3), True) for length in (40.0, 30.0, 50.0)]
    config = model(*MESH.items()).config
    meshes = [PartMesh(MeshChoice(config), torch.device("cpu")) for _ in range(2)]

    def together(*cells: Box) -> list[MeshPlan]:
        def update(k: int) -> MeshPlan:
            return meshes[k].update(np.zeros((1, 3)), cells[k], lambda own: board.post(k, own))

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(update, range(2)))

    first, other = together(boxes[0], boxes[0])
    assert first == other
    for mesh in meshes:
        mesh.forget_atoms()
    assert together(boxes[1], boxes[1]) == [first, first]  # a little finer than needed
    larger = meshes[1].update(np.zeros((1, 3)), boxes[2], lambda own: [own])
    assert larger != first
    for mesh in meshes:
        mesh.forget_atoms()
    found = together(boxes[1], boxes[1])
    assert found[0] == found[1] not in (first, larger)


@backends
def test_meshes_need_a_cell(backend):
    (engine,) = engines(backend, 1, MESH)
    part = engine.part(units=Units(length=0.5))
    part.set_atoms([1, 1], 2, 2, OwnImages(np.zeros(0, np.int32), 2))
    points, cell = np.array([[0, 0, 0], [0, 0, 2.0]]), 40 * np.eye(3)
    whole = engine.compute([1, 1], points / 2, cell / 2, True)
    found = part.step(points, cell=cell, pbc=True)
    np.testing.assert_allclose(found.energy, whole.energy[0], 1e-12)
    for pbc, message in ((False, "needs a periodic cell"), ([1, 0, 0], "two for a slab, not one")):
        with pytest.raises(InputError, match=message):
            part.step(points, cell=cell, pbc=pbc)
    with pytest.raises(InputError, match="needs a periodic cell"):
        part.step(points)


@backends
@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize("kind", ["small", "slab"])
def test_no_coulomb_energy(kind, n_parts, backend):
    """Ghosts are images of own atoms, too."""
    atoms = random_crystal(10, kind)
    check(engines(backend, n_parts, NO_COULOMB), atoms, model(*NO_COULOMB.items()))


@backends
@pytest.mark.parametrize("n_parts", [1, 2, 4])
def test_all_pairs(n_parts, backend):
    atoms = random_cluster(40)
    check(engines(backend, n_parts, PAIRS), atoms, model(*PAIRS.items()), 2)


@backends
@pytest.mark.parametrize("variant", VARIANTS)
def test_models(variant, backend):
    changes = VARIANTS[variant]
    check(engines(backend, 2, changes), random_crystal(120, "cubic"), model(*changes.items()))


@backends
def test_tensors_of_atoms_beyond_the_network_are_not_sent(backend):
    """Only their charges are needed."""
    atoms, made = random_crystal(120, "triclinic"), engines(backend, 3, FIELD)
    part = made[0].part()
    assert (part.tensor_reach, part.exchange_reach) == (3.0, 3.7)
    parts = divide(atoms, slabs(atoms, 3), part.exchange_reach, 3)
    together = ExchangingParts(made, atoms, parts, -1, 3, part.tensor_reach)
    for exchange in together.exchanges:
        assert exchange.n_near < exchange.n_rows - 3
        assert exchange.n_given_near < len(exchange.given)
    every = ExchangingParts(made, atoms, parts, -1).step(atoms)
    for found, expected in zip(together.step(atoms), every, strict=True):
        for name in ("forces", "virial", "atom_energies", "atom_virials"):
            given = getattr(found, name), getattr(expected, name)
            np.testing.assert_allclose(*given, rtol=1e-10, atol=1e-10, err_msg=name)


@backends
def test_tensors_that_are_missing_are_noticed(backend):
    atoms, made = random_crystal(120, "triclinic"), engines(backend, 2, FIELD)
    parts = divide(atoms, slabs(atoms, 2), 3.7, 2)
    for found in ExchangingParts(made, atoms, parts, near=2.0).step(atoms):
        assert not np.isfinite(found.energy)


@backends
@pytest.mark.parametrize("coulomb", [FIELD, MESH], ids=["reaction fields", "with a mesh"])
def test_ensembles(coulomb, backend):
    changes = FIELD | {"num_layers": 1}, coulomb
    members = Ensemble([charged_model(seed=k, **each) for k, each in enumerate(changes)])
    made = [Engine(members, "cpu", "float64", backend) for _ in range(2)]
    check(made, random_crystal(120, "cubic"), members)


@backends
@pytest.mark.parametrize("changes", [FIELD, MESH], ids=["reaction field", "mesh"])
def test_own_atoms_may_be_scattered(changes, backend):
    atoms, owners = random_crystal(120, "triclinic"), np.random.default_rng(0).integers(0, 4, 120)
    check(engines(backend, 4, changes), atoms, model(*changes.items()), owners=owners)


@backends
@pytest.mark.parametrize("changes", [FIELD, PAIRS], ids=["reaction field", "all pairs"])
def test_parts_without_atoms_are_not_waited_for(changes, backend):
    atoms = random_cluster(40)
    owners = 1 + 2 * slabs(atoms, 2)
    parts = check(engines(backend, 5, changes), atoms, model(*changes.items()), 1, owners)
    assert [part.n_own > 0 for part in parts] == [False, True, False, True, False]


@backends
def test_meshes_of_parts_without_atoms(backend):
    atoms = random_cluster(20)
    owners = 1 + 2 * slabs(atoms, 2)
    atoms.set_cell([30, 12, 12])
    atoms.pbc = True
    parts = check(engines(backend, 5, MESH), atoms, model(*MESH.items()), 1, owners)
    assert [part.n_own > 0 for part in parts] == [False, True, False, True, False]


@backends
@pytest.mark.parametrize("changes", [FIELD, PAIRS], ids=["reaction field", "all pairs"])
def test_atoms_far_apart_share_the_charge(changes, backend):
    """No part has a ghost, but charges depend on all atoms."""
    atoms = Atoms("COHN", [[0, 0, 0], [90, 0, 0], [90, 0.5, 0.8], [200, 0, 0]])
    owners = np.array([0, 1, 1, 2])
    parts = check(engines(backend, 3, changes), atoms, model(*changes.items()), -2, owners)
    assert [len(part.index) for part in parts] == [1, 2, 1]


@backends
def test_single_precision(backend):
    atoms = random_crystal(120, "cubic")
    check(engines(backend, 2, FIELD, torch.float32), atoms, model(*FIELD.items()))


@backends
def test_meshes_in_single_precision_are_as_exact_as_in_one_process(backend):
    atoms, made = random_crystal(120, "cubic"), engines(backend, 3, MESH, torch.float32)
    box = atoms.cell.array, atoms.pbc
    exact = Engine(model(*MESH.items()), "cpu", "float64", "exact")
    truth, one = (each.compute(atoms.numbers, atoms.positions, *box) for each in (exact, made[2]))
    parts = divide(atoms, slabs(atoms, 2), 4.6, 2)
    results = iter(ExchangingParts(made[:2], atoms, parts).step(atoms))
    sums = sum_of_parts(lambda *_: next(results), atoms, parts)
    for name in ("forces", "atom_energies"):
        value, of_one, of_parts = (np.asarray(getattr(e, name)) for e in (truth, one, sums))
        assert np.linalg.norm(of_parts - value) < 2 * np.linalg.norm(of_one - value), name


@backends
@pytest.mark.parametrize(
    ("changes", "reach"),
    [
        (FIELD, 3.7),
        (MESH, 4.6),
        (FIELD | {"coulomb_cutoff": 2.5}, 3.0),
        (NO_COULOMB, 3.0),
        (PAIRS, 3.0),
    ],
)
def test_ghosts_are_needed_within_the_longest_cutoff(changes, reach, backend):
    (engine,) = engines(backend, 1, changes)
    part = engine.part()
    assert part.exchange_reach == reach
    assert part.reach == np.inf


@backends
@pytest.mark.parametrize(
    "changes", [FIELD, PAIRS, MESH], ids=["reaction field", "all pairs", "mesh"]
)
def test_moving_atoms_give_the_bits_of_new_parts(changes, backend):
    """Neighbor lists of parts are rebuilt at different times."""
    atoms, made = random_cluster(40), engines(backend, 2, changes, torch.float32)
    if changes is MESH:
        atoms.set_cell([20, 20, 20])
        atoms.pbc = True
    parts = divide(atoms, slabs(atoms, 2), 5.5, 2)
    kept = ExchangingParts(made, atoms, parts)
    for seed in range(4):
        atoms.rattle(0.15, seed=seed)
        fresh = engines(backend, 2, changes, torch.float32)
        again = ExchangingParts(fresh, atoms, parts).step(atoms)
        for one, other in zip(kept.step(atoms), again, strict=True):
            for name in ("forces", "virial", "atom_energies", "atom_virials"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@backends
def test_charges_need_an_exchange(backend):
    (engine,) = engines(backend, 1, FIELD)
    part = engine.part()
    with pytest.raises(BackendError, match=r"not local: .* give set_atoms an exchange"):
        part.set_atoms([1, 1], 1, 2)
    part.set_atoms([1, 1], 0, 2)
    assert part.step([[0, 0, 0], [0, 0, 1]]).energy == 0
    part.set_atoms([1, 1], 2, 2, OwnImages(np.zeros(0, np.int32), 2))
    assert part.step([[0, 0, 0], [0, 0, 1]]).energy != 0


def test_the_backend_must_exchange():
    engine = Engine(charged_model(), "cpu", backend="exact")
    with pytest.raises(BackendError, match=r'not local: .* use device="cpu" with backend="cpu"'):
        engine.part()
