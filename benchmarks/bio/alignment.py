"""Sequence alignment: ours against other methods on GPUs and CPUs.

Sequences are random and differ from run to run. A sample of the pairs is compared with parasail, or
with the reference in PyTorch where parasail is not installed. CIGAR strings are rescored, operation
by operation.
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch

from benchmarks.bio.alignment_cases import CASES, Problem, Scheme, build
from benchmarks.bio.alignment_methods import CPU, METHODS, Answer, Method, Work, parasail_function
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import AlignmentRow
from mlff_triton._common.timing import Timing, measure, peak_mib, reset_peak, synchronize
from mlff_triton.bio.alignment.align import MODES
from mlff_triton.kernels.alignment.reference.alignment import alignment as reference

LONG = 0.5  # seconds from which a call is not repeated
LEAST, MOST = 3, 200  # repeated calls
CELLS_ON_CPU = 10**7  # most cells of a case without a GPU


def run_alignment(lab: Lab, names: Sequence[str], methods: Sequence[str], seed: int) -> None:
    """Measure the named cases with each of the named methods."""
    if not names:
        return
    print(f"alignment: random sequences, --seed {seed}", flush=True)
    available = [one for one in map(METHODS.__getitem__, methods) if _is_available(lab, one)]
    cases = list(map(CASES.__getitem__, names))
    if lab.device.type != "cuda":
        small = [case for case in cases if case.n_pairs * case.most_cells <= CELLS_ON_CPU]
        if len(small) < len(cases):
            print(
                f"alignment: {len(cases) - len(small)} cases skipped, they need a GPU",
                file=sys.stderr,
            )
        cases = small
    for case in cases:
        for method in available:
            if lab.budget.left <= 0:
                print(f"alignment {case.name}: skipped, the time is up", file=sys.stderr)
                return
            if method.serves(case):
                run_one(lab, build(case, seed), method)


def _is_available(lab: Lab, method: Method) -> bool:
    """Return True if a method can run here; otherwise report the reason."""
    reason = method.refusal(lab.device)
    if reason is not None:
        print(f"alignment {method.name}: skipped, {reason}", file=sys.stderr)
    return reason is None


def run_one(lab: Lab, problem: Problem, method: Method) -> None:
    """Report a row, without a time if any score is wrong."""
    case, timing, pairs, checked, wrong = problem.case, None, np.arange(0), 0, 0
    clean_up(lab.device)
    try:
        with at_most(min(lab.budget.each, lab.budget.left)), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = method.prepare(problem, lab.device)
            pairs = np.arange(case.n_pairs) if work.pairs is None else work.pairs
            timing, checked, wrong = _examine(lab, problem, method, work)
    except Exception as error:  # noqa: BLE001 - the other methods can still run
        lab.complain(f"alignment {case.name} {method.name}", error)
    right = timing is not None and checked > 0 and wrong == 0
    times = (timing.p20, timing.p50, timing.p80) if right else (None,) * 3
    row = AlignmentRow(
        "alignment",
        case.name,
        method.name,
        case.pairing,
        len(pairs),
        int(problem.queries.lengths.max()),
        int(problem.targets.lengths.max()),
        method.runs_on(lab.device),
        method.version,
        *asdict(lab.where).values(),
        *times,
        problem.cells(pairs) / timing.p50 * 1e-6 if right else None,
        timing.peak_mib if right else None,
        checked,
        wrong,
    )
    lab.report(row)


def _examine(lab: Lab, problem: Problem, method: Method, work: Work) -> tuple[Timing, int, int]:
    """Check, time and check again. A long first call of a steady method is not repeated."""
    device = CPU if method.own_memory else lab.device
    synchronize(device)
    reset_peak(device)
    start = time.perf_counter()
    result = work.step()
    synchronize(device)
    seconds = time.perf_counter() - start
    checked, wrong = check(problem, work, work.read(result), lab.device)
    if method.steady and seconds > LONG:
        return _of_one_call(seconds, device), checked, wrong
    del result
    reset_peak(device)
    timing = measure(
        work.step,
        device,
        seconds=lab.budget.sampling,
        warm_up=1,
        repeats=(LEAST, MOST),
        wall=method.by_host,
    )
    _, wrong_again = check(problem, work, work.read(work.step()), lab.device)
    return timing, checked, max(wrong, wrong_again)


def _of_one_call(seconds: float, device: torch.device) -> Timing:
    """Return the timing of a call that is not repeated."""
    return Timing(*[1e3 * seconds] * 3, peak_mib(device))


def check(problem: Problem, work: Work, answer: Answer, device: torch.device) -> tuple[int, int]:
    """Return the number of pairs compared with the truth, and the number of wrong ones."""
    sample = problem.some[: problem.n_checked]
    n_pairs = problem.case.n_pairs if work.pairs is None else len(work.pairs)
    if answer.scores.shape != (n_pairs,):
        raise ValueError(f"scores have shape {answer.scores.shape}, but there are {n_pairs} pairs")
    indices = sample if work.pairs is None else np.arange(min(len(sample), n_pairs))
    expected = truth(problem, device)[: len(indices)]
    right = answer.scores[indices] == expected
    if problem.case.traceback:
        texts, scheme = problem.texts_of(sample), problem.case.scheme
        found = [answer.cigars[k] for k in indices]
        again = [rescored(c, a, b, scheme) for c, (a, b) in zip(found, texts, strict=True)]
        right &= expected == np.array(again, dtype=float)
    return len(indices), int((~right).sum())


@lru_cache(maxsize=1)
def truth(problem: Problem, device: torch.device) -> np.ndarray:
    """Return the scores of the pairs that are checked, int64."""
    case, sample = problem.case, problem.some[: problem.n_checked]
    if find_spec("parasail") is None:
        _, matrix, gaps = case.scheme.scoring
        found = reference(problem.on(device, sample), matrix, gaps, MODES[case.mode])
        return found.score.cpu().numpy().astype(np.int64)
    score = parasail_function(case, "scan_32")
    return np.array([score(a, b) for a, b in problem.texts_of(sample)], np.int64)


def rescored(cigar: str, query: str, target: str, scheme: Scheme) -> float:
    """Compute the score of a global alignment from its operations; NaN if these do not fit."""
    scores, codes = scheme.scores.tolist(), {x: k for k, x in enumerate(scheme.letters)}
    total, i, j = 0, 0, 0
    for count, operation in re.findall(r"(\d+)([=XID])", cigar):
        n = int(count)
        if operation in "=X":
            facing = list(zip(query[i : i + n], target[j : j + n], strict=False))
            if len(facing) < n or any((a == b) != (operation == "=") for a, b in facing):
                return float("nan")
            total += sum(scores[codes[a]][codes[b]] for a, b in facing)
        else:
            total -= scheme.gap_open + scheme.gap_extend * (n - 1)
        i += n * (operation != "D")
        j += n * (operation != "I")
    return total if (i, j) == (len(query), len(target)) else float("nan")
