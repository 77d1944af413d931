"""Layers of TensorNet on fused operators, which are differentiable twice.

Weights and layers of `torch.nn` are arguments, so that our models and TorchMD-NET's share this
code. ``ops`` are `operators`: kernels, or their references in PyTorch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

PACKAGES = {"triton": "mlff_triton.kernels.ops", "torch": "mlff_triton.kernels.ops.reference"}
OPERATORS = (
    "channel_maps",
    "irrep_norms",
    "layer_norm",
    "linear",
    "message_passing",
    "normalized_tensors",
    "pair_embedding",
    "pair_messages",
    "scaled_tensors",
    "tensor_product",
    "tensor_update",
)


@functools.cache
def operators(op_set: str) -> SimpleNamespace:
    """Import the operators of "triton" or "torch", each from the file of the same name."""
    homes = {name: importlib.import_module(f"{PACKAGES[op_set]}.{name}") for name in OPERATORS}
    return SimpleNamespace(**{name: getattr(home, name) for name, home in homes.items()})


def scaled_embedding(
    ops: SimpleNamespace,
    x: Tensor,
    norm: nn.LayerNorm,
    scalar: Iterable[Any],
    tensor: Tensor,
    activation: str,
) -> Tensor:
    """Scale sums over edges x [9, N, F] by functions of their norms, and mix their channels.

    ``tensor`` [3, F, F] are the weights of the three parts.
    """
    scales = normalize(ops, norm, ops.irrep_norms(x).unflatten(1, (3, -1)).sum(1))
    for linear in scalar:
        scales = ops.linear(scales, linear.weight, linear.bias, activation)
    scaled: Tensor = ops.scaled_tensors(ops.channel_maps(x, tensor), scales.unflatten(1, (3, -1)))
    return scaled


def radial_factors(
    ops: SimpleNamespace,
    linears: Iterable[Any],
    activation: str,
    features: Tensor,
    cutoff: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Compute factors [E, 3, F] of messages from features [E, K] and the cutoff function [E].

    If a number of rows is given, all further rows are padding.
    """
    factors = features
    *inner, last = linears
    for linear in inner:
        factors = ops.linear(factors, linear.weight, linear.bias, activation, rows=rows)
    scale = cutoff[:, None]
    factors = ops.linear(factors, last.weight, last.bias, activation, scale=scale, rows=rows)
    parts: Tensor = factors.unflatten(1, (3, -1))
    return parts


def interact(
    ops: SimpleNamespace,
    x: Tensor,
    tensor_in: Tensor,
    tensor_out: Tensor,
    send: Callable[[Tensor], Tensor],
    charge_factor: Tensor,
    group: str,
) -> Tensor:
    """Update the tensors [9, N, F] in an interaction layer.

    ``tensor_in`` [3, F, F] mixes the channels of the tensors that atoms send, ``send`` returns
    their messages, and ``tensor_out`` mixes the channels after the product; ``charge_factor`` is
    [N].
    """
    x = ops.normalized_tensors(x)
    y = ops.channel_maps(x, tensor_in)
    product = ops.tensor_product(y, send(y), charge_factor if group == "O(3)" else None, group)
    updated: Tensor = ops.tensor_update(x, ops.channel_maps(product, tensor_out), charge_factor)
    return updated


def charge_outputs(
    ops: SimpleNamespace,
    x: Tensor,
    norm: nn.LayerNorm,
    linears: Iterable[Any],
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Predict charges and softness [N, Q] of atoms from their tensors [9, N, F]."""
    values = torch.cat([x[0], ops.irrep_norms(x)[:, x.shape[2] :]], dim=1)
    values = normalize(ops, norm, values)
    *inner, last = linears
    for linear in inner:
        values = ops.linear(values, linear.weight, linear.bias, activation)
    charges, softness = ops.linear(values, last.weight, last.bias).chunk(2, dim=1)
    return charges, softness


def normalize(ops: SimpleNamespace, norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Normalize rows with the weights of a layer."""
    normed: Tensor = ops.layer_norm(x, norm.weight, norm.bias, norm.eps)
    return normed
