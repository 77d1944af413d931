"""Claims of the page about equivariant convolutions, for `tests.docs.claims`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from benchmarks.kernels import convolution
from benchmarks.kernels.convolution_problems import Problem, build
from benchmarks.lab import selection
from benchmarks.lab.schema import Row
from tests.docs.measurements import measured, small, span

CPU = torch.device("cpu")
FORWARD, GRAPH, BACKWARD = "", convolution.GRAPH, convolution.BACKWARD
LARGE = "layer-4-60000"
MISSED = ("layer-1-10000", "layer-4-2000", "center-10000")
"""Convolutions that take more than half of the time of a peer."""


def convolutions() -> list[str]:
    """Return claims about the times of equivariant convolutions."""
    docked = [case for case in measured("convolution") if not case.startswith("mace")]
    alone = {case: share(case, FORWARD) for case in measured("convolution") if peer_of(case)}
    launched = [alone[case] for case in docked]
    missed = {case: ratio for case, ratio in alone.items() if case in docked and ratio > 0.5}
    first, second, third = (missed.pop(case) for case in MISSED)
    assert not missed
    bound = [*MISSED, "mace-0-1000"]
    eager, replayed = ([taken(case, mode) for case in bound] for mode in (FORWARD, GRAPH))
    slower = {
        case: share(case, BACKWARD)
        for case in measured("convolution")
        if peer_of(case, BACKWARD) and share(case, BACKWARD) > 1
    }
    with_gradients = span(taken(case, BACKWARD) for case in slower)
    times = [slower.pop(case) for case in ("mace-0-1000", "layer-4-2000", "layer-2-10000")]
    assert not slower
    graphs = [share(case, GRAPH) for case in docked if peer_of(case, GRAPH)]
    return [
        f"layers take {span(graphs, '.2f')} of the time of OpenEquivariance",
        f"convolutions take {span(launched, '.2f')} of the time of the fastest peer",
        f"`layer-1-10000` ({first:.2f})",
        f"`layer-4-2000` ({second:.2f})",
        f"`center-10000` ({third:.2f})",
        f"`mace-0-1000` takes {alone['mace-0-1000']:.2f} of the time of OpenEquivariance",
        f"they take {span(eager, '.2f')} ms, but {span(replayed, '.2f')} ms in a graph",
        f"OpenEquivariance {times[0]:.1f} times at `mace-0-1000`",
        f"cuEquivariance {times[1]:.1f} times at `layer-4-2000` and {times[2]:.1f} times at",
        f"they take {with_gradients} ms, and `mace-0-10000`",
        f"takes {taken('mace-0-10000', BACKWARD):.1f} ms",
        *convolution_memory(docked),
        *convolution_errors(),
    ]


def peer_of(case: str, mode: str = FORWARD) -> Row | None:
    """Return the fastest peer of a convolution."""
    names = [f"{name}{mode}" for name in selection.CONVOLUTION_PEERS]
    return selection.best_peer(measured("convolution")[case], names)


def taken(case: str, mode: str) -> float:
    """Return our time of a convolution in ms."""
    return selection.p50(measured("convolution")[case][f"triton{mode}"])


def share(case: str, mode: str) -> float:
    """Return our time of a convolution over that of the fastest peer."""
    peer = peer_of(case, mode)
    assert peer is not None
    return taken(case, mode) / selection.p50(peer)


def convolution_memory(cases: Iterable[str]) -> list[str]:
    """Return claims about memory; what a call allocates are its peak minus that of its graph."""
    rows = measured("convolution")
    given = {case: bytes_of(problem_of(case)) / 2**20 for case in cases}
    peaks = {
        case: [rows[case][f"triton{mode}"].peak_mib for mode in (FORWARD, GRAPH)] for case in given
    }
    allocated = {case: call - graph for case, (call, graph) in peaks.items()}
    factors = [1 + allocated[case] / given[case] for case in given if case != LARGE]
    problem = problem_of(LARGE)
    (n_edges, n_hidden), n_receivers = problem.floats[2].shape, len(problem.graph[0]) - 1
    product = problem.product
    columns = sum(
        product.node[path.node].count * product.output[path.output].width for path in product.paths
    )
    per_receiver = columns * (4 * n_hidden + 8)  # two halves of each sum, a unit, and a total
    weights = 4 * n_edges * product.n_weights / 2**20
    return [
        f"one receiver have up to {per_receiver / 1e3:.0f} kB",
        f"convolutions take {span(factors)} times as much",
        f"`{LARGE}` have {given[LARGE]:.0f} MiB",
        f"a call takes another {allocated[LARGE]:.0f} MiB",
        f"{n_receivers * per_receiver / 2**20:.0f} MiB are the sums of all its",
        f"its {n_receivers:,} receivers",
        f"weights of all edges alone have {weights:,.0f} MiB",
        f"The peak of {peaks[LARGE][0]:,.0f} MiB",
        f"The {peaks[LARGE][1]:.0f} MiB of the same convolution in a graph",
    ]


@cache
def problem_of(case: str) -> Problem:
    """Return the inputs of a convolution in float32."""
    return build(*convolution.CASES[case], CPU).to(torch.float32)


def bytes_of(problem: Problem) -> int:
    """Return the bytes of all inputs and the output."""
    given = sum(x.numel() * x.element_size() for x in (*problem.floats, *problem.graph))
    return given + 4 * (len(problem.graph[0]) - 1) * problem.product.n_outputs


def convolution_errors() -> list[str]:
    """Return claims about errors that are larger than those of a peer."""
    worse = {}
    for case, rows in measured("convolution").items():
        for mode in (FORWARD, BACKWARD):
            ours = rows[f"triton{mode}"].error
            peers = {
                name: rows[f"{name}{mode}"].error
                for name in selection.CONVOLUTION_PEERS
                if f"{name}{mode}" in rows
            }
            if any(error < ours for error in peers.values()):
                worse[f"{case}{mode}"] = ours, peers
    large, of_peers = worse.pop(LARGE)
    center, of_others = worse.pop("center-10000")
    assert not worse
    assert [name for name, error in of_others.items() if error < center] == ["e3nn"]
    low, high = min(of_peers.values()), max(of_peers.values())
    return [
        f"{small(large)} at `{LARGE}`, where peers have {small(low)} to {small(high)}",
        f"{small(center)} at `center-10000`, where e3nn has {small(of_others['e3nn'])}",
    ]
