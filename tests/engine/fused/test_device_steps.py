"""Steps that stay on a GPU: results must not depend on earlier calls.

Without a GPU, Triton's interpreter runs the kernels of the neighbor matrix and of the edges, and in
a few tests those of the network. All other tests are about the neighbor matrix, and compute the
network in plain PyTorch there.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.device_neighbors import Capacity
from mlff_triton.engine.device_steps import step_memory
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import BackendError, InputError, OverlappingAtomsError, UnknownElementError
from mlff_triton.kernels.neighbors.neighbor_list import build_rows
from mlff_triton.model.prediction import Prediction
from mlff_triton.testing import assert_close, random_cluster
from tests.support.device_steps import (
    CUTOFF,
    ORDERS,
    SKIN,
    Failing,
    Recording,
    assert_equal,
    assert_true,
    batch_of,
    check,
    crystal,
    model,
    moved,
    squeezed,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

ROOT = Path(__file__).resolve().parents[3]


def test_engines_agree_with_the_exact_module(device, dtype):
    backend = "triton-graph" if device == "cuda" else "triton"
    engine = Engine(model(2), device, dtype, backend)
    exact = Engine(model(2), "cpu", "float64", "exact")
    atoms = random_cluster(2)
    found = engine.compute(atoms.numbers, atoms.positions, charge=1)
    assert {t.device.type for t in found.tensors.values()} == {device}
    expected = exact.compute(atoms.numbers, atoms.positions, charge=1)
    for name, order in ORDERS.items():
        assert_close(getattr(found, name), getattr(expected, name), order, dtype)


def test_results_do_not_depend_on_when_rows_were_built(new_steps, device):
    """They agree to the bit, although the matrix numbers atoms by their positions when built."""
    atoms = crystal(16, "cubic")  # two bins: an atom that moves to the other changes the order
    atoms.set_cell([7.2, 6.0, 6.0], scale_atoms=True)
    atoms.wrap()
    first = int(np.argmin(np.abs(atoms.positions[:, 0] - 3.6)))
    atoms.positions[first, 0] = 3.55
    later = moved(atoms, np.where(np.arange(16)[:, None] == first, [0.1, 0.0, 0.0], 0.0))
    veteran, novice = new_steps(torch.float32), new_steps(torch.float32)
    veteran.evaluate(batch_of(atoms))
    batch = batch_of(later)
    kept, fresh = veteran.evaluate(batch), novice.evaluate(batch)
    assert veteran.n_builds == novice.n_builds == 1
    assert not torch.equal(*(order_of(a, device) for a in (atoms, later)))
    assert_equal(kept, fresh)
    assert_true(kept, batch, torch.float32)


def order_of(atoms: Atoms, device: str) -> torch.Tensor:
    """Return the order in which a neighbor matrix of these positions numbers the atoms."""
    arrays = atoms.positions, atoms.cell.array[None], atoms.pbc[None], np.zeros(len(atoms), int)
    tensors = (torch.tensor(array, device=device) for array in arrays)
    return build_rows(*tensors, CUTOFF + SKIN, 64).order


def test_runs_agree_to_the_bit(fused):
    batch = batch_of(random_cluster(2), Atoms("C"))
    steps = fused(torch.float32)
    first, second = steps.evaluate(batch), steps.evaluate(batch)
    assert_equal(first, second)
    assert_equal(fused(torch.float32).evaluate(batch), first)


def test_rows_are_kept_while_they_hold(new_steps):
    steps, atoms = new_steps(), random_cluster(7)
    rng = np.random.default_rng(0)
    check(steps, atoms)
    for _ in range(3):
        check(steps, moved(atoms, rng.uniform(-0.07, 0.07, (7, 3))))  # at most 0.121 Å
    assert steps.n_builds == 1


def test_rows_are_built_anew_when_atoms_have_moved(new_steps):
    steps = new_steps()
    for step, distance in enumerate((4.0, 3.6, 2.9, 2.0, 5.0)):
        check(steps, Atoms("CO", [[0, 0, 0], [0, 0, distance]]))
        assert steps.n_builds == step + 1


@pytest.mark.parametrize("distance", [3.01, 2.99])
def test_no_pair_slips_in_unseen(new_steps, distance):
    """Both atoms move as far as they may, from just outside the skin."""
    steps = new_steps()
    check(steps, Atoms("CO", [[0, 0, 0], [0, 0, 3.501]]))
    approach = (3.501 - distance) / 2
    check(steps, Atoms("CO", [[0, 0, approach], [0, 0, 3.501 - approach]]))
    assert steps.n_builds == 1 + (approach > SKIN / 2)


def test_a_cell_that_changes_a_little_needs_no_new_rows(new_steps):
    steps, atoms = new_steps(), crystal(6, "triclinic")
    shear = np.array([[0, 0.01, 0], [0, 0, -0.01], [0, 0, 0]])
    for strain in (np.zeros((3, 3)), -0.02 * np.eye(3), 0.05 * np.eye(3), shear):
        check(steps, squeezed(atoms, strain))
    assert steps.n_builds == 1


@pytest.mark.parametrize("kind", ["small", "rod"])
def test_a_cell_that_changes_much_does(new_steps, kind):
    steps, atoms = new_steps(), crystal(3, kind)
    for strain in (0.0, -0.2):
        check(steps, squeezed(atoms, strain * np.eye(3)))
    assert steps.n_builds == 2


def test_a_cell_may_change_around_its_atoms(new_steps):
    steps, atoms = new_steps(), crystal(3, "triclinic")
    for factor in (1.0, 1.02, 1.3):
        stretched = atoms.copy()
        stretched.set_cell(atoms.cell.array * factor)
        check(steps, stretched)


def test_periodic_directions_may_change(new_steps):
    steps, atoms = new_steps(), crystal(3, "triclinic")
    for pbc in (True, [True, True, False], False, True):
        atoms.pbc = pbc
        check(steps, atoms)
    assert steps.n_builds == 4


def test_atoms_may_lie_outside_their_cell(new_steps):
    atoms = crystal(5, "triclinic")
    images = np.array([[0, 0, 0], [3, 0, -1], [0, -20, 0], [1, 1, 1], [0, 0, 40]])
    check(new_steps(), moved(atoms, images @ atoms.cell.array))


def test_rows_too_short_lose_nothing(new_steps):
    """Atoms collapse: at each step there are more neighbors than slots."""
    steps = new_steps(wrap=Recording, capacity=Capacity(first=4, multiple=4))
    atoms, capacities = random_cluster(14), []
    for scale in (3.0, 1.3, 0.6, 3.0):
        check(steps, Atoms(atoms.numbers, scale * atoms.positions))
        capacities.append(steps.operators.capacities[-1])
    assert capacities[0] == 4 < capacities[1] < capacities[2] == capacities[3]


def test_composition_may_change(new_steps):
    steps, atoms = new_steps(), random_cluster(6)
    for symbols in ("CHNOCH", "OOOOOO", "CHNOCH"):
        atoms.set_chemical_symbols(list(symbols) if symbols.isupper() else symbols)
        check(steps, atoms)


def test_charges_may_change(new_steps):
    steps, atoms = new_steps(), random_cluster(5)
    for charge in (0, 2, -1):
        check(steps, atoms, charge=charge)


def test_systems_may_be_divided_anew(new_steps):
    steps, atoms = new_steps(), random_cluster(6)
    for first in (2, 4, 1):
        check(steps, atoms[:first], atoms[first:], charge=[1, 0])


def test_batches(new_steps):
    steps = new_steps()
    for shift in (0.0, 0.5):
        systems = [
            random_cluster(4),
            Atoms("C"),
            crystal(2, "small"),
            crystal(3, "slab"),
            Atoms("CO", [[0, 0, 0], [50, 0, 0]]),
        ]
        systems[3] = moved(systems[3], np.array([[shift, 0, 0], [0, 0, 0], [0, 0, -shift]]))
        check(steps, *systems, charge=[1, 0, -2, 0, 1])
    assert steps.n_builds == 2


def test_one_system_of_a_batch_makes_rows_stale(new_steps):
    steps = new_steps()
    pairs = [Atoms("CO", [[0, 0, 0], [0, 0, 1.5]]), Atoms("CO", [[0, 0, 0], [0, 0, 3.6]])]
    check(steps, *pairs)
    check(steps, pairs[0], Atoms("CO", [[0, 0, 0], [0, 0, 2.0]]))
    assert steps.n_builds == 2


def test_several_sizes_in_turn(new_steps):
    """Buffers of the two sizes used last are kept, with their neighbor matrix."""
    steps, builds = new_steps(kept_sizes=2), []
    for n_atoms in (1, 2, 3, 1, 3, 2, 2):
        check(steps, random_cluster(n_atoms))
        builds.append(steps.n_builds)
    assert builds == [1, 2, 3, 4, 4, 5, 5]


def test_without_a_skin_rows_always_hold(new_steps):
    steps, atoms = new_steps(skin=0.0), crystal(3, "slab")
    rng = np.random.default_rng(0)
    for scale in (0.0, 0.3):
        check(steps, moved(atoms, rng.uniform(-scale, scale, (3, 3))))


def test_results_are_copies(new_steps):
    steps, atoms = new_steps(), random_cluster(4)
    first = steps.evaluate(batch_of(atoms))
    kept = {name: tensor.clone() for name, tensor in first.tensors.items()}
    second = steps.evaluate(batch_of(moved(atoms, [[0.1, 0, 0]] + [[0, 0, 0]] * 3)))
    assert not torch.equal(second.forces, first.forces)
    assert_equal(first, Prediction(**kept))


def test_contacts_are_told_of(new_steps):
    """Steps of the same size that were run before and after without limits do not change."""
    steps, atoms = new_steps(), crystal(4, "triclinic")
    batch, nearest = batch_of(atoms), atoms.get_all_distances(mic=True) + 9 * np.eye(4)
    check(steps, atoms)
    for factor, expected in ((0.49, False), (0.51, True), (0.3, False)):
        found, has_contacts = steps.watch(batch, np.full(4, factor * nearest.min()))
        assert has_contacts is expected
        assert_true(found, batch)
    limits = np.zeros(4)
    assert not steps.watch(batch, limits)[1]
    limits = limits + nearest.max()
    assert steps.watch(batch, limits)[1]
    check(steps, atoms)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_contacts_of_atoms_that_are_nowhere(new_steps, value):
    """Positions are not checked before, whether a matrix is built or not."""
    steps, atoms = new_steps(), crystal(4, "cubic")
    batch, lost = batch_of(atoms), atoms.positions.copy()
    lost[2, 1] = value
    for _ in range(2):
        with pytest.raises(InputError, match="the position of atom 2 is NaN or infinite"):
            steps.watch(replace(batch, positions=lost), np.zeros(4))
        assert_true(steps.watch(batch, np.zeros(4))[0], batch)


def test_prepared_steps(new_steps):
    steps, batch = new_steps(), batch_of(random_cluster(4))
    run = steps.prepare(batch)
    for _ in range(2):
        found = run().map(torch.Tensor.cpu)
        assert_true(found, batch)


def broken(batch: Batch, atom: int, value: float) -> Batch:
    """Return a batch with an invalid position, past the checks of `Batch`."""
    positions = batch.positions.copy()
    positions[atom, 1] = value
    return Batch(batch.numbers, positions, batch.boxes, batch.system, batch.charge)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_atoms_that_are_nowhere_are_named(new_steps, value):
    steps, good = new_steps(), batch_of(random_cluster(3), random_cluster(2, seed=1))
    expected = steps.evaluate(good)
    with pytest.raises(InputError, match=r"atom 3 is NaN or infinite \(1 such atoms\)"):
        steps.evaluate(broken(good, 3, value))
    assert_equal(steps.evaluate(good), expected)


def test_atoms_that_are_nowhere_from_the_first(new_steps):
    good = batch_of(crystal(3, "triclinic"))
    steps = new_steps()
    with pytest.raises(InputError, match=r"not finite|NaN or infinite"):
        steps.evaluate(broken(good, 1, np.nan))
    assert_true(steps.evaluate(good), good)


def test_atoms_at_one_point_are_named(new_steps):
    steps = new_steps()
    apart, together = (
        batch_of(Atoms("HCO", [[-1, 0, 0], [0, 0, 0], [0, 0, z]])) for z in (1.2, 1e-4)
    )
    for _ in range(2):
        with pytest.raises(
            OverlappingAtomsError, match=r"atoms \[1, 2\] have come to the same point"
        ):
            steps.evaluate(together)
        assert_true(steps.evaluate(apart), apart)


def test_atoms_at_one_point_in_rows_that_hold(new_steps):
    steps = new_steps()
    near, at_once = (batch_of(Atoms("CO", [[0, 0, 0], [0, 0, z]])) for z in (0.2, 0.0))
    expected = steps.evaluate(near)
    with pytest.raises(OverlappingAtomsError, match=r"atoms \[0, 1\]"):
        steps.evaluate(at_once)
    assert steps.n_builds == 1
    assert_equal(steps.evaluate(near), expected)


def test_refused_systems_leave_no_trace(new_steps):
    steps, atoms = new_steps(), crystal(3, "triclinic")
    good = batch_of(atoms)
    expected = steps.evaluate(good)
    strange = atoms.copy()
    strange.numbers[1] = 79
    with pytest.raises(UnknownElementError, match="does not know Au"):
        steps.evaluate(batch_of(strange))
    assert_equal(steps.evaluate(good), expected)
    with pytest.raises(InputError, match="too far outside their cell"):
        steps.evaluate(batch_of(moved(atoms, [[1e5, 0, 0], [0, 0, 0], [0, 0, 0]])))
    assert_equal(steps.evaluate(good), expected)
    tiny = atoms.copy()
    tiny.set_cell(atoms.cell.array * 1e-3)
    with pytest.raises(InputError, match="check its units"):
        steps.evaluate(batch_of(tiny))
    assert_equal(steps.evaluate(good), expected)


@pytest.mark.parametrize("skin", [-1.0, np.nan, np.inf])
def test_impossible_skins_are_refused(new_steps, skin):
    with pytest.raises(InputError, match="skin must be finite and not negative"):
        new_steps(skin=skin).evaluate(batch_of(random_cluster(2)))


@pytest.mark.parametrize("n_atoms", ["16384", "65536", "1000000"])
def test_memory_is_what_was_measured(n_atoms):
    """The estimate agrees with the measurements in ``benchmarks/results``."""
    with (ROOT / "benchmarks" / "results" / "step.csv").open(newline="") as file:
        rows = {row["case"]: row for row in csv.DictReader(file) if row["impl"] == "engine"}
    measured = float(rows[n_atoms]["peak_mib"]) * 2**20
    stated = step_memory(int(n_atoms), channels=128, layers=2, dtype=torch.float32)
    assert stated == pytest.approx(measured, rel=0.1)


def test_too_little_memory_says_what_is_needed(new_steps):
    steps, atoms = new_steps(wrap=Failing), crystal(3, "cubic")
    with pytest.raises(BackendError, match=r"3 atoms need about .* GiB of GPU memory"):
        steps.evaluate(batch_of(atoms))
    steps.operators.failing = False
    check(steps, atoms)
