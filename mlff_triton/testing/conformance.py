"""Conformance of ASE calculators with what molecular dynamics relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton.errors import InputError
from mlff_triton.testing.case import Case, NotApplicable
from mlff_triton.testing.checks import CHECKS, Check
from mlff_triton.testing.tolerances import dtype_name


class ConformanceError(AssertionError):
    """A calculator failed checks.

    Attributes
    ----------
    failures : dict of str to str
        Reason of each failure, by name of the check.
    """

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        lines = [f"{name}: {reason}" for name, reason in failures.items()]
        super().__init__("\n  ".join([f"{len(failures)} checks failed", *lines]))


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
        Function that returns a new calculator of the same potential at every call.
    atoms : ase.Atoms
        The structure to check it on: see `Case`. Check one in vacuum and a periodic one.
    dtype : {"float64", "float32"}
        Precision of the calculator.
    cutoff : float, optional
        Distance in Å beyond which two atoms in vacuum do not interact.
    skip : iterable of str
        Names of checks to skip.

    Returns
    -------
    dict of str to str
        Outcome of each check by name: ``"passed"``, ``"skipped"``, or why it does not apply.

    Raises
    ------
    ConformanceError
        If any check fails. Its ``failures`` list all failed checks.
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
    """Run a check; return its outcome, and True if that is a failure."""
    try:
        check(case)
    except NotApplicable as reason:
        return str(reason), False
    except Exception as error:  # noqa: BLE001 - any error of a calculator is a failure to report
        return f"{type(error).__name__}: {error}", True
    return "passed", False
