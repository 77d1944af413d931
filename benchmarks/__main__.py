"""``python -m benchmarks``: measure, profile or draw. Needs neither typer nor rich."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bio import alignment, docking, models, pairs
from benchmarks.bio import encoders as bio
from benchmarks.calculators import fidelity, mixed_systems
from benchmarks.calculators.ase_calculator import ASE
from benchmarks.calculators.openmm_forces import OPENMM
from benchmarks.cpu import runner as cpu
from benchmarks.cpu.cases import CASES as CPU_CASES
from benchmarks.cpu.profiling import profile_cpu
from benchmarks.dynamics import cases as md
from benchmarks.dynamics.melted import FOLDER
from benchmarks.dynamics.runner import run_md
from benchmarks.engine.cases import CASES, Case
from benchmarks.engine.implementations import OURS, Implementation
from benchmarks.engine.peers import PEERS
from benchmarks.engine.profiling import COMMANDS, command_line, profile, trace
from benchmarks.engine.runner import run_case
from benchmarks.kernels import convolution, electrostatics
from benchmarks.kernels.cases import OPERATORS, SIZES, Operator
from benchmarks.kernels.runner import run_operators
from benchmarks.lab import figures, tables
from benchmarks.lab.lab import Budget, Lab
from benchmarks.lab.schema import RESULTS, Results, read_folder
from benchmarks.training import cases as trained
from benchmarks.training import runner as training
from mlff_triton._common.availability import triton_obstacle
from mlff_triton._common.devices import find_device
from mlff_triton._common.timing import environment
from mlff_triton.errors import InputError, MlffTritonError

STEP_BENCHES = tuple(dict.fromkeys(case.bench for case in CASES))
CALCULATORS = {"ase": ASE, "openmm": OPENMM}  # with their own peers and the engine alone
MD_CASES = {case.name: case for case in md.CASES}
BENCHES = (
    *STEP_BENCHES,
    "ops",
    "bio",
    "models",
    "pairs",
    convolution.BENCH,
    electrostatics.BENCH,
    docking.BENCH,
    mixed_systems.BENCH,
    "fidelity",
    "alignment",
    "md",
    "training",
    "cpu",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    peers = ", ".join(peer.name for peer in PEERS)
    parser = argparse.ArgumentParser(
        prog="mlff-triton bench",
        description="Check and measure ours and peers in the same run; one CSV file per bench.",
    )
    add = parser.add_argument
    add("benches", nargs="*", metavar="BENCH", help=f"{', '.join(BENCHES)} (default: all)")
    add("--cases", nargs="+", default=[], help="names of cases; for ops, operators and atoms")
    add("--peers", default="all", help=f"all, none, or some of {peers}, separated by commas")
    add("--only", help="run only these implementations, separated by commas")
    add("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    add("--threads", type=int, nargs="+", default=[], help="numbers of threads, for bench cpu")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--seconds", type=float, default=Budget.total, help="start nothing new after this time")
    add("--each", type=float, default=Budget.each, help="limit per implementation and case, s")
    add("--sampling", type=float, default=Budget.sampling, help="time to repeat a step for, s")
    add("--melted", type=Path, default=FOLDER, help="folder of the systems that md starts from")
    add("--seed", type=int, help="seed of the sequences to align (default: new in every run)")
    add("--profile", action="store_true", help="print kernels by time only")
    for tool in COMMANDS:
        add(f"--{tool}", action="store_true", help=f"print command lines for {tool} only")
    add("--trace", action="store_true", help="run one step for ncu or nsys to record")
    add("--merge", nargs="+", type=Path, help="only add the CSV files of these folders to --out")
    add("--figures", action="store_true", help="only draw the results in --out, and print tables")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return exit code 1 after failures, 2 after an error in the arguments."""
    options = parse(arguments)
    try:
        failures = _run(options)
    except MlffTritonError as error:
        print(f"mlff-triton: error: {error}", file=sys.stderr)
        return 2
    if failures:
        count = "1 measurement" if failures == 1 else f"{failures} measurements"
        print(f"mlff-triton: {count} failed, for the reasons above", file=sys.stderr)
    return 1 if failures else 0


@dataclass
class CountingLab(Lab):
    """A lab that counts the measurements that failed."""

    failures: int = 0

    def complain(self, name: str, error: BaseException) -> None:
        """Count the failure, and print to stderr why it failed."""
        self.failures += 1
        super().complain(name, error)


def _run(options: argparse.Namespace) -> int:
    """Do what the options say, and return the number of failures."""
    if options.merge:
        Results(options.out).add(row for folder in options.merge for row in read_folder(folder))
    if options.figures:
        figures.draw(options.out)
        figures.draw_published(options.out)
        print(tables.tables(options.out))
    if options.merge or options.figures:
        return 0
    cases, operators, sizes = select(options)
    device = find_device(options.device)
    if options.profile or options.trace or options.ncu or options.nsys:
        _profile_all(cases, options, device)
        return 0
    budget = Budget(options.seconds, options.each, options.sampling)
    lab = CountingLab(device, environment(device), Results(options.out), budget)
    for case in cases:
        run_case(lab, case, implementations_of(case, options))
    obstacle = triton_obstacle(device)
    if operators and obstacle:
        lab.skip("ops", obstacle)
    elif operators:
        run_operators(lab, sizes, operators)
    bio.run_bio(lab, *_named(options, "bio", bio.CASES, bio.IMPLEMENTATIONS))
    models.run_models(lab, *_named(options, models.BENCH, models.CASES, models.IMPLEMENTATIONS))
    pairs.run_pairs(lab, *_named(options, pairs.BENCH, pairs.CASES, pairs.IMPLEMENTATIONS))
    convolved = _named(options, convolution.BENCH, convolution.CASES, convolution.IMPLEMENTATIONS)
    convolution.run_convolution(lab, *convolved)
    charged = _named(
        options, electrostatics.BENCH, electrostatics.CASES, electrostatics.IMPLEMENTATIONS
    )
    electrostatics.run_electrostatics(lab, *charged)
    coupled = _named(
        options, mixed_systems.BENCH, mixed_systems.CASES, mixed_systems.IMPLEMENTATIONS
    )
    mixed_systems.run_mixed(lab, *coupled)
    docked = _named(options, docking.BENCH, docking.CASES, docking.IMPLEMENTATIONS)
    docking.run_docking(lab, *docked)
    simulated, names = _named(options, "fidelity", fidelity.CASES, fidelity.SIMULATIONS)
    fidelity.run_fidelity(lab, simulated, [fidelity.SIMULATIONS[name] for name in names])
    seed = int(time.time()) if options.seed is None else options.seed
    aligned = _named(options, "alignment", alignment.CASES, alignment.METHODS)
    alignment.run_alignment(lab, *aligned, seed)
    steps = _named(options, training.BENCH, trained.CASES, training.IMPLEMENTATIONS)
    training.run_training(lab, *steps)
    simulated, names = _named(options, "md", MD_CASES, _md_implementations(options))
    run_md(lab, [MD_CASES[name] for name in simulated], names, options.melted)
    names_of_cpu = cpu.OURS if options.peers == "none" else cpu.IMPLEMENTATIONS
    cpu.run_cpu(lab, *_named(options, cpu.BENCH, CPU_CASES, names_of_cpu), options.threads)
    return lab.failures


def _md_implementations(options: argparse.Namespace) -> tuple[str, ...]:
    return md.OURS if options.peers == "none" else md.IMPLEMENTATIONS


def _named(
    options: argparse.Namespace, bench: str, cases: Iterable[str], implementations: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the selected cases and implementations of a bench, by name."""
    if bench not in (options.benches or BENCHES):
        return [], []
    only = _only(options) or implementations
    wanted = [name for name in cases if not options.cases or name in options.cases]
    return wanted, [name for name in implementations if name in only]


def select(options: argparse.Namespace) -> tuple[list[Case], list[Operator], list[int]]:
    """Return the selected cases of steps, operators, and sizes of operators."""
    benches = _known(options.benches, BENCHES, "bench") or list(BENCHES)
    cases = [case for case in CASES if case.bench in benches]
    operators, sizes = (list(OPERATORS), list(SIZES)) if "ops" in benches else ([], [])
    if not options.cases:
        return cases, operators, sizes
    names = [case.name for case in cases] + [op.name for op in operators]
    names += fidelity.CASES if "fidelity" in benches else ()
    names += bio.CASES if "bio" in benches else ()
    names += models.CASES if "models" in benches else ()
    names += pairs.CASES if pairs.BENCH in benches else ()
    names += convolution.CASES if convolution.BENCH in benches else ()
    names += electrostatics.CASES if electrostatics.BENCH in benches else ()
    names += docking.CASES if docking.BENCH in benches else ()
    names += mixed_systems.CASES if mixed_systems.BENCH in benches else ()
    names += alignment.CASES if "alignment" in benches else ()
    names += MD_CASES if "md" in benches else ()
    names += trained.CASES if training.BENCH in benches else ()
    names += CPU_CASES if cpu.BENCH in benches else ()
    wanted = _known(options.cases, [*names, *map(str, sizes)], "case")
    cases = [case for case in cases if case.name in wanted]
    some_operators = [op for op in operators if op.name in wanted]
    some_sizes = [size for size in sizes if str(size) in wanted]
    if not some_operators and not some_sizes:
        return cases, [], []
    return cases, some_operators or operators, some_sizes or sizes


def _profile_all(cases: Sequence[Case], options: argparse.Namespace, device: torch.device) -> None:
    """Profile steps of all selected cases and implementations."""
    for case in cases:
        for implementation in implementations_of(case, options):
            _profile(case, implementation, options, device)
    if options.profile:
        profile_cpu(_named(options, cpu.BENCH, CPU_CASES, ())[0], options.threads)


def _profile(
    case: Case, implementation: Implementation, options: argparse.Namespace, device: torch.device
) -> None:
    """Profile a step, or print the command lines that do."""
    for tool in COMMANDS:
        if getattr(options, tool):
            print(command_line(tool, case, implementation))
    if options.profile:
        profile(case, implementation, device)
    if options.trace:
        trace(case, implementation, device)


def implementations_of(case: Case, options: argparse.Namespace) -> list[Implementation]:
    """Return the selected implementations, ours first in case a peer breaks the run."""
    ours = CALCULATORS.get(case.bench, OURS)
    peers = () if case.bench in CALCULATORS else PEERS
    if wanted := _only(options):
        return [one for one in (*ours, *peers) if one.name in wanted]
    if options.peers == "none":
        return list(ours)
    if options.peers == "all":
        return [*ours, *peers]
    wanted = _known(options.peers.split(","), [peer.name for peer in PEERS], "peer")
    return [*ours, *(peer for peer in peers if peer.name in wanted)]


def _only(options: argparse.Namespace) -> list[str]:
    """Return the implementations named by ``--only``; empty without the option."""
    names = [*(one.name for one in (*OURS, *ASE, *OPENMM, *PEERS)), *fidelity.SIMULATIONS]
    names += md.IMPLEMENTATIONS
    given = options.only.split(",") if options.only else []
    names += [*bio.IMPLEMENTATIONS, *models.IMPLEMENTATIONS, *pairs.IMPLEMENTATIONS]
    names += [*convolution.IMPLEMENTATIONS, *electrostatics.IMPLEMENTATIONS]
    names += [*docking.IMPLEMENTATIONS, *mixed_systems.IMPLEMENTATIONS]
    names += [*alignment.METHODS, *training.IMPLEMENTATIONS, *cpu.IMPLEMENTATIONS]
    return _known(given, names, "implementation")


def _known(given: Sequence[str], known: Sequence[str], kind: str) -> list[str]:
    """Return the given names; raise an `InputError` that lists the known ones."""
    for name in given:
        if name not in known:
            names = ", ".join(dict.fromkeys(known))
            raise InputError(f"the {kind} {name!r} is unknown: use {names}")
    return list(given)


if __name__ == "__main__":
    sys.exit(main())
