"""Order in which kernels work through the weights of a fully connected tensor product.

The product of a node's irreps and an edge's harmonics has rows: one for each path, channel v of the
harmonics and channel u of the node, with ``D = 2 l + 1`` components each. The weights mix the rows
of an output irrep into its channels w. Kernels take `ROWS` rows and `CHANNELS` channels at a time:
a block of ``ROWS * CHANNELS`` weights per edge. The rows of each output are padded to whole blocks.
Packed blocks are ordered by output, then by `CHANNELS` of its channels, then by rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.types import TensorProduct, first_column

ROWS = 4
CHANNELS = 16
BLOCK = ROWS * CHANNELS
"""Rows and output channels of a block, and its number of weights per edge."""

FILLER = -1


class Plan(NamedTuple):
    """Tables of a product, int32 on one device.

    Attributes
    ----------
    rows : [R, 3]
        First column of the node's channel, its number of components (0 for filler), and first
        column of the coupling matrix.
    outputs : [K, 6]
        Number of components, first row, number of blocks of rows, first block, first column of the
        output, and number of channels.
    jobs : [J, 2]
        Output, and index of a block of `CHANNELS` of its channels.
    source : [B * BLOCK]
        Column of the weight for each packed column, or `FILLER`.
    components : tuple of int
        Distinct numbers of components of the outputs that have paths, in ascending order.
    width : int
        Largest number of components of a node's irrep.
    """

    rows: Tensor
    outputs: Tensor
    jobs: Tensor
    source: Tensor
    components: tuple[int, ...]
    width: int


class Group(NamedTuple):
    """Rows of one path and one channel of the harmonics, with a constant stride between weights.

    Attributes
    ----------
    output : int
        Index of the output's irrep.
    node, width, count : int
        First column, components and multiplicity of the node's irrep.
    matrix, components : int
        First column of the coupling matrix, and components of the output.
    weight, stride : int
        First weight, and number of weights between consecutive rows.
    """

    output: int
    node: int
    width: int
    count: int  # type: ignore[assignment]
    matrix: int
    components: int
    weight: int
    stride: int


def groups_of(product: TensorProduct) -> Iterator[Group]:
    """Yield the groups of rows of a product, in the order of its weights and matrices."""
    matrix = weight = 0
    for path in product.paths:
        node, copies = product.node[path.node], product.harmonics[path.harmonic].count
        out = product.output[path.output]
        column = first_column(product.node, path.node)
        channels = out.count if product.mode == "uvw" else 1
        for v in range(copies):
            yield Group(
                path.output,
                column,
                node.width,
                node.count,
                matrix,
                out.width,
                weight + v * channels,
                copies * channels,
            )
            matrix += node.width * out.width
        weight += product.weights_of(path)


@cache
def plan_of(product: TensorProduct, device: torch.device) -> Plan:
    """Return the tables of a fully connected product."""
    groups = list(groups_of(product))
    rows: list[tuple[int, int, int]] = []
    outputs: list[tuple[int, ...]] = []
    jobs: list[tuple[int, int]] = []
    source: list[int] = []
    for index, out in enumerate(product.output):
        weights, first = [], len(rows)
        for group in groups:
            if group.output == index:
                for u in range(group.count):
                    rows.append((group.node + u * group.width, group.width, group.matrix))
                    weights.append(group.weight + u * group.stride)
        if not weights:
            continue
        n_blocks = -(-len(weights) // ROWS)
        filler = n_blocks * ROWS - len(weights)
        rows += [(0, 0, 0)] * filler
        column = first_column(product.output, index)
        jobs += [(len(outputs), part) for part in range(-(-out.count // CHANNELS))]
        outputs.append((out.width, first, n_blocks, len(source) // BLOCK, column, out.count))
        source += _columns_of(weights + [FILLER] * filler, out.count)

    def table(values: object, *shape: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).reshape(shape).to(device)

    return Plan(
        table(rows, len(rows), 3),
        table(outputs, len(outputs), 6),
        table(jobs, len(jobs), 2),
        table(source, len(source)),
        tuple(sorted({entry[0] for entry in outputs})),
        max((row[1] for row in rows), default=1),
    )


def _columns_of(weights: list[int], channels: int) -> list[int]:
    """Return the weights in the order of blocks, given the first weight of each row."""
    return [
        first + w if first != FILLER and w < channels else FILLER
        for start in range(0, channels, CHANNELS)
        for first in weights
        for w in range(start, start + CHANNELS)
    ]
