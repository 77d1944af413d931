"""Operators of a whole step in plain PyTorch: for CPUs, and the truth in tests."""

from mlff_triton.kernels.tensornet.reference.forces import forces, totals
from mlff_triton.kernels.tensornet.reference.interaction import (
    embed,
    embed_backward,
    embed_input_backward,
    linear,
    product_backward,
    update,
    update_backward,
)
from mlff_triton.kernels.tensornet.reference.message_product import (
    message_backward,
    message_product,
)
from mlff_triton.kernels.tensornet.reference.readout import (
    deep_head,
    gated_head,
    readout,
    readout_backward,
    scalar_head,
)
from mlff_triton.kernels.tensornet.reference.repulsion import repulsion
from mlff_triton.kernels.tensornet.reference.scalar_network import (
    scalar_network,
    scalar_network_backward,
)
from mlff_triton.kernels.tensornet.reference.tensor_embedding import (
    tensor_embedding,
    tensor_embedding_backward,
)
