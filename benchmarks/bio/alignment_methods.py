"""Methods of alignment: ours with encoded sequences or from strings, and all peers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.bio.alignment_cases import EDIT, AlignmentCase, Problem, Scheme
from mlff_triton._common.cores import n_cores
from mlff_triton._common.timing import device_name, version_of
from mlff_triton.bio.alignment.align import MODES
from mlff_triton.bio.alignment.cigar import cigars
from mlff_triton.kernels.alignment.reference.alignment import alignment as reference
from mlff_triton.kernels.alignment.types import Aligned, Gaps

CPU = torch.device("cpu")
CORES = n_cores()
CELLS_PER_CALL = 2 * 10**8  # for peers on the CPU
AT_ONCE = 4  # cores that Python can keep busy with short calls
CELLS_ONE_BY_ONE = 256**2  # most cells of a pair, except in the case with the most pairs
SHORT = 8192  # length up to which scores fit in 16 bits
PARASAIL = {"global": "nw", "local": "sw", "semiglobal": "sg"}
NEVER = -(2**30)  # less than any score


class Answer(NamedTuple):
    """Scores of pairs, int64 [n], and CIGAR strings if the case has a traceback."""

    scores: np.ndarray
    cigars: list[str] | None = None


class Work(NamedTuple):
    """A prepared alignment.

    Attributes
    ----------
    step : callable
        Function that is timed.
    read : callable
        Function from its result to an `Answer`.
    pairs : int64 [n] or None
        Indices of the pairs that are aligned; None for all pairs.
    """

    step: Callable[[], Any]
    read: Callable[[Any], Answer]
    pairs: np.ndarray | None = None


@dataclass(frozen=True)
class Method:
    """A method of alignment.

    Attributes
    ----------
    name : str
        Name in the results.
    package : str
        Package whose version is reported.
    prepare : callable
        Function from a problem and a device to `Work`.
    serves : callable
        Function that returns True for the cases that the method takes part in.
    module : str, optional
        Module that has to be installed.
    needs_gpu : bool
        If True, the method runs only on a GPU.
    threads : int
        Cores that the method uses; zero if it runs on the device.
    by_host : bool
        If True, time is measured by the host's clock.
    own_memory : bool
        If True, the method allocates memory without PyTorch.
    steady : bool
        If True, the first call takes no longer than later ones.
    """

    name: str
    package: str
    prepare: Callable[[Problem, torch.device], Work]
    serves: Callable[[AlignmentCase], bool]
    module: str | None = None
    needs_gpu: bool = False
    threads: int = 0
    by_host: bool = False
    own_memory: bool = False
    steady: bool = False

    @property
    def version(self) -> str:
        """Name and version of the package."""
        return f"{self.package} {version_of(self.package)}"

    def runs_on(self, device: torch.device) -> str:
        """Return the name of the device or processor that the method runs on."""
        if not self.threads:
            return device_name(device)
        return f"{device_name(CPU).rpartition(' (threads')[0]} (threads: {self.threads})"

    def refusal(self, device: torch.device) -> str | None:
        """Return the reason why the method cannot run here, or None if it can."""
        if self.module is not None and find_spec(self.module) is None:
            return f"{self.package} is not installed"
        if self.needs_gpu and device.type != "cuda":
            return "it needs a GPU"
        return None


def kernel(problem: Problem, device: torch.device) -> Work:
    """Prepare our kernels, with encoded sequences on the GPU."""
    case, pairs = problem.case, problem.on(device)
    if case.scheme == EDIT:
        from mlff_triton.kernels.alignment.edit_distance import edit_distance

        step = partial(edit_distance, pairs, len(EDIT.letters))
        return Work(step, lambda found: Answer(-_on_host(found)))
    from mlff_triton.kernels.alignment.alignment import alignment

    _, matrix, gaps = case.scheme.scoring
    step = partial(alignment, pairs, matrix, gaps, MODES[case.mode], traceback=case.traceback)
    return Work(step, _read)


def from_strings(problem: Problem, device: torch.device) -> Work:
    """Prepare `bio.align`, from lists of strings to scores or CIGAR strings on the host."""
    from mlff_triton import bio

    case, (queries, targets) = problem.case, problem.texts
    options = {"mode": case.mode, "pairs": case.pairing, "traceback": case.traceback}
    options |= case.scheme.options

    def step() -> tuple[Tensor, list[str] | None]:
        found = bio.align(queries, targets, device=device, **options)
        return found.score.cpu(), found.cigar if case.traceback else None

    return Work(step, lambda result: Answer(_on_host(result[0]), result[1]))


def row_by_row(problem: Problem, device: torch.device) -> Work:
    """Prepare our reference in PyTorch, whose operations each process a row of all tables."""
    _, matrix, gaps = problem.case.scheme.scoring
    pairs = problem.on(device)
    return Work(partial(reference, pairs, matrix, gaps, MODES[problem.case.mode]), _read)


def cell_by_cell(problem: Problem, device: torch.device) -> Work:
    """Prepare a loop over cells in PyTorch, whose operations each process a cell of all tables."""
    sides = (problem.queries, problem.targets)
    codes = [side.codes.reshape(problem.case.count, -1).T.astype(np.int64) for side in sides]
    queries, targets = (torch.from_numpy(side).to(device) for side in codes)
    scheme = problem.case.scheme
    matrix = scheme.scores.int().to(device)
    gaps = Gaps(scheme.gap_open, scheme.gap_extend)
    step = partial(align_cell_by_cell, queries, targets, matrix, gaps)
    return Work(step, lambda found: Answer(_on_host(found)))


def align_cell_by_cell(queries: Tensor, targets: Tensor, matrix: Tensor, gaps: Gaps) -> Tensor:
    """Return global scores int32 [n] of codes int64 [La, n] and [Lb, n]."""
    scores = matrix[queries[:, None], targets]  # [La, Lb, n]
    start = torch.zeros_like(scores[0, 0])
    never = start + NEVER
    row = [start, *(start - gaps.open - k * gaps.extend for k in range(len(targets)))]
    insertions = [never] * len(row)
    for i, scores_of_row in enumerate(scores):
        diagonal, deletion = row[0], never
        best = row[0] = start - gaps.open - i * gaps.extend
        for j, score in enumerate(scores_of_row.unbind(), start=1):
            opened, extended = row[j] - gaps.open, insertions[j] - gaps.extend
            insertion = insertions[j] = torch.maximum(opened, extended)
            deletion = torch.maximum(best - gaps.open, deletion - gaps.extend)
            best = torch.maximum(torch.maximum(diagonal + score, insertion), deletion)
            diagonal, row[j] = row[j], best
    return row[-1]


def stringzillas(problem: Problem, device: torch.device) -> Work:
    """Prepare StringZillas at its best: strings on the device, results in a reused array."""
    import stringzilla
    import stringzillas as peer

    case = problem.case
    scope = peer.DeviceScope(gpu_device=device.index or 0)
    strings = [peer.to_device(stringzilla.Strs(texts)) for texts in problem.texts]
    if case.scheme == EDIT:
        engine = peer.LevenshteinDistances(capabilities=scope)
    else:
        kind = peer.SmithWatermanScores if case.mode == "local" else peer.NeedlemanWunschScores
        gaps = {"open": -case.scheme.gap_open, "extend": -case.scheme.gap_extend}
        engine = kind(*letter_classes(case.scheme), capabilities=scope, **gaps)
    anew = partial(engine, *strings, device=scope)
    out = anew()

    def into_the_same() -> np.ndarray:
        anew(out=out)
        return out

    def read(found: np.ndarray) -> Answer:
        scores = found.reshape(-1).astype(np.int64)
        return Answer(-scores if case.scheme == EDIT else scores)

    return Work(min(into_the_same, anew, key=_seconds), read)


def _seconds(call: Callable[[], object]) -> float:
    """Return the time of a second call, or infinity if it fails."""
    try:
        call()
        start = time.perf_counter()
        call()
    except (RuntimeError, TypeError, ValueError, MemoryError):
        return math.inf
    return time.perf_counter() - start


def letter_classes(scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each byte, uint8 [256], and the scores of classes, int8 [32, 32]."""
    classes = (np.arange(256) % 32).astype(np.uint8)  # the same for upper and lower case
    used = classes[np.frombuffer(scheme.letters.encode(), np.uint8)]
    scores = np.zeros((32, 32), np.int8)
    scores[np.ix_(used, used)] = scheme.scores.numpy()
    return classes, scores


def parasail_function(case: AlignmentCase, kind: str) -> Callable[[str, str], int]:
    """Return a function that computes a score by parasail's implementation of this kind."""
    import parasail

    scheme = case.scheme
    if scheme.matrix is None:
        matrix = parasail.matrix_create(scheme.letters, scheme.match, scheme.mismatch)
    else:
        matrix = getattr(parasail, scheme.matrix.lower())
    function = getattr(parasail, f"{PARASAIL[case.mode]}_{kind}")
    return lambda a, b: function(a, b, scheme.gap_open, scheme.gap_extend, matrix).score


def parasail(
    threads: int, problem: Problem, _device: torch.device, cells_per_call: int = CELLS_PER_CALL
) -> Work:
    """Prepare parasail's fastest kernels, called for one pair after another."""
    case, scheme = problem.case, problem.case.scheme
    kind = (
        "striped" if scheme.gap_open > scheme.gap_extend else "scan"
    )  # striped is wrong for linear gaps
    score = parasail_function(case, f"{kind}_{16 if case.longest <= SHORT else 32}")
    pairs = some_pairs(problem, threads, cells_per_call)
    texts = problem.texts_of(pairs)

    def scores(part: Iterable[tuple[str, str]]) -> list[int]:
        return [score(a, b) for a, b in part]

    if threads == 1:
        return Work(partial(scores, texts), lambda found: Answer(np.array(found)), pairs)
    pool = ThreadPoolExecutor(threads)  # parasail releases Python's lock
    parts = [texts[k::threads] for k in range(threads)]

    def read(found: list[list[int]]) -> Answer:
        joined = np.empty(len(pairs), np.int64)
        for k, part in enumerate(found):
            joined[k::threads] = part
        return Answer(joined)

    return Work(lambda: list(pool.map(scores, parts)), read, pairs)


def edlib(problem: Problem, _device: torch.device) -> Work:
    """Prepare Edlib, called for one pair after another."""
    import edlib as peer

    pairs = some_pairs(problem, 1)
    texts = problem.texts_of(pairs)

    def step() -> list[int]:
        return [peer.align(a, b, task="distance")["editDistance"] for a, b in texts]

    return Work(step, lambda found: Answer(-np.array(found)), pairs)


def some_pairs(problem: Problem, threads: int, cells_per_call: int = CELLS_PER_CALL) -> np.ndarray:
    """Return pairs that take a fraction of a second, beginning with those that are checked."""
    cells = cells_per_call * min(threads, AT_ONCE)
    return problem.some[: max(threads, cells // problem.case.most_cells)]


def _read(found: Aligned) -> Answer:
    return Answer(_on_host(found.score), None if found.runs is None else cigars(found.runs))


def _on_host(scores: Tensor) -> np.ndarray:
    return scores.cpu().numpy().astype(np.int64)


def _any(_case: AlignmentCase) -> bool:
    return True


def _has_all_scores(case: AlignmentCase) -> bool:
    """Return True for scores of all queries with all targets, all that StringZillas offers."""
    return case.pairing == "all" and case.mode != "semiglobal" and not case.traceback


def _is_scored(case: AlignmentCase) -> bool:
    return not (case.published or case.traceback or case.scheme == EDIT)


def _is_scored_in_bulk(case: AlignmentCase) -> bool:
    return _is_scored(case) and case.n_pairs > 1


def _is_edit(case: AlignmentCase) -> bool:
    return case.scheme == EDIT


def _is_published(case: AlignmentCase) -> bool:
    return case.published


def _takes_seconds(case: AlignmentCase) -> bool:
    """Return True for published cases that take seconds; time hardly depends on the batch."""
    return case.published and (case.most_cells <= CELLS_ONE_BY_ONE or case.count == 1024)


HOST = {"by_host": True, "own_memory": True, "steady": True}
ALL = (
    Method("kernel", "mlff-triton", kernel, _any, module="triton", needs_gpu=True),
    Method("align", "mlff-triton", from_strings, _any, by_host=True),
    Method(
        "stringzillas",
        "stringzillas-cuda",
        stringzillas,
        _has_all_scores,
        module="stringzillas",
        needs_gpu=True,
        by_host=True,
        own_memory=True,
    ),
    Method("parasail", "parasail", partial(parasail, 1), _is_scored, "parasail", threads=1, **HOST),
    Method(
        "parasail-threads",
        "parasail",
        partial(parasail, CORES),
        _is_scored_in_bulk,
        "parasail",
        threads=CORES,
        **HOST,
    ),
    Method("edlib", "edlib", edlib, _is_edit, "edlib", threads=1, **HOST),
    Method("torch-rows", "torch", row_by_row, _is_published),
    Method("torch-cells", "torch", cell_by_cell, _takes_seconds, steady=True),
)
METHODS = {method.name: method for method in ALL}
