"""Parts of systems with charges: they exchange tensors and charges, and sum charges together."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import Ensemble, TensorNet2
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import OwnImages
from mlff_triton.errors import BackendError
from mlff_triton.model.config import ZBLConfig
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.charged import charged_model
from tests.support.exchanges import ExchangingParts
from tests.support.parts import Part, assert_whole, divide, slabs, sum_of_parts
from tests.support.tensornets import uncertain

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

ZBL = ZBLConfig(cutoff=4.5, prefactor=14.4, charges=(1.0, 5.5, 7.0, 0.0))
FIELD = {"num_layers": 2, "cutoff_upper": 3.0, "coulomb_cutoff": 3.7}
NO_COULOMB = {"num_layers": 2, "cutoff_upper": 3.0, "coulomb": False}
PAIRS = {"num_layers": 2, "cutoff_upper": 3.0}
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
def test_ensembles(backend):
    members = Ensemble([charged_model(seed=k, **FIELD | {"num_layers": 1 + k}) for k in range(2)])
    made = [Engine(members, "cpu", "float64", backend) for _ in range(2)]
    check(made, random_crystal(120, "cubic"), members)


@backends
def test_own_atoms_may_be_scattered(backend):
    atoms, owners = random_crystal(120, "triclinic"), np.random.default_rng(0).integers(0, 4, 120)
    check(engines(backend, 4, FIELD), atoms, model(*FIELD.items()), owners=owners)


@backends
@pytest.mark.parametrize("changes", [FIELD, PAIRS], ids=["reaction field", "all pairs"])
def test_parts_without_atoms_are_not_waited_for(changes, backend):
    atoms = random_cluster(40)
    owners = 1 + 2 * slabs(atoms, 2)
    parts = check(engines(backend, 5, changes), atoms, model(*changes.items()), 1, owners)
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
@pytest.mark.parametrize(
    ("changes", "reach"),
    [(FIELD, 3.7), (FIELD | {"coulomb_cutoff": 2.5}, 3.0), (NO_COULOMB, 3.0), (PAIRS, 3.0)],
)
def test_ghosts_are_needed_within_the_longest_cutoff(changes, reach, backend):
    (engine,) = engines(backend, 1, changes)
    part = engine.part()
    assert part.exchange_reach == reach
    assert part.reach == np.inf


@backends
@pytest.mark.parametrize("changes", [FIELD, PAIRS], ids=["reaction field", "all pairs"])
def test_moving_atoms_give_the_bits_of_new_parts(changes, backend):
    """Neighbor lists of parts are rebuilt at different times."""
    atoms, made = random_cluster(40), engines(backend, 2, changes, torch.float32)
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
