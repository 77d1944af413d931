"""Calls of all operators, to compile the kernels that they launch.

``python -m tests.support.launch_cases sm_90 gfx942`` compiles all launches and prints one JSON list
``[target, case, kernel, error or null]`` for each; ``--common`` before the targets leaves out most
of the precisions and sizes, and compiles only the largest kernels with each type and option. To
add a public operator, add a line to `CASES`, which covers its gradients and second derivatives. A
whole step covers the operators of the engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from mlff_triton.engine.device_borders import AloneBorders
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.radial_tables import TOLERANCES
from mlff_triton.engine.step import Systems, evaluate_part, evaluate_step
from mlff_triton.kernels.alignment import alignment, edit_distance
from mlff_triton.kernels.alignment.types import GLOBAL, PAD, Free, Gaps, Pairs
from mlff_triton.kernels.dynamics.barostat import press
from mlff_triton.kernels.dynamics.descent import descend
from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.rescaling import choose_scale
from mlff_triton.kernels.neighbors import edges, neighbor_list, shells
from mlff_triton.kernels.neighbors.bins import Boxes
from mlff_triton.kernels.neighbors.renewal import place_atoms
from mlff_triton.kernels.ops import (
    attention,
    channel_maps,
    decomposition,
    edge_tensors,
    irrep_norms,
    layer_norm,
    linear,
    message_passing,
    normalized_tensors,
    pair_embedding,
    pair_messages,
    radial_factors,
    scaled_tensors,
    segment_sum,
    tensor_product,
    tensor_update,
    vector_to_tensor,
)
from mlff_triton.kernels.ops.radial_embedding import radial_embedding
from mlff_triton.kernels.ops.radial_message_passing import radial_message_passing
from mlff_triton.kernels.tensornet import operators as kernels
from mlff_triton.kernels.transformer import (
    rotary,
    token_embedding,
    token_linear,
    token_norm,
    top_logit,
    unpack_rows,
    wide_linear,
)
from mlff_triton.kernels.transformer.rotation import Rotary
from mlff_triton.kernels.types.edges import Knots
from mlff_triton.kernels.types.motion import Barostat, Descent, Integration, Motion, Rescaling
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing.launches import compile_distinct
from tests.support.binding_launch_cases import binding_calls
from tests.support.convolution_launch_cases import convolution_calls, more_convolutions
from tests.support.electrostatic_launch_cases import electrostatic_calls
from tests.support.genomic_launch_cases import genomic_calls
from tests.support.operators import derivatives
from tests.support.pair_launch_cases import pair_calls
from tests.support.residue_launch_cases import residue_calls
from tests.support.tensornet2_launch_cases import tensornet2_calls

N, E, F = 4, 8, 64
WIDE_TARGETS = ("sm_90", "sm_100")  # which have the copy engine that `wide_linear` needs
# Thorough targets, one per compiler, with the dtype in which operators on pairs always compile.
# AMD's GPUs have the least memory on chip, and float32 needs the most.
THOROUGH = {"sm_90": torch.bfloat16, "gfx942": torch.float32}
STEPS = [(21, "O(3)"), (4099, "O(3)")]  # with different block sizes
MORE_STEPS = [(21, "SO(3)"), (1021, "O(3)")]  # for the thorough targets only
ROW = 64

PACKED, FULL = torch.ones(9, N, F), torch.ones(N, 3, 3, F)
VECTORS, FACTORS = torch.ones(E, 3), torch.ones(E, F)
GRAPH = torch.arange(0, E + 1, E // N), torch.zeros(E).long(), torch.arange(E)
ROWS, WEIGHT, BIAS = torch.ones(N, F), torch.ones(F, F), torch.ones(F)
HEADS = tuple(torch.ones(N, 2, 16) for _ in "qkv")
KNOTS = Knots(torch.tensor([0.0, 4.0]).double(), torch.tensor([0]).int())


def charged_product(y: Tensor, message: Tensor) -> Tensor:
    """Call `tensor_product` with a charge factor."""
    return tensor_product.tensor_product(y, message, torch.ones(N).to(y))


def charged_update(x: Tensor, delta: Tensor) -> Tensor:
    """Call `tensor_update` with a charge factor."""
    return tensor_update.tensor_update(x, delta, torch.ones(N).to(x))


def tabulated_factors(distance: Tensor) -> Tensor:
    """Call `radial_factors` with a table of one interval."""
    return radial_factors.radial_factors(distance, torch.ones(2, 3, 3, F).to(distance), KNOTS)


def tabulated_messages(y: Tensor, distance: Tensor) -> Tensor:
    """Call `radial_message_passing` with a table of one interval."""
    constants = torch.ones(2, 3, 3, F).to(y), torch.ones(3, F).to(y), KNOTS
    return radial_message_passing(y, distance, *constants, *GRAPH)


def tabulated_embedding(vectors: Tensor) -> Tensor:
    """Call `radial_embedding` with one element."""
    elements, table, own = (t.to(vectors) for t in (WEIGHT, torch.ones(2, 3, 3, F), BIAS))
    constants = elements, elements, table, own, KNOTS
    return radial_embedding(vectors, torch.zeros(N).long(), *constants, *GRAPH)


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
    "channel_maps": (channel_maps.channel_maps, torch.ones(9, 300, F), WEIGHT.expand(3, F, F)),
    "compose": (decomposition.compose, PACKED),
    "decompose": (decomposition.decompose, FULL),
    "decompose_tensor": (decomposition.decompose_tensor, FULL),
    "edge_tensors": (edge_tensors.edge_tensors, VECTORS, torch.ones(E, 3, F), GRAPH[0]),
    "irrep_norms, full": (irrep_norms.irrep_norms, FULL),
    "irrep_norms, packed": (irrep_norms.irrep_norms, PACKED),
    "layer_norm": (layer_norm.layer_norm, ROWS, BIAS, BIAS),
    "linear": (linear.linear, ROWS, WEIGHT),
    "linear, halves": (
        partial(linear.linear, precision="halves", rows=torch.tensor(3)),
        ROWS,
        WEIGHT,
        BIAS,
        "silu",
        ROWS[:, :1],
    ),
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
    "normalized_tensors": (normalized_tensors.normalized_tensors, PACKED),
    "pair_embedding": (
        pair_embedding.pair_embedding,
        VECTORS,
        torch.ones(E, 3, F),
        ROWS,
        ROWS,
        *GRAPH,
        GRAPH[1],
    ),
    "pair_messages": (pair_messages.pair_messages, PACKED, torch.ones(E, 3, F), *GRAPH),
    "radial_embedding": (tabulated_embedding, VECTORS),
    "radial_factors": (tabulated_factors, VECTORS[:, 0]),
    "radial_message_passing": (tabulated_messages, PACKED, VECTORS[:, 0]),
    "scaled_tensors": (scaled_tensors.scaled_tensors, PACKED, torch.ones(N, 3, F)),
    "segment_sum": (segment_sum.segment_sum, ROWS, torch.tensor([0, 1, N])),
    "tensor_product, O(3)": (charged_product, PACKED, PACKED),
    "tensor_product, SO(3)": (partial(tensor_product.tensor_product, group="SO(3)"), FULL, FULL),
    "tensor_update": (charged_update, PACKED, PACKED),
    "vector_to_skew": (vector_to_tensor.vector_to_skew, VECTORS),
    "vector_to_skew, scaled": (vector_to_tensor.vector_to_skew, VECTORS, FACTORS),
    "vector_to_symmetric": (vector_to_tensor.vector_to_symmetric, VECTORS),
    "vector_to_symmetric, scaled": (vector_to_tensor.vector_to_symmetric, VECTORS, FACTORS),
}  # operators and their inputs


def half_attention() -> object:
    """Call attention as protein language models do."""
    q, k, v = (torch.ones(N, 2, 64).half() for _ in "qkv")
    return attention.attention(q, k, v, torch.tensor([0, N]), 1000)


def token_rows(length: int, dtype: torch.dtype, masked: bool) -> object:
    """Pack tokens and unpack them, with no options or with all, without derivatives."""
    ids, word = torch.zeros(2, length).long(), torch.ones(33, F).to(dtype)
    if not masked:
        x, packed = token_embedding.token_embedding(ids, word)
        return unpack_rows.unpack_rows(x, packed.row_of, ids.shape)
    norm = word[0], word[0], 1e-5
    parts = {"positions": ids, "position_table": word, "kinds": ids, "kind_table": word}
    x, packed = token_embedding.token_embedding(ids, word, ids, **parts, norm=norm, mask_token=3)
    options = {"shift": word[0], "norm": norm, "dtype": torch.float32}
    return unpack_rows.unpack_rows(x, packed.row_of, ids.shape, **options)


def angles(n_rows: int, columns: int, exact: torch.dtype) -> Rotary:
    """Of heads with 64 channels."""
    table = torch.ones(N, 32, dtype=exact)
    return Rotary(table, table, torch.zeros(n_rows, dtype=torch.int32), columns)


def encoder_layer(n_rows: int, dtype: torch.dtype) -> object:
    """Call linear layers with normalization and rotation, residual and moments, or activation."""
    x, live = torch.ones(n_rows, F).to(dtype), torch.tensor([n_rows], dtype=torch.int32)
    sums = token_norm.token_moments(x, live)
    turned = angles(n_rows, 2 * F, sums.dtype)
    norm, weight, bias = (BIAS, BIAS), torch.ones(3 * F, F), torch.ones(3 * F)
    folded = token_linear.TokenLinear.of(weight, bias, norm, dtype)
    plain = token_linear.TokenLinear.of(WEIGHT, BIAS, None, dtype)
    moments = token_linear.Moments(sums, 1e-5)
    rows = token_linear.token_linear(x, folded, live, moments=moments, rotary=turned).x
    rotary.rotary_(rows, turned, live)
    token_linear.token_linear(x, folded, live, moments=moments, activation="gelu")
    token_linear.token_linear(x, plain, activation="relu")
    long = token_linear.TokenLinear.of(torch.ones(F, 10 * F), BIAS, None, dtype)
    token_linear.token_linear(x.repeat(1, 10), long, live)
    vectors = BIAS.to(dtype)
    for residual in (
        token_linear.Residual(x),
        token_linear.Residual(x, moments, vectors, vectors),
    ):
        token_linear.token_linear(x, plain, live, residual=residual, with_moments=True)
    token_norm.token_norm(x, vectors, vectors, 1e-5, live)
    return token_norm.token_norm(x, vectors, vectors, 1e-5, live, BIAS.to(sums.dtype))


def top_tokens(n_rows: int, dtype: torch.dtype) -> object:
    """Call `top_logit` with a normalization and without."""
    x, live = torch.ones(n_rows, F).to(dtype), torch.tensor([n_rows], dtype=torch.int32)
    folded = token_linear.TokenLinear.of(WEIGHT, BIAS, (BIAS, BIAS), dtype)
    moments = token_linear.Moments(token_norm.token_moments(x, live), 1e-5)
    top_logit.top_logit(x, folded, moments=moments)
    plain = token_linear.TokenLinear.of(torch.ones(20, F), torch.ones(20), None, dtype)
    return top_logit.top_logit(x, plain, live)


def wide_rows(n_rows: int, dtype: torch.dtype) -> object:
    """Call linear layers of many rows, in small and in large tiles."""
    x, live = torch.ones(n_rows, 128).to(dtype), torch.tensor([n_rows], dtype=torch.int32)
    weight, bias = torch.ones(768, 128).to(dtype), torch.ones(768).to(dtype)
    turned = angles(n_rows, 512, torch.float32)
    long, more = torch.ones(1280, 512).to(dtype), torch.ones(1280).to(dtype)
    wide_linear.wide_linear(x, weight, bias, live, activation="gelu")
    wide_linear.wide_linear(x.repeat(1, 4), long, more, live, activation="gelu")
    return wide_linear.wide_linear(x, weight, bias, live, rotary=turned)


def neighbor_rows() -> object:
    """Build a neighbor matrix, from float64 coordinates and without derivatives."""
    positions, cell = torch.ones(N, 3).double(), torch.eye(3).double()[None]
    pbc, batch = torch.ones(1, 3).bool(), torch.zeros(N).long()
    return neighbor_list.build_rows(positions, cell, pbc, batch, radius=2.0, capacity=64)


def renewed_rows() -> object:
    """Place atoms, and build their neighbor matrix if it does not hold."""
    positions, cell = torch.ones(9, 3).double(), torch.eye(3).double()[None]
    one, system = torch.ones(1, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    boxes = Boxes(cell, torch.ones(1, 3, dtype=torch.uint8), torch.tensor([0, 9]).int())
    rows = NeighborMatrix.empty(9, 1, 64, torch.device("cpu"))
    inputs = positions, cell, system, boxes, rows, positions, 1.5, 2.0, 1e8
    place_atoms(*inputs, positions=positions, lost=one, wanted=one[0])
    neighbor_list.fill_rows(rows, positions, system, boxes, 2.0, wanted=one[0])
    return rows


def moves() -> object:
    """Move atoms by every integrator, thermostat and barostat."""
    positions, cell = torch.ones(N, 3).double(), torch.eye(3).double()[None]
    motion = Motion.zeros(positions, cell, torch.tensor([N]))
    totals = torch.zeros(1, 11).double()
    for integration in (Integration(0.1), Integration(0.1, seed=1, friction=0.1)):
        for finish, start in ((True, True), (True, False), (False, True)):
            advance(motion, positions, totals, integration, finish=finish, start=start)
    choose_scale(motion, integration, Rescaling(1.0))
    for isotropic in (True, False):
        press(motion, totals, integration, Barostat(0.1, 1.0, 10.0, 5, isotropic))
    descend(motion, positions, totals, Descent(0.05))
    return motion


def sequence_pairs(*lengths: int, residue: int) -> Pairs:
    """Return pairs of sequences that repeat one residue."""
    length = torch.tensor(lengths)
    letters = torch.full((2 * PAD + max(lengths),), residue, dtype=torch.uint8)
    start = torch.full_like(length, PAD)
    return Pairs(letters, start, length, start, length)


def edit_distances() -> object:
    """Compute edit distances of short sequences, and of long ones that are cut into strips."""
    return edit_distance.edit_distance(sequence_pairs(20, 8300, residue=0), 4)


def aligned(
    n: int,
    length: int,
    n_residues: int,
    free: Free = GLOBAL,
    *,
    open_gap: int = 5,
    match: int = 2,
    **options: Any,
) -> object:
    """Align pairs of one length that repeat the last residue of the alphabet."""
    matrix = (match + 3) * torch.eye(n_residues, dtype=torch.int64) - 3
    pairs = sequence_pairs(*[length] * n, residue=n_residues - 1)
    return alignment.alignment(pairs, matrix, Gaps(open_gap, 2), free, **options)


@cache
def parameters(group: str, dtype: torch.dtype) -> Parameters:
    """Return parameters of a model of usual size, with coarse radial tables to save time."""
    zbl = ZBLConfig(cutoff=3.0, prefactor=14.4)
    model = TensorNet(TensorNetConfig(elements=(1, 6), num_rbf=4, group=group, zbl=zbl))
    model.readout.uncertainty = torch.ones(64, 64)
    with mock.patch.dict(TOLERANCES, {dtype: (1e-2, 1e-1)}):
        return Parameters.of(model, torch.device("cpu"), dtype)


def engine_step(n_atoms: int, group: str, dtype: torch.dtype) -> object:
    """Run a step from positions and a neighbor matrix to energies and forces."""
    p = parameters(group, dtype)
    integers = torch.zeros(n_atoms, dtype=torch.int32)
    slots = torch.zeros(n_atoms, ROW, dtype=torch.int32)
    positions, cell = torch.ones(n_atoms, 3).double(), torch.eye(3).double()[None]
    lists = integers, integers, integers, integers, slots, slots, slots.flatten()
    rows = NeighborMatrix(*lists, integers[0], integers[0], positions, cell)
    knots = p.tables.knots
    edges.edges(positions, cell, integers, rows, None, 5.0, 6.0, dtype, others=integers)
    given = positions, cell, integers, rows, knots, 5.0, 6.0, dtype
    edges.edges(*given, limits=positions[:, 0])
    found, status = edges.edges(*given)
    one_system = torch.tensor([0, n_atoms], dtype=torch.int32)
    ones = torch.ones(n_atoms)
    systems = Systems(integers, integers, ones.to(dtype), ones.double(), one_system)
    evaluate_step(kernels, p, systems, found, status)
    return evaluate_step(kernels, replace(p, deviations=None), systems, found, status)


def part_step(n_own: int, group: str, dtype: torch.dtype) -> object:
    """Sort the atoms of a part into shells, and run a step; another one with an exchange."""
    p, n_atoms = parameters(group, dtype), 6 * n_own
    rows = [n_own * (h + 1) for h in range(len(p.layers) + 1)]
    positions, cell = torch.ones(n_atoms, 3).double(), torch.eye(3).double()[None]
    integers = torch.zeros(n_atoms, dtype=torch.int32)
    found = NeighborMatrix.empty(n_atoms, 1, ROW, torch.device("cpu"))
    matrix = shells.renumbered(found)
    hops = shells.count_hops(found, integers[:1], integers[:1], len(p.layers))
    sizes = torch.full((len(rows),), n_own)
    shells.sort_by_hops(found, *hops, sizes, matrix)
    given = positions, cell, integers, matrix, p.tables.knots, 5.0, 6.0, dtype
    near, status = edges.edges(*given, rows_ascend=False)
    ones, one_system = torch.ones(n_atoms), torch.tensor([0, n_atoms], dtype=torch.int32)
    systems = Systems(integers, integers, ones.to(dtype), ones.double(), one_system)
    evaluate_part(kernels, p, systems, near, status, rows)

    names, rows = torch.zeros_like(integers), [n_own] * len(rows)
    shells.name_rows(matrix, integers, integers[:1], n_own, names)
    edges.edges(*given, rows_ascend=False, names=names, limits=positions[:, 0])
    near, status = edges.edges(*given, rows_ascend=False, names=names)
    borders = AloneBorders(n_own + 5, n_own)
    return evaluate_part(kernels, p, systems, near, status, rows, borders)


def calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Derivatives of all public operators."""
    return {
        f"{name}, {dtype}": partial(derivatives, operator, inputs, dtype)
        for name, (operator, *inputs) in CASES.items()
    }


def token_calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Operators of Transformer encoders."""
    embeddings = {
        f"token_embedding, {length} tokens, {dtype}": partial(token_rows, length, dtype, masked)
        for length, masked in ((1, False), (60, True), (3000, True))
    }
    layers = {
        f"token_linear, {n_rows} rows, {dtype}": partial(encoder_layer, n_rows, dtype)
        for n_rows in (9, 2000)
    }
    heads = {
        f"top_logit, {n_rows} rows, {dtype}": partial(top_tokens, n_rows, dtype)
        for n_rows in (9, 4000, 9000)
    }
    return embeddings | layers | heads


def wide_calls() -> dict[str, Callable[[], object]]:
    """Linear layers that need Hopper or later."""
    return {
        f"wide_linear, {n_rows} rows, {half}": partial(wide_rows, n_rows, half)
        for n_rows in (600, 8000)
        for half in (torch.float16, torch.bfloat16)
    }


def alignments() -> dict[str, Callable[[], object]]:
    """Global alignments, with scores in registers and in memory."""
    return {
        "alignment, scores": partial(aligned, 9, 60, 4),
        "alignment, proteins": partial(aligned, 9, 60, 20, traceback=True),
    }


def more_alignments() -> dict[str, Callable[[], object]]:
    """Alignments of long sequences, of many pairs, with large scores and with free ends."""
    local, ends = Free(anywhere=True), Free(True, True, True, True)
    large, linear = {"match": 2000, "band": 9}, {"open_gap": 2}
    return {
        "alignment, strips": partial(aligned, 9, 900, 4, traceback=True),
        "alignment, local": partial(aligned, 9, 60, 20, local),
        "alignment, local, in a band": partial(aligned, 9, 900, 4, local, traceback=True, **large),
        "alignment, free ends": partial(aligned, 9, 60, 4, ends, traceback=True, **linear),
        "alignment, many": partial(aligned, 3000, 600, 4),
    }


def steps(sizes: list[tuple[int, str]], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Steps of the engine."""
    return {
        f"engine, {n_atoms} atoms, {group}, {dtype}": partial(engine_step, n_atoms, group, dtype)
        for n_atoms, group in sizes
    }


def parts(sizes: list[int], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Steps of the engine for parts of systems."""
    return {
        f"part, {n_own} own atoms, {group}, {dtype}": partial(part_step, n_own, group, dtype)
        for n_own in sizes
        for group in ("O(3)", "SO(3)")
    }


def common_cases(target: str) -> dict[str, Callable[[], object]]:
    """Operators and steps in one precision, for a thorough target."""
    made = few_cases(target) | residue_calls() | binding_calls() | genomic_calls()
    made |= convolution_calls() | electrostatic_calls(torch.float32)
    return made | pair_calls(THOROUGH[target]) | tensornet2_calls(torch.float32)


def all_cases(target: str) -> dict[str, Callable[[], object]]:
    """Operators and steps in all precisions, and more sizes."""
    single, double, *halves = torch.float32, torch.float64, torch.float16, torch.bfloat16
    made = common_cases(target) | pair_calls(single, *halves) | tensornet2_calls(double)
    made |= steps(MORE_STEPS, single) | calls(double) | steps(STEPS, double)
    made |= parts([16], single) | parts([16, 4096], double)
    made |= more_convolutions() | electrostatic_calls(double)
    return made | token_calls(single) | token_calls(double) | more_alignments()


def other_cases(target: str) -> dict[str, Callable[[], object]]:
    """Return cases for other targets, with operators on pairs, which need the most memory."""
    return few_cases(target) | pair_calls(torch.float32, torch.bfloat16)


def few_cases(target: str) -> dict[str, Callable[[], object]]:
    """One case per operator, and steps in single precision."""
    single = torch.float32
    made = calls(single) | steps(STEPS, single) | parts([4096], single)
    made |= {"neighbor_list": neighbor_rows, "renewed_rows": renewed_rows, "dynamics": moves}
    made |= {"attention, half": half_attention} | token_calls(torch.float16)
    made |= alignments() | {"edit_distance": edit_distances}
    return made | wide_calls() if target in WIDE_TARGETS else made


def main() -> None:
    """Compile cases for the targets named on the command line, and print the results."""
    first, *targets = sys.argv[1:]
    is_common = first == "--common"
    for target in targets if is_common else (first, *targets):
        if is_common:
            cases = common_cases(target)
        else:
            cases = (all_cases if target in THOROUGH else other_cases)(target)
        for case, kernel, error in compile_distinct(cases, target, largest=is_common):
            print(json.dumps([target, case, kernel, error]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
