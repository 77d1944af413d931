"""Operators of TensorNet2 for CPUs."""

from mlff_triton.kernels.tensornet2.cpu.charge_prediction import (
    predict_charges,
    predict_charges_backward,
    scale_gradients,
    tensor_gradients,
)
from mlff_triton.kernels.tensornet2.cpu.charge_terms import charge_gradients, charge_terms
from mlff_triton.kernels.tensornet2.cpu.coulomb import coulomb_edges, coulomb_pairs
from mlff_triton.kernels.tensornet2.cpu.edge_messages import edge_messages, edge_messages_backward
from mlff_triton.kernels.tensornet2.cpu.edge_rows import edge_rows
from mlff_triton.kernels.tensornet2.cpu.equilibration import equilibrate, equilibrate_backward
from mlff_triton.kernels.tensornet2.cpu.normalized_product import normalized_product
