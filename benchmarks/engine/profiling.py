"""Profile a step with PyTorch, or print the command lines for NVIDIA's profilers."""

from __future__ import annotations

import shlex
import sys

import torch

from benchmarks.engine.cases import Case
from benchmarks.engine.implementations import Implementation, Prepared
from benchmarks.lab.guards import clean_up
from benchmarks.systems.models import model
from mlff_triton.errors import InputError

STEPS = 5
ROWS = 40
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
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(f"{case.bench} {case.name}, {implementation.name}: {STEPS} steps")
    print(recorded.key_averages().table(sort_by=key, row_limit=ROWS, max_name_column_width=80))


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
