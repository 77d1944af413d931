"""Initial tensors of atoms from their elements and neighbors; differentiable twice.

    X_i = v_1(0) 1 + sum_j v_1 1 + v_2 A(u_ij) + v_3 (u_ij u_ij^T - 1/3)
    v_k = (P_i + Q_j) f_k(d_ij)

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eqs. 5-8. The
kernels are those of the engine, which never store the factors. Second derivatives are those of the
reference. Tables are constants here. To train them, compute factors with `linear`, and sum with
`edge_tensors`.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.checks import check_floats, check_graph, check_shape
from mlff_triton.kernels.common.operators import by_reference, operator
from mlff_triton.kernels.ops.radial_arguments import (
    check_channels,
    check_constants,
    constant_knots,
)
from mlff_triton.kernels.ops.reference import radial_embedding as reference
from mlff_triton.kernels.tensornet.tensor_embedding import (
    tensor_embedding,
    tensor_embedding_backward,
)
from mlff_triton.kernels.types.edges import Edges, Knots


def _edges_of(vectors: Tensor, knots: Knots, graph: tuple[Tensor, ...]) -> Edges:
    """Return edges with all their geometry, located in float64."""
    row_ptr, senders, reverse = graph
    edges = Edges.of_graph(row_ptr, senders, reverse, vectors.double(), knots)
    return edges.to(vectors.dtype)


def _reference(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    *rest: Tensor,
) -> Tensor:
    return reference.radial_embedding(
        vectors,
        species,
        receiver.detach(),
        sender.detach(),
        table.detach(),
        own.detach(),
        constant_knots(*rest[:2]),
        *rest[2:],
    )


@operator(
    "radial_embedding_backward",
    outputs="vectors",
    differentiate=by_reference(_reference, wrt=(0,)),
)
def _radial_embedding_backward(
    grad: Tensor,
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Return the gradients of the vectors."""
    del own  # does not depend on the vectors
    if not len(vectors):
        return vectors.new_empty(vectors.shape)
    grad, receiver, sender, table = (t.contiguous() for t in (grad, receiver, sender, table))
    edges = _edges_of(vectors, Knots(positions, intervals), (row_ptr, senders, reverse))
    grad_vectors = tensor_embedding_backward(
        grad, species.int(), receiver, sender, table, edges, slope=None
    )
    return grad_vectors.T.contiguous()


@operator(
    "radial_embedding",
    outputs=lambda vectors, species, receiver, *_: vectors.new_empty(
        9, len(species), receiver.shape[1]
    ),
    gradients=_radial_embedding_backward,
)
def _radial_embedding(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    if not len(species):
        return receiver.new_empty(9, 0, receiver.shape[1])
    receiver, sender, table, own = (t.contiguous() for t in (receiver, sender, table, own))
    edges = _edges_of(vectors, Knots(positions, intervals), (row_ptr, senders, reverse))
    species = species.int()
    return tensor_embedding(species, receiver, sender, table, own, edges)[0]


def radial_embedding(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Compute the initial tensors of all atoms from elements and neighbors, in one pass.

    Parameters
    ----------
    vectors : [E, 3]
        Vectors from sender to receiver in Å, with lengths within the table; opposite edges have
        opposite vectors; float32 or float64.
    species : int64 or int32 [N]
        Element of each atom. The values are not checked.
    receiver, sender : [S, F]
        Embedding of each element as a receiver (P) and as a sender (Q); F is a power of two.
    table, own : [K + 1, 3, 3, F], [F]
        Functions at the knots, as for `radial_factors`, and the first function at distance 0, or
        zeros. These four get no gradients.
    knots : Knots
        Knots of the table, in float64.
    row_ptr, senders, reverse : int64 or int32 [N + 1], [E], [E]
        The neighbor list, as in `mlff_triton.Graph`. The values are not checked.

    Returns
    -------
    [9, N, F]
        Initial tensors, packed as in `mlff_triton.model.irreps`.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, F is not a power of two, or a constant
        requires a gradient.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2306.06482, eqs. 5-8.

    Examples
    --------
    >>> knots = Knots(torch.tensor([0.0, 4.0]).double().cuda(), torch.tensor([0]).int().cuda())
    >>> line = torch.tensor([[4.0, -1.0, -1.0], [0.0, -1.0, 0.0]]).cuda()  # 4 - d
    >>> table, own = line[:, :, None, None].repeat(1, 1, 3, 8), torch.zeros(8).cuda()
    >>> vectors = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]).cuda()
    >>> species = torch.tensor([0, 0]).cuda()
    >>> of_element = torch.ones(1, 8).cuda()
    >>> graph = torch.tensor([[0, 1, 2], [1, 0, 0], [1, 0, 0]]).cuda()
    >>> row_ptr, senders, reverse = graph[0], graph[1, :2], graph[2, :2]
    >>> tables = of_element, of_element, table, own, knots
    >>> radial_embedding(vectors, species, *tables, row_ptr, senders, reverse)[:4, 0, 0].tolist()
    [6.0, 0.0, 0.0, 6.0]
    """
    check_shape("vectors", vectors, ("E", 3))
    check_shape("species", species, ("N",))
    check_shape("receiver", receiver, ("S", "F"))
    check_shape("sender", sender, receiver.shape)
    channels = receiver.shape[1]
    check_constants(knots, receiver=receiver, sender=sender, table=table, own=own)
    check_shape("table", table, ("K + 1", 3, 3, channels))
    check_shape("own", own, (channels,))
    check_floats(vectors=vectors, receiver=receiver, sender=sender, table=table, own=own)
    check_graph(vectors, len(species), len(vectors), row_ptr, senders, reverse)
    check_channels(channels)
    x: Tensor = _radial_embedding(
        vectors, species, receiver, sender, table, own, *knots, row_ptr, senders, reverse
    )
    return x
