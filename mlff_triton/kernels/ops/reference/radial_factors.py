"""Look-up of radial functions in a table of splines, in plain PyTorch.

See `mlff_triton.kernels.common.reference.radial_table` for the equations.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.reference import radial_table
from mlff_triton.kernels.types.edges import Knots


def radial_factors(distance: Tensor, table: Tensor, knots: Knots) -> Tensor:
    """Compute `mlff_triton.kernels.ops.radial_factors.radial_factors`."""
    interval, fraction, width = knots.locate(distance.double())
    geometry = interval, fraction.to(distance.dtype), width.to(distance.dtype)
    return radial_table.look_up(table, *geometry).movedim(0, 1)
