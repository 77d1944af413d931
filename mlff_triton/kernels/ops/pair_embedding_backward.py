"""Derivatives of the initial tensors of TensorNet.

    X_i = sum_e w_e (f_1 1 + f_2 A(u) + f_3 (u u^T - |u|^2 / 3))      w_e = a_i + b_j

See `mlff_triton.kernels.ops.pair_embedding`. With (g_I, g_a, g_S) the gradients of X_i and v the
gradient of <g_S, u u^T - |u|^2 / 3>,

    q = (g_I, g_a . u, v . u / 2)       gf = sum w q  over both edges of a pair
    ga_i = sum_e f . q                  gb_j = sum f . q  over the edges that j sends
    gu = sum_F w (f_2 g_a + f_3 v)

v is a linear function of u. Second derivatives are gradients of ``<g, dX>``, where dX is the change
of X for changes of directions, factors, a and b, and dq = (0, g_a . du, v . du):

    dX_i = sum_e (dw f + w df) . (1, A(u), u u^T - |u|^2 / 3)
                 + w f_2 A(du) + w f_3 (u du^T + du u^T - 2 u . du / 3)
    gf = sum dw q + w dq                ga, gb = sum df . q + f . dq
    gu = sum_F (dw f_2 + w df_2) g_a + (dw f_3 + w df_3) v(u) + w f_3 v(du)

Each program owns one atom and a block of channels. It loops over the edges that the atom receives,
and computes the contributions of the opposite edges again. Nothing is scattered, so results are
reproducible to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.irreps import (
    add,
    harmonics_change,
    load_parts,
    load_tensor,
    scale_harmonics,
    store_parts,
    store_tensor,
    traceless_gradient,
)

_BLOCK = 256  # bytes of a program's channels


@triton.jit
def load_vector(pointer, edge):
    """Load the three components of a vector per edge."""
    pointer += 3 * edge
    return tl.load(pointer), tl.load(pointer + 1), tl.load(pointer + 2)


@triton.jit
def _dot(a, b):
    """Return the product of two vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def scale_all(factor, parts):
    """Multiply three blocks by one."""
    return factor * parts[0], factor * parts[1], factor * parts[2]


@triton.jit
def _sum(a, b):
    """Add three blocks to three others."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@triton.jit
def _projections(grad, u, v):
    """Return q: products of the gradient of a tensor and the three tensors of direction u."""
    return grad[0], grad[1] * u[0] + grad[2] * u[1] + grad[3] * u[2], 0.5 * _dot(v, u)


@triton.jit
def _projections_change(grad, v, du):
    """Return dq, the change of q for a change du of the direction."""
    return 0 * grad[0], grad[1] * du[0] + grad[2] * du[1] + grad[3] * du[2], _dot(v, du)


@triton.jit
def _pair_embedding_bwd_kernel(
    grad_ptr,
    directions_ptr,
    factors_ptr,
    at_receivers_ptr,
    at_senders_ptr,
    row_ptr_ptr,
    senders_ptr,
    pairs_ptr,
    reverse_ptr,
    grad_directions_ptr,
    grad_factors_ptr,
    own_ptr,
    grad_receivers_ptr,
    grad_senders_ptr,
    n_atoms,
    n_edges,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the gradients of all inputs from those of the tensors, grad [9, N, F].

    Gradients of directions, if they are wanted, are [blocks, E, 3], each summed over a block of
    channels. Gradients of factors by self-loops are ``own`` [N, 3, F]. Grid: (N, blocks of
    channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    stride = tl.cast(n_atoms, tl.int64) * channels
    here = atom * channels + channel
    grad = load_tensor(grad_ptr + here, stride, mask)
    a = tl.load(at_receivers_ptr + here, mask, other=0.0)
    b = tl.load(at_senders_ptr + here, mask, other=0.0)

    o = tl.zeros((BLOCK,), grad_ptr.dtype.element_ty)
    grad_a, grad_b, own = o, o, (o, o, o)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        pair = tl.load(pairs_ptr + edge).to(tl.int64)
        opposite = tl.load(reverse_ptr + edge).to(tl.int64)
        there = sender * channels + channel
        u, u_back = load_vector(directions_ptr, edge), load_vector(directions_ptr, opposite)
        f = load_parts(factors_ptr + pair * 3 * channels + channel, channels, mask)
        w = a + tl.load(at_senders_ptr + there, mask, other=0.0)
        w_back = b + tl.load(at_receivers_ptr + there, mask, other=0.0)
        grad_back = load_tensor(grad_ptr + there, stride, mask)

        v = traceless_gradient(grad, u[0], u[1], u[2])
        q = _projections(grad, u, v)
        v_back = traceless_gradient(grad_back, u_back[0], u_back[1], u_back[2])
        q_back = _projections(grad_back, u_back, v_back)
        grad_a += _dot(f, q)
        grad_b += _dot(f, q_back)
        if pair == 0:
            own = _sum(own, scale_all(w, q))
        elif sender >= atom:  # both edges of an atom and its image write the same values
            both = _sum(scale_all(w, q), scale_all(w_back, q_back))
            store_parts(grad_factors_ptr + pair * 3 * channels + channel, channels, both, mask)
        if grad_directions_ptr is not None:
            grad_u_ptr = grad_directions_ptr + 3 * (block * n_edges + edge)
            wf_a, wf_s = w * f[1], w * f[2]
            tl.store(grad_u_ptr, tl.sum(wf_a * grad[1] + wf_s * v[0]))
            tl.store(grad_u_ptr + 1, tl.sum(wf_a * grad[2] + wf_s * v[1]))
            tl.store(grad_u_ptr + 2, tl.sum(wf_a * grad[3] + wf_s * v[2]))

    tl.store(grad_receivers_ptr + here, grad_a, mask)
    tl.store(grad_senders_ptr + here, grad_b, mask)
    store_parts(own_ptr + atom * 3 * channels + channel, channels, own, mask)


@triton.jit
def _pair_embedding_bwd_bwd_kernel(
    change_directions_ptr,
    change_factors_ptr,
    change_receivers_ptr,
    change_senders_ptr,
    grad_ptr,
    directions_ptr,
    factors_ptr,
    at_receivers_ptr,
    at_senders_ptr,
    row_ptr_ptr,
    senders_ptr,
    pairs_ptr,
    reverse_ptr,
    change_ptr,
    grad_directions_ptr,
    grad_factors_ptr,
    own_ptr,
    grad_receivers_ptr,
    grad_senders_ptr,
    n_atoms,
    n_edges,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the change of the tensors [9, N, F], and gradients of its product with grad [9, N, F].

    Given the changes of all inputs; gradients are by these inputs, with the shapes of
    `_pair_embedding_bwd_kernel`. Grid: (N, blocks of channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    stride = tl.cast(n_atoms, tl.int64) * channels
    here = atom * channels + channel
    grad = load_tensor(grad_ptr + here, stride, mask)
    a = tl.load(at_receivers_ptr + here, mask, other=0.0)
    b = tl.load(at_senders_ptr + here, mask, other=0.0)
    da = tl.load(change_receivers_ptr + here, mask, other=0.0)
    db = tl.load(change_senders_ptr + here, mask, other=0.0)

    o = tl.zeros((BLOCK,), grad_ptr.dtype.element_ty)
    total = (o, o, o, o, o, o, o, o, o)
    grad_a, grad_b, own = o, o, (o, o, o)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        pair = tl.load(pairs_ptr + edge).to(tl.int64)
        opposite = tl.load(reverse_ptr + edge).to(tl.int64)
        there = sender * channels + channel
        u, u_back = load_vector(directions_ptr, edge), load_vector(directions_ptr, opposite)
        du = load_vector(change_directions_ptr, edge)
        du_back = load_vector(change_directions_ptr, opposite)
        f = load_parts(factors_ptr + pair * 3 * channels + channel, channels, mask)
        df = load_parts(change_factors_ptr + pair * 3 * channels + channel, channels, mask)
        w = a + tl.load(at_senders_ptr + there, mask, other=0.0)
        dw = da + tl.load(change_senders_ptr + there, mask, other=0.0)

        v = traceless_gradient(grad, u[0], u[1], u[2])
        dv = traceless_gradient(grad, du[0], du[1], du[2])
        q, dq = _projections(grad, u, v), _projections_change(grad, v, du)
        wf, c = scale_all(w, f), _sum(scale_all(dw, f), scale_all(w, df))
        total = add(total, scale_harmonics(c, u[0], u[1], u[2]))
        total = add(total, harmonics_change(wf, u, du))
        if grad_directions_ptr is not None:
            grad_u_ptr = grad_directions_ptr + 3 * (block * n_edges + edge)
            tl.store(grad_u_ptr, tl.sum(c[1] * grad[1] + c[2] * v[0] + wf[2] * dv[0]))
            tl.store(grad_u_ptr + 1, tl.sum(c[1] * grad[2] + c[2] * v[1] + wf[2] * dv[1]))
            tl.store(grad_u_ptr + 2, tl.sum(c[1] * grad[3] + c[2] * v[2] + wf[2] * dv[2]))
        grad_a += _dot(df, q) + _dot(f, dq)
        grad_f = _sum(scale_all(dw, q), scale_all(w, dq))

        grad_back = load_tensor(grad_ptr + there, stride, mask)
        v_back = traceless_gradient(grad_back, u_back[0], u_back[1], u_back[2])
        q_back = _projections(grad_back, u_back, v_back)
        dq_back = _projections_change(grad_back, v_back, du_back)
        grad_b += _dot(df, q_back) + _dot(f, dq_back)
        if pair == 0:
            own = _sum(own, grad_f)
        elif sender >= atom:
            w_back = b + tl.load(at_receivers_ptr + there, mask, other=0.0)
            dw_back = db + tl.load(change_receivers_ptr + there, mask, other=0.0)
            back = _sum(scale_all(dw_back, q_back), scale_all(w_back, dq_back))
            both = _sum(grad_f, back)
            store_parts(grad_factors_ptr + pair * 3 * channels + channel, channels, both, mask)

    store_tensor(change_ptr + here, stride, total, mask)
    tl.store(grad_receivers_ptr + here, grad_a, mask)
    tl.store(grad_senders_ptr + here, grad_b, mask)
    store_parts(own_ptr + atom * 3 * channels + channel, channels, own, mask)


def launch_backward(
    grad: Tensor,
    inputs: tuple[Tensor, ...],
    graph: tuple[Tensor, ...],
    changes: tuple[Tensor, ...] | None = None,
    *,
    with_directions: bool,
) -> tuple[Tensor, ...]:
    """Return gradients of the four inputs; if given their changes, also of ``grad``, first.

    The gradient of the directions is empty unless it is wanted.
    """
    directions, factors, at_receivers, at_senders = (t.contiguous() for t in inputs)
    n_atoms, channels = at_receivers.shape
    block = min(triton.next_power_of_2(max(1, channels)), _BLOCK // grad.element_size())
    change = () if changes is None else (grad.new_empty(grad.shape),)
    n_blocks = triton.cdiv(channels, block)
    of_directions = directions.new_zeros(n_blocks, len(directions) if with_directions else 0, 3)
    of_factors = factors.new_zeros(factors.shape)
    of_atoms = at_receivers.new_empty(n_atoms, channels), at_senders.new_empty(n_atoms, channels)
    if grad.numel():
        own = factors.new_empty(n_atoms, 3, channels)  # of the edges of atoms to themselves
        kernel = _pair_embedding_bwd_kernel if changes is None else _pair_embedding_bwd_bwd_kernel
        with torch.cuda.device_of(grad):
            kernel[(n_atoms, n_blocks)](
                *(() if changes is None else (t.contiguous() for t in changes)),
                grad.contiguous(),
                directions,
                factors,
                at_receivers,
                at_senders,
                *graph,
                *change,
                of_directions if with_directions else None,
                of_factors,
                own,
                *of_atoms,
                n_atoms,
                len(directions),
                channels,
                BLOCK=block,
                num_warps=1,
            )
        torch.sum(own, 0, out=of_factors[0])
    return *change, of_directions.sum(0), of_factors, *of_atoms
