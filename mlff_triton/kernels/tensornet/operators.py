"""The operators of a whole step as fused Triton kernels: what the engine runs on a GPU."""

from mlff_triton.kernels.tensornet.forces import forces, totals
from mlff_triton.kernels.tensornet.interaction import (
    embed,
    embed_backward,
    embed_input_backward,
    linear,
    product_backward,
    update,
    update_backward,
)
from mlff_triton.kernels.tensornet.message_product import message_backward, message_product
from mlff_triton.kernels.tensornet.radial_embedding import (
    radial_embedding,
    radial_embedding_backward,
)
from mlff_triton.kernels.tensornet.readout import gated_head, readout, readout_backward, scalar_head
from mlff_triton.kernels.tensornet.repulsion import repulsion
from mlff_triton.kernels.tensornet.scalar_network import scalar_network, scalar_network_backward

__all__ = [
    "embed",
    "embed_backward",
    "embed_input_backward",
    "forces",
    "gated_head",
    "linear",
    "message_backward",
    "message_product",
    "product_backward",
    "radial_embedding",
    "radial_embedding_backward",
    "readout",
    "readout_backward",
    "repulsion",
    "scalar_head",
    "scalar_network",
    "scalar_network_backward",
    "totals",
    "update",
    "update_backward",
]
