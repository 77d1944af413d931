"""Cases of `compile_ahead`, for a process of its own without ``TRITON_INTERPRET``.

``python -m tests.support.compile_ahead`` runs all of them without a GPU and prints a JSON object
with the result of each. ``python -m tests.support.compile_ahead gpu`` runs the case for a GPU.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.util import register_after_fork
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mlff_triton._common import availability
from mlff_triton.kernels.common import compilation
from mlff_triton.kernels.common.compilation import compile_ahead
from mlff_triton.kernels.ops.irrep_norms import irrep_norms
from mlff_triton.kernels.ops.linear import linear
from mlff_triton.kernels.ops.segment_sum import segment_sum

N, F = 4, 32


def launch(device: str = "cpu") -> torch.Tensor:
    """Launch three kernels."""
    x = torch.ones(9, N, F, device=device)
    norms = irrep_norms(x).reshape(3 * N, F)
    rows = linear(norms, torch.ones(F, F, device=device))
    return segment_sum(rows, torch.tensor([0, 1, 3 * N], device=device))


def pretend_gpu(make_launcher: Callable[[Any, Any], object]) -> AbstractContextManager[Any]:
    """Let Triton compile for a GPU of the architecture sm_90, which is not there."""
    pretended = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=make_launcher,
    )
    return mock.patch.object(driver, "_active", pretended)


def compiled() -> int:
    """Return the number of kernels in Triton's cache."""
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/__grp__*.json")))


def run(make_launcher: Callable[[Any, Any], object] = lambda *_: None) -> dict[str, object]:
    """Compile ahead; return the kernels on disk, those compiled in this process, and the time."""
    own: list[object] = []
    start = time.monotonic()
    with (
        pretend_gpu(make_launcher),
        mock.patch.object(availability, "launch_anywhere", new=True),
        mock.patch.object(triton.knobs.compilation, "listener", lambda **event: own.append(event)),
        mock.patch.object(compilation.os, "sched_getaffinity", return_value={0, 1}),
    ):
        compile_ahead(launch)
    seconds = time.monotonic() - start
    restored = JITFunction.run.__name__ == "run"
    return {"on disk": compiled(), "own": len(own), "seconds": seconds, "restored": restored}


def again() -> dict[str, object]:
    """Compile ahead twice, the second time without permission to fork."""
    run()
    with mock.patch.object(compilation, "get_context", side_effect=AssertionError) as forks:
        return run() | {"forks": forks.call_count}


def without_forks() -> dict[str, object]:
    with mock.patch.object(compilation, "get_context", side_effect=ValueError("no fork")):
        return run()


def without_processes() -> dict[str, object]:
    with mock.patch("os.fork", side_effect=BlockingIOError("too many processes")):
        return run()


def killed() -> dict[str, object]:
    return run(lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def stuck() -> dict[str, object]:
    with mock.patch.object(compilation, "PATIENCE", 3.0):
        return run(lambda *_: time.sleep(600))


def failing() -> dict[str, object]:
    """Let the first kernel fail to compile."""
    original = compilation._kernels_of

    def sabotaged(function: Callable[[], object]) -> dict[str, Callable[[], object]]:
        compilers = original(function)
        return {key: compilers[key] if k else int for k, key in enumerate(compilers)}

    with mock.patch.object(compilation, "_kernels_of", sabotaged):
        return run()


def old_triton() -> dict[str, object]:
    with mock.patch.dict(vars(triton)):
        del triton.AsyncCompileMode
        return run()


def bad_function() -> dict[str, object]:
    with mock.patch(f"{__name__}.launch", side_effect=RuntimeError("out of memory")):
        return run()


def collecting() -> dict[str, object]:
    """Let processes tell whether they collect garbage when they start."""
    readings, writings = os.pipe()
    told = set[None]()  # the function is called as long as this lives
    register_after_fork(told, lambda _: os.write(writings, b"yes " if gc.isenabled() else b"no "))
    found = run()
    os.close(writings)
    with os.fdopen(readings) as text:
        return found | {"collect": text.read().split(), "afterwards": gc.isenabled()}


def other_threads() -> dict[str, object]:
    """Launch from another thread while launches of this one are skipped."""
    launched = []

    def record(kernel: object, *args: object, warmup: bool, **options: object) -> None:
        del kernel, args, options
        launched.append(warmup)

    with (
        mock.patch.object(JITFunction, "run", record),
        mock.patch.object(availability, "launch_anywhere", new=True),
        compilation._launches_skipped(),
    ):
        launch()
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    return {"skipped": launched}


def terminal() -> dict[str, object]:
    """Show progress on a terminal at once."""
    with (
        mock.patch.object(compilation, "QUIET", 0.0),
        mock.patch.object(compilation, "_is_terminal", return_value=True),
        mock.patch.object(sys, "stderr") as stderr,
    ):
        found = run()
    written = "".join(call.args[0] for call in stderr.write.call_args_list)
    return found | {"written": written}


def on_gpu() -> dict[str, object]:
    """Compile ahead and launch on a real GPU; count the launches that find their kernel."""
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
    "again": again,
    "without forks": without_forks,
    "without processes": without_processes,
    "killed": killed,
    "stuck": stuck,
    "failing": failing,
    "collecting": collecting,
    "old Triton": old_triton,
    "bad function": bad_function,
    "other threads": other_threads,
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
