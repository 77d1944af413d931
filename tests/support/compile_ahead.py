"""Cases of `compile_ahead`, for a process of its own without ``TRITON_INTERPRET``.

``python -m tests.support.compile_ahead`` runs all of them without a GPU and prints a JSON object
with the result of each. Names of cases for a GPU
run these.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mlff_triton import Engine
from mlff_triton._common import availability, notice
from mlff_triton.kernels.common import compilation, compilers
from mlff_triton.kernels.common.compilation import compile_ahead
from mlff_triton.kernels.common.compilers import Compilers, start_early
from mlff_triton.kernels.ops.irrep_norms import irrep_norms
from mlff_triton.kernels.ops.linear import linear
from mlff_triton.kernels.ops.segment_sum import segment_sum
from tests.support.disks import largest_file
from tests.support.processes import children

N, F = 4, 32
SM_90 = GPUTarget("cuda", 90, 32)
THREAD = "compile-kernels"  # beginning of the names of threads that compile


def launch(device: str = "cpu") -> torch.Tensor:
    """Launch three kernels."""
    x = torch.ones(9, N, F, device=device)
    norms = irrep_norms(x).reshape(3 * N, F)
    rows = linear(norms, torch.ones(F, F, device=device))
    return segment_sum(rows, torch.tensor([0, 1, 3 * N], device=device))


class PretendedGPU:
    """A GPU that is not there, by default of sm_90: launches count, and compute nothing."""

    def __init__(
        self, make_launcher: Callable[[], object] = lambda: None, target: GPUTarget = SM_90
    ) -> None:
        self.launches = Counter[str]()  # by thread
        self._target = target
        self._make_launcher = make_launcher
        self._lock = threading.Lock()

    def driver(self) -> Any:
        """Return what Triton asks of its driver."""
        return SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
            get_current_target=lambda: self._target,
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
        kind of thread; launches by thread; warnings; how often processes were started, and the ones
        that are left; and the time in s.
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
        mock.patch.object(os, "sched_getaffinity", return_value={0, 1}),
        mock.patch.object(
            Compilers, "_start", autospec=True, side_effect=Compilers._start
        ) as begin,
    ):
        calls()
    compilation._LOG.removeHandler(warned)
    result = {"on disk": compiled(), "warnings": warned.texts, "launches": gpu.launches}
    seconds = time.monotonic() - start
    processes = {"started": begin.call_count, "left": len(children(patience=5))}
    return result | found | processes | {"restored": is_restored(), "seconds": seconds}


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

    def sabotaged(compiler: Callable[[], object], lock: Any) -> object:
        if not broken:
            broken.append(compiler)
        return int("no number") if broken[0] is compiler else original(compiler, lock)

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


def one() -> None:
    """Compile one kernel ahead, which takes a third of the time."""
    compile_ahead(lambda: irrep_norms(torch.ones(9, N, F)))


@contextmanager
def processes(**replaced: object) -> Iterator[None]:
    """Let other processes compile, however few kernels; replace names in `compilers`."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(compilation, "FEWEST", 1))
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(compilers, name, value))
        yield


def elsewhere() -> dict[str, object]:
    """Compile in other processes, and launch; then do the same with kernels on disk."""

    def calls() -> None:
        compile_ahead(launch)
        launch()

    with processes():
        return {"first": run(calls=calls), "other process": run(calls=calls)}


def on_amd() -> dict[str, object]:
    """Compile in other processes for a GPU of AMD."""
    with processes(), mock.patch("torch.version.hip", "6"):
        return run(PretendedGPU(target=GPUTarget("hip", "gfx942", 64)))


def early() -> dict[str, object]:
    """Start processes before anything is known, twice: without kernels on disk, and with them."""

    def calls() -> None:
        start_early()
        start_early()
        compile_ahead(launch)

    return {"first": run(calls=calls), "other process": run(calls=calls)}


def unused() -> dict[str, object]:
    """Start processes for nothing, and let time pass."""

    def calls() -> None:
        start_early()
        time.sleep(0.2)

    with processes(IDLE=0.1):
        return run(calls=calls)


def killed() -> dict[str, object]:
    """Kill all processes when they get their first kernel."""

    def kill(pipe: Any, content: object) -> None:
        if isinstance(content, bytes):
            for process in children(of=children()[0]):
                os.kill(process, signal.SIGKILL)
        send(pipe, content)

    send = compilers.send
    with processes(send=kill):
        return run(calls=one)


def never_ready() -> dict[str, object]:
    """Let a process start that does nothing."""
    program = "import time; time.sleep(60)"
    with processes(START=program, START_TIME=0.2, GRACE=0.2):
        return run(calls=one)


def never_done() -> dict[str, object]:
    """Let processes stop before their first kernel."""
    hang = "import pickle, signal; pickle.loads = lambda _: signal.pause()"
    program = compilers.START.replace("    main", f"    {hang}\n    main")
    with processes(START=program, PATIENCE=0.5):
        return run(calls=one)


def foreign() -> dict[str, object]:
    """Compile in a program that is not Python."""
    with processes(), mock.patch.object(sys, "executable", "/usr/bin/lmp"):
        return run(calls=one)


def no_sockets() -> dict[str, object]:
    many = OSError("too many open files")
    with processes(), mock.patch.object(compilers.socket, "socketpair", side_effect=many):
        return run(calls=one)


def one_core() -> dict[str, object]:
    with processes(n_cores=lambda: 1):
        return run(calls=one)


def full_disk() -> dict[str, object]:
    """Compile where no file of more than 1 kB can be written."""
    with processes(), largest_file(1000):
        return run()


def read_only() -> dict[str, object]:
    """Compile where no folder can be made."""
    with processes(), mock.patch.dict(os.environ, TRITON_CACHE_DIR="/proc/triton"):
        return run()


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


def first_forces() -> dict[str, object]:
    """Compute forces on a real GPU, and list the kernels that are compiled or read from disk."""
    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: object) -> None:
        hits.append(cache_hit)

    with mock.patch.object(triton.knobs.compilation, "listener", listen):
        Engine("default", device="cuda").compute(
            [8, 1, 1], [[0, 0, 0], [0, 0.8, 0.5], [0, -0.8, 0.5]]
        )
    return {"hits": hits, "on disk": compiled(), "left": len(children(patience=5))}


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
    "elsewhere": elsewhere,
    "on AMD": on_amd,
    "early": early,
    "unused": unused,
    "killed": killed,
    "never ready": never_ready,
    "never done": never_done,
    "foreign": foreign,
    "no sockets": no_sockets,
    "one core": one_core,
    "full disk": full_disk,
    "read-only": read_only,
}
ON_GPU = {"gpu": on_gpu, "forces": first_forces}


def main(arguments: list[str]) -> None:
    """Run the cases, each with an empty cache, and print their results."""
    results = {}
    chosen = {name: ON_GPU[name] for name in arguments} or CASES
    for name, case in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
            os.environ["MLFF_TRITON_CACHE"] = str(Path(folder, "package"))
            results[name] = case()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
