"""Columns of the coupled rows of a fully connected tensor product, as tables for kernels.

    z_e[r, m] = sum_a x_j[a] C_e[a, m]

Each z_e has a row r for each path, channel v of the harmonics and channel u of the node, in this
order, and ``D = 2 l + 1`` components m each. The weights ``W[k, r, w]`` of hidden value k mix the
rows into the channels w of an output irrep.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.plan import FILLER, Group, groups_of
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of, first_column

FIELDS = 7
"""Number of values that describe a column."""


class CoupledColumns(NamedTuple):
    """Tables of a product, int32 on one device.

    Attributes
    ----------
    columns : [C, FIELDS]
        First column of the node's channel, its number of components, first element of the coupling
        matrix, number of components D, first weight, first column of the output, and its number of
        channels. Elements of the matrix, and channels of the output, are D columns apart.
    rows : [R]
        First column of each row.
    node_terms : [T, node columns, 2]
        Pairs of a column of the coupled rows and one of the coupling matrices. The sum of their
        products is the gradient of a node's column. `FILLER` follows the last pair.
    matrix_terms : [P, 5]
        First column and stride in a node's row, first column and stride in the coupled rows, and
        number of channels. The sum of products over channels is the gradient of an element of a
        coupling matrix.
    width : int
        Largest number of components of a node's irrep.
    channels : int
        Largest multiplicity of an output's irrep.
    longest : int
        Largest multiplicity of a node's irrep.
    """

    columns: Tensor
    rows: Tensor
    node_terms: Tensor
    matrix_terms: Tensor
    width: int
    channels: int
    longest: int


@cache
def coupled_columns(product: TensorProduct, device: torch.device) -> CoupledColumns:
    """Return the tables of a fully connected product."""
    groups = list(groups_of(product))
    starts = [0, *accumulate(group.count * group.components for group in groups)]
    columns: list[tuple[int, ...]] = []
    rows: list[int] = []
    for group in groups:
        channels = product.output[group.output].count
        output = first_column(product.output, group.output)
        for u in range(group.count):
            rows.append(len(columns))
            node, weight = group.node + u * group.width, group.weight + u * group.stride
            columns += [
                (
                    node,
                    group.width,
                    group.matrix + m,
                    group.components,
                    weight,
                    output + m,
                    channels,
                )
                for m in range(group.components)
            ]

    def table(values: object, *shape: int) -> Tensor:
        with torch.inference_mode(mode=False):
            return torch.tensor(values, dtype=torch.int32).reshape(shape).to(device)

    n_node = columns_of(product.node)
    return CoupledColumns(
        table(columns, len(columns), FIELDS),
        table(rows, len(rows)),
        table(_node_terms(groups, starts, n_node), -1, n_node, 2),
        table(_matrix_terms(groups, starts), len(groups) and -1, 5),
        max((group.width for group in groups), default=1),
        max((product.output[group.output].count for group in groups), default=1),
        max((group.count for group in groups), default=0),
    )


def _node_terms(
    groups: list[Group], starts: list[int], n_columns: int
) -> list[list[tuple[int, int]]]:
    terms: list[list[tuple[int, int]]] = [[] for _ in range(n_columns)]
    for group, start in zip(groups, starts, strict=False):
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


def _matrix_terms(groups: list[Group], starts: list[int]) -> list[tuple[int, ...]]:
    return [
        (group.node + a, group.width, start + m, group.components, group.count)
        for group, start in zip(groups, starts, strict=False)
        for a in range(group.width)
        for m in range(group.components)
    ]
