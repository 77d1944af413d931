"""Jobs of kernels for a tensor product that keeps the channels of nodes.

A job is a set of paths. A program computes one job for a block of channels. Kernels are compiled
for a product: columns, numbers of components and Clebsch-Gordan coefficients are constants in them,
so they only multiply where the coefficients are not zero. Packed weights of a network are stored
path after path, each padded to whole blocks of `BLOCK` channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.convolution.clebsch_gordan import symbols_of
from mlff_triton.kernels.convolution.plan import BLOCK, FILLER, Group, groups_of
from mlff_triton.kernels.convolution.types import Irreps, TensorProduct, columns_of, first_column

_ROUNDING = 1e-12  # coefficients up to this magnitude are zero

Terms = tuple[tuple[int, float], ...]
"""Indices of a job's harmonics, and their coefficients in an element of a coupling matrix."""


@dataclass(frozen=True)
class ChannelPath:
    """One path and one channel of its harmonics, in a job.

    Attributes
    ----------
    node, output : int
        Indices of the first components of the node and the output among those of the job.
    weight, stride : int
        First weight, and number of weights between channels.
    block : int
        First block of packed weights.
    couplings : tuple
        Terms of the coupling matrix, by components of the node and of the output.
    harmonics : tuple
        The same coefficients for each of the job's harmonics, as (component of the node, component
        of the output, coefficient).
    """

    node: int
    output: int
    weight: int
    stride: int
    block: int
    couplings: tuple[tuple[Terms, ...], ...]
    harmonics: tuple[tuple[tuple[int, int, float], ...], ...]


@dataclass(frozen=True)
class Job:
    """Paths that a program works on.

    Attributes
    ----------
    count : int
        Number of channels.
    nodes : tuple of int
        First column of each component of the node, in rows in the order of components.
    outputs : tuple of (int, int)
        First column of each component of the output, and number of columns between channels.
    gradients : tuple of int
        First column of each component of the output, in rows in the order of components.
    harmonics, others : tuple of int
        Columns of the harmonics that the job needs, and those that it does not need.
    paths : tuple of ChannelPath
        Terms.
    """

    count: int
    nodes: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]
    gradients: tuple[int, ...]
    harmonics: tuple[int, ...]
    others: tuple[int, ...]
    paths: tuple[ChannelPath, ...]


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs of a product, as a compile-time constant: kernels are compiled once per object.

    Attributes
    ----------
    n_node, n_harmonics, n_output, n_weights : int
        Numbers of columns of a node, of the harmonics and of the output, and number of weights.
    jobs : tuple of Job
        All jobs.
    """

    n_node: int
    n_harmonics: int
    n_output: int
    n_weights: int
    jobs: tuple[Job, ...]

    @cached_property
    def reaches_all(self) -> bool:
        """True if each column of a node belongs to a job."""
        return sum(job.count * len(job.nodes) for job in self.jobs) == self.n_node

    @cached_property
    def most_channels(self) -> int:
        """Largest number of channels of a job."""
        return max((job.count for job in self.jobs), default=0)

    def first_programs(self, channels: int) -> tuple[int, ...]:
        """Return the first program of each job, and the number of programs.

        A job has one program for each block of its channels.
        """
        return tuple(accumulate((-(-job.count // channels) for job in self.jobs), initial=0))


@cache
def jobs_by_output(product: TensorProduct, components: int, n_paths: int | None = None) -> Jobs:
    """Return jobs that each own one or more outputs.

    A job of several outputs has at most ``components`` components and, if given, ``n_paths`` paths.
    """
    groups = _groups(product)
    outputs = sorted({group.output for group, _ in groups}, key=lambda k: _first_node(groups, k))
    parts = [[entry for entry in groups if entry[0].output == k] for k in outputs]
    return _jobs(product, _merged(parts, components, len(groups) if n_paths is None else n_paths))


@cache
def jobs_by_node(product: TensorProduct) -> Jobs:
    """Return jobs that each own one irrep of the nodes."""
    groups = _groups(product)
    nodes = dict.fromkeys(group.node for group, _ in groups)
    return _jobs(product, [[entry for entry in groups if entry[0].node == k] for k in nodes])


_Entry = tuple[Group, int]
"""Group, and its index in the order of weights."""


def _groups(product: TensorProduct) -> list[_Entry]:
    return [(group, index) for index, group in enumerate(groups_of(product))]


def _first_node(groups: list[_Entry], output: int) -> tuple[int, int]:
    return min(group.node for group, _ in groups if group.output == output), output


def _merged(parts: list[list[_Entry]], components: int, n_paths: int) -> list[list[_Entry]]:
    """Merge neighboring outputs with the same number of channels, within limits of a job."""
    merged: list[list[_Entry]] = []
    for part in parts:
        both = merged[-1] + part if merged else part
        total = sum({g.output: g.components for g, _ in both}.values())
        fits = total <= components and len(both) <= n_paths
        if merged and fits and both[0][0].count == part[0][0].count:
            merged[-1] = both
        else:
            merged.append(part)
    return merged


def _jobs(product: TensorProduct, parts: list[list[_Entry]]) -> Jobs:
    widths = columns_of(product.node), columns_of(product.harmonics), product.n_outputs
    return Jobs(*widths, product.n_weights, tuple(_job(product, part) for part in parts))


def _job(product: TensorProduct, part: list[_Entry]) -> Job:
    groups = [group for group, _ in part]
    nodes = {group.node: group.width for group in groups}
    outputs = {group.output: group.components for group in groups}
    first_nodes = dict(zip(nodes, _starts(nodes.values()), strict=True))
    first_outputs = dict(zip(outputs, _starts(outputs.values()), strict=True))
    symbols, count = _symbols(product), groups[0].count
    columns = sorted({b for _, k in part for row in symbols[k] for terms in row for b, _ in terms})
    where = {column: k for k, column in enumerate(columns)}
    paths = tuple(
        ChannelPath(
            first_nodes[group.node],
            first_outputs[group.output],
            group.weight,
            group.stride,
            _first_blocks(product)[index],
            tuple(
                tuple(tuple((where[b], c) for b, c in terms) for terms in row)
                for row in symbols[index]
            ),
            tuple(
                tuple(
                    (a, m, c)
                    for a, row in enumerate(symbols[index])
                    for m, terms in enumerate(row)
                    for b, c in terms
                    if b == column
                )
                for column in columns
            ),
        )
        for group, index in part
    )
    return Job(
        count,
        tuple(k + a * count for k, width in nodes.items() for a in range(width)),
        tuple(
            (first_column(product.output, k) + m, width)
            for k, width in outputs.items()
            for m in range(width)
        ),
        tuple(
            first_column(product.output, k) + m * count
            for k, width in outputs.items()
            for m in range(width)
        ),
        tuple(columns),
        tuple(b for b in range(columns_of(product.harmonics)) if b not in where),
        paths,
    )


def _starts(sizes: object) -> list[int]:
    return [0, *accumulate(sizes)][:-1]  # type: ignore[call-overload]


@cache
def _symbols(product: TensorProduct) -> list[tuple[tuple[Terms, ...], ...]]:
    """Return coefficients of columns of harmonics, for each element of each coupling matrix."""
    found = []
    for path in product.paths:
        harmonic = product.harmonics[path.harmonic]
        degrees = (product.node[path.node], harmonic, product.output[path.output])
        symbols = symbols_of(*(irrep.degree for irrep in degrees))
        symbols = path.factor * np.where(np.abs(symbols) > _ROUNDING, symbols, 0)
        for v in range(harmonic.count):
            start = first_column(product.harmonics, path.harmonic) + v * harmonic.width
            found.append(
                tuple(
                    tuple(
                        tuple((start + b, float(c)) for b, c in enumerate(element) if c)
                        for element in row
                    )
                    for row in symbols.transpose(0, 2, 1).tolist()
                )
            )
    return found


class Packing:
    """Columns of packed weights of a product, for `pack_weight`.

    Attributes
    ----------
    source : int32 [B * BLOCK]
        Column of the weight for each packed column, or `FILLER`.
    position : int64 [weights]
        Packed column of each column of the weight.
    """

    def __init__(self, product: TensorProduct, device: torch.device) -> None:
        source: list[int] = []
        for group in groups_of(product):
            source += [
                group.weight + u * group.stride if u < group.count else FILLER
                for u in range(-(-group.count // BLOCK) * BLOCK)
            ]
        columns = torch.tensor(source, dtype=torch.int64)
        live = columns != FILLER
        position = torch.full((product.n_weights,), FILLER, dtype=torch.int64)
        position[columns[live]] = live.nonzero()[:, 0]
        self.source: Tensor = columns.int().to(device)
        self.position: Tensor = position.to(device)


@cache
def packing_of(product: TensorProduct, device: torch.device) -> Packing:
    """Return the columns of packed weights."""
    with torch.inference_mode(mode=False):
        return Packing(product, device)


@cache
def _first_blocks(product: TensorProduct) -> list[int]:
    return _starts(-(-group.count // BLOCK) for group in groups_of(product))


@cache
def component_order(irreps: Irreps, device: torch.device) -> Tensor | None:
    """Return the columns in the order of components, int32 [columns], or None if already in it.

    In this order, an irrep is [components, channels] instead of [channels, components].
    """
    if all(irrep.width == 1 or irrep.count == 1 for irrep in irreps):
        return None
    columns, start = [], 0
    for irrep in irreps:
        block = torch.arange(start, start + irrep.columns).view(irrep.count, irrep.width)
        columns.append(block.T.flatten())
        start += irrep.columns
    with torch.inference_mode(mode=False):
        return torch.cat(columns).int().to(device)
