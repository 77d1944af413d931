"""Tools for testing force fields: tolerances, structures, finite differences, conformance.

They serve tests and benchmarks, including those of other packages. `check_calculator` checks any
ASE calculator of a short-ranged potential for the properties that molecular dynamics relies on.
`CHECKS` contains the individual checks.
"""

from mlff_triton.testing.case import Case, NotApplicable
from mlff_triton.testing.checks import CHECKS
from mlff_triton.testing.conformance import ConformanceError, check_calculator
from mlff_triton.testing.derivatives import finite_difference_forces, finite_strain_stress
from mlff_triton.testing.settings import CALLER_SETTINGS
from mlff_triton.testing.structures import (
    random_cluster,
    random_crystal,
    random_rotation,
    water_box,
)
from mlff_triton.testing.tolerances import (
    FINITE_DIFFERENCES,
    TOLERANCES,
    assert_close,
    assert_within,
    tolerance,
)

__all__ = [
    "CALLER_SETTINGS",
    "CHECKS",
    "FINITE_DIFFERENCES",
    "TOLERANCES",
    "Case",
    "ConformanceError",
    "NotApplicable",
    "assert_close",
    "assert_within",
    "check_calculator",
    "finite_difference_forces",
    "finite_strain_stress",
    "random_cluster",
    "random_crystal",
    "random_rotation",
    "tolerance",
    "water_box",
]
