"""Operators of TensorNet2 as fused Triton kernels."""

from mlff_triton.kernels.tensornet2.charge_prediction import (
    predict_charges,
    predict_charges_backward,
    scale_gradients,
    tensor_gradients,
)
from mlff_triton.kernels.tensornet2.charge_terms import charge_gradients, charge_terms
from mlff_triton.kernels.tensornet2.coulomb import coulomb_edges, coulomb_pairs
from mlff_triton.kernels.tensornet2.edge_messages import edge_messages
from mlff_triton.kernels.tensornet2.edge_messages_backward import edge_messages_backward
from mlff_triton.kernels.tensornet2.edge_rows import edge_rows
from mlff_triton.kernels.tensornet2.equilibration import equilibrate, equilibrate_backward
from mlff_triton.kernels.tensornet2.normalized_product import normalized_product
