"""What molecular dynamics relies on in an ASE calculator, one small check each.

A check returns if the calculator does as the first line of its docstring says, raises
`AssertionError` if it does not, and `NotApplicable` if the question does not arise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError
from numpy.typing import NDArray

from mlff_triton.errors import InputError
from mlff_triton.testing.derivatives import (
    VOIGT,
    finite_difference_forces,
    finite_strain_stress,
    transformed,
)
from mlff_triton.testing.structures import random_rotation
from mlff_triton.testing.tolerances import (
    FINITE_DIFFERENCES,
    assert_close,
    assert_within,
    dtype_name,
    expect,
    tolerance,
)

PROPERTIES = ("energy", "free_energy", "energies", "forces", "stress")

Results = dict[str, NDArray[np.float64]]


class NotApplicable(Exception):  # noqa: N818 - not an error
    """The check says nothing about this calculator or these atoms, for the reason given."""


class ConformanceError(AssertionError):
    """A calculator failed checks.

    Attributes
    ----------
    failures : dict of str to str
        What went wrong in each failed check, by name.
    """

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        lines = [f"{name}: {reason}" for name, reason in failures.items()]
        super().__init__("\n  ".join([f"{len(failures)} checks failed", *lines]))


@dataclass(frozen=True)
class Case:
    """What a check works on.

    Attributes
    ----------
    make_calculator : callable
        Returns a new calculator of the same potential at every call.
    atoms : ase.Atoms
        The structure; checks work on copies. One that tests much has several elements, no symmetry
        and forces of about 1 eV/Å.
    dtype : {"float64", "float32"}
        Precision that the calculator works in.
    cutoff : float, optional
        Distance in Å from which two atoms on their own do not interact.
    """

    make_calculator: Callable[[], Calculator]
    atoms: Atoms
    dtype: str = "float64"
    cutoff: float | None = None

    def results(self, atoms: Atoms) -> Results:
        """Compute all results with a new calculator."""
        return compute(self.make_calculator(), atoms)

    def assert_same(self, actual: Results, expected: Results) -> None:
        """Assert that two results for the same number of atoms agree to the dtype's tolerance.

        Errors are relative to 1 eV an atom and to 1 eV/Å, or to the numbers themselves if larger.
        """
        n_atoms = len(self.atoms)
        floors = {"energy": n_atoms, "free_energy": n_atoms}
        if "stress" in expected:
            floors["stress"] = n_atoms / self.atoms.get_volume()
        expect(actual.keys() == expected.keys(), f"{[*actual]} instead of {[*expected]}")
        for name, values in expected.items():
            order = 1 if name in ("forces", "stress") else 0
            with _about(name):
                assert_close(actual[name], values, order, self.dtype, floor=floors.get(name, 1.0))


Check = Callable[[Case], None]
CHECKS: dict[str, Check] = {}


def check_calculator(
    make_calculator: Callable[[], Calculator],
    atoms: Atoms,
    *,
    dtype: str = "float64",
    cutoff: float | None = None,
    skip: Iterable[str] = (),
) -> dict[str, str]:
    """Run every check in `CHECKS` on a calculator.

    Parameters
    ----------
    make_calculator : callable
        Returns a new calculator of the same potential at every call.
    atoms : ase.Atoms
        The structure to check it on, as described at `Case`. Try one in vacuum and one periodic.
    dtype : {"float64", "float32"}
        Precision that the calculator works in.
    cutoff : float, optional
        Distance in Å from which two atoms on their own do not interact.
    skip : iterable of str
        Names of checks to leave out.

    Returns
    -------
    dict of str to str
        The outcome of every check by name: ``"passed"``, ``"skipped"``, or why it does not apply.

    Raises
    ------
    ConformanceError
        If any check fails; its ``failures`` hold all that do.
    InputError
        If ``dtype`` or a name in ``skip`` is unknown.

    Examples
    --------
    >>> from ase.calculators.morse import MorsePotential
    >>> from mlff_triton.testing import random_cluster
    >>> lax = ["nan_is_refused", "empty_is_refused"]
    >>> outcomes = check_calculator(MorsePotential, random_cluster(4), cutoff=2.7, skip=lax)
    >>> outcomes["forces_match_energy"]
    'passed'
    """
    skipped = set(skip)
    if unknown := skipped - CHECKS.keys():
        raise InputError(f"there are no checks {sorted(unknown)}: choose from {', '.join(CHECKS)}")
    case = Case(make_calculator, atoms, dtype_name(dtype), cutoff)
    outcomes, failures = dict.fromkeys(CHECKS, "skipped"), {}
    for name, check in CHECKS.items():
        if name in skipped:
            continue
        outcomes[name], failed = _run(check, case)
        if failed:
            failures[name] = outcomes[name]
    if failures:
        raise ConformanceError(failures)
    return outcomes


def _run(check: Check, case: Case) -> tuple[str, bool]:
    """Outcome of a check, and whether that is a failure."""
    try:
        check(case)
    except NotApplicable as reason:
        return str(reason), False
    except Exception as error:  # noqa: BLE001 - calculators fail in any way, and all is reported
        return f"{type(error).__name__}: {error}", True
    return "passed", False


def compute(calculator: Calculator, atoms: Atoms) -> Results:
    """Get those of `PROPERTIES` that a calculator has for these atoms, as arrays."""
    results: Results = {}
    for name in PROPERTIES:
        if name in calculator.implemented_properties:
            with suppress(PropertyNotImplementedError):
                results[name] = np.array(calculator.get_property(name, atoms))
    return results


def _check(function: Check) -> Check:
    """Enter a check in the table."""
    CHECKS[function.__name__] = function
    return function


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise NotApplicable(otherwise)


def _require_property(case: Case, name: str) -> None:
    known = case.make_calculator().implemented_properties
    _require(name in known, f"the calculator has no {name}")


@contextmanager
def _about(subject: str) -> Iterator[None]:
    """Say what an assertion is about that fails inside."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{subject}: {error}") from error


def _assert_identical(actual: Results, expected: Results) -> None:
    """Assert that results are the same to the bit."""
    expect(actual.keys() == expected.keys(), f"{[*actual]} instead of {[*expected]}")
    for name, values in expected.items():
        same = np.array_equal(actual[name], values)
        expect(same, f"{name} is {actual[name].tolist()} instead of {values.tolist()}")


@_check
def energy_is_a_float(case: Case) -> None:
    """Expect one finite Python or NumPy float as the energy."""
    energy = case.make_calculator().get_potential_energy(case.atoms.copy())
    expect(isinstance(energy, float | np.floating), f"it is of type {type(energy).__name__}")
    expect(bool(np.isfinite(energy)), f"it is {energy}")


@_check
def energy_is_extensive(case: Case) -> None:
    """Expect each further copy of neutral atoms, far off or in the next cell, to add the same."""
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


@_check
def forces_match_energy(case: Case) -> None:
    """Expect forces to be minus the energy's derivative by positions."""
    step, relative = FINITE_DIFFERENCES[case.dtype]
    energy = case.make_calculator().get_potential_energy
    expected = finite_difference_forces(energy, case.atoms, step)
    forces = case.make_calculator().get_forces(case.atoms.copy())
    assert_within(forces, expected, relative, floor=1.0)


@_check
def forces_sum_to_zero(case: Case) -> None:
    """Expect no net force."""
    forces = case.make_calculator().get_forces(case.atoms.copy())
    scale = max(1.0, float(np.abs(forces).max())) * np.sqrt(len(forces))
    assert_close(forces.sum(axis=0), np.zeros(3), 1, case.dtype, floor=scale)


@_check
def stress_matches_energy(case: Case) -> None:
    """Expect the energy's derivative by strain, in ASE's order and sign, as the stress.

    Partly periodic atoms may have none instead.
    """
    _require_property(case, "stress")
    _require(bool(case.atoms.pbc.any()), "the atoms are not periodic")
    results = case.results(case.atoms.copy())
    if not case.atoms.pbc.all():
        _require("stress" in results, "the calculator has no stress for partly periodic atoms")
    expect("stress" in results, "there is none")
    step, relative = FINITE_DIFFERENCES[case.dtype]
    energy = case.make_calculator().get_potential_energy
    expected = finite_strain_stress(energy, case.atoms, step)
    floor = len(case.atoms) / case.atoms.get_volume()
    assert_within(results["stress"], expected, relative, floor=floor)


@_check
def stress_needs_a_cell(case: Case) -> None:
    """Expect ASE's `PropertyNotImplementedError` for the stress of atoms without a cell."""
    _require_property(case, "stress")
    atoms = case.atoms.copy()
    atoms.pbc, atoms.cell = False, None
    expect("stress" not in case.results(atoms), "there is a stress in vacuum")


@_check
def atom_energies_add_up(case: Case) -> None:
    """Expect the energies of the atoms, one each, to add up to the energy."""
    _require_property(case, "energies")
    results = case.results(case.atoms.copy())
    shape = results["energies"].shape
    expect(shape == (len(case.atoms),), f"their shape is {list(shape)}")
    total = results["energies"].sum()
    assert_close(total, results["energy"], 0, case.dtype, floor=len(case.atoms))


@_check
def free_energy_is_energy(case: Case) -> None:
    """Expect no electronic entropy: the free energy is the energy."""
    _require_property(case, "free_energy")
    results = case.results(case.atoms.copy())
    assert_close(results["free_energy"], results["energy"], 0)


@_check
def rotation_turns_results(case: Case) -> None:
    """Expect forces and stress to turn with the atoms and the cell, and energies to stay."""
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


@_check
def translation_changes_nothing(case: Case) -> None:
    """Expect the same results wherever the atoms are as a whole."""
    moved = case.atoms.copy()
    moved.positions += (3.1, -17.7, 40.3)
    case.assert_same(case.results(moved), case.results(case.atoms.copy()))


@_check
def permutation_permutes_results(case: Case) -> None:
    """Expect results in the order of the atoms, and otherwise the same in any order."""
    order = np.random.default_rng(0).permutation(len(case.atoms))
    expected = case.results(case.atoms.copy())
    for name in expected.keys() & {"forces", "energies"}:
        expected[name] = expected[name][order]
    case.assert_same(case.results(case.atoms[order]), expected)


@_check
def images_are_the_same(case: Case) -> None:
    """Expect the same results whichever periodic image of an atom is given."""
    _require(bool(case.atoms.pbc.any()), "the atoms are not periodic")
    moved = case.atoms.copy()
    steps = np.random.default_rng(0).integers(-2, 3, size=(len(moved), 3)) * moved.pbc
    moved.positions += steps @ moved.cell.array
    case.assert_same(case.results(moved), case.results(case.atoms.copy()))


@_check
def results_are_cached(case: Case) -> None:
    """Expect equal atoms not to be computed twice."""
    calculator, n_calls = case.make_calculator(), 0
    calculate = calculator.calculate

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        calculate(*args, **kwargs)

    vars(calculator)["calculate"] = counted
    first = compute(calculator, case.atoms.copy())
    _require(n_calls > 0, "the calculator computes elsewhere than in calculate()")
    n_calls, equal = 0, case.atoms.copy()
    second = {name: np.array(calculator.get_property(name, equal)) for name in first}
    expect(n_calls == 0, f"calculate() was called {n_calls} times for the same atoms")
    _assert_identical(second, first)


@_check
def changes_are_noticed(case: Case) -> None:
    """Expect a new calculator's results, to the bit, after any input is changed in place.

    Where a new calculator refuses the changed input, the old one must refuse it too.
    """
    for name, change in CHANGES.items():
        calculator, atoms = case.make_calculator(), case.atoms.copy()
        compute(calculator, atoms)
        change(atoms)
        with _about(f"after a change of the {name}"):
            if _raises(case.make_calculator(), atoms):
                expect(_raises(calculator, atoms), "the last results came back")
            else:
                _assert_identical(compute(calculator, atoms), case.results(atoms))


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


@_check
def other_atoms_leave_no_trace(case: Case) -> None:
    """Expect a calculator that serves several structures in turn to give what new ones would."""
    atoms, moved = case.atoms.copy(), case.atoms.copy()
    moved.positions[0] += 0.2
    fewer = moved[: max(1, len(moved) - 1)]
    calculator = case.make_calculator()
    for turn, structure in enumerate((atoms, moved, fewer, atoms, fewer)):
        with _about(f"turn {turn}"):
            _assert_identical(compute(calculator, structure), case.results(structure))


@_check
def returned_arrays_are_copies(case: Case) -> None:
    """Expect no later result to change when a returned array is written to."""
    calculator, atoms = case.make_calculator(), case.atoms.copy()
    before = compute(calculator, atoms)
    for name in before.keys() - {"energy", "free_energy"}:
        calculator.get_property(name, atoms)[:] = 1e6
    _assert_identical(compute(calculator, atoms), before)


@_check
def old_results_survive(case: Case) -> None:
    """Expect arrays kept from one calculation not to be overwritten by the next."""
    calculator, atoms = case.make_calculator(), case.atoms.copy()
    before = compute(calculator, atoms)
    kept = {name: calculator.results[name] for name in before}
    atoms.positions[0] += 0.1
    compute(calculator, atoms)
    _assert_identical({name: np.asarray(values) for name, values in kept.items()}, before)


@_check
def new_calculators_agree(case: Case) -> None:
    """Expect two new calculators to give the same results, to the bit."""
    _assert_identical(case.results(case.atoms.copy()), case.results(case.atoms.copy()))


@_check
def cutoff_is_smooth(case: Case) -> None:
    """Expect no jump of energy or force as two atoms on their own part through the cutoff."""
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


@_check
def atoms_are_not_modified(case: Case) -> None:
    """Expect positions, elements, cell, info and all other arrays as they were."""
    atoms = case.atoms.copy()
    compute(case.make_calculator(), atoms)
    expect(atoms.arrays.keys() == case.atoms.arrays.keys(), f"its arrays are {[*atoms.arrays]}")
    for name, values in case.atoms.arrays.items():
        expect(np.array_equal(atoms.arrays[name], values), f"{name} changed")
    expect(np.array_equal(atoms.cell.array, case.atoms.cell.array), "the cell changed")
    expect(np.array_equal(atoms.pbc, case.atoms.pbc), "the periodicity changed")
    expect(atoms.info == case.atoms.info, f"info became {atoms.info}")


@_check
def nan_is_refused(case: Case) -> None:
    """Expect an error for NaN and infinite positions, and sound results after it."""
    expected = case.results(case.atoms.copy())
    for value in (np.nan, np.inf):
        calculator, atoms = case.make_calculator(), case.atoms.copy()
        compute(calculator, atoms)
        atoms.positions[-1, 1] = value
        expect(_raises(calculator, atoms), f"a position of {value} raises nothing")
        with _about("afterwards"):
            _assert_identical(compute(calculator, case.atoms.copy()), expected)


@_check
def empty_is_refused(case: Case) -> None:
    """Expect an error if there are no atoms."""
    expect(_raises(case.make_calculator(), case.atoms[:0]), "there is none")


def _raises(calculator: Calculator, atoms: Atoms) -> bool:
    try:
        calculator.get_potential_energy(atoms)
    except Exception:  # noqa: BLE001 - which error it is, is the calculator's own business
        return True
    return False
