"""Profile of the backend "cpu": the time of each loop and of each operator of PyTorch."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function

from benchmarks.cpu.cases import CASES, EVALUATION, SCALING, Case
from benchmarks.cpu.entrants import OURS
from benchmarks.cpu.evaluations import AMPLITUDE
from benchmarks.cpu.methods import engine_of
from benchmarks.systems.models import model

STEPS = 20
ROWS = 30
PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm")
Bytes = Counter[str]


def profile_cpu(cases: Sequence[str], threads: Sequence[int]) -> None:
    """Profile the cases of evaluations with each number of threads; by default, with one."""
    for name in cases:
        if CASES[name].kind in (EVALUATION, SCALING):
            for count in threads or [1]:
                profile(CASES[name], count)


def profile(case: Case, threads: int) -> None:
    """Print a table of loops and operators by the time in the calling thread, slowest first.

    Bytes count each array of a loop and each factor of a product once. A loop over edges reads the
    tensors of neighbors many times, mostly from caches, so its memory may be faster than it seems.
    """
    system = case.build()
    evaluate = engine_of(model(case.model), system, OURS)
    torch.set_num_threads(threads)
    shape = STEPS, *system.positions.shape
    moves = np.random.default_rng(0).uniform(-AMPLITUDE, AMPLITUDE, shape)

    def run() -> float:
        began = time.perf_counter()
        for move in moves:
            evaluate(system.positions + move)
        return 1e3 * (time.perf_counter() - began) / STEPS

    run()  # compiles
    whole = run()
    activities = [ProfilerActivity.CPU]
    with (
        recorded_loops() as n_bytes,
        torch.profiler.profile(activities=activities, record_shapes=True) as recorded,
    ):
        profiled = run()
    events = recorded.key_averages(group_by_input_shape=True)
    print(
        f"{case.name}, {system.n_atoms} atoms, threads: {threads}, {whole:.3f} ms per step "
        f"({profiled:.3f} ms with the profiler)"
    )
    print(table(events, n_bytes, profiled))


def table(events: Sequence[Any], n_bytes: Bytes, whole: float) -> str:
    """Return lines of loops and operators: ms and calls per step, share, MB and GB/s.

    Parameters
    ----------
    events : sequence
        Averages of PyTorch's profiler over the steps, by name and shape.
    n_bytes : Counter
        Bytes of all calls of each loop.
    whole : float
        Time of a step in ms, with the profiler.
    """
    ms: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    moved = Counter(n_bytes)
    for event in events:
        ms[event.key] += event.self_cpu_time_total / 1e3 / STEPS
        calls[event.key] += event.count
        if event.key in PRODUCTS:
            moved[event.key] += event.count * _bytes_of_product(event.input_shapes)
    ms["Python, and all the rest"] = whole - sum(ms.values())
    lines = [f"{'':44} {'ms':>8} {'share':>6} {'calls':>6} {'MB':>8} {'GB/s':>6}"]
    for name, time_of_all in ms.most_common(ROWS):
        line = f"{name[:44]:44} {time_of_all:8.3f} {time_of_all / whole:6.1%}"
        line += f" {calls[name] / STEPS:6.1f}"
        if moved[name] and time_of_all:
            megabytes = moved[name] / STEPS / 1e6
            line += f" {megabytes:8.2f} {megabytes / time_of_all:6.1f}"
        lines.append(line)
    return "\n".join(lines)


def _bytes_of_product(shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes of the last two factors, and of their product, in float32."""
    left, right = [shape for shape in shapes if len(shape) > 1][-2:]
    return 4 * (prod(left) + prod(right) + prod(left[:-1]) * right[-1])


@contextmanager
def recorded_loops() -> Iterator[Bytes]:
    """Record each call of a loop for PyTorch's profiler; yield the bytes of arrays by loop."""
    from mlff_triton.kernels.common.cpu import compilation, threads

    n_bytes: Bytes = Counter()

    def recorded(original: Callable[..., None]) -> Callable[..., None]:
        def record(function: Callable[..., None], given: Any, *arguments: Any, **how: Any) -> None:
            name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
            arrays = arguments or given[0]  # of a loop, or of the first piece of other work
            n_bytes[name] += sum(x.nbytes for x in arrays if isinstance(x, (np.ndarray, Tensor)))
            with record_function(name):
                original(function, given, *arguments, **how)

        return record

    modules = list(sys.modules.values())
    patches = [
        patch.object(module, original.__name__, recorded(original))
        for original in (compilation.run, threads.in_parallel)
        for module in modules
        if vars(module).get(original.__name__) is original
        and not (original is threads.in_parallel and module is compilation)  # called by `run`
    ]
    try:
        for each in patches:
            each.start()
        yield n_bytes
    finally:
        for each in patches:
            each.stop()
