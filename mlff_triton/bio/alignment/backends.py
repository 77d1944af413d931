"""Backends: kernels on GPUs, parasail on the CPU, and the reference in PyTorch anywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton._common.availability import check_triton, triton_obstacle
from mlff_triton._common.devices import find_device
from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.alignment.reference import alignment as reference
from mlff_triton.kernels.alignment.types import GLOBAL, Aligned, Free, Gaps, Pairs

BACKENDS = ("auto", "triton", "parasail", "torch")
FIRST_LETTER = ord("A")  # stands for code 0 in parasail
MAX_LETTERS = 26  # that parasail distinguishes
TABLE_LIMIT = 2**32  # bytes of the reference's table for the traceback of a pair
PAIRS_PER_CALL = 64  # an interrupt waits until threads have finished as many


class Task(NamedTuple):
    """Options of an alignment: see `mlff_triton.kernels.alignment.alignment.alignment`."""

    matrix: Tensor
    gaps: Gaps
    free: Free
    band: int | None
    traceback: bool


def find_devices(device: str | torch.device, backend: str) -> list[torch.device]:
    """Return one device, or every visible GPU for "all".

    Raises
    ------
    InputError
        If the device is unknown.
    BackendError
        If the device is unavailable.
    """
    if device == "all":
        if not torch.cuda.is_available():
            raise BackendError("device='all' needs a GPU, and PyTorch finds none: use 'auto'")
        return [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
    if device == "auto" and backend == "parasail":
        device = "cpu"
    return [find_device(device)]


def choose_backend(backend: str, device: torch.device) -> str:
    """Return the fastest available backend, or check the requested one.

    Raises
    ------
    InputError
        If the backend is unknown.
    BackendError
        If the backend is unavailable.
    """
    on_gpu = device.type == "cuda"
    if backend == "auto":
        if on_gpu:
            return "torch" if triton_obstacle(device) else "triton"
        return "parasail" if find_spec("parasail") else "torch"
    if backend not in BACKENDS:
        raise InputError(f"backend={backend!r} is unknown: use one of {', '.join(BACKENDS)}")
    if backend == "triton":
        check_triton(device, "use backend='auto'")
    if backend == "parasail" and on_gpu:
        raise BackendError("backend='parasail' runs on the CPU: use device='cpu'")
    if backend == "parasail" and find_spec("parasail") is None:
        raise BackendError("parasail is not installed: pip install parasail, or use backend='auto'")
    return backend


def compute(backend: str, pairs: Pairs, task: Task) -> Aligned:
    """Align pairs by a backend. The reference does what parasail does not support."""
    if backend == "triton":
        return _align_with_kernels(pairs, task)
    name = _name_in_parasail(task) if backend == "parasail" else None
    if name is not None:
        return Aligned(_align_with_parasail(name, pairs, task), None, None, None)
    return _align_with_reference(pairs, task)


def _align_with_reference(pairs: Pairs, task: Task) -> Aligned:
    matrix, gaps, free, band, traceback = task
    if traceback:
        _check_tables(pairs)
    return reference.alignment(pairs, matrix, gaps, free, band=band, traceback=traceback)


def _check_tables(pairs: Pairs) -> None:
    """Raise if the table of a pair is too large for the memory of usual computers."""
    cells = (pairs.query_length + 1) * (pairs.target_length + 1)
    if len(cells) and int(cells.max()) > TABLE_LIMIT:
        largest = int(cells.argmax())
        m, n = int(pairs.query_length[largest]), int(pairs.target_length[largest])
        raise InputError(
            f"without a kernel, the traceback of {m} x {n} residues or bases needs a table of "
            f"{int(cells[largest]) / 2**30:.3g} GiB, more than {TABLE_LIMIT / 2**30:.3g}: use a "
            "GPU, compute scores alone, or split the sequences"
        )


def _align_with_kernels(pairs: Pairs, task: Task) -> Aligned:
    n_letters = _edit_distance_letters(task)
    if n_letters and int(pairs.letters.max()) < n_letters:
        from mlff_triton.kernels.alignment.edit_distance import edit_distance

        return Aligned(-edit_distance(pairs, n_letters), None, None, None)
    from mlff_triton.kernels.alignment.alignment import alignment

    matrix, gaps, free, band, traceback = task
    return alignment(pairs, matrix, gaps, free, band=band, traceback=traceback)


def _edit_distance_letters(task: Task) -> int:
    """Count the leading symbols of the alphabet whose scores are minus the edit distance.

    N is never one of them, because it does not match itself.
    """
    n = len(task.matrix) if task[1:] == (Gaps(1, 1), GLOBAL, None, False) else 0
    unit = torch.eye(n, dtype=torch.int64) - 1
    while n and not torch.equal(task.matrix[:n, :n], unit[:n, :n]):
        n -= 1
    return n


def _name_in_parasail(task: Task) -> str | None:
    """Return the name of parasail's functions, or None if it has none with the same results.

    A suffix of 16 or 32 is still missing, the number of bits.
    """
    import parasail

    free = task.free
    if task.traceback or task.band is not None or len(task.matrix) > MAX_LETTERS:
        return None
    ends = {(False, False): "", (True, False): "{}b", (False, True): "{}e", (True, True): "{}x"}
    query = ends[free.query_begin, free.query_end].format("_q")
    target = ends[free.target_begin, free.target_end].format("_d")
    name = {"": "nw", "_qx_dx": "sg"}.get(query + target, f"sg{query}{target}")
    # Parasail's striped functions are wrong if opening a gap costs no more than extending it.
    name = f"{'sw' if free.anywhere else name}_scan_"
    return name if hasattr(parasail, f"{name}32") else None


def _align_with_parasail(name: str, pairs: Pairs, task: Task) -> Tensor:
    """Return scores int32 [n], using as many threads as PyTorch may use."""
    import parasail

    short, wide = getattr(parasail, f"{name}16"), getattr(parasail, f"{name}32")
    size = len(task.matrix)
    alphabet = bytes(range(FIRST_LETTER, FIRST_LETTER + size)).decode()
    matrix = parasail.matrix_create(alphabet, 0, 0)
    for a, row in enumerate(task.matrix.tolist()):
        for b, score in enumerate(row):
            matrix[a, b] = score
    text = (pairs.letters + FIRST_LETTER).numpy().tobytes().decode("latin-1")
    ranges = torch.stack(pairs[1:], 1)
    is_empty = (pairs.query_length == 0) | (pairs.target_length == 0)
    others = torch.cat([ranges, _are_short(pairs, task)[:, None]], 1)[~is_empty]

    def work(part: Tensor) -> list[int]:
        return [
            (short if is_short else wide)(
                text[a : a + m], text[b : b + n], *task.gaps, matrix
            ).score
            for a, m, b, n, is_short in part.tolist()
        ]

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = [*chain.from_iterable(pool.map(work, others.split(PAIRS_PER_CALL)))]
    scores = torch.empty(len(ranges), dtype=torch.int32)
    scores[~is_empty] = torch.tensor(found, dtype=torch.int32)
    empty = Pairs(pairs.letters, *ranges[is_empty].unbind(1))  # refused by parasail
    scores[is_empty] = _align_with_reference(empty, task).score
    return scores


def _are_short(pairs: Pairs, task: Task) -> Tensor:
    """Return True [n] where all scores in the table are far from the limits of 16 bits.

    Near the limits, parasail does not notice each overflow: it multiplies a gap penalty by a part
    of the query's length, and takes small scores for minus infinity.
    """
    m, n = pairs.query_length, pairs.target_length
    largest = int(task.matrix.abs().max())
    most = largest * (1 + torch.minimum(m, n)) + 3 * task.gaps.open + task.gaps.extend * (m + n)
    return most < 2**14
