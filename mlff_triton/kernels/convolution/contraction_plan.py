"""Order in which kernels sum outer products by receiver, and contract them with the weights.

See `mlff_triton.kernels.convolution.contracted_sums` for the equations. A row of an output is a
path, a channel of the harmonics and a channel of the node, as in `mlff_triton.kernels.convolution.
plan`. Columns of coupled rows are ordered by output, component and row. A job contracts all rows of
an output for some of its channels. Jobs with the same number of channels share a launch.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.convolution.plan import FILLER, Group, groups_of
from mlff_triton.kernels.convolution.types import Irrep, TensorProduct, first_column

COLUMNS = 64
"""Columns of coupled rows per program."""

MAX_CHANNELS = 64
"""Largest number of output channels of a job."""


class Jobs(NamedTuple):
    """Jobs of one launch, int32 on one device.

    Attributes
    ----------
    table : [J, 6]
        Number of components, number of rows, first column of the coupled rows, first packed row,
        first column of the output, and number of channels.
    source : [packed rows, channels]
        Column of the weight for each row and channel, or `FILLER`.
    components : int
        Largest number of components.
    channels : int
        Channels of a job, with filler.
    """

    table: Tensor
    source: Tensor
    components: int
    channels: int


class Tiles(NamedTuple):
    """Columns of coupled rows, int32 on one device, those with the most components first.

    Attributes
    ----------
    columns : [tiles, COLUMNS, 7]
        For each column: first column of the node's channel, its number of components, first element
        of the coupling matrix and its stride, first column and number of columns of the same
        output, and the column itself; `FILLER` after the last.
    components : int
        Largest number of components.
    """

    columns: Tensor
    components: int


class ContractionPlan(NamedTuple):
    """Tables of a product.

    Attributes
    ----------
    columns : Tiles
        All columns of coupled rows.
    tiles : tuple of Tiles
        The same tiles, grouped by the largest number of components of the node's irrep.
    jobs : tuple of Jobs
        All jobs, by number of channels.
    n_columns : int
        Number of columns.
    """

    columns: Tiles
    tiles: tuple[Tiles, ...]
    jobs: tuple[Jobs, ...]
    n_columns: int


@cache
def contraction_plan_of(product: TensorProduct, device: torch.device) -> ContractionPlan:
    """Return the tables of a fully connected product."""
    columns: list[tuple[int, ...]] = []
    tables: dict[int, list[tuple[int, ...]]] = {}
    sources: dict[int, list[int]] = {}
    groups = list(groups_of(product))
    for index, out in enumerate(product.output):
        ours = [group for group in groups if group.output == index]
        first, n_rows = len(columns), sum(group.count for group in ours)
        columns += _columns_of(ours, out, first)
        for start in range(0, out.count if ours else 0, MAX_CHANNELS):
            count = min(MAX_CHANNELS, out.count - start)
            channels = block_side(count)
            table, source = tables.setdefault(channels, []), sources.setdefault(channels, [])
            column = first_column(product.output, index) + start * out.width
            table.append((out.width, n_rows, first, len(source) // channels, column, count))
            for group in ours:
                for u in range(group.count):
                    weight = group.weight + u * group.stride + start
                    source += range(weight, weight + count)
                    source += [FILLER] * (channels - count)

    def tensor(values: object, *shape: int) -> Tensor:
        with torch.inference_mode(mode=False):
            return torch.tensor(values, dtype=torch.int32).reshape(shape).to(device)

    jobs = (
        Jobs(
            tensor(table, len(table), 6),
            tensor(sources[channels], -1, channels),
            max(job[0] for job in table),
            channels,
        )
        for channels, table in sorted(tables.items(), reverse=True)
    )
    n_columns = len(columns)
    columns.sort(key=lambda column: -column[1])
    columns += [(0, 0, 0, 0, 0, 0, FILLER)] * (-n_columns % COLUMNS)
    ordered = tensor(columns, -1, COLUMNS, 7)
    components = [column[1] for column in columns[::COLUMNS]]  # of tiles
    ends = accumulate(len(list(group)) for _, group in groupby(components))
    tiles = (Tiles(ordered[start:end], components[start]) for start, end in pairwise((0, *ends)))
    everything = Tiles(ordered, max(components, default=1))
    return ContractionPlan(everything, tuple(tiles), tuple(jobs), n_columns)


def _columns_of(groups: list[Group], out: Irrep, first: int) -> list[tuple[int, ...]]:
    """Return the coupled columns of an output."""
    n_columns = sum(group.count for group in groups) * out.width
    return [
        (
            group.node + u * group.width,
            group.width,
            group.matrix + m,
            group.components,
            first,
            n_columns,
            first + index,
        )
        for index, (m, group, u) in enumerate(
            (m, group, u) for m in range(out.width) for group in groups for u in range(group.count)
        )
    ]
