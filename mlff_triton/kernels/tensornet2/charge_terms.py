"""Terms of the charges in the networks of edges, and the gradients of the charges.

    R q_i and S q_j      dE/dq_i = R^T sum_j dE/dz1_ij + S^T sum_j dE/dz1_ji

with z1 as in `mlff_triton.kernels.tensornet2.edge_messages`, which applies R^T to the gradients of
each edge.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.tensornet.launch_sizes import other_rows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork

_LANES = 32  # neighbors of an atom in an iteration


@triton.jit
def _charge_terms_kernel(
    charges_ptr,
    weight_ptr,
    terms_ptr,
    stride,
    n_atoms,
    F: tl.constexpr,
    Q: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Map charges for a role. Grid: one program per atom and role.

    Reads ``charges[N, Q]``, whose rows are ``stride`` apart, and ``weight[Q, 2, F]``. Writes
    ``terms[2, N, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom, role = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, F)
    terms = tl.zeros([F], terms_ptr.dtype.element_ty)
    for q in tl.static_range(Q):
        charge = tl.load(charges_ptr + atom * stride + q)
        terms += charge * tl.load(weight_ptr + (2 * q + role) * F + channel)
    tl.store(terms_ptr + (role.to(tl.int64) * n_atoms + atom) * F + channel, terms)


@triton.jit
def _charge_gradients_kernel(
    grad_sent_ptr,
    by_edge_ptr,
    by_atom_ptr,
    weight_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    origin_ptr,
    reverse_ptr,
    others_ptr,
    grad_charges_ptr,
    stride,
    n_charges,
    n_senders,
    F: tl.constexpr,
    Q: tl.constexpr,
    LANES: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the gradients of an atom's charges. Grid: one program per atom.

    Reads ``grad_sent[N, F]``, ``by_edge[slots, n_charges]``, ``by_atom[N, n_charges]``,
    ``weight[n_charges, 2, F]``, from `Edges` ``slot_begin[N]``, ``slot_end[N]``, and ``origin``
    and ``reverse`` [slots], and unless it is None, ``others[N, n_charges]``, whose rows are
    ``stride`` apart. Writes ``grad_charges[N, n_charges]``. Unless ``n_senders`` is None,
    ``grad_sent``, ``by_atom`` and ``others`` have that many rows, and are zero for other atoms.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0).to(tl.int64)
    charge = tl.arange(0, Q)
    used = charge < n_charges
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    received = tl.zeros([LANES, Q], grad_charges_ptr.dtype.element_ty)
    for start in range(begin, end, LANES):
        slot = start + tl.arange(0, LANES)
        live = slot < end
        origin = tl.load(origin_ptr + slot, live, other=0)
        opposite = tl.load(reverse_ptr + origin, live, other=0).to(tl.int64)
        rows = by_edge_ptr + opposite[:, None] * n_charges + charge[None, :]
        received += tl.load(rows, live[:, None] & used[None, :], other=0.0)

    is_sender = True if n_senders is None else atom < n_senders
    used_here = used & is_sender
    channel = tl.arange(0, F)[:, None]
    sent = tl.load(grad_sent_ptr + atom * F + channel, is_sender, other=0.0)  # [F, 1]
    weight = tl.load(
        weight_ptr + (2 * charge[None, :] + 1) * F + channel, used[None, :], other=0.0
    )  # [F, Q]
    out = atom * n_charges + charge
    grad = tl.load(by_atom_ptr + out, used_here, other=0.0) + tl.sum(received, axis=0)
    grad += tl.sum(sent * weight, axis=0)
    if others_ptr is not None:
        grad += tl.load(others_ptr + atom * stride + charge, used_here, other=0.0)
    tl.store(grad_charges_ptr + out, grad, used)


def charge_terms(charges: Tensor, network: InteractionNetwork) -> Tensor:
    """Map the charges of receivers and of senders.

    Parameters
    ----------
    charges : [N, Q]
        Partial charges. Rows need not follow each other.
    network : InteractionNetwork
        Network of the edges.

    Returns
    -------
    [2, N, F]
    """
    check_device(charges)
    n_atoms, n_charges = charges.shape
    channels = network.charges.shape[2]
    terms = charges.new_empty(2, n_atoms, channels)
    with torch.cuda.device_of(charges):
        _charge_terms_kernel[(n_atoms, 2)](
            charges,
            network.charges,
            terms,
            charges.stride(0),
            n_atoms,
            F=channels,
            Q=n_charges,
            num_warps=1,
            **early_launch(charges),
        )
    return terms


def charge_gradients(
    grad_sent: Tensor,
    by_edge: Tensor,
    by_atom: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    others: Tensor | None,
) -> Tensor:
    """Compute the gradients of the charges.

    Parameters
    ----------
    grad_sent, by_edge, by_atom : [M, F], [slots, Q], [M, Q]
        From `mlff_triton.kernels.tensornet2.operators.edge_messages_backward`.
    network : InteractionNetwork
        Network of the edges.
    edges : Edges
        Edges within the cutoff. The first M of the N atoms are those of the other arguments.
    others : [M, Q], optional
        Further gradients, to which these are added. Rows need not follow each other.

    Returns
    -------
    [N, Q]
    """
    check_device(grad_sent)
    n_atoms, n_charges = len(edges.slot_begin), by_atom.shape[1]
    grad_charges = by_atom.new_empty(n_atoms, n_charges)
    with torch.cuda.device_of(grad_sent):
        _charge_gradients_kernel[(n_atoms,)](
            grad_sent,
            by_edge,
            by_atom,
            network.charges,
            edges.slot_begin,
            edges.slot_end,
            edges.origin,
            edges.reverse,
            others,
            grad_charges,
            0 if others is None else others.stride(0),
            n_charges,
            other_rows(len(by_atom), n_atoms),
            F=grad_sent.shape[1],
            Q=triton.next_power_of_2(n_charges),
            LANES=_LANES,
            num_warps=2,
            **early_launch(grad_sent),
        )
    return grad_charges
