"""Operators of a whole step for CPUs."""

from mlff_triton.kernels.tensornet.cpu.forces import forces, totals
from mlff_triton.kernels.tensornet.cpu.interaction import (
    embed,
    embed_backward,
    embed_input_backward,
    linear,
    product_backward,
    update,
    update_backward,
)
from mlff_triton.kernels.tensornet.cpu.message_product import message_backward, message_product
from mlff_triton.kernels.tensornet.cpu.readout import (
    deep_head,
    gated_head,
    readout,
    readout_backward,
    scalar_head,
)
from mlff_triton.kernels.tensornet.cpu.repulsion import repulsion
from mlff_triton.kernels.tensornet.cpu.scalar_network import (
    scalar_network,
    scalar_network_backward,
)
from mlff_triton.kernels.tensornet.cpu.tensor_embedding import (
    tensor_embedding,
    tensor_embedding_backward,
)

__all__ = [
    "deep_head",
    "embed",
    "embed_backward",
    "embed_input_backward",
    "forces",
    "gated_head",
    "linear",
    "message_backward",
    "message_product",
    "product_backward",
    "readout",
    "readout_backward",
    "repulsion",
    "scalar_head",
    "scalar_network",
    "scalar_network_backward",
    "tensor_embedding",
    "tensor_embedding_backward",
    "totals",
    "update",
    "update_backward",
]
