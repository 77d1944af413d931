"""Input of the conformance checks, and the helpers that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError
from numpy.typing import NDArray

from mlff_triton.testing.tolerances import assert_close, expect

PROPERTIES = ("energy", "free_energy", "energies", "forces", "stress")

Results = dict[str, NDArray[np.float64]]


class NotApplicable(Exception):  # noqa: N818 - not an error
    """A check does not apply to this calculator or these atoms, for the reason given."""


@dataclass(frozen=True)
class Case:
    """A calculator and a structure to check.

    Attributes
    ----------
    make_calculator : callable
        Function that returns a new calculator of the same potential at every call.
    atoms : ase.Atoms
        The structure; checks make copies of it. A demanding one has several elements, no symmetry,
        and forces of about 1 eV/Å.
    dtype : {"float64", "float32"}
        Precision of the calculator.
    cutoff : float, optional
        Distance in Å beyond which two atoms in vacuum do not interact.
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

        Errors are relative to the largest value, but at least to 1 eV per atom and 1 eV/Å.
        """
        n_atoms = len(self.atoms)
        floors = {"energy": n_atoms, "free_energy": n_atoms}
        if "stress" in expected:
            floors["stress"] = n_atoms / self.atoms.get_volume()
        expect(actual.keys() == expected.keys(), f"{[*actual]} instead of {[*expected]}")
        for name, values in expected.items():
            order = 1 if name in ("forces", "stress") else 0
            with labeled(name):
                assert_close(actual[name], values, order, self.dtype, floor=floors.get(name, 1.0))


def compute(calculator: Calculator, atoms: Atoms) -> Results:
    """Compute all `PROPERTIES` that a calculator implements for these atoms, as arrays."""
    results: Results = {}
    for name in PROPERTIES:
        if name in calculator.implemented_properties:
            with suppress(PropertyNotImplementedError):
                results[name] = np.array(calculator.get_property(name, atoms))
    return results


def require(condition: bool, otherwise: str) -> None:
    """Raise `NotApplicable`, with a reason, unless a condition holds."""
    if not condition:
        raise NotApplicable(otherwise)


def require_property(case: Case, name: str) -> None:
    """Raise `NotApplicable` unless the calculator implements a property."""
    known = case.make_calculator().implemented_properties
    require(name in known, f"the calculator has no {name}")


@contextmanager
def labeled(subject: str) -> Iterator[None]:
    """Turn any error raised inside into an `AssertionError` whose message names the subject."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{subject}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{subject}: {type(error).__name__}: {error}") from error


def assert_identical(actual: Results, expected: Results) -> None:
    """Assert that two results are bitwise equal."""
    expect(actual.keys() == expected.keys(), f"{[*actual]} instead of {[*expected]}")
    for name, values in expected.items():
        same = np.array_equal(actual[name], values)
        expect(same, f"{name} is {actual[name].tolist()} instead of {values.tolist()}")
