"""Times of functions on a device, and descriptions of the device and the software.

Used by the benchmarks of a checkout and by ``mlff-triton calibrate``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

QUANTILES = (0.2, 0.5, 0.8)
FLUSH_BYTES = 512 << 20  # several times the largest L2 cache; clearing it leaves time to queue
COPY_BYTES = 1 << 30

COMMIT = "MLFF_TRITON_COMMIT"  # for copies of a checkout whose git may name another commit


@dataclass(frozen=True)
class Timing:
    """Quantiles of the time of one call.

    Attributes
    ----------
    p20, p50, p80 : float
        ms.
    peak_mib : float or None
        Peak of the device's memory since `reset_peak` in MiB; None on a CPU.
    """

    p20: float
    p50: float
    p80: float
    peak_mib: float | None

    def of_one(self, count: int) -> Timing:
        """Return the mean time of one operation, if a call performs this many."""
        return Timing(self.p20 / count, self.p50 / count, self.p80 / count, self.peak_mib)


@dataclass(frozen=True)
class Environment:
    """Hardware and software of a measurement.

    Attributes
    ----------
    gpu, torch, triton : str
        Name from `device_name`, and versions.
    commit : str
        Short git hash of the checkout, or the variable ``MLFF_TRITON_COMMIT`` if that is set.
    date : str
        Today's date in UTC, YYYY-MM-DD.
    """

    gpu: str
    torch: str
    triton: str
    commit: str
    date: str


def measure(
    function: Callable[[], object],
    device: torch.device | str,
    *,
    seconds: float = 1.0,
    warm_up: int = 3,
    repeats: tuple[int, int] = (5, 500),
    flush: bool = False,
    wall: bool = False,
) -> Timing:
    """Time the calls of a function.

    Parameters
    ----------
    function : callable
        Function that may return before the device has finished.
    device : torch.device or str
        Device that computes. On a GPU, time is measured between events on the current stream.
    seconds : float
        Approximate time for all calls.
    warm_up : int
        Number of calls that are not measured.
    repeats : (int, int)
        Smallest and largest number of calls that are measured.
    flush : bool
        If True, calls start with cold caches and are queued, so that the host's time does not
        count. This is for single kernels. Otherwise, the device is idle at the start of each call,
        as in a simulation that inspects every step.
    wall : bool
        If True, measure with the host's clock until the device has finished.

    Returns
    -------
    Timing

    Examples
    --------
    >>> measure(lambda: sum(range(1000)), "cpu", seconds=0.01).p50 > 0
    True
    """
    device = torch.device(device)
    for _ in range(warm_up):
        function()
    estimate = max(_wall_time(function, device), 1e-6)
    count = int(min(max(seconds / estimate, repeats[0]), repeats[1]))
    if device.type == "cpu" or wall:
        times = [_wall_time(function, device) * 1e3 for _ in range(count)]
    else:
        with torch.cuda.device(device):
            times = _event_times(function, count, flush, device)
    low, middle, high = torch.quantile(
        torch.tensor(times, dtype=torch.float64), torch.tensor(QUANTILES, dtype=torch.float64)
    ).tolist()
    return Timing(low, middle, high, peak_mib(device))


def _wall_time(function: Callable[[], object], device: torch.device) -> float:
    """Return the time of one call in s by the host's clock."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def _event_times(
    function: Callable[[], object], count: int, flush: bool, device: torch.device
) -> list[float]:
    """Return the time of each call in ms by the device's clock."""
    events = [(_event(), _event()) for _ in range(count)]
    cold = torch.empty(FLUSH_BYTES if flush else 0, dtype=torch.uint8, device=device)
    for start, stop in events:
        cold.zero_()
        start.record()
        function()
        stop.record()
        if not flush:
            synchronize(device)
    synchronize(device)
    return [start.elapsed_time(stop) for start, stop in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has finished all its work; a CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device | str) -> None:
    """Reset the peak of the memory, and release unused memory."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | None:
    """Return the peak of the memory since it was reset, in MiB; None on a CPU."""
    if device.type == "cpu":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**20


def copy_timing(device: torch.device | str, n_bytes: int = COPY_BYTES) -> Timing:
    """Time copying ``n_bytes`` from one tensor to another, from cold caches."""
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return measure(lambda: target.copy_(source), device, seconds=0.2, flush=True)


def environment(device: torch.device | str) -> Environment:
    """Describe a device and the software."""
    today = datetime.now(timezone.utc).date().isoformat()
    versions = torch.__version__, version_of("triton")
    return Environment(device_name(device), *versions, _commit(), today)


def device_name(device: torch.device | str) -> str:
    """Return the name of a device; for a CPU, with PyTorch's number of threads."""
    device = torch.device(device)
    if device.type != "cuda":
        return f"{_processor()} (threads: {torch.get_num_threads()})"
    if (device.index or 0) >= torch.cuda.device_count():
        return "absent GPU"
    return torch.cuda.get_device_name(device)


@cache
def _processor() -> str:
    """Return the name of the CPU, if the operating system knows it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"CPU {platform.processor() or platform.machine()}"


def version_of(package: str) -> str:
    """Return the installed version of a package, or "none"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _commit() -> str:
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    git = shutil.which("git")
    if git is not None:
        command = [git, "rev-parse", "--short", "HEAD"]
        folder = Path(__file__).resolve().parent
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
        if result.returncode == 0:
            return result.stdout.strip()
    return "unknown"
