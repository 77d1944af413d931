"""Calls of all operators of TensorNet2, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from unittest import mock

import torch

from mlff_triton.engine.charged_step import (
    Geometry,
    Operators,
    evaluate_charged_part,
    evaluate_charged_step,
)
from mlff_triton.engine.device_borders import AloneBorders
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.radial_tables import TOLERANCES
from mlff_triton.engine.step import Systems
from mlff_triton.kernels.electrostatics.charge_channels import channel_sums
from mlff_triton.kernels.tensornet import operators as kernels
from mlff_triton.kernels.tensornet2 import edge_rows
from mlff_triton.kernels.tensornet2 import operators as charged_kernels
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
from mlff_triton.kernels.tensornet2.equilibration import equilibrate, equilibrate_backward
from mlff_triton.kernels.tensornet2.normalized_product import normalized_product
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import AtomOrder, EwaldField, ReactionField
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.tensornet2 import TensorNet2

N, Q, SLOTS = 4, 16, 64


def network(channels: int, dtype: torch.dtype, halves: bool) -> InteractionNetwork:
    """Return a network with all weights one."""
    f = channels
    second, third = torch.ones(2 * f, f), torch.ones(3 * f, 2 * f)
    weights = torch.ones(2, 3, f), torch.ones(f), torch.ones(Q, 2, f)
    maps = (second, torch.ones(2 * f)), (third, torch.ones(3 * f))
    cast = [t.to(dtype) for t in weights], [tuple(t.to(dtype) for t in map_) for map_ in maps]
    return InteractionNetwork.of(*cast[0], *cast[1], (0.0, 5.0), "silu", halves=halves)


def some_edges(dtype: torch.dtype) -> Edges:
    """Return edges of four atoms, which are not read."""
    atoms, slots = torch.zeros(N, dtype=torch.int32), torch.zeros(SLOTS, dtype=torch.int32)
    length = torch.ones(SLOTS, dtype=dtype)
    geometry = length, length, torch.ones(3, SLOTS, dtype=dtype), length
    return Edges(atoms, atoms, slots, slots, slots, slots, *geometry)


def messages(channels: int, dtype: torch.dtype, halves: bool) -> object:
    """Compute messages and their gradients."""
    y, terms = torch.ones(9, N, channels, dtype=dtype), torch.ones(2, N, channels, dtype=dtype)
    edges, weights = some_edges(dtype), network(channels, dtype, halves)
    for kept in (0, edge_rows.KEPT_BYTES):
        with mock.patch.object(edge_rows, "KEPT_BYTES", kept):
            _, rows = edge_messages(y, terms, weights, edges, edge_rows.edge_rows(edges))
            edge_messages_backward(y, y, y, terms, weights, edges, rows, edges.distance, True)
    return rows


def charges(dtype: torch.dtype) -> object:
    """Compute terms of charges, equilibrated charges, Coulomb energies, and all gradients."""
    rows, weights = torch.ones(N, Q, dtype=dtype), network(64, dtype, halves=False)
    terms = charge_terms(rows, weights)
    edges = some_edges(dtype)
    for others in (None, rows):
        by_edge = torch.ones(SLOTS, Q, dtype=dtype)
        charge_gradients(terms[0], by_edge, rows, weights, edges, others)

    totals, atoms = torch.ones(1).double(), torch.arange(N).int()
    batch = torch.zeros_like(atoms), atoms, torch.tensor([0, N]).int()
    predicted = torch.ones(N, 2 * Q, dtype=dtype)
    shared = equilibrate(predicted, totals, *batch, rows)
    equilibrate_backward(rows, predicted, shared, *batch)

    of_layers, per_charge = rows.repeat(1, 3), torch.ones(3 * Q, dtype=dtype)
    order = AtomOrder(*batch[1:], N)
    given = of_layers, per_charge, per_charge
    coulomb_pairs(torch.ones(N, 3).double(), *given, order)
    coulomb_edges(*given, edges, EwaldField.of(10.0, 0.3), atoms)
    return coulomb_edges(*given, edges, ReactionField.of(10.0), atoms)


def predictions(channels: int, dtype: torch.dtype) -> object:
    """Predict charges, and compute all gradients, with and without normalization."""
    f = channels
    shapes = (3 * f,), (3 * f,), (f, 3 * f), (f,), (f, f), (f,), (2 * Q, f), (2 * Q,)
    weights = [torch.ones(shape, dtype=dtype) for shape in shapes]
    pairs = zip(weights[::2], weights[1::2], strict=True)
    charge_network = ChargeNetwork.of(*pairs, "silu")
    x, inverse = torch.ones(9, N, f, dtype=dtype), torch.ones(N, f, dtype=dtype)
    for factor in (inverse, None):
        predicted, *hidden = predict_charges(x, factor, charge_network)
        factors = predict_charges_backward(predicted, x, factor, charge_network, *hidden)
    for group in ("O(3)", "SO(3)"):
        normalized_product(x, x, group)
    tensor_gradients(x, x, x, inverse, factors, x)
    tensor_gradients(x, x, x, inverse, factors, None)
    tensor_gradients(x, None, x, None, factors, x)
    return scale_gradients(x, x, factors, "silu")


@cache
def charged_parameters(kind: str, dtype: torch.dtype) -> Parameters:
    """Return parameters of a TensorNet2 of usual size, with coarse radial tables to save time."""
    cutoff = 9.0 if kind == "reaction field" else None
    channels = 64 if dtype == torch.float64 else 128
    config = TensorNet2Config((1, 6), channels, num_rbf=4, coulomb_cutoff=cutoff, repulsion=True)
    model = TensorNet2(config)
    model.readout.uncertainty = torch.ones(5, channels // 2)
    with mock.patch.dict(TOLERANCES, {dtype: (1e-2, 1e-1)}):
        return Parameters.of(model, torch.device("cpu"), dtype, halves=True)


def charged_engine_step(n_atoms: int, kind: str, dtype: torch.dtype) -> object:
    """Run a step of a TensorNet2 on edges that are not read."""
    p = charged_parameters(kind, dtype)
    atoms, slots = torch.zeros(n_atoms).int(), torch.zeros(n_atoms * SLOTS).int()
    length = torch.ones(n_atoms * SLOTS, dtype=dtype)
    geometry = length, length, torch.ones(3, n_atoms * SLOTS, dtype=dtype), length
    found = Edges(atoms, atoms, slots, slots, slots, slots, *geometry)
    ptr = torch.tensor([0, n_atoms], dtype=torch.int32)
    systems = Systems.of(p, torch.ones(n_atoms).long(), torch.zeros(1).double(), ptr)
    far = found if p.charges is not None and p.charges.is_truncated else None
    given = Geometry(torch.rand(n_atoms, 3).double(), found, far)
    operators = Operators(kernels, charged_kernels, channel_sums)
    if far is not None:  # a part of it, too
        n_own = n_atoms // 2
        borders = AloneBorders(n_own + 3, n_own)
        evaluate_charged_part(operators, p, systems, given, n_own, borders)
    return evaluate_charged_step(operators, p, systems, given, atoms)


def tensornet2_calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Operators of TensorNet2, by name."""
    is_single = dtype == torch.float32
    channels = (64, 128, 256) if is_single else (64, 128)
    sizes = [(64, True), (128, True), (256, True), (128, False)] if is_single else [(64, False)]
    systems = [(21, "all pairs"), (4096, "all pairs"), (4096, "reaction field")]
    of_predictions = {
        f"predict_charges, F = {f}, {dtype}": partial(predictions, f, dtype) for f in channels
    }
    of_steps = {
        f"TensorNet2, {n_atoms} atoms, {kind}, {dtype}": partial(
            charged_engine_step, n_atoms, kind, dtype
        )
        for n_atoms, kind in (systems if is_single else [(21, "reaction field")])
    }
    of_messages = {
        f"edge_messages, F = {f}, {dtype}, halves: {halves}": partial(messages, f, dtype, halves)
        for f, halves in sizes
    }
    return {f"charges, {dtype}": partial(charges, dtype)} | of_predictions | of_steps | of_messages
