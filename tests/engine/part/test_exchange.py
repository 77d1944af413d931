"""Parts that exchange tensors of atoms at their borders, instead of computing their ghosts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import OwnImages
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import random_cluster, random_crystal
from tests.support.exchanges import ExchangingParts
from tests.support.parts import Part, assert_whole, divide, slabs, sum_of_parts
from tests.support.tensornets import ZBL, model_of, uncertain

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

SMALL = {"hidden_channels": 16, "num_rbf": 6, "cutoff_upper": 3.0}
VARIANTS = {
    "one layer": {"num_layers": 1},
    "three layers": {"num_layers": 3, "cutoff_upper": 2.0},
    "SO(3), gated": {"group": "SO(3)", "head": "gated", "readout_activation": False},
    "nuclear repulsion": {"zbl": ZBL},
    "nuclear repulsion, farther than the network": {"zbl": replace(ZBL, cutoff=4.0)},
}
backends = pytest.mark.parametrize("backend", ["cpu", "torch"])


@cache
def model(variant: str = "") -> TensorNet:
    return uncertain(model_of(**{**SMALL, **VARIANTS.get(variant, {})}))


def engines(
    backend: str, n_parts: int, variant: str = "", dtype: torch.dtype = torch.float64
) -> list[Engine]:
    """Return an engine per part, as one computes a part at a time."""
    return [Engine(model(variant), "cpu", dtype, backend) for _ in range(n_parts)]


def check(
    made: list[Engine], atoms: Atoms, owners: np.ndarray | None = None, variant: str = ""
) -> list[Part]:
    """Assert that parts add up to what the exact module finds, and return them."""
    n_parts = len(made)
    owners = slabs(atoms, n_parts) if owners is None else owners
    reach = made[0].part().exchange_reach
    assert reach is not None
    parts = divide(atoms, owners, reach, n_parts)
    found = ExchangingParts(made, atoms, parts).step(atoms)
    results = iter(found)
    sums = sum_of_parts(lambda *_: next(results), atoms, parts)
    exact = Engine(model(variant), "cpu", "float64", "exact")
    whole = exact.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    assert_whole(sums, whole, made[0].dtype)
    return parts


@backends
@pytest.mark.parametrize("n_parts", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cubic", "triclinic", "slab", "small"])
def test_parts_of_crystals_add_up(kind, n_parts, backend):
    check(engines(backend, n_parts), random_crystal(10, kind))


@backends
@pytest.mark.parametrize("variant", VARIANTS)
def test_models(variant, backend):
    check(engines(backend, 2, variant), random_crystal(8, "triclinic"), variant=variant)


@backends
def test_own_atoms_may_be_scattered(backend):
    atoms = random_crystal(12, "cubic")
    check(engines(backend, 4), atoms, np.random.default_rng(0).integers(0, 4, 12))


@backends
def test_parts_without_atoms_take_no_part(backend):
    atoms = random_cluster(40)
    parts = check(engines(backend, 3), atoms, 2 * (slabs(atoms, 2)))
    assert [part.n_own > 0 for part in parts] == [True, False, True]


@backends
def test_single_precision(backend):
    check(engines(backend, 2, dtype=torch.float32), random_crystal(10, "cubic"))


@backends
def test_ghosts_are_needed_within_one_cutoff(backend):
    atoms, (engine,) = random_crystal(10, "cubic"), engines(backend, 1)
    part = engine.part()
    assert part.exchange_reach == SMALL["cutoff_upper"]
    assert part.reach == 3 * SMALL["cutoff_upper"]
    fewer, enough, more = (
        ExchangingParts([engine], atoms, divide(atoms, slabs(atoms, 1), r, 1)).step(atoms)[0]
        for r in (2.5, 3.0, 4.0)
    )
    assert enough.energy == pytest.approx(more.energy, abs=1e-9)
    assert enough.energy != pytest.approx(fewer.energy, abs=1e-6)


@backends
def test_moving_atoms_give_the_bits_of_new_parts(backend):
    """Neighbor lists of parts are rebuilt at different times."""
    atoms, made = random_crystal(10, "cubic"), engines(backend, 2, dtype=torch.float32)
    parts = divide(atoms, slabs(atoms, 2), 4.5, 2)
    kept = ExchangingParts(made, atoms, parts)
    for seed in range(4):
        atoms.rattle(0.15, seed=seed)
        again = ExchangingParts(engines(backend, 2, dtype=torch.float32), atoms, parts).step(atoms)
        for one, other in zip(kept.step(atoms), again, strict=True):
            for name in ("forces", "virial", "atom_energies", "atom_virials"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_the_backend_must_exchange():
    part = Engine(model_of(**SMALL), "cpu", backend="exact").part()
    assert part.exchange_reach is None
    with pytest.raises(BackendError, match="compute their ghosts"):
        part.set_atoms([1, 1], 1, 1, OwnImages(np.zeros(1, np.int32), 1))


@backends
def test_rows_without_a_ghost_do_not_matter(backend):
    """Messages have a reserve where their sizes should last."""
    atoms, made = random_crystal(10, "cubic"), engines(backend, 2)
    parts = divide(atoms, slabs(atoms, 2), SMALL["cutoff_upper"], 2)
    found = [ExchangingParts(made, atoms, parts, unused=n).step(atoms) for n in (0, 3)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.forces, other.forces)
        assert one.energy == other.energy


@pytest.mark.parametrize(
    ("rows", "n_rows"),
    [([], 1), ([0, 0], 1), ([-1], 1), ([2], 2), ([0], 0)],
    ids=["none", "too many", "negative", "beyond the last", "fewer than own atoms"],
)
def test_rows_must_fit_ghosts(rows, n_rows):
    part = engines("cpu", 1)[0].part()
    with pytest.raises(InputError, match=r"needs one of its .* rows for each ghost"):
        part.set_atoms([1, 1], 1, 2, OwnImages(np.array(rows, np.int32), n_rows))


def test_only_own_atoms_are_given():
    part, exchange = engines("cpu", 1)[0].part(), OwnImages(np.array([0], np.int32), 1)
    object.__setattr__(exchange, "given", np.array([1], np.int32))
    with pytest.raises(InputError, match="gives own atoms"):
        part.set_atoms([1, 1], 1, 2, exchange)
