"""Operators of a whole step as fused Triton kernels, which the engine runs on a GPU."""

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
from mlff_triton.kernels.tensornet.readout import (
    deep_head,
    gated_head,
    readout,
    readout_backward,
    scalar_head,
)
from mlff_triton.kernels.tensornet.repulsion import repulsion
from mlff_triton.kernels.tensornet.scalar_network import scalar_network, scalar_network_backward
from mlff_triton.kernels.tensornet.tensor_embedding import (
    tensor_embedding,
    tensor_embedding_backward,
)
