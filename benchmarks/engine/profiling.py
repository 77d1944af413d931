"""Profile a step with PyTorch, or print the command lines for NVIDIA's profilers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

import torch

from benchmarks.engine.cases import Case
from benchmarks.engine.implementations import Implementation, Prepared
from benchmarks.lab.guards import clean_up
from benchmarks.systems.models import model
from mlff_triton.errors import InputError

STEPS = 5
ROWS = 40
NAME = 50  # characters
COMMANDS = {
    "ncu": "ncu --set full --profile-from-start off --graph-profiling node --force-overwrite -o",
    "nsys": "nsys profile --trace cuda,nvtx --capture-range cudaProfilerApi "
    "--cuda-graph-trace node --force-overwrite true -o",
}


def profile(case: Case, implementation: Implementation, device: torch.device) -> None:
    """Print a table of kernels, slowest first."""
    prepared = _warm(case, implementation, device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as recorded:
        for _ in range(STEPS):
            prepared.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    where = "device" if device.type == "cuda" else "cpu"
    events = recorded.key_averages()
    times = {event.key: getattr(event, f"self_{where}_time_total") / STEPS for event in events}
    print(f"{case.bench} {case.name}, {implementation.name}: us per step on the {where}")
    print(table(times, {event.key: event.count / STEPS for event in events}))


def table(times: Mapping[str, float], counts: Mapping[str, float]) -> str:
    """Return a line per kernel: time, share of all times, calls and name; the slowest first.

    Parameters
    ----------
    times, counts : mapping
        Time and number of calls per step by the name of the kernel.
    """
    total = sum(times.values())
    slowest = sorted(times, key=lambda name: -times[name])[:ROWS]
    return "\n".join(
        f"{times[name]:10.1f} {times[name] / total:7.1%} {counts[name]:6.1f}  {name[:NAME]}"
        for name in slowest
        if times[name]
    )


def trace(case: Case, implementation: Implementation, device: torch.device) -> None:
    """Run one step with the profiler on, for ncu and nsys."""
    if device.type != "cuda":
        raise InputError("ncu and nsys profile NVIDIA GPUs only: use --profile on other devices")
    prepared = _warm(case, implementation, device)
    torch.cuda.profiler.start()
    prepared.step()
    torch.cuda.synchronize(device)
    torch.cuda.profiler.stop()


def command_line(tool: str, case: Case, implementation: Implementation) -> str:
    """Return the command that profiles one step with ``tool``, ncu or nsys."""
    report = f"{case.bench}-{case.name}-{implementation.name}"
    options = [case.bench, "--cases", case.name, "--only", implementation.name, "--trace"]
    python = [sys.executable, "-m", "benchmarks", *options]
    return f"{COMMANDS[tool]} {shlex.quote(report)} {shlex.join(python)}"


def _warm(case: Case, implementation: Implementation, device: torch.device) -> Prepared:
    clean_up(device)
    prepared = implementation.prepare(model(case.model), case.build(), device)
    for _ in range(3):
        prepared.step()
    return prepared
