"""Losses of sums on tensor cores, by architecture.

NVIDIA's tensor cores round sums toward zero (https://doi.org/10.7717/peerj-cs.330). The loss of a
sum has the sign of the sum, so the losses of successive operators would add up. Its average depends
on the number of products and on the bits that an architecture keeps. Kernels restore it where it
has been measured. On other architectures they restore nothing, and the log says so: products of
matrices are then about 1e-7 too small on average, a rounding error of float32.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

_LOG = logging.getLogger("mlff_triton")


class Loss(NamedTuple):
    """Average losses of sums of products of random factors.

    Attributes
    ----------
    tf32_sum : float
        Relative loss of a sum of 32 products of TF32 values.
    tf32_product : float
        Further loss per product, in units in the last place.
    halves : (float, float, float)
        Fractions of sums of up to 32, up to 64, and up to 128 products of float16 values, which
        restore the loss. They differ from the loss, because results are rounded again.
    """

    tf32_sum: float
    tf32_product: float
    halves: tuple[float, float, float]


UNMEASURED = Loss(0.0, 0.0, (0.0, 0.0, 0.0))
"""Restores nothing."""

MEASURED = {
    # An H200: 0.42 + 0.0096 K units in the last place of a sum of K products of TF32 values.
    # An H100: 5.5e-8 of sums of 32 products of float16 values, 8.9e-8 of 64 and 1.5e-7 of 128.
    "sm_90": Loss(0.73 * 2.0**-23, 0.0096, (4.7e-8, 6e-8, 1.6e-7)),
}
"""Losses by architecture."""


@cache
def architecture(device: torch.device) -> str:
    """Return the architecture of an NVIDIA GPU, such as "sm_90", or the type of another device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def loss_of(x: Tensor) -> Loss:
    """Return the losses on the device of a tensor, `UNMEASURED` if they are not known."""
    return _loss(architecture(x.device))


@cache
def _loss(architecture: str) -> Loss:
    if architecture.startswith("sm_") and architecture not in MEASURED:
        _LOG.info(
            "rounding on tensor cores of %s is unmeasured: sums lack about 1e-7 of their value",
            architecture,
        )
    return MEASURED.get(architecture, UNMEASURED)
