"""The conformance checks, one small function each.

A check passes if the calculator does what the first line of its docstring says. It raises
`AssertionError` if not, and `NotApplicable` if the check makes no sense for the calculator or the
atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton.testing.case import (
    Case,
    NotApplicable,
    assert_identical,
    compute,
    labeled,
    require,
    require_property,
)
from mlff_triton.testing.derivatives import (
    VOIGT,
    finite_difference_forces,
    finite_strain_stress,
    transformed,
)
from mlff_triton.testing.settings import CALLER_SETTINGS, random_states
from mlff_triton.testing.structures import random_rotation
from mlff_triton.testing.tolerances import (
    FINITE_DIFFERENCES,
    assert_close,
    assert_within,
    expect,
    tolerance,
)

Check = Callable[[Case], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Add a function to `CHECKS`."""
    CHECKS[function.__name__] = function
    return function


@check
def energy_is_a_float(case: Case) -> None:
    """Expect the energy to be one finite Python or NumPy float."""
    energy = case.make_calculator().get_potential_energy(case.atoms.copy())
    expect(isinstance(energy, float | np.floating), f"it is of type {type(energy).__name__}")
    expect(bool(np.isfinite(energy)), f"it is {energy}")


@check
def energy_is_extensive(case: Case) -> None:
    """Expect each copy of neutral atoms, far away or in the next cell, to add the same energy."""
    atoms = case.atoms.copy()
    atoms.info.pop("charge", None)
    energy = case.make_calculator().get_potential_energy
    one, two, three = (energy(_copies(atoms, n)) for n in (1, 2, 3))
    assert_close(three - two, two - one, 0, case.dtype, floor=3 * len(atoms))


def _copies(atoms: Atoms, n_copies: int) -> Atoms:
    if atoms.pbc.any():
        along = np.arange(3) == atoms.pbc.argmax()
        copies: Atoms = atoms.repeat(np.where(along, n_copies, 1))
        return copies
    distance = np.ptp(atoms.positions[:, 0]) + 100.0
    copies = Atoms()
    for i in range(n_copies):
        copy = atoms.copy()
        copy.positions[:, 0] += i * distance
        copies += copy
    return copies


@check
def forces_match_energy(case: Case) -> None:
    """Expect forces to be the negative derivative of the energy with respect to positions."""
    step, relative = FINITE_DIFFERENCES[case.dtype]
    energy = case.make_calculator().get_potential_energy
    expected = finite_difference_forces(energy, case.atoms, step)
    forces = case.make_calculator().get_forces(case.atoms.copy())
    assert_within(forces, expected, relative, floor=1.0)


@check
def forces_sum_to_zero(case: Case) -> None:
    """Expect the net force to be zero."""
    forces = case.make_calculator().get_forces(case.atoms.copy())
    scale = max(1.0, float(np.abs(forces).max())) * np.sqrt(len(forces))
    assert_close(forces.sum(axis=0), np.zeros(3), 1, case.dtype, floor=scale)


@check
def stress_matches_energy(case: Case) -> None:
    """Expect the stress to be the strain derivative of the energy, in ASE's order and sign.

    A calculator may have no stress for partly periodic atoms.
    """
    require_property(case, "stress")
    require(bool(case.atoms.pbc.any()), "the atoms are not periodic")
    results = case.results(case.atoms.copy())
    if not case.atoms.pbc.all():
        require("stress" in results, "the calculator has no stress for partly periodic atoms")
    expect("stress" in results, "there is no stress")
    step, relative = FINITE_DIFFERENCES[case.dtype]
    energy = case.make_calculator().get_potential_energy
    expected = finite_strain_stress(energy, case.atoms, step)
    floor = len(case.atoms) / case.atoms.get_volume()
    assert_within(results["stress"], expected, relative, floor=floor)


@check
def stress_needs_a_cell(case: Case) -> None:
    """Expect the stress of atoms without a cell to raise ASE's `PropertyNotImplementedError`."""
    require_property(case, "stress")
    atoms = case.atoms.copy()
    atoms.pbc, atoms.cell = False, None
    expect("stress" not in case.results(atoms), "there is a stress in vacuum")


@check
def atom_energies_add_up(case: Case) -> None:
    """Expect one energy per atom; these must add up to the energy."""
    require_property(case, "energies")
    results = case.results(case.atoms.copy())
    shape = results["energies"].shape
    expect(shape == (len(case.atoms),), f"their shape is {list(shape)}")
    total = results["energies"].sum()
    assert_close(total, results["energy"], 0, case.dtype, floor=len(case.atoms))


@check
def free_energy_is_energy(case: Case) -> None:
    """Expect the free energy to equal the energy, without electronic entropy."""
    require_property(case, "free_energy")
    results = case.results(case.atoms.copy())
    assert_close(results["free_energy"], results["energy"], 0)


@check
def rotation_turns_results(case: Case) -> None:
    """Expect forces and stress to rotate with atoms and cell, and energies not to change."""
    turn = random_rotation(np.random.default_rng(0))
    expected = case.results(case.atoms.copy())
    expected["forces"] = expected["forces"] @ turn
    if "stress" in expected:
        stress = np.empty((3, 3))
        for (i, j), value in zip(VOIGT, expected["stress"], strict=True):
            stress[i, j] = stress[j, i] = value
        stress = turn.T @ stress @ turn
        expected["stress"] = np.array([stress[index] for index in VOIGT])
    case.assert_same(case.results(transformed(case.atoms, turn)), expected)


@check
def translation_changes_nothing(case: Case) -> None:
    """Expect the same results after a translation of all atoms."""
    moved = case.atoms.copy()
    moved.positions += (3.1, -17.7, 40.3)
    case.assert_same(case.results(moved), case.results(case.atoms.copy()))


@check
def permutation_permutes_results(case: Case) -> None:
    """Expect results to be permuted like the atoms, and not to change otherwise."""
    order = np.random.default_rng(0).permutation(len(case.atoms))
    expected = case.results(case.atoms.copy())
    for name in expected.keys() & {"forces", "energies"}:
        expected[name] = expected[name][order]
    case.assert_same(case.results(case.atoms[order]), expected)


@check
def images_are_the_same(case: Case) -> None:
    """Expect the same results for any periodic image of an atom."""
    require(bool(case.atoms.pbc.any()), "the atoms are not periodic")
    moved = case.atoms.copy()
    steps = np.random.default_rng(0).integers(-2, 3, size=(len(moved), 3)) * moved.pbc
    moved.positions += steps @ moved.cell.array
    case.assert_same(case.results(moved), case.results(case.atoms.copy()))


@check
def results_are_cached(case: Case) -> None:
    """Expect equal atoms to be computed only once."""
    calculator, n_calls = case.make_calculator(), 0
    calculate = calculator.calculate

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        calculate(*args, **kwargs)

    vars(calculator)["calculate"] = counted
    first = compute(calculator, case.atoms.copy())
    require(n_calls > 0, "the calculator does not compute in calculate()")
    n_calls, equal = 0, case.atoms.copy()
    second = {name: np.array(calculator.get_property(name, equal)) for name in first}
    expect(n_calls == 0, f"calculate() was called {n_calls} times for the same atoms")
    assert_identical(second, first)


@check
def changes_are_noticed(case: Case) -> None:
    """Expect, after any input is changed in place, exactly the results of a new calculator.

    If a new calculator refuses the changed input, the old one must refuse it too.
    """
    for name, change in CHANGES.items():
        calculator, atoms = case.make_calculator(), case.atoms.copy()
        compute(calculator, atoms)
        change(atoms)
        with labeled(f"after a change of the {name}"):
            if _raises(case.make_calculator(), atoms):
                expect(_raises(calculator, atoms), "the old results were returned")
            else:
                assert_identical(compute(calculator, atoms), case.results(atoms))


def _change_positions(atoms: Atoms) -> None:
    atoms.positions[0] += 1e-5


def _change_numbers(atoms: Atoms) -> None:
    atoms.numbers[:] = np.roll(atoms.numbers, 1)


def _change_cell(atoms: Atoms) -> None:
    atoms.cell *= 1.01


def _change_periodicity(atoms: Atoms) -> None:
    atoms.pbc[:] = False


def _change_charge(atoms: Atoms) -> None:
    atoms.info["charge"] = atoms.info.get("charge", 0) + 1


CHANGES: dict[str, Callable[[Atoms], None]] = {
    "positions": _change_positions,
    "atomic numbers": _change_numbers,
    "cell": _change_cell,
    "periodicity": _change_periodicity,
    "charge": _change_charge,
}


@check
def other_atoms_leave_no_trace(case: Case) -> None:
    """Expect a calculator used for several structures in turn to agree with new calculators."""
    atoms, moved = case.atoms.copy(), case.atoms.copy()
    moved.positions[0] += 0.2
    fewer = moved[: max(1, len(moved) - 1)]
    calculator = case.make_calculator()
    for turn, structure in enumerate((atoms, moved, fewer, atoms, fewer)):
        with labeled(f"turn {turn}"):
            assert_identical(compute(calculator, structure), case.results(structure))


@check
def returned_arrays_are_copies(case: Case) -> None:
    """Expect later results not to change when a returned array is overwritten."""
    calculator, atoms = case.make_calculator(), case.atoms.copy()
    before = compute(calculator, atoms)
    for name in before.keys() - {"energy", "free_energy"}:
        calculator.get_property(name, atoms)[:] = 1e6
    assert_identical(compute(calculator, atoms), before)


@check
def old_results_survive(case: Case) -> None:
    """Expect the arrays of one calculation not to be overwritten by the next."""
    calculator, atoms = case.make_calculator(), case.atoms.copy()
    before = compute(calculator, atoms)
    kept = {name: calculator.results[name] for name in before}
    atoms.positions[0] += 0.1
    compute(calculator, atoms)
    assert_identical({name: np.asarray(values) for name, values in kept.items()}, before)


@check
def new_calculators_agree(case: Case) -> None:
    """Expect two new calculators to return bitwise equal results."""
    assert_identical(case.results(case.atoms.copy()), case.results(case.atoms.copy()))


@check
def cutoff_is_smooth(case: Case) -> None:
    """Expect energy and force to be continuous as two atoms separate beyond the cutoff."""
    if case.cutoff is None:
        raise NotApplicable("no cutoff was given")
    pair = Atoms(case.atoms.numbers[[0, -1]], np.zeros((2, 3)))
    calculator = case.make_calculator()
    energies, forces = [], []
    for offset in (-3e-4, -1e-4, 1e-4, 3e-4):
        pair.positions[1, 0] = case.cutoff + offset
        energies.append(calculator.get_potential_energy(pair))
        forces.append(calculator.get_forces(pair)[1, 0])
    for order, (name, values) in enumerate((("energy", energies), ("force", forces))):
        before, across, after = np.abs(np.diff(values))
        allowed = 10 * max(before, after) + 2 * tolerance(order, case.dtype)
        expect(bool(across <= allowed), f"the {name} jumps by {across:.1e}")


@check
def atoms_are_not_modified(case: Case) -> None:
    """Expect positions, elements, cell, info and all other arrays to stay unchanged."""
    atoms = case.atoms.copy()
    compute(case.make_calculator(), atoms)
    expect(atoms.arrays.keys() == case.atoms.arrays.keys(), f"its arrays are {[*atoms.arrays]}")
    for name, values in case.atoms.arrays.items():
        expect(np.array_equal(atoms.arrays[name], values), f"{name} changed")
    expect(np.array_equal(atoms.cell.array, case.atoms.cell.array), "the cell changed")
    expect(np.array_equal(atoms.pbc, case.atoms.pbc), "the periodicity changed")
    expect(atoms.info == case.atoms.info, f"info became {atoms.info}")


@check
def settings_of_the_caller_change_nothing(case: Case) -> None:
    """Expect the same bits under any settings of PyTorch by the caller, such as autocast.

    A calculator that was made under a setting must also work without it.
    """
    expected = case.results(case.atoms.copy())
    for name, setting in CALLER_SETTINGS.items():
        calculator = case.make_calculator()
        with labeled(name), setting():
            assert_identical(compute(calculator, case.atoms.copy()), expected)
            made_inside = case.make_calculator()
        with labeled(f"after {name}"):
            assert_identical(compute(made_inside, case.atoms.copy()), expected)


@check
def random_streams_are_left_alone(case: Case) -> None:
    """Expect a new calculator and its results to draw nothing from global random streams."""
    numpy_state, torch_states = np.random.get_state(), random_states()  # noqa: NPY002 (the global)
    compute(case.make_calculator(), case.atoms.copy())
    same = map(torch.equal, random_states(), torch_states)
    expect(all(same), "PyTorch's random stream has advanced")
    after = np.random.get_state()  # noqa: NPY002
    expect(all(map(np.array_equal, after, numpy_state)), "NumPy's random stream has advanced")


@check
def nan_is_refused(case: Case) -> None:
    """Expect an error for NaN and infinite positions, and correct results afterwards."""
    expected = case.results(case.atoms.copy())
    for value in (np.nan, np.inf):
        calculator, atoms = case.make_calculator(), case.atoms.copy()
        compute(calculator, atoms)
        atoms.positions[-1, 1] = value
        expect(_raises(calculator, atoms), f"a position of {value} raises nothing")
        with labeled("afterwards"):
            assert_identical(compute(calculator, case.atoms.copy()), expected)


@check
def empty_is_refused(case: Case) -> None:
    """Expect an error if there are no atoms."""
    expect(_raises(case.make_calculator(), case.atoms[:0]), "there is no error")


def _raises(calculator: Calculator, atoms: Atoms) -> bool:
    """Return True if the energy of these atoms raises an error."""
    try:
        calculator.get_potential_energy(atoms)
    except Exception:  # noqa: BLE001 - any error will do
        return True
    return False
