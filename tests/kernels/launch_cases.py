"""Every operator, to record what it launches: `test_compilation` runs this as a script.

``python launch_cases.py sm_90 gfx942`` compiles all launches for these targets, and prints a JSON
list ``[target, case, kernel, error or null]`` for each. Add an operator with a line in `CASES`; its
gradients and second derivatives are taken too. Those of the engine are called by a whole step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from operators import derivatives
from torch import Tensor

from mlff_triton.config import TensorNetConfig, ZBLConfig
from mlff_triton.kernels import (
    attention,
    decomposition,
    edge_tensors,
    edges,
    irrep_norms,
    layer_norm,
    linear,
    message_passing,
    neighbor_list,
    radial_factors,
    radial_sums,
    segment_sum,
    tensor_product,
    vector_to_tensor,
)
from mlff_triton.kernels import step as kernels
from mlff_triton.kernels.reference.edges import Knots
from mlff_triton.parameters import Parameters
from mlff_triton.radial import TOLERANCES
from mlff_triton.step import Systems, step
from mlff_triton.tensornet import TensorNet
from mlff_triton.testing.launches import compile_distinct

N, E, F = 4, 8, 64
THOROUGH_TARGETS = ("sm_90", "gfx942")  # one a vendor: what differs is the vendor's compiler
STEPS = [(21, "O(3)"), (4099, "O(3)")]  # launched differently
MORE_STEPS = [(21, "SO(3)"), (1021, "O(3)")]  # for the thorough targets, as float64 is
ROW = 64

PACKED, FULL = torch.ones(9, N, F), torch.ones(N, 3, 3, F)
VECTORS, FACTORS = torch.ones(E, 3), torch.ones(E, F)
GRAPH = torch.arange(0, E + 1, E // N), torch.zeros(E).long(), torch.arange(E)
ROWS, WEIGHT, BIAS = torch.ones(N, F), torch.ones(F, F), torch.ones(F)
HEADS = tuple(torch.ones(N, 2, 16) for _ in "qkv")
KNOTS = Knots(torch.tensor([0.0, 4.0]).double(), torch.tensor([0]).int())


def charged_product(y: Tensor, message: Tensor) -> Tensor:
    return tensor_product.tensor_product(y, message, torch.ones(N).to(y))


def tabulated_factors(distance: Tensor) -> Tensor:
    return radial_factors.radial_factors(distance, torch.ones(2, 3, 3, F).to(distance), KNOTS)


def radial_message_passing(y: Tensor, distance: Tensor) -> Tensor:
    constants = torch.ones(2, 3, 3, F).to(y), torch.ones(3, F).to(y), KNOTS
    return radial_sums.radial_message_passing(y, distance, *constants, *GRAPH)


def radial_embedding(vectors: Tensor) -> Tensor:
    elements, table, own = (t.to(vectors) for t in (WEIGHT, torch.ones(2, 3, 3, F), BIAS))
    constants = elements, elements, table, own, KNOTS
    return radial_sums.radial_embedding(vectors, torch.zeros(N).long(), *constants, *GRAPH)


CASES: dict[str, tuple[Any, ...]] = {
    "attention": (attention.attention, *HEADS, torch.tensor([0, N]), N),
    "attention, many rows": (attention.attention, *HEADS, torch.tensor([0, N]), 1000),
    "attention, bias and soft cap": (
        partial(attention.attention, softcap=5.0),
        *(torch.ones(N, 2, 192) for _ in "qkv"),
        torch.tensor([0, N]),
        N,
        torch.ones(N, N),
    ),
    "add_layer_norm": (layer_norm.add_layer_norm, ROWS, ROWS, BIAS, BIAS),
    "compose": (decomposition.compose, PACKED),
    "decompose": (decomposition.decompose, FULL),
    "decompose_tensor": (decomposition.decompose_tensor, FULL),
    "edge_tensors": (edge_tensors.edge_tensors, VECTORS, torch.ones(E, 3, F), GRAPH[0]),
    "irrep_norms, full": (irrep_norms.irrep_norms, FULL),
    "irrep_norms, packed": (irrep_norms.irrep_norms, PACKED),
    "layer_norm": (layer_norm.layer_norm, ROWS, BIAS, BIAS),
    "linear": (linear.linear, ROWS, WEIGHT),
    "linear, gelu": (linear.linear, ROWS, WEIGHT, BIAS, "gelu"),
    "linear, many rows": (linear.linear, torch.ones(2048, F), WEIGHT, BIAS, "silu"),
    "linear, scale and residual": (linear.linear, ROWS, WEIGHT, BIAS, "ssp", BIAS, ROWS),
    "message_passing, full": (
        message_passing.message_passing,
        FULL,
        FULL.repeat(2, 1, 1, 1),
        *GRAPH,
    ),
    "message_passing, packed": (
        message_passing.message_passing,
        PACKED,
        torch.ones(E, 3, F),
        *GRAPH,
    ),
    "radial_embedding": (radial_embedding, VECTORS),
    "radial_factors": (tabulated_factors, VECTORS[:, 0]),
    "radial_message_passing": (radial_message_passing, PACKED, VECTORS[:, 0]),
    "segment_sum": (segment_sum.segment_sum, ROWS, torch.tensor([0, 1, N])),
    "tensor_product, O(3)": (charged_product, PACKED, PACKED),
    "tensor_product, SO(3)": (partial(tensor_product.tensor_product, group="SO(3)"), FULL, FULL),
    "vector_to_skew": (vector_to_tensor.vector_to_skew, VECTORS),
    "vector_to_skew, scaled": (vector_to_tensor.vector_to_skew, VECTORS, FACTORS),
    "vector_to_symmetric": (vector_to_tensor.vector_to_symmetric, VECTORS),
    "vector_to_symmetric, scaled": (vector_to_tensor.vector_to_symmetric, VECTORS, FACTORS),
}  # operators and their inputs


def half_attention() -> object:
    """As protein language models use it."""
    q, k, v = (torch.ones(N, 2, 64).half() for _ in "qkv")
    return attention.attention(q, k, v, torch.tensor([0, N]), 1000)


def neighbor_rows() -> object:
    """Its coordinates are float64, and it has no derivatives."""
    positions, cell = torch.ones(N, 3).double(), torch.eye(3).double()[None]
    pbc, batch = torch.ones(1, 3).bool(), torch.zeros(N).long()
    return neighbor_list.build_rows(positions, cell, pbc, batch, radius=2.0, capacity=64)


@cache
def parameters(group: str, dtype: torch.dtype) -> Parameters:
    """A model as large as those in use, with coarse radial tables: nobody reads their numbers."""
    zbl = ZBLConfig(cutoff=3.0, prefactor=14.4)
    model = TensorNet(TensorNetConfig(elements=(1, 6), num_rbf=4, group=group, zbl=zbl))
    with mock.patch.dict(TOLERANCES, {dtype: (1e-2, 1e-1)}):
        return Parameters.of(model, torch.device("cpu"), dtype)


def engine_step(n_atoms: int, group: str, dtype: torch.dtype) -> object:
    """From positions and neighbor rows to energies and forces."""
    p = parameters(group, dtype)
    integers = torch.zeros(n_atoms, dtype=torch.int32)
    slots = torch.zeros(n_atoms, ROW, dtype=torch.int32)
    rows = neighbor_list.NeighborRows(
        integers, integers, integers, slots, slots, slots.flatten(), integers[0], integers[0]
    )
    positions, cell = torch.ones(n_atoms, 3).double(), torch.eye(3).double()[None]
    motion = positions, positions, cell, cell, torch.ones(1).double()
    found, status = edges.edges(*motion, integers, rows, p.tables.knots, 5.0, dtype)
    one_system = torch.tensor([0, n_atoms], dtype=torch.int32)
    ones = torch.ones(n_atoms)
    systems = Systems(integers, integers, ones.to(dtype), ones.double(), one_system)
    return step(kernels, p, systems, found, status)


def calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    return {
        f"{name}, {dtype}": partial(derivatives, operator, inputs, dtype)
        for name, (operator, *inputs) in CASES.items()
    }


def steps(sizes: list[tuple[int, str]], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    return {
        f"engine, {n_atoms} atoms, {group}, {dtype}": partial(engine_step, n_atoms, group, dtype)
        for n_atoms, group in sizes
    }


def main() -> None:
    for target in sys.argv[1:]:
        single, double = torch.float32, torch.float64
        all_calls = calls(single) | steps(STEPS, single)
        all_calls |= {"neighbor_list": neighbor_rows, "attention, half": half_attention}
        if target in THOROUGH_TARGETS:
            all_calls |= steps(MORE_STEPS, single) | calls(double) | steps(STEPS, double)
        for case, kernel, error in compile_distinct(all_calls, target):
            print(json.dumps([target, case, kernel, error]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
