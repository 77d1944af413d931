"""Parts of sentences that name times, speeds or memory, with values from the committed CSV files.

`CLAIMS` has them by page. `OTHERS` lists the numbers that no file gives, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.lab import selection
from benchmarks.lab.schema import PairedRow, Row, read_rows, with_threads
from tests.docs.convolution_claims import convolutions
from tests.docs.measurements import gb, measured, ms, ratios, small, span
from tools.docs_benchmarks import RESULTS

PACKAGES = ("boltz2", "openfold3", "protenix")
MULTIPLICATIONS = ("triangle-multiplication-512", "triangle-multiplication-1024")
PAIR_PEERS = ("cuequivariance-bf16", "trifast-bf16")


def readme() -> list[str]:
    """Return claims of the README outside of its tables."""
    one, two, four = (
        ms("lammps", "strong-random-1048576", f"ranks-{count}") for count in (1, 2, 4)
    )
    simulations = [case for name, case in measured("md").items() if not name.startswith("charged-")]
    slowest = max(
        selection.speed_up(case["command"], case["engine"])
        for case in simulations
        if "engine" in case
    )
    sizes = ("21", "166", "1029")
    cpu = measured("cpu")
    commands = [cpu[f"md-{size}"][with_threads("command", 2)].ms_p50 for size in sizes]
    first, second, third = (f"{selection.NS_PER_DAY / time:.3g}" for time in commands)
    peers = [selection.best_torchmd_net(on_two_threads(cpu[size])) for size in sizes]
    over_peers = span(peer.ratio for peer in peers if isinstance(peer, PairedRow))
    return [
        slower_multiplication(),
        f"take {one} ms per step on one H200, {two} on two and {four} on four",
        f"{first} ns/day for 21 atoms, {second} for 166 and {third} for 1,029",
        f"{over_peers} times as fast as the fastest mode of TorchMD-NET on these cores",
        f"at most {100 * (slowest - 1):.0f} % longer than one with atoms at rest",
    ]


def home() -> list[str]:
    """Return the claim of the home page."""
    return [f"it is {span(over_torchmd_net())} times faster than the fastest mode"]


def over_torchmd_net() -> list[float]:
    """Return ratios of the fastest mode of TorchMD-NET and the engine."""
    cases = measured("step").values()
    peers = [(selection.best_peer(case), case) for case in cases]
    return [selection.speed_up(peer, case["engine"]) for peer, case in peers if peer]


def benchmarks() -> list[str]:
    """Return claims between the tables."""
    large = selection.p50(measured("md")["1000000"]["command"]) / 1e3
    charged = [case for name, case in measured("charged").items() if name.isdigit()]
    times = [f"{selection.p50(case['engine']):.3g} ms" for case in charged]
    over_charged = [
        f"{selection.speed_up(peer, case['engine']):.1f}"
        for case in charged
        if (peer := selection.best_peer(case))
    ]
    eager, captured = (
        span(ratios("training", measured("training"), warp, "ours-captured"))
        for warp in ("warp", "warp-captured")
    )
    names = [f"{package}-forward-1024" for package in PACKAGES]
    rows = [measured("models")[name][selection.AUTOCAST] for name in names]
    first, second, third = (f"{selection.p50(row) / 1e3:.3g}" for row in rows)
    over = ratios("models", names, selection.KERNELS, selection.AUTOCAST)
    pairs = [measured("pairs")[case] for case in MULTIPLICATIONS]
    faster, most = (
        f"{case['triton-bf16'].ms_p50:#.3g} ms instead of {case['cuequivariance-bf16'].ms_p50:#.3g}"
        for case in pairs
    )
    return [
        f"1,000,000 atoms take {large:.3f} s per step",
        f"is {span(over_torchmd_net())} times as fast as TorchMD-NET's fastest mode",
        f"takes {times[0]} for 21 atoms, {times[1]} for 1,024, {times[2]} for 4,096 and {times[3]}",
        f"takes {', '.join(over_charged[:3])} and {over_charged[3]} times as long",
        f"trains {eager} times as fast",
        f"and {captured} times as fast as these",
        f"take {first}, {second} and {third} s under",
        f"these take {over[0]:.1f}, {over[1]:.1f} and {over[2]:.1f} times as long",
        slower_multiplication(),
        f"longer with 1,024, {faster} and {most}.",
    ]


def ase() -> list[str]:
    """Return the claim about the calculator."""
    small = [rows for rows in measured("ase").values() if rows["engine"].atoms <= 1029]
    overheads = [
        selection.p50(rows["calculator"]) - selection.p50(rows["engine"]) for rows in small
    ]
    about = {f"{overhead:.1f}" for overhead in overheads}
    return [f"the calculator adds about {one} ms" for one in about]


def openmm() -> list[str]:
    """Return claims about OpenMM's platforms."""
    rows = measured("openmm")
    costs = [
        selection.p50(rows[size]["openmm-torch"]) - selection.p50(rows[size]["engine"])
        for size in ("21", "192")
    ]
    speed = selection.NS_PER_DAY / selection.p50(rows["1029"]["openmm-reference"])
    return [
        f"take turns, which costs about {sum(costs) / len(costs):.1f} ms per step",
        f"{speed:.0f} ns per day at 1,029 atoms",
    ]


def batches() -> list[str]:
    """Return claims about memory and compilation."""
    memory = gb("step", "65536", "engine")
    cold, warm = (
        measured("cpu")[f"first-1029-{caches}"][with_threads("forces", 2)].ms_p50
        for caches in ("cold", "warm")
    )
    return [
        f"65,536 atoms take {memory:.1f} GiB with F = 128",
        f"The first forces take {(cold - warm) / 1e3:.1f} s longer",
    ]


def limits() -> list[str]:
    """Return the claim about training without a graph."""
    eager = ratios("training", measured("training"), "warp", "ours-eager")
    return [f"makes training {span(eager)} times as fast as TorchMD-NET's Warp operators"]


def on_two_threads(rows: dict[str, PairedRow]) -> dict[str, Row]:
    """Return the rows of a case on two threads, by implementation."""
    return {row.impl: row for row in rows.values() if row.threads == 2}


def structure_prediction() -> list[str]:
    """Return claims about predictions and operators on pairs."""
    bench, ours, theirs = "models", selection.AUTOCAST, selection.KERNELS
    large = ratios(bench, [f"{name}-forward-1024" for name in PACKAGES], theirs, ours)
    small = [f"{name}-forward-{size}" for name in PACKAGES for size in (256, 512)]
    boltz, openfold, protenix = (f"{ratio:.1f} times as fast as" for ratio in large)
    first, second = ratios(bench, ["boltz2-64x512", "boltz2-64x1024"], theirs, ours)
    kept, shipped = (gb(bench, "boltz2-forward-256", name) for name in (ours, theirs))
    largest = gb(bench, "boltz2-forward-3072-0-recycles-20-steps", ours)
    attention = [f"triangle-attention-{size}" for size in (512, 1024)]
    pairs = measured("pairs")
    peers = [selection.best_peer(pairs[case], PAIR_PEERS) for case in attention]
    in_bf16 = [
        selection.speed_up(peer, pairs[case]["triton-bf16"])
        for case, peer in zip(attention, peers, strict=True)
        if peer
    ]
    peer = "cuequivariance-fp32", "triton-fp32"
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
        f"multiplication is {span(ratios('pairs', MULTIPLICATIONS, *peer))} times as fast",
        f"and attention {span(ratios('pairs', attention, *peer))} times",
    ]


def slower_multiplication() -> str:
    """Return the claim about multiplication in bfloat16, where cuEquivariance is faster."""
    first, second = ratios("pairs", MULTIPLICATIONS, "triton-bf16", "cuequivariance-bf16")
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


def many() -> list[str]:
    """Return claims about embeddings of a proteome from file to file."""
    cases = (measured("embed")[f"esm2-{size}-20000-h5"] for size in ("8m", "650m"))
    first, second = (case["gpus-1-fp16"].ms_p50 / 1000 for case in cases)
    return [
        f"take {first:.0f} s with ESM-2 8M and {second:.0f} s with ESM-2 650M",
        f"That is {20_000 / first:.0f} and {20_000 / second:.0f} proteins per second",
    ]


CLAIMS: dict[str, Callable[[], list[str]]] = {
    "README.md": readme,
    "docs/index.md": home,
    "docs/benchmarks.md": benchmarks,
    "docs/ase.md": ase,
    "docs/openmm.md": openmm,
    "docs/batches.md": batches,
    "docs/limits.md": limits,
    "docs/structure-prediction.md": structure_prediction,
    "docs/lammps.md": lammps,
    "docs/docking.md": docking,
    "docs/convolutions.md": convolutions,
    "docs/genomic-models.md": genomic_models,
    "docs/alignment.md": alignment,
    "docs/charges.md": charges,
    "docs/many.md": many,
}
"""Claims by page. Other pages have none."""

OTHERS: dict[str, dict[str, str]] = {
    "docs/benchmarks.md": {
        "its PyTorch operations need more than 139 GB": "the memory of a GPU",
        "distances that differ by 0.5 %": "the meaning of an error",
    },
    "docs/ase.md": {
        "the energy is 0.3 % smaller than with": "tests of dispersion",
        "the stress 0.2 %": "tests of dispersion",
    },
    "docs/batches.md": {"`explain` counts 6 s": "a constant of the package"},
    "docs/command-line.md": {
        "by more than 15 % at once": "a limit",
        "up to 1.3 times that sum": "a limit",
        "its target plus 10,000 K. Atoms may come as close as 0.3 times": "a limit",
    },
    "docs/how-it-works.md": {"They are 96 % of the work": "a count of operations"},
    "docs/limits.md": {
        "3 GB for 10,000 atoms": "a size of arrays",
        "volumes vary by 5 % too much": "a simulation of springs",
        "is up to 5 % too small": "a simulation of springs",
    },
    "docs/many.md": {
        "one for each 16 MB": "a constant of the package",
        "or 8 GB of the GPU's memory": "a constant of the package",
    },
    "docs/training.md": {"about 5 kB per molecule": "a size of arrays"},
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
