"""How long a function takes on a device, and what the device and the software are.

For the benchmarks of a checkout and for ``mlff-triton calibrate``.
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
FLUSH_BYTES = 512 << 20  # several times the largest L2 cache, and long enough to queue up behind
COPY_BYTES = 1 << 30


COMMIT = "MLFF_TRITON_COMMIT"  # for copies of a checkout, whose git may say something else


@dataclass(frozen=True)
class Timing:
    """Quantiles of the time of one call.

    Attributes
    ----------
    p20, p50, p80 : float
        ms.
    peak_mib : float or None
        Most memory of the device allocated at a time since `reset_peak`, MiB; None on a CPU.
    """

    p20: float
    p50: float
    p80: float
    peak_mib: float | None

    def of_one(self, count: int) -> Timing:
        """The mean time of each, if a call does the same thing this many times."""
        return Timing(self.p20 / count, self.p50 / count, self.p80 / count, self.peak_mib)


@dataclass(frozen=True)
class Environment:
    """What a measurement depends on besides the code that it measures.

    Attributes
    ----------
    gpu, torch, triton : str
        `device_name`, versions.
    commit : str
        Short git hash of the checkout, or the variable ``MLFF_TRITON_COMMIT`` where that is set.
    date : str
        Today, YYYY-MM-DD in UTC.
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
    """Time a function call by call.

    Parameters
    ----------
    function : callable
        May return before the device is done.
    device : torch.device or str
        Where it computes. A GPU's time is taken between two events on the current stream.
    seconds : float
        How long to repeat it, about.
    warm_up : int
        Calls that are not counted.
    repeats : (int, int)
        Least and largest number of calls that are counted.
    flush : bool
        For single kernels: calls start with cold caches and are queued, so that what the host does
        meanwhile is not counted. Otherwise the device is idle at the start of each call, as in a
        simulation that looks at every step.
    wall : bool
        Take the host's clock, until the device is done.

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
    return Timing(low, middle, high, _peak_mib(device))


def _wall_time(function: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call by the host's clock."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def _event_times(
    function: Callable[[], object], count: int, flush: bool, device: torch.device
) -> list[float]:
    """Milliseconds of each call by the device's clock."""
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
    """Wait until a device has done all its work; a CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device | str) -> None:
    """Forget the peak memory so far, and give unused memory back."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_mib(device: torch.device) -> float | None:
    if device.type == "cpu":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**20


def copy_timing(device: torch.device | str, n_bytes: int = COPY_BYTES) -> Timing:
    """Time copying ``n_bytes`` from one tensor to another, from cold caches."""
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return measure(lambda: target.copy_(source), device, seconds=0.2, flush=True)


def copy_bandwidth(device: torch.device | str, n_bytes: int = COPY_BYTES) -> float:
    """Bytes a second, read and written, of a large copy: what a kernel can at best reach."""
    return 2 * n_bytes / (copy_timing(device, n_bytes).p50 * 1e-3)


def environment(device: torch.device | str) -> Environment:
    """Describe a device and the software."""
    today = datetime.now(timezone.utc).date().isoformat()
    versions = torch.__version__, version_of("triton")
    return Environment(device_name(device), *versions, _commit(), today)


def device_name(device: torch.device | str) -> str:
    """What a device calls itself; of a CPU, also how many threads PyTorch uses."""
    device = torch.device(device)
    if device.type != "cuda":
        return f"{_processor()} (threads: {torch.get_num_threads()})"
    if (device.index or 0) >= torch.cuda.device_count():
        return "absent GPU"
    return torch.cuda.get_device_name(device)


@cache
def _processor() -> str:
    """Name of the CPU, as far as the operating system tells."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"CPU {platform.processor() or platform.machine()}"


def version_of(package: str) -> str:
    """Version that is installed, or "none"."""
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
