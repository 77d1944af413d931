"""Implementations of equivariant convolutions that bench ``convolution`` compares.

Each function takes a `Problem` and returns a function of the inputs that get gradients. That makes
weights of edges by the last layer of a network, if the problem has one, and reads them otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.convolution_problems import Problem
from mlff_triton.kernels.convolution.types import Irreps

Convolution = Callable[..., Tensor]


def ours(problem: Problem) -> Convolution:
    """Return our kernels, which take tables where the weights depend on the distance alone."""
    from mlff_triton.kernels.convolution.operators import edge_convolution, radial_convolution

    rest = *problem.graph, problem.product, "mean"
    if problem.table is None:
        return lambda *floats: edge_convolution(*floats, *rest)
    table, knots = problem.table.to(problem.floats[0]), problem.knots
    return lambda *floats: radial_convolution(*floats, table, knots, *rest)


def plain(problem: Problem) -> Convolution:
    """Return our reference in PyTorch."""
    from mlff_triton.kernels.convolution.reference.edge_convolution import edge_products
    from mlff_triton.kernels.convolution.reference.edge_convolution import reduce_edges as reduce

    row_ptr, senders = problem.graph
    coupling = problem.coupling

    def convolve(node: Tensor, edge_sh: Tensor, *network: Tensor) -> Tensor:
        weights = edge_weights(network)
        messages = edge_products(node, edge_sh @ coupling.T, weights, senders, problem.product)
        return reduce(messages, row_ptr, "mean")

    return convolve


def e3nn(problem: Problem) -> Convolution:
    """Return the tensor product of e3nn, which it compiles to TorchScript, and a sum."""
    return _with_sum(problem, _e3nn_product(problem))


def e3nn_compiled(problem: Problem) -> Convolution:
    """Return all of it compiled by PyTorch's compiler."""
    from e3nn.util.jit import disable_e3nn_codegen

    with disable_e3nn_codegen():  # TorchScript, into which PyTorch's compiler does not see
        product = _e3nn_product(problem)
    return torch.compile(_with_sum(problem, product))


def cuequivariance(problem: Problem) -> Convolution:
    """Return the kernels of cuEquivariance, in their own layout of irreps."""
    import cuequivariance
    import cuequivariance_torch as kernels

    node, harmonics, output = (cuequivariance.Irreps("O3", text) for text in problem.irreps)
    options: dict[str, Any] = {
        "layout": cuequivariance.ir_mul,
        "shared_weights": False,
        "internal_weights": False,
        "device": problem.device,
        "dtype": problem.dtype,
    }
    row_ptr, senders = problem.graph
    if problem.product.mode == "uvw":
        product = kernels.FullyConnectedTensorProduct(node, harmonics, output, **options)
        return _with_sum(problem, product)
    wanted = [irrep for _, irrep in output]
    product = kernels.ChannelWiseTensorProduct(node, harmonics, wanted, **options)
    receivers, n_nodes = problem.receivers, len(row_ptr) - 1
    counts = row_ptr.diff().clamp(min=1)[:, None]

    def convolve(node: Tensor, edge_sh: Tensor, *network: Tensor) -> Tensor:
        sums = product(
            node,
            edge_sh,
            edge_weights(network),
            indices_1=senders,
            indices_out=receivers,
            size_out=n_nodes,
        )
        return sums / counts

    return convolve


def openequivariance(problem: Problem) -> Convolution:
    """Return the fused convolution of OpenEquivariance, which sums with atomics."""
    import numpy as np
    import openequivariance as peer

    dtype = np.float64 if problem.dtype == torch.float64 else np.float32
    described = peer.TPProblem(
        *map(peer.Irreps, problem.irreps),
        problem.instructions,
        irrep_dtype=dtype,
        weight_dtype=dtype,
        shared_weights=False,
        internal_weights=False,
    )
    layer = peer.TensorProductConv(described, deterministic=False)
    row_ptr, senders = problem.graph
    receivers, counts = problem.receivers, row_ptr.diff().clamp(min=1)[:, None]

    def convolve(node: Tensor, edge_sh: Tensor, *network: Tensor) -> Tensor:
        weights = edge_weights(network)
        if problem.product.mode == "uvw":
            weights = layer.reorder_weights_from_e3nn(weights, has_batch_dim=True)
        return layer.forward(node, edge_sh, weights, receivers, senders) / counts

    return convolve


def luna(problem: Problem) -> Convolution:
    """Return the convolution of LunaEquivariance, whose graph is prepared beforehand."""
    from LunaEquivariance import TensorProductConv

    layer = TensorProductConv(
        *problem.irreps,
        problem.instructions,
        internal_weights=False,
        shared_weights=False,
        dtype=problem.dtype,
    ).to(problem.device)
    row_ptr, senders = problem.graph
    graph = layer.create_graph(senders, problem.receivers, len(row_ptr) - 1)
    counts = row_ptr.diff().clamp(min=1)[:, None]

    def convolve(node: Tensor, edge_sh: Tensor, *network: Tensor) -> Tensor:
        out: Tensor = layer(node, edge_sh, edge_weights(network), graph=graph)
        return out / counts

    return convolve


WAYS: dict[str, Callable[[Problem], Convolution]] = {
    "triton": ours,
    "torch": plain,
    "e3nn": e3nn,
    "e3nn-compiled": e3nn_compiled,
    "cuequivariance": cuequivariance,
    "openequivariance": openequivariance,
    "luna": luna,
}
PACKAGES = {
    "e3nn": "e3nn",
    "e3nn-compiled": "e3nn",
    "cuequivariance": "cuequivariance_torch",
    "openequivariance": "openequivariance",
    "luna": "LunaEquivariance",
}
"""Packages of implementations that need one."""

CHANNELS_LAST = ("cuequivariance",)
"""Implementations whose rows have the components of an irrep first, and its channels last."""


def edge_weights(network: tuple[Tensor, ...]) -> Tensor:
    """Return weights [E, weights], from the last layer of a network if they are not given."""
    if len(network) == 1:
        return network[0]
    hidden, weight, bias = network
    return torch.addmm(bias, hidden, weight)


def channels_last(rows: Tensor, irreps: Irreps, *, back: bool = False) -> Tensor:
    """Return rows with the components of each irrep first, or ``back`` from there."""
    blocks, start = [], 0
    for irrep in irreps:
        shape = (irrep.width, irrep.count) if back else (irrep.count, irrep.width)
        block = rows[:, start : start + irrep.columns].unflatten(1, shape)
        blocks.append(block.transpose(1, 2).flatten(1))
        start += irrep.columns
    return torch.cat(blocks, 1)


def _e3nn_product(problem: Problem) -> torch.nn.Module:
    from e3nn import o3

    made = o3.TensorProduct(
        *problem.irreps,
        problem.instructions,
        shared_weights=False,
        internal_weights=False,
    )
    return made.to(problem.device, problem.dtype)  # type: ignore[no-any-return]


def _with_sum(problem: Problem, product: Callable[..., Tensor]) -> Convolution:
    """Return the mean over edges of a tensor product of gathered nodes."""
    row_ptr, senders = problem.graph
    receivers, counts = problem.receivers, row_ptr.diff().clamp(min=1)[:, None]

    def convolve(node: Tensor, edge_sh: Tensor, *network: Tensor) -> Tensor:
        messages = product(node[senders], edge_sh, edge_weights(network))
        sums = messages.new_zeros(len(counts), messages.shape[1])
        return sums.index_add(0, receivers, messages) / counts

    return convolve
