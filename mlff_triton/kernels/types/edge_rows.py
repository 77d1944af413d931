"""Rows of edges, which the operators of messages in TensorNet2 work on."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class EdgeRows(NamedTuple):
    """Places of edges in rows, and what these rows keep for the backward pass.

    Attributes
    ----------
    ends : int64 [N]
        Number of edges of all atoms up to each one, including those of atoms to themselves.
    z3 : [rows, 3 F], optional
        Last hidden values of the edges that each atom sends.
    slope : [rows, 2 F], optional
        Slopes of the activation at the hidden values before them.
    """

    ends: Tensor
    z3: Tensor | None = None
    slope: Tensor | None = None
