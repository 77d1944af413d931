"""Checks of the arguments of operators on pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.types.norm import Norm

FLOATS = (torch.float16, torch.bfloat16, torch.float32)

_MOST_CHANNELS = 512


def check_rows(name: str, x: Tensor, weight: Tensor) -> None:
    """Check that rows can be updated in place by layers with the dtype of a weight.

    Raises
    ------
    InputError
        If they are on different devices, or the dtype or the strides of the rows do not fit.
    """
    check_device(x, weight)
    if x.dtype not in (torch.float32, weight.dtype):
        raise InputError(
            f"{name} is {x.dtype} and the weights are {weight.dtype}: use float32 or that of the "
            "weights"
        )
    if not x.is_contiguous():
        raise InputError(f"{name} is updated in place and must be contiguous")


def check_strided_rows(x: Tensor, weight: Tensor) -> None:
    """Check that layers with the dtype of a weight can read strided rows x [B, R, S, C].

    Raises
    ------
    InputError
        If they have too many channels, the channels are not contiguous, or the dtype does not fit.
    """
    check_shape("x", x, ("B", "R", "S", "C"))
    channels = x.shape[-1]
    if channels > _MOST_CHANNELS:
        raise InputError(f"the rows have {channels} channels: use at most {_MOST_CHANNELS}")
    if channels > 1 and x.stride(-1) != 1:
        raise InputError("the channels of x must be contiguous")
    check_device(x, weight)
    if x.dtype not in (torch.float32, weight.dtype):
        raise InputError(f"x is {x.dtype} and the weights are {weight.dtype}: use float32")


def head_width(name: str, width: int, heads: int) -> int:
    """Return the number of channels per head.

    Raises
    ------
    InputError
        If there are no heads, or their number does not divide the width.
    """
    if not heads or width % heads:
        raise InputError(f"{width} channels of {name} are not divisible by {heads} heads")
    return width // heads


def check_norm(name: str, norm: Norm, x: Tensor) -> None:
    """Check that a normalization fits rows.

    Raises
    ------
    InputError
        If it is on another device, or for another number of channels.
    """
    weight, bias, _ = norm
    for part, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_device(x, tensor)
            check_shape(f"the {part} of {name}", tensor, x.shape[-1:])


def norm_arguments(norm: Norm) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of a normalization as kernels read them."""
    weight, bias, _ = norm
    return weight.contiguous(), None if bias is None else bias.contiguous()
