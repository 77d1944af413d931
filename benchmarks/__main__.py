"""``python -m benchmarks``: measure, profile, draw. Runs without typer and rich."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks.bio import alignment
from benchmarks.bio import encoders as bio
from benchmarks.calculators.ase_steps import ASE
from benchmarks.calculators.openmm_steps import OPENMM
from benchmarks.engine import fidelity
from benchmarks.engine.cases import CASES, Case
from benchmarks.engine.implementations import OURS, Implementation
from benchmarks.engine.peers import PEERS
from benchmarks.kernels.operators import OPERATORS, SIZES, Operator
from benchmarks.kernels.run import run_operators
from benchmarks.lab import figures
from benchmarks.lab.profiling import COMMANDS, command_line, profile, trace
from benchmarks.lab.runner import Budget, Lab, run_case
from benchmarks.lab.schema import Results, read_folder
from mlff_triton._common.timing import environment
from mlff_triton.errors import InputError, MlffTritonError

RESULTS = Path(__file__).with_name("results")
STEP_BENCHES = tuple(dict.fromkeys(case.bench for case in CASES))
FRONT_ENDS = {"ase": ASE, "openmm": OPENMM}  # with the engine below them, and their own peers
BENCHES = (*STEP_BENCHES, "ops", "bio", "fidelity", "alignment")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    peers = ", ".join(peer.name for peer in PEERS)
    parser = argparse.ArgumentParser(
        prog="mlff-triton bench",
        description="Measure against the peers in the same run, gate first; one CSV a bench.",
    )
    add = parser.add_argument
    add("benches", nargs="*", metavar="BENCH", help=f"{', '.join(BENCHES)}; all without any")
    add("--cases", nargs="+", default=[], help="names of cases; of ops: operators, atoms")
    add("--peers", default="all", help=f"all, none, or some of {peers}, comma between")
    add("--only", help="these implementations and no others, comma between")
    add("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1...")
    add("--seconds", type=float, default=Budget.total, help="nothing new is begun after these")
    add("--each", type=float, default=Budget.each, help="seconds for one implementation and case")
    add("--sampling", type=float, default=Budget.sampling, help="seconds to repeat a step for")
    add("--seed", type=int, help="of the sequences of alignment; by default another in every run")
    add("--profile", action="store_true", help="print kernels by time instead of measuring")
    for tool in COMMANDS:
        add(f"--{tool}", action="store_true", help=f"print command lines for {tool} instead")
    add("--trace", action="store_true", help="run one marked step, for ncu and nsys")
    add("--merge", nargs="+", type=Path, help="only add the CSV files of these folders to --out")
    add("--figures", action="store_true", help="only draw what is in --out, and print its tables")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lab; the exit code is 2 after an error in the arguments."""
    options = parse(arguments)
    try:
        _run(options)
    except MlffTritonError as error:
        print(f"mlff-triton: error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.merge:
        Results(options.out).add(row for folder in options.merge for row in read_folder(folder))
    if options.figures:
        figures.draw(options.out)
        print(figures.tables(options.out))
    if options.merge or options.figures:
        return
    cases, operators, sizes = _select(options)
    device = torch.device(options.device if options.device != "auto" else _best_device())
    if options.profile or options.trace or options.ncu or options.nsys:
        for case in cases:
            for implementation in _implementations(case, options):
                _look_into(case, implementation, options, device)
        return
    budget = Budget(options.seconds, options.each, options.sampling)
    lab = Lab(device, environment(device), Results(options.out), budget)
    for case in cases:
        run_case(lab, case, _implementations(case, options))
    if operators:
        run_operators(lab, sizes, operators)
    bio.run_bio(lab, *_named(options, "bio", bio.CASES, bio.WAYS))
    simulated = [one.name for one in fidelity.SIMULATED]
    fidelity.run_fidelity(lab, *_named(options, "fidelity", fidelity.CASES, simulated))
    seed = int(time.time()) if options.seed is None else options.seed
    aligned = _named(options, "alignment", alignment.CASES, alignment.WAYS)
    alignment.run_alignment(lab, *aligned, seed)


def _named(
    options: argparse.Namespace, bench: str, cases: Iterable[str], ways: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The cases of a bench and the ways to run them that are asked for."""
    if bench not in (options.benches or BENCHES):
        return [], []
    only = _only(options) or ways
    wanted = [name for name in cases if not options.cases or name in options.cases]
    return wanted, [name for name in ways if name in only]


def _select(options: argparse.Namespace) -> tuple[list[Case], list[Operator], list[int]]:
    """Cases of steps, operators, and the numbers of atoms of those."""
    benches = _known(options.benches, BENCHES, "bench") or list(BENCHES)
    cases = [case for case in CASES if case.bench in benches]
    operators, sizes = (list(OPERATORS), list(SIZES)) if "ops" in benches else ([], [])
    if not options.cases:
        return cases, operators, sizes
    names = [case.name for case in cases] + [op.name for op in operators]
    names += fidelity.CASES if "fidelity" in benches else ()
    names += bio.CASES if "bio" in benches else ()
    names += alignment.CASES if "alignment" in benches else ()
    wanted = _known(options.cases, [*names, *map(str, sizes)], "case")
    cases = [case for case in cases if case.name in wanted]
    some_operators = [op for op in operators if op.name in wanted]
    some_sizes = [size for size in sizes if str(size) in wanted]
    if not some_operators and not some_sizes:
        return cases, [], []
    return cases, some_operators or operators, some_sizes or sizes


def _look_into(
    case: Case, implementation: Implementation, options: argparse.Namespace, device: torch.device
) -> None:
    for tool in COMMANDS:
        if getattr(options, tool):
            print(command_line(tool, case, implementation))
    if options.profile:
        profile(case, implementation, device)
    if options.trace:
        trace(case, implementation, device)


def _implementations(case: Case, options: argparse.Namespace) -> list[Implementation]:
    """Ours first: whatever happens to the others, those are measured."""
    ours = FRONT_ENDS.get(case.bench, OURS)
    peers = () if case.bench in FRONT_ENDS else PEERS
    if wanted := _only(options):
        return [one for one in (*ours, *peers) if one.name in wanted]
    if options.peers == "none":
        return list(ours)
    if options.peers == "all":
        return [*ours, *peers]
    wanted = _known(options.peers.split(","), [peer.name for peer in PEERS], "peer")
    return [*ours, *(peer for peer in peers if peer.name in wanted)]


def _only(options: argparse.Namespace) -> list[str]:
    """The implementations that alone are asked for; empty if all are."""
    names = [one.name for one in (*OURS, *ASE, *OPENMM, *PEERS, *fidelity.SIMULATED)]
    given = options.only.split(",") if options.only else []
    return _known(given, [*names, *bio.WAYS, *alignment.WAYS], "implementation")


def _known(given: Sequence[str], known: Sequence[str], kind: str) -> list[str]:
    """The names given, or an `InputError` that lists the known ones."""
    for name in given:
        if name not in known:
            names = ", ".join(dict.fromkeys(known))
            raise InputError(f"the {kind} {name!r} is unknown: use {names}")
    return list(given)


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(main())
