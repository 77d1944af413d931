"""Cases of `compile_ahead`, for a process of its own without ``TRITON_INTERPRET``.

``python -m tests.support.compile_ahead`` runs all of them without a GPU and prints a JSON object
with the result of each. ``python -m tests.support.compile_ahead gpu`` runs the case for a GPU.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mlff_triton._common import availability, notice
from mlff_triton.kernels.common import compilation
from mlff_triton.kernels.common.compilation import compile_ahead
from mlff_triton.kernels.ops.irrep_norms import irrep_norms
from mlff_triton.kernels.ops.linear import linear
from mlff_triton.kernels.ops.segment_sum import segment_sum

N, F = 4, 32
THREAD = "compile-kernels"  # beginning of the names of threads that compile


def launch(device: str = "cpu") -> torch.Tensor:
    """Launch three kernels."""
    x = torch.ones(9, N, F, device=device)
    norms = irrep_norms(x).reshape(3 * N, F)
    rows = linear(norms, torch.ones(F, F, device=device))
    return segment_sum(rows, torch.tensor([0, 1, 3 * N], device=device))


class PretendedGPU:
    """A GPU of the architecture sm_90 that is not there: launches count, and compute nothing."""

    def __init__(self, make_launcher: Callable[[], object] = lambda: None) -> None:
        self.launches = Counter[str]()  # by thread
        self._make_launcher = make_launcher
        self._lock = threading.Lock()

    def driver(self) -> Any:
        """Return what Triton asks of its driver."""
        return SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            launcher_cls=self._launcher,
            utils=SimpleNamespace(
                get_device_properties=lambda _: {"max_shared_mem": 227 << 10},
                load_binary=lambda *_: (None, None, 0, 0, 1024),
            ),
        )

    def _launcher(self, *_: object) -> Callable[..., None]:
        self._make_launcher()
        return self._count

    def _count(self, *_: object) -> None:
        with self._lock:
            self.launches[threading.current_thread().name] += 1


class Warned(logging.Handler):
    """Warnings of the package."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def compiled() -> int:
    """Return the number of kernels in Triton's cache."""
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/__grp__*.json")))


def is_restored() -> bool:
    """Return True if kernels and Triton are as they were imported."""
    kernels = compilation._loaded_kernels()
    whole = JITFunction.run.__module__ == JITFunction.__module__
    return whole and bool(kernels) and not any("run" in vars(kernel) for kernel in kernels)


def run(
    gpu: PretendedGPU | None = None, calls: Callable[[], object] = lambda: compile_ahead(launch)
) -> dict[str, object]:
    """Call a function in a process that has not launched a kernel, and return what happens.

    Returns
    -------
    dict
        Kernels on disk; whether each one that was compiled or read from disk was there before, by
        kind of thread; launches by thread; warnings; and the time in s.
    """
    gpu, warned = gpu or PretendedGPU(), Warned()
    found: dict[str, list[bool]] = {"ahead": [], "at launch": []}

    def listen(*, cache_hit: bool, **_: object) -> None:
        is_ahead = threading.current_thread().name.startswith(THREAD)
        found["ahead" if is_ahead else "at launch"].append(cache_hit)

    for kernel in compilation._loaded_kernels():
        kernel.device_caches.clear()
    compilation._reported.clear()
    compilation._LOG.addHandler(warned)
    compilation._LOG.propagate = False
    start = time.monotonic()
    with (
        mock.patch.object(driver, "_active", gpu.driver()),
        mock.patch.object(availability, "launch_anywhere", new=True),
        mock.patch.object(triton.knobs.compilation, "listener", listen),
        mock.patch.object(compilation.os, "sched_getaffinity", return_value={0, 1}),
    ):
        calls()
    compilation._LOG.removeHandler(warned)
    result = {"on disk": compiled(), "warnings": warned.texts, "launches": gpu.launches}
    return result | found | {"restored": is_restored(), "seconds": time.monotonic() - start}


def launched() -> dict[str, object]:
    """Launch what was compiled ahead."""

    def calls() -> None:
        compile_ahead(launch)
        launch()

    return run(calls=calls)


def again() -> dict[str, object]:
    """Compile ahead twice in a process, and then in one that finds kernels on disk."""

    def twice() -> None:
        compile_ahead(launch)
        compile_ahead(launch)

    first = run(calls=twice)
    return {"first": first, "other process": run()}


def nested() -> dict[str, object]:
    """Compile a function ahead that compiles another one ahead and then launches it."""

    def both() -> None:
        compile_ahead(launch)
        launch()

    return run(calls=lambda: compile_ahead(both))


def without_threads() -> dict[str, object]:
    error = RuntimeError("can't start new thread")
    with mock.patch.object(compilation, "ThreadPoolExecutor", side_effect=error):
        return run()


def without_launchers() -> dict[str, object]:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler.")

    return run(PretendedGPU(fail))


def failing() -> dict[str, object]:
    """Let one kernel fail to compile, twice."""
    original, broken = compilation._compile_with_launcher, list[object]()

    def sabotaged(compiler: Callable[[], object]) -> object:
        if not broken:
            broken.append(compiler)
        return int("no number") if broken[0] is compiler else original(compiler)

    def calls() -> None:
        compile_ahead(launch)
        broken.clear()
        compile_ahead(launch)

    with mock.patch.object(compilation, "_compile_with_launcher", sabotaged):
        return run(calls=calls)


def old_triton() -> dict[str, object]:
    with mock.patch.dict(vars(triton)):
        del triton.AsyncCompileMode
        return run()


def bad_function() -> dict[str, object]:
    with mock.patch(f"{__name__}.launch", side_effect=RuntimeError("out of memory")):
        return run()


def interrupted() -> dict[str, object]:
    """Interrupt a process while kernels compile, and launch them afterwards."""

    def calls() -> None:
        with mock.patch.object(compilation, "wait", side_effect=KeyboardInterrupt):
            try:
                compile_ahead(launch)
            except KeyboardInterrupt:
                launch()

    return run(calls=calls)


def other_threads() -> dict[str, object]:
    """Launch from two threads while this one collects: kernels with machine code, and others."""
    found = {}
    for name, before in (("loaded", launch), ("new", lambda: None)):

        def collected() -> None:
            launch()
            for k in range(2):
                thread = threading.Thread(target=launch, name=f"other {k}")
                thread.start()
                thread.join()

        gpu = PretendedGPU()

        def calls(before: Callable[[], object] = before, gpu: PretendedGPU = gpu) -> None:
            before()
            gpu.launches.clear()
            compile_ahead(collected)

        found[name] = run(gpu, calls)
    return found


def many_threads() -> dict[str, object]:
    """Let threads compile ahead and launch at once, again and again."""

    def work(_: int) -> None:
        for _ in range(20):
            compile_ahead(launch)
            launch()

    def calls() -> None:
        with ThreadPoolExecutor(6, "user") as pool:
            list(pool.map(work, range(6)))

    found = run(calls=calls)
    return found | {"total": sum(found["launches"].values())}


def terminal() -> dict[str, object]:
    """Show progress on a terminal at once."""
    with (
        mock.patch.object(notice, "QUIET", 0.0),
        mock.patch.object(notice, "is_terminal", return_value=True),
        mock.patch.object(sys, "stderr") as stderr,
    ):
        found = run()
    written = "".join(call.args[0] for call in stderr.write.call_args_list)
    return found | {"written": written}


def on_gpu() -> dict[str, object]:
    """Compile ahead and launch on a real GPU; count the launches that compile or read a kernel."""
    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: object) -> None:
        hits.append(cache_hit)

    compile_ahead(lambda: launch("cuda"))
    on_disk = compiled()
    with mock.patch.object(triton.knobs.compilation, "listener", listen):
        result = launch("cuda")
    return {"on disk": on_disk, "hits": hits, "result": result[:, 0].tolist()}


CASES = {
    "all": run,
    "launched": launched,
    "again": again,
    "nested": nested,
    "without threads": without_threads,
    "without launchers": without_launchers,
    "failing": failing,
    "old Triton": old_triton,
    "bad function": bad_function,
    "interrupted": interrupted,
    "other threads": other_threads,
    "many threads": many_threads,
    "terminal": terminal,
}


def main(arguments: list[str]) -> None:
    """Run the cases, each with an empty cache, and print their results."""
    results = {}
    for name, case in ({"gpu": on_gpu} if arguments else CASES).items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            results[name] = case()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
