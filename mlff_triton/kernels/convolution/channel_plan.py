"""Order in which kernels work through a tensor product that keeps the channels of nodes.

Weights of a group (one path and one channel of the harmonics) are vectors of channels. Kernels take
`BLOCK` channels at a time. Weights of a network are packed group after group, each padded to whole
blocks; those of a table stay where they are.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.plan import BLOCK, FILLER, groups_of
from mlff_triton.kernels.convolution.types import TensorProduct, first_column


class ChannelPlan(NamedTuple):
    """Tables of a product, int32 on one device.

    Attributes
    ----------
    groups : [G, 9]
        Number of components, first column and components of the node's irrep, first column of the
        coupling matrix and of the output, number of channels, first block of packed weights, first
        weight, and number of weights between channels.
    output_jobs, node_jobs : [J, 3]
        First group of an output or of a node's irrep, number of groups, and a block of channels.
        Groups of a node are counted in ``order``.
    order : [G]
        Groups, sorted by the node's irrep.
    blocks : [B, 2]
        Group and block of channels.
    source : [B * BLOCK]
        Column of the weight, `FILLER` without one.
    position : int64 [weights]
        Column of the packed weight.
    components : tuple of int
        Numbers of components of outputs.
    width : int
        Largest number of components of a node's irrep.
    """

    groups: Tensor
    output_jobs: Tensor
    node_jobs: Tensor
    order: Tensor
    blocks: Tensor
    source: Tensor
    position: Tensor
    components: tuple[int, ...]
    width: int


@cache
def channel_plan_of(product: TensorProduct, device: torch.device) -> ChannelPlan:
    """Return the tables of a product that keeps channels."""
    groups = sorted(groups_of(product), key=lambda group: group.output)
    order = sorted(range(len(groups)), key=lambda g: groups[g].node)
    rows: list[tuple[int, ...]] = []
    blocks: list[tuple[int, int]] = []
    source: list[int] = []
    for index, group in enumerate(groups):
        n_blocks = -(-group.count // BLOCK)
        column = first_column(product.output, group.output)
        rows.append(
            (
                group.components,
                group.node,
                group.width,
                group.matrix,
                column,
                group.count,
                len(blocks),
                group.weight,
                group.stride,
            )
        )
        blocks += [(index, block) for block in range(n_blocks)]
        source += [
            group.weight + u * group.stride if u < group.count else FILLER
            for u in range(n_blocks * BLOCK)
        ]
    columns = torch.tensor(source, dtype=torch.int64)
    live = columns != FILLER
    position = torch.full((product.n_weights,), FILLER, dtype=torch.int64)
    position[columns[live]] = live.nonzero()[:, 0]

    def table(values: object, *shape: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).reshape(shape).to(device)

    by_output = _jobs([group.output for group in groups], [group.count for group in groups])
    sorted_groups = [groups[g] for g in order]
    by_node = _jobs([g.node for g in sorted_groups], [g.count for g in sorted_groups])
    return ChannelPlan(
        table(rows, len(rows), 9),
        table(by_output, len(by_output), 3),
        table(by_node, len(by_node), 3),
        table(order, len(order)),
        table(blocks, len(blocks), 2),
        table(source, len(source)),
        position.to(device),
        tuple(sorted({group.components for group in groups})),
        max((group.width for group in groups), default=1),
    )


def _jobs(keys: list[int], counts: list[int]) -> list[tuple[int, int, int]]:
    """Return first group, number of groups and block of channels, for runs of equal keys."""
    return [
        (keys.index(key), keys.count(key), block)
        for key in dict.fromkeys(keys)
        for block in range(-(-counts[keys.index(key)] // BLOCK))
    ]
