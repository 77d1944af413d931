"""Bench ``convolution``: equivariant convolutions of DiffDock and MACE, ours and those of peers.

Cases of DiffDock are its six layers, with the number of edges in their names; those of MACE have
the largest degree of features and the number of atoms, with 50 neighbors each. Inputs are random.
All compute means in float32. In DiffDock, the last layer of the network that makes weights of edges
is part of every call. In MACE, weights depend on the distance alone: ours look them up in a
table, and peers read weights that were computed before and outside of the time. Peers that make
them by the last layer of a network of 64 hidden values, as MACE does, are in the cases named
"network". Our operators are `edge_convolution` for networks and `radial_convolution` for tables.

The truth is our reference in float64, which tests compare with e3nn. An error is the largest one of
an output, or of any gradient, over its largest true value. The suffix ``-graph`` names calls that a
CUDA graph replays, and ``-backward`` those with gradients toward all inputs.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.kernels.convolution_peers import CHANNELS_LAST, PACKAGES, WAYS, channels_last
from benchmarks.kernels.convolution_problems import (
    NEIGHBORS,
    Problem,
    Shape,
    build,
    docking_shapes,
    mace_shapes,
)
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from mlff_triton._common.availability import triton_obstacle
from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton._common.timing import measure, reset_peak
from mlff_triton.kernels.convolution.reference.edge_convolution import edge_products, reduce_edges

BENCH = "convolution"
OURS = "triton"
EDGES = (2000, 10_000, 60_000)
ATOMS = (1000, 10_000)
LIMIT = 1e-5
"""Largest error of our kernels. Peers lose what they lose."""
EDGES_AT_ONCE = 2048  # of the truth, which stores weights

GRAPH, BACKWARD = "-graph", "-backward"
IMPLEMENTATIONS = tuple(f"{way}{mode}" for way in WAYS for mode in ("", GRAPH, BACKWARD))

Case = tuple[Shape, int]
CASES: dict[str, Case] = {
    f"{name}-{n_edges}": (shape, n_edges)
    for name, shape in docking_shapes().items()
    for n_edges in EDGES
} | {
    f"{name}-{n_atoms}": (shape, n_atoms * NEIGHBORS)
    for name, shape in mace_shapes().items()
    for n_atoms in ATOMS
}


def run_convolution(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named cases with each of the named implementations."""
    for name in names:
        mixes = CASES[name][0].product.mode == "uvw"
        for implementation in implementations:
            way = implementation.removesuffix(GRAPH).removesuffix(BACKWARD)
            if way == "luna" and mixes:  # which keeps channels
                continue
            obstacle = _obstacle(way, implementation, lab.device, mixes=mixes)
            if obstacle is not None:
                lab.skip(f"{BENCH} {name} {implementation}", obstacle)
            elif lab.budget.left <= 0:
                print(f"{BENCH} {name}: skipped, the time is up", file=sys.stderr)
                return
            else:
                run_one(lab, name, way, implementation)


def _obstacle(way: str, implementation: str, device: torch.device, *, mixes: bool) -> str | None:
    if way in PACKAGES and find_spec(PACKAGES[way]) is None:
        return f"{PACKAGES[way]} is not installed"
    if implementation.endswith(GRAPH) and device.type != "cuda":
        return "no GPU"
    if way == "openequivariance" and implementation.endswith(GRAPH) and not mixes:
        return "its graphs of products that keep channels access memory that is not theirs"
    return triton_obstacle(device) if way == OURS else None


def run_one(lab: Lab, name: str, way: str, implementation: str) -> None:
    """Report a row, without a time if the error is above the limit."""
    shape, n_edges = CASES[name]
    timing = error = None
    clean_up(lab.device)
    exact = build(shape, n_edges, lab.device)
    try:
        with at_most(lab.budget.left_for_one), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = exact.to(torch.float32)
            backward = implementation.endswith(BACKWARD)
            expected = truth(name, lab.device, backward=backward)
            call = prepare(problem if way == OURS else problem.given, way, backward=backward)
            found = [x.clone() for x in call()]
            error = largest_error(_restored(found, problem, way), expected)
            del found
            if implementation.endswith(GRAPH):
                call = _replayed(call)
            clean_up(lab.device)
            reset_peak(lab.device)
            timing = measure(call, lab.device, seconds=lab.budget.sampling)
    except Exception as problem_of_peer:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"{BENCH} {name} {implementation}", problem_of_peer)
    limit = LIMIT if way == OURS else math.inf
    shown = None if error is None or not error <= limit else timing
    size = len(exact.graph[0]) - 1, n_edges
    lab.report(make_row(BENCH, name, implementation, size, lab.where, shown, error))


def prepare(problem: Problem, way: str, *, backward: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Return a call of an implementation, with gradients toward its inputs if wanted."""
    floats = _arranged(problem, way)
    convolve = WAYS[way](problem)
    if not backward:

        @torch.no_grad()
        def forward() -> tuple[Tensor, ...]:
            return (convolve(*floats),)

        return forward
    leaves = [x.detach().clone().requires_grad_() for x in floats]
    seed: list[Tensor] = []

    def both() -> tuple[Tensor, ...]:
        out = convolve(*leaves)
        if not seed:
            rows = weights_of_output(problem)
            last = channels_last(rows, problem.product.output) if way in CHANNELS_LAST else rows
            seed.append(last)
        return (out.detach(), *torch.autograd.grad(out, leaves, seed[0]))

    return both


def weights_of_output(problem: Problem) -> Tensor:
    """Return the gradients [N, output] of a loss with respect to an output."""
    shape = len(problem.graph[0]) - 1, problem.product.n_outputs
    rng = torch.Generator(problem.device).manual_seed(1)
    return torch.randn(shape, generator=rng, device=problem.device).to(problem.dtype)


def _arranged(problem: Problem, way: str) -> tuple[Tensor, ...]:
    """Return inputs in the layout of an implementation."""
    if way not in CHANNELS_LAST:
        return problem.floats
    node, edge_sh, *network = problem.floats
    return channels_last(node, problem.product.node), edge_sh, *network


def _restored(found: Sequence[Tensor], problem: Problem, way: str) -> list[Tensor]:
    """Return output and gradients in the layout of the truth."""
    out, *gradients = found
    product = problem.product
    if way in CHANNELS_LAST:
        out = channels_last(out, product.output, back=True)
        if gradients:
            gradients[0] = channels_last(gradients[0], product.node, back=True)
    if problem.table is not None and way != OURS:
        gradients = gradients[:2]  # peers have none toward distances
    return [out, *gradients]


def _replayed(call: Callable[[], tuple[Tensor, ...]]) -> Callable[[], object]:
    """Return a function that replays a call from a CUDA graph."""
    graph, result = record(call, GraphPool())

    def replay() -> object:
        graph.replay()
        return result

    return replay


@lru_cache(maxsize=2)
def truth(name: str, device: torch.device, *, backward: bool) -> list[Tensor]:
    """Return the output of a case in float64, and its gradients if wanted."""
    return exact_results(build(*CASES[name], device), backward=backward)


def exact_results(problem: Problem, *, backward: bool) -> list[Tensor]:
    """Return output and gradients in float64, from some edges at a time."""
    product, (row_ptr, senders) = problem.product, problem.graph
    leaves = [x.detach().clone().requires_grad_(backward) for x in problem.floats]
    of_messages = weights_of_output(problem) / row_ptr.diff().clamp(min=1)[:, None]
    messages = []
    for start in range(0, len(senders), EDGES_AT_ONCE):
        some = slice(start, start + EDGES_AT_ONCE)
        node, edge_sh, per_edge, *network = leaves
        floats = node, edge_sh[some], per_edge[some], *network
        part = Problem(product, floats, problem.graph, problem.table, problem.knots).given
        weights = part.floats[2]
        if network:
            weights = weights @ network[0] + network[1]
        matrices = part.floats[1] @ problem.coupling.T
        found = edge_products(node, matrices, weights, senders[some], product)
        if backward:
            (found * of_messages[problem.receivers[some]]).sum().backward()
        messages.append(found.detach())
    out = reduce_edges(torch.cat(messages), row_ptr, "mean")
    return [out, *(x.grad for x in leaves if x.grad is not None)]


def largest_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest error of any tensor, over its largest true value."""
    errors = [0.0]
    for actual, true in zip(found, expected, strict=False):
        if actual.shape != true.shape:
            raise ValueError(f"the shape is {list(actual.shape)} instead of {list(true.shape)}")
        errors.append(float((actual.double() - true).abs().max() / true.abs().max()))
    return math.nan if any(map(math.isnan, errors)) else max(errors)
