"""Shared arguments of operators with radial tables: their checks, and positions in a table."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.types.edges import Knots


def locate(distance: Tensor, knots: Knots) -> tuple[Tensor, Tensor, Tensor]:
    """Return interval, fraction of the interval and its width, [E] each, as kernels read them."""
    interval, fraction, width = knots.locate(distance.double())
    return interval.int(), fraction.to(distance.dtype), width.to(distance.dtype)


def constant_knots(positions: Tensor, intervals: Tensor) -> Knots:
    """Return knots whose positions get no gradient."""
    return Knots(positions.detach(), intervals)


def check_constants(knots: Knots, **constants: Tensor) -> None:
    """Check that a table fits its knots and no constant requires a gradient.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or a constant requires a gradient.
    BackendError
        If the tensors are not on a GPU.
    """
    check_shape("knots.positions", knots.positions, ("K + 1",))
    check_shape("table", constants["table"], (len(knots.positions), 3, 3, "F"))
    check_device(*constants.values(), *knots)
    if knots.positions.dtype != torch.float64:
        raise InputError(f"knots.positions is {knots.positions.dtype}: use float64")
    for name, constant in constants.items():
        if constant.requires_grad:
            raise InputError(
                f"{name} gets no gradient: detach it, or compute the factors with linear to train "
                "them"
            )


def check_channels(channels: int) -> None:
    """Raise `InputError` unless the number of channels is a power of two."""
    if channels & (channels - 1):
        raise InputError(
            f"there are {channels} channels: use a power of two, or radial_factors with "
            "message_passing or edge_tensors"
        )
