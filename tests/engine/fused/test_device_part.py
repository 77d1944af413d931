"""Parts of systems on a GPU: padding, shells and capacities must not show in any result.

As in `test_device_steps`, most tests compute the network in plain PyTorch if there is no GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.device_neighbors import Capacity
from mlff_triton.engine.device_part import DevicePart
from mlff_triton.engine.device_steps import DeviceSteps
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import PartAtoms, PartPrediction, reserved
from mlff_triton.errors import BackendError, InputError, OverlappingAtomsError, UnknownElementError
from mlff_triton.testing import assert_close, random_cluster
from tests.support.device_steps import CUTOFF, SKIN, Failing, batch_of, crystal, model, moved, truth
from tests.support.parts import Part, Step, assert_whole, divide, slabs, sum_of_parts

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

NAMES = ("forces", "virial", "atom_energies", "atom_virials", "uncertainty")


def whole(atoms: Atoms) -> Part:
    """Return all atoms as one part without ghosts."""
    return Part(np.arange(len(atoms)), np.zeros((len(atoms), 3)), len(atoms))


def set_atoms(device_part: DevicePart, atoms: Atoms, part: Part) -> None:
    device_part.set_atoms(PartAtoms.of(atoms.numbers[part.index], part.n_own, len(atoms)))


def run(device_part: DevicePart, atoms: Atoms, part: Part) -> PartPrediction:
    """Return copies of what a step predicts."""
    found = device_part.step(part.positions(atoms), per_atom=True)
    copies = {name: getattr(found, name).copy() for name in NAMES}
    return PartPrediction(found.energy, **copies)


def stepper(steps: DeviceSteps, atoms: Atoms) -> Step:
    device_part = steps.part(0.0)

    def step(part: Part, positions: np.ndarray) -> PartPrediction:
        set_atoms(device_part, atoms, part)
        return device_part.step(positions, per_atom=True)

    return step


def check(device_part: DevicePart, atoms: Atoms, part: Part) -> None:
    """Compare a part whose atoms have been set with the exact module."""
    found = run(device_part, atoms, part)
    assert_equal(found, on_host(atoms, part), exact=False)


def on_host(atoms: Atoms, part: Part) -> PartPrediction:
    system = truth().part()
    system.set_atoms(atoms.numbers[part.index], part.n_own, len(atoms))
    return system.step(part.positions(atoms), per_atom=True)


def assert_equal(found: PartPrediction, expected: PartPrediction, *, exact: bool = True) -> None:
    for name in NAMES:
        pair = getattr(found, name), getattr(expected, name)
        if exact:
            np.testing.assert_array_equal(*pair)
        else:
            assert_close(*pair, int(name != "atom_energies"), floor=1e-2)


def halves_of(atoms: Atoms, reach: float) -> list[Part]:
    return divide(atoms, slabs(atoms, 2), reach, 2)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "slab"])
def test_parts_add_up(new_steps, kind):
    steps, atoms = new_steps(), crystal(4, kind)
    parts = halves_of(atoms, steps.reach)
    expected = truth().evaluate(batch_of(atoms))
    assert_whole(sum_of_parts(stepper(steps, atoms), atoms, parts), expected)


def test_fused_kernels(fused, dtype):
    steps, atoms = fused(dtype), crystal(3, "triclinic")
    parts = halves_of(atoms, steps.reach)
    expected = truth().evaluate(batch_of(atoms))
    assert_whole(sum_of_parts(stepper(steps, atoms), atoms, parts), expected, dtype)


def test_two_layers(device):
    """Each layer computes fewer atoms than the one before."""
    backend = "triton-graph" if device == "cuda" else "triton"
    engine = Engine(model(2), device, "float64", backend)
    chain = Atoms(["C", "O"] * 8, np.outer(np.arange(16), [1.2, 1.0, 0.6]))  # 1.67 Å apart
    system, exact = engine.part(), Engine(model(2), "cpu", "float64", "exact").part()
    for each in (system, exact):
        each.set_atoms(chain.numbers, 2, 16)
    found, expected = (each.step(chain.positions, per_atom=True) for each in (system, exact))
    assert_close(found.energy, expected.energy, 0)
    assert_equal(found, expected, exact=False)
    hops = system._members[0]._buffers._state.neighbors._hops[1]
    assert hops[:4].tolist() == [2, 2, 2, 10]  # with the skin


def test_runs_agree_to_the_bit(new_steps):
    atoms = crystal(4, "cubic")
    part = halves_of(atoms, new_steps().reach)[0]
    results = []
    for _ in range(2):
        device_part = new_steps(torch.float32).part(0.0)
        set_atoms(device_part, atoms, part)
        results += [run(device_part, atoms, part) for _ in range(2)]
    for other in results[1:]:
        assert_equal(other, results[0])


def test_matrices_are_kept_while_they_hold(new_steps):
    steps, atoms = new_steps(), crystal(4, "cubic")
    part, device_part = halves_of(atoms, steps.reach + 1.0)[0], steps.part(0.0)
    set_atoms(device_part, atoms, part)
    check(device_part, atoms, part)
    rng = np.random.default_rng(0)
    for _ in range(3):
        check(device_part, moved(atoms, rng.uniform(-0.07, 0.07, (4, 3))), part)
    assert steps.n_builds == 1
    check(device_part, moved(atoms, SKIN * np.eye(4)[:, :3]), part)
    assert steps.n_builds == 2


def test_new_atoms_in_the_same_buffers(new_steps):
    """Another matrix is built, but no other shells, so that a CUDA graph can stay."""
    steps, atoms = new_steps(), random_cluster(40)
    device_part = steps.part(0.0)
    parts = divide(atoms, slabs(atoms, 2), steps.reach, 2)
    set_atoms(device_part, atoms, parts[0])
    check(device_part, atoms, parts[0])
    buffers, layout = device_part._buffers, device_part._buffers._state.neighbors.layout
    index = parts[0].index[:-2]  # two ghosts less
    fewer = Part(index, parts[0].offsets[:-2], parts[0].n_own)
    set_atoms(device_part, atoms, fewer)
    check(device_part, atoms, fewer)
    assert device_part._buffers is buffers
    assert buffers._state.neighbors.layout == layout
    assert steps.n_builds == 2


@pytest.mark.slow
def test_shells_that_outgrow_their_rows(new_steps):
    """Ghosts come closer, so that the first shell gets more atoms."""
    steps = new_steps()
    index = np.arange(90)
    grid = np.stack([1.1 * (index % 10), 1.1 * (index // 10), 9.0 * (index >= 30)], axis=1)
    atoms = Atoms(["O"] * 90, grid)  # most atoms are too far away
    part, device_part = Part(index, np.zeros((90, 3)), 30), steps.part(0.0)
    set_atoms(device_part, atoms, part)
    check(device_part, atoms, part)
    sizes = device_part._buffers._state.neighbors.sizes
    atoms.positions[30:, 2] = 1.5
    check(device_part, atoms, part)
    grown = device_part._buffers._state.neighbors.sizes
    assert grown[1] > sizes[1]
    atoms.positions[30:, 2] = 9.0  # a shell with too many rows does not matter
    check(device_part, atoms, part)
    assert device_part._buffers._state.neighbors.sizes == grown


def test_rows_shrink_with_the_number_of_own_atoms(new_steps):
    steps, atoms = new_steps(), random_cluster(60)
    device_part, every = steps.part(0.0), whole(atoms)
    for n_own in (60, 20, 60):
        part = every._replace(n_own=n_own)
        set_atoms(device_part, atoms, part)
        check(device_part, atoms, part)
        assert device_part._buffers._state.neighbors.sizes[0] == reserved(n_own)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(5, 120, 5), (120, 30, 120)])
def test_other_numbers_of_atoms(new_steps, sizes):
    steps = new_steps()
    device_part = steps.part(0.0)
    for size in sizes:
        atoms = random_cluster(size, min_distance=1.8)
        set_atoms(device_part, atoms, whole(atoms))
        check(device_part, atoms, whole(atoms))
        assert size < device_part._buffers.n_rows <= 2 * (reserved(size) + 64)


def test_rows_too_short_lose_nothing(new_steps):
    steps = new_steps(capacity=Capacity(first=2, multiple=1))
    atoms = random_cluster(20)
    device_part = steps.part(0.0)
    set_atoms(device_part, atoms, whole(atoms))
    check(device_part, atoms, whole(atoms))
    squeezed = Atoms(atoms.numbers, 0.8 * atoms.positions)
    check(device_part, squeezed, whole(atoms))


def test_bad_positions_are_named(new_steps):
    steps, atoms = new_steps(), random_cluster(7)
    device_part = steps.part(0.0)
    set_atoms(device_part, atoms, whole(atoms))
    for value in (np.nan, np.inf):
        broken = atoms.copy()
        broken.positions[3, 1] = value
        with pytest.raises(InputError, match="the position of atom 3 is NaN or infinite"):
            run(device_part, broken, whole(atoms))
    broken.positions[3] = broken.positions[5]
    with pytest.raises(OverlappingAtomsError, match=r"atoms \[3, 5\] have come to the same point"):
        run(device_part, broken, whole(atoms))
    check(device_part, atoms, whole(atoms))
    with pytest.raises(UnknownElementError):
        device_part.set_atoms(PartAtoms.of([8, 92], 2, 2))


def test_contacts_are_told_of(new_steps):
    """They end nothing, and matter neither to padding nor to atoms that come later."""
    steps, atoms = new_steps(), random_cluster(9, min_distance=1.0)
    device_part, part = steps.part(0.0), whole(atoms)
    distances = atoms.get_all_distances() + 9 * np.eye(9)
    for factor, has_contacts in ((0.51, True), (0.49, False)):
        limits = np.full(9, factor * distances.min())
        device_part.set_atoms(PartAtoms.of(atoms.numbers, 9, 9, limits=limits))
        found = device_part.step(part.positions(atoms), per_atom=False)
        assert found.has_contacts is has_contacts
        assert_close(found.forces[:9], on_host(atoms, part).forces, 1)
    i, j = np.unravel_index(distances.argmin(), distances.shape)
    for fraction, has_contacts in ((0.1, True), (0.0, False)):  # with the same matrix
        closer = atoms.copy()
        closer.positions[j] += fraction * (atoms.positions[i] - atoms.positions[j])
        found = device_part.step(part.positions(closer), per_atom=False)
        assert found.has_contacts is has_contacts
    assert steps.contact_reach == CUTOFF


def test_atoms_far_from_the_origin(new_steps):
    """Padding lies in a system of its own, so that atoms may be where it is."""
    steps, atoms = new_steps(), random_cluster(9)
    device_part, part = steps.part(0.0), whole(atoms)
    set_atoms(device_part, atoms, part)
    expected = run(device_part, atoms, part)
    padding = device_part._buffers._padding[-1]
    assert_equal(run(device_part, moved(atoms, padding), part), expected, exact=False)
    assert_equal(run(device_part, moved(atoms, -1e6), part), expected, exact=False)


def test_too_little_memory_says_what_is_needed(new_steps):
    failing: list[Failing] = []

    def wrap(operators):
        failing.append(Failing(operators))
        return failing[0]

    steps, atoms = new_steps(wrap=wrap), random_cluster(5)
    device_part = steps.part(0.0)
    set_atoms(device_part, atoms, whole(atoms))
    with pytest.raises(BackendError, match=r"CUDA out of memory: 5 atoms need about .* GiB"):
        run(device_part, atoms, whole(atoms))
    failing[0].failing = False
    check(device_part, atoms, whole(atoms))
