"""Parts of sentences that name times, speeds or memory, with values from the committed CSV files.

`CLAIMS` has them by page. `OTHERS` lists the numbers that no file gives, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch

from benchmarks.kernels import convolution
from benchmarks.kernels.convolution_problems import Problem, build
from benchmarks.lab import selection
from benchmarks.lab.schema import PairedRow, Row, read_rows, with_threads
from tools.docs_benchmarks import RESULTS

CPU = torch.device("cpu")
MIB_OF_GB = 1024  # of memory, as in the tables
FORWARD, GRAPH, BACKWARD = "", convolution.GRAPH, convolution.BACKWARD
LARGE = "layer-4-60000"
MISSED = ("layer-1-10000", "layer-4-2000", "center-10000")
"""Convolutions that take more than half of the time of a peer."""
PAIR_PEERS = ("cuequivariance-bf16", "trifast-bf16")


@cache
def measured(bench: str) -> selection.Times:
    """Return the rows of a bench that passed, by case and implementation."""
    return selection.passed(read_rows(RESULTS / f"{bench}.csv"))


def ms(bench: str, case: str, impl: str) -> str:
    """Return a median time with three digits."""
    return f"{measured(bench)[case][impl].ms_p50:.3g}"


def gb(bench: str, case: str, impl: str) -> float:
    """Return a peak of memory in GB."""
    return float(measured(bench)[case][impl].peak_mib) / MIB_OF_GB


def ratios(bench: str, cases: Iterable[str], slow: str, fast: str) -> list[float]:
    """Return how many times as fast the second implementation is."""
    rows = [measured(bench)[case] for case in cases]
    return [selection.speed_up(row[slow], row[fast]) for row in rows]


def span(values: Iterable[float], digits: str = ".1f") -> str:
    """Return the smallest and the largest value."""
    values = list(values)
    return f"{min(values):{digits}} to {max(values):{digits}}"


def readme() -> list[str]:
    """Return claims of the README outside of its tables."""
    one, two, four = (
        ms("lammps", "strong-random-1048576", f"ranks-{count}") for count in (1, 2, 4)
    )
    simulations = [case for name, case in measured("md").items() if not name.startswith("charged-")]
    slowest = max(selection.speed_up(case["command"], case["engine"]) for case in simulations)
    sizes = ("21", "166", "1029")
    cpu = measured("cpu")
    commands = [cpu[f"md-{size}"][with_threads("command", 2)].ms_p50 for size in sizes]
    first, second, third = (f"{selection.NS_PER_DAY / time:.3g}" for time in commands)
    peers = [selection.best_torchmd_net(on_two_threads(cpu[size])) for size in sizes]
    over_peers = span(peer.ratio for peer in peers if isinstance(peer, PairedRow))
    return [
        f"take {one} ms per step on one H200, {two} on two and {four} on four",
        f"{first} ns/day for 21 atoms, {second} for 166 and {third} for 1,029",
        f"{over_peers} times as fast as the fastest mode of TorchMD-NET on these cores",
        f"at most {100 * (slowest - 1):.0f} % longer than one with atoms at rest",
    ]


def on_two_threads(rows: dict[str, PairedRow]) -> dict[str, Row]:
    """Return the rows of a case on two threads, by implementation."""
    return {row.impl: row for row in rows.values() if row.threads == 2}


def structure_prediction() -> list[str]:
    """Return claims about predictions and operators on pairs."""
    bench, ours, theirs = "models", selection.AUTOCAST, selection.KERNELS
    packages = ("boltz2", "openfold3", "protenix")
    large = ratios(bench, [f"{name}-forward-1024" for name in packages], theirs, ours)
    small = [f"{name}-forward-{size}" for name in packages for size in (256, 512)]
    boltz, openfold, protenix = (f"{ratio:.1f} times as fast as" for ratio in large)
    first, second = ratios(bench, ["boltz2-64x512", "boltz2-64x1024"], theirs, ours)
    kept, shipped = (gb(bench, "boltz2-forward-256", name) for name in (ours, theirs))
    largest = gb(bench, "boltz2-forward-3072-0-recycles-20-steps", ours)
    multiplication, attention = (
        [f"triangle-{name}-{size}" for size in (512, 1024)]
        for name in ("multiplication", "attention")
    )
    pairs = measured("pairs")
    peers = [selection.best_peer(pairs[case], PAIR_PEERS) for case in attention]
    in_bf16 = [
        selection.speed_up(peer, pairs[case]["triton-bf16"])
        for case, peer in zip(attention, peers, strict=True)
        if peer
    ]
    cuequivariance = "cuequivariance-fp32", "triton-fp32"
    return [
        f"of 1,024 tokens are {boltz} Boltz-2",
        f"{openfold} OpenFold3",
        f"{protenix} Protenix",
        f"they are {span(ratios(bench, small, theirs, ours))} on the machine",
        f"are {first:.1f} times as fast with 512 tokens and {second:.1f} times with 1,024",
        f"with 3,072 tokens needs {largest:.1f} GB",
        f"{kept:.1f} GB instead of {shipped:.1f} GB with 256 tokens",
        f"attention is {span(in_bf16)} times as fast as the fastest of cuEquivariance and trifast",
        slower_multiplication(),
        f"multiplication is {span(ratios('pairs', multiplication, *cuequivariance))} times as fast",
        f"and attention {span(ratios('pairs', attention, *cuequivariance))} times",
    ]


def slower_multiplication() -> str:
    """Return the claim about multiplication in bfloat16, where cuEquivariance is faster."""
    cases = [f"triangle-multiplication-{size}" for size in (512, 1024)]
    first, second = ratios("pairs", cases, "triton-bf16", "cuequivariance-bf16")
    more, most = (f"{100 * (ratio - 1):.0f} %" for ratio in (first, second))
    return (
        f"takes {more} longer than that of cuEquivariance with 512 tokens and {most} longer with "
        "1,024"
    )


def lammps() -> list[str]:
    """Return claims about LAMMPS outside of its tables."""
    one, two = (ms("lammps", "strong-random-262144", f"ranks-{n}-model") for n in (1, 2))
    small = [ms("lammps", "check-random-4096", f"ranks-{n}") for n in (1, 2)]
    large = gb("lammps", "strong-random-2097152", "ranks-2")
    threads = ms("cpu", "lammps-1029", with_threads("ranks-1", 2))
    ranks = ms("cpu", "lammps-1029", with_threads("ranks-2", 1))
    return [
        f"with F = 128 need {large:.0f} GB on each of two GPUs",
        f"the model alone takes {one} ms on one GPU and {two} on two",
        f"One of 4,096 atoms takes {small[0]} ms on one GPU and {small[1]} on two",
        f"takes {threads} ms in one process with two threads, and {ranks} on two ranks",
    ]


def docking() -> list[str]:
    """Return claims about score models and screening."""
    bench, ours, theirs = "docking", selection.DOCKING_OURS, selection.BIO_REFERENCE
    scores = [case for case in measured(bench) if case.startswith("score")]
    screens = [case for case in measured(bench) if case.startswith("screen")]
    (over_shipped,) = ratios(bench, ["score-v1-0.1"], theirs, ours)
    taken = f"{measured(bench)['score-v1-0.1'][ours].ms_p50:.0f} ms"
    memory = {
        (name, impl): [gb(bench, case, impl) for case in cases]
        for name, cases in (("score", scores), ("screen", screens))
        for impl in (ours, theirs)
    }
    worse = {
        case: [rows[impl].error for impl in (ours, theirs)]
        for case, rows in measured(bench).items()
        if rows[ours].error > rows[theirs].error
    }
    screening, score = worse.pop("screen-v1-64"), worse.pop("score-v1-0.7")
    assert not worse
    lowest, highest = sorted(memory["screen", theirs])
    return [
        f"takes {taken}, which is {over_shipped:.1f} times less than as shipped",
        f"takes {span(ratios(bench, screens, theirs, ours))} times less",
        f"the rest of the {taken}",
        f"A score takes {span(memory['score', ours])} GB",
        f"as shipped, it takes {span(memory['score', theirs], '.0f')} GB",
        f"Screening takes {span(memory['screen', ours], '.0f')} GB",
        f"it takes {lowest:.1f} to {highest:.0f} GB",
        f"{small(screening[0], 2)} instead of {small(screening[1])} in screening",
        f"{small(score[0], 2)} instead of {small(score[1], 2)} in its scores at the time 0.7",
    ]


def small(value: float, digits: int = 1) -> str:
    """Write an error as pages do."""
    return f"{value:.{digits}e}".replace("e-0", "e-")


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


def genomic_models() -> list[str]:
    """Return claims about errors in half precision."""
    failed = {
        row.case: row.error
        for row in read_rows(RESULTS / "models.csv")
        if row.impl == "accelerated-bf16" and row.gate == "fail"
    }
    alphagenome = max(error for case, error in failed.items() if case.startswith("alphagenome"))
    shipped = measured("models")["alphagenome-524288"]["half"].error
    return [
        f"they are {small(failed['enformer-196608'])} and {small(alphagenome)}",
        f"under bfloat16 autocast, is off by {shipped:.2f}",
    ]


def alignment() -> list[str]:
    """Return claims about memory."""
    memory = gb("alignment", "dna-cigar-random-1000", "kernel")
    proteins = measured("alignment")["protein-350"]["kernel"].gcups
    return [
        f"CIGARs of 10,000 pairs of 1,000 bases need {memory:.1f} GB",
        f"aligned globally, at {proteins:,.0f} GCUPS",
    ]


def charges() -> list[str]:
    """Return claims about particle-mesh Ewald, with the faster order of splines for each size."""
    cases = {
        size: [
            rows
            for name, rows in measured("electrostatics").items()
            if name.startswith("pme") and name.endswith(f"-{size}")
        ]
        for size in (4096, 65536)
    }
    replayed, launched, peer = (
        [min(selection.p50(rows[impl]) for rows in cases[size]) for size in cases]
        for impl in ("triton-graph", "triton", "nvalchemi")
    )
    errors = [
        rows["nvalchemi"].error / rows["triton"].error for both in cases.values() for rows in both
    ]
    return [
        f"take {replayed[0]:.2f} and {replayed[1]:.2f} ms in CUDA graphs",
        f"{launched[0]:.1f} and {launched[1]:.1f} ms if they are launched",
        f"nvalchemi-toolkit-ops takes {peer[0]:.1f} and {peer[1]:.1f} ms",
        f"errors that are {span(errors, '.0f')} times as large",
    ]


CLAIMS: dict[str, Callable[[], list[str]]] = {
    "README.md": readme,
    "docs/structure-prediction.md": structure_prediction,
    "docs/lammps.md": lammps,
    "docs/docking.md": docking,
    "docs/convolutions.md": convolutions,
    "docs/genomic-models.md": genomic_models,
    "docs/alignment.md": alignment,
    "docs/mlmm.md": list,
    "docs/charges.md": charges,
}
"""Claims by page."""

OTHERS: dict[str, dict[str, str]] = {
    "docs/structure-prediction.md": {
        "640 MB of 80 GB": "a part of the memory of a GPU",
        "take 6 GB in float32 with 2,000 tokens": "a size of tensors",
        "exceeds the 80 GB of an H100": "the memory of a GPU",
    },
    "docs/lammps.md": {
        "271 ms for 1,119,744 atoms and 101 ms": "rows of commit cdb10f2, replaced since",
        "It saved 0.06 and 0.11 ms": "a profile of one machine, with the table above it",
    },
    "docs/docking.md": {
        "where 15 times was aimed for": "an aim",
        "busy for 47 ms": "a profile",
        "There are 33 GB of sums; to write and read them takes 14 ms at the 4.8 TB/s": "a profile",
        "up to 1 GiB are sums": "a limit",
    },
    "docs/convolutions.md": {
        "1 GiB at most": "a limit",
        "than fit 1 GiB": "a limit",
        "Kernels were slower with 512 MiB": "a limit",
    },
    "docs/alignment.md": {
        "need more than 4 GiB": "a limit",
        "up to 5,710 GCUPS": "a paper",
        "may inflate to 1 GiB or, if that is more, to 200 times": "a limit",
    },
    "docs/mlmm.md": {
        "hydrogen bonds of 0.18 nm lose 1 % of their Coulomb energy, and pairs at 0.3 nm 0.002 %": (
            "a function on the page"
        ),
    },
}
"""Numbers with units that are on a page, but in no measurement, with the reason."""
