"""Rows of edges, on which the message operators of TensorNet2 work."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class HiddenRows(NamedTuple):
    """Last hidden values of the network of each edge, and slopes at earlier ones, in rows.

    Attributes
    ----------
    z3 : [rows, 3 F]
        Last hidden values, before their activation.
    first_slope, second_slope : [rows, F], [rows, 2 F]
        Slopes of the activation at the hidden values before them.
    cutoff : [rows, 2], optional
        Cosine cutoff and its derivative, on a CPU.
    """

    z3: Tensor
    first_slope: Tensor
    second_slope: Tensor
    cutoff: Tensor | None = None


class RowPartners(NamedTuple):
    """Edge of each row. For edges of atoms to themselves, slots are -1.

    Attributes
    ----------
    atoms : int64 [rows]
        Sender of the edge.
    slots, opposite_slots : int64 [rows]
        Slot of the geometry of the edge, and slot for results of the opposite edge.
    sent, sent_by, sent_to : int64 [rows]
        All rows, sorted by sender, and their senders and receivers.
    """

    atoms: Tensor
    slots: Tensor
    opposite_slots: Tensor
    sent: Tensor
    sent_by: Tensor
    sent_to: Tensor


class EdgeRows(NamedTuple):
    """Rows of the edges, and the values that they keep for the backward pass.

    Attributes
    ----------
    ends : int64 [N]
        Number of edges of all atoms up to and including each one, self-loops included.
    hidden : HiddenRows, optional
        Rows of the edges that each atom sends (on a GPU) or receives (on a CPU).
    partners : RowPartners, optional
        Edges of the rows, on a CPU.
    """

    ends: Tensor
    hidden: HiddenRows | None = None
    partners: RowPartners | None = None
