"""Order in which kernels work through the weights of a fully connected tensor product.

The product of a node's irreps and an edge's harmonics has rows: one for each path, channel v of the
harmonics and channel u of the node, with ``D = 2 l + 1`` components each. The weights mix the rows
of an output irrep to its channels w. Kernels take `ROWS` rows and `CHANNELS` channels at a time, a
block of ``ROWS * CHANNELS`` weights per edge. Rows of an output are padded to whole blocks, and
weights are packed block after block, for each output, `CHANNELS` of its channels, and its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.types import TensorProduct, columns_of, first_column

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
        First column of the node's irrep, its number of components (0 for filler), and first column
        of the coupling matrix.
    outputs : [K, 7]
        Number of components, first row, number of blocks of rows, first block, first column of the
        output, number of channels, and first column of the coupled rows.
    jobs : [J, 2]
        Output, and which `CHANNELS` of its channels.
    blocks : [B, 3]
        Output, which of its channels, and which of its blocks of rows.
    source : [B * BLOCK]
        Column of the weight, `FILLER` without one.
    position : int64 [weights]
        Column of the packed weight.
    node_terms : [T, node columns, 2]
        Columns of coupled rows and of coupling matrices, whose products are the gradient of a
        node's column; `FILLER` after the last.
    matrix_terms : [P, 5]
        First column and stride of a node's row, first column and stride of the coupled rows, and
        number of channels, whose products are the gradient of an element of a coupling matrix.
    components : tuple of int
        Numbers of components of outputs that have paths.
    width : int
        Largest number of components of a node's irrep.
    longest : int
        Largest multiplicity of a node's irrep.
    n_coupled : int
        Number of columns of the coupled rows, with filler.
    """

    rows: Tensor
    outputs: Tensor
    jobs: Tensor
    blocks: Tensor
    source: Tensor
    position: Tensor
    node_terms: Tensor
    matrix_terms: Tensor
    components: tuple[int, ...]
    width: int
    longest: int
    n_coupled: int


class Group(NamedTuple):
    """Rows of one path and one channel of the harmonics, which have equal strides.

    Attributes
    ----------
    output : int
        Index of the output's irrep.
    node, width, count : int
        First column, components and multiplicity of the node's irrep.
    matrix, components : int
        First column of the coupling matrix, and components of the output.
    weight, stride : int
        First weight, and number of weights between two rows.
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
    blocks: list[tuple[int, int, int]] = []
    source: list[int] = []
    coupled: dict[int, int] = {}  # first column of the coupled rows of each output
    n_coupled = 0
    for index, out in enumerate(product.output):
        weights = []
        coupled[index], first = n_coupled, len(rows)
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
        outputs.append((out.width, first, n_blocks, len(blocks), column, out.count, n_coupled))
        n_coupled += n_blocks * ROWS * out.width
        blocks += _blocks_of(len(outputs) - 1, out.count, n_blocks)
        source += _columns_of(weights + [FILLER] * filler, out.count)
    columns = torch.tensor(source, dtype=torch.int64)
    live = columns != FILLER
    position = torch.full((product.n_weights,), FILLER, dtype=torch.int64)
    position[columns[live]] = live.nonzero()[:, 0]

    def table(values: object, *shape: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).reshape(shape).to(device)

    n_columns = columns_of(product.node)
    return Plan(
        table(rows, len(rows), 3),
        table(outputs, len(outputs), 7),
        table(list(dict.fromkeys(block[:2] for block in blocks)), -1, 2),
        table(blocks, len(blocks), 3),
        table(source, len(source)),
        position.to(device),
        table(_node_terms(groups, coupled, n_columns), -1, n_columns, 2),
        table(_matrix_terms(groups, coupled), len(groups) and -1, 5),
        tuple(sorted({entry[0] for entry in outputs})),
        max((row[1] for row in rows), default=1),
        max((group.count for group in groups), default=0),
        n_coupled,
    )


def _blocks_of(output: int, channels: int, n_blocks: int) -> list[tuple[int, int, int]]:
    parts = range(-(-channels // CHANNELS))
    return [(output, part, block) for part in parts for block in range(n_blocks)]


def _columns_of(weights: list[int], channels: int) -> list[int]:
    """Return the weights in the order of blocks, given the first weight of each row."""
    return [
        first + w if first != FILLER and w < channels else FILLER
        for start in range(0, channels, CHANNELS)
        for first in weights
        for w in range(start, start + CHANNELS)
    ]


def _starts(groups: list[Group], coupled: dict[int, int]) -> Iterator[tuple[Group, int]]:
    """Yield groups with the first column of their coupled rows."""
    used = dict(coupled)
    for group in groups:
        yield group, used[group.output]
        used[group.output] += group.count * group.components


def _node_terms(
    groups: list[Group], coupled: dict[int, int], n_columns: int
) -> list[list[tuple[int, int]]]:
    terms: list[list[tuple[int, int]]] = [[] for _ in range(n_columns)]
    for group, start in _starts(groups, coupled):
        width, components = group.width, group.components
        for u in range(group.count):
            for a in range(width):
                terms[group.node + u * width + a] += [
                    (start + u * components + m, group.matrix + a * components + m)
                    for m in range(components)
                ]
    longest = max(map(len, terms), default=0)
    filled = [each + [(FILLER, FILLER)] * (longest - len(each)) for each in terms]
    return [list(each) for each in zip(*filled, strict=True)]


def _matrix_terms(groups: list[Group], coupled: dict[int, int]) -> list[tuple[int, ...]]:
    return [
        (group.node + a, group.width, start + m, group.components, group.count)
        for group, start in _starts(groups, coupled)
        for a in range(group.width)
        for m in range(group.components)
    ]
