"""The command ``mlff-triton calibrate``: the time of a step with each backend on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mlff_triton.cli._shared import CoulombOption, DeviceOption, DtypeOption, plain_console
from mlff_triton.errors import BackendError

if TYPE_CHECKING:
    import torch

    from mlff_triton.engine.calibration import Point
    from mlff_triton.engine.costs import Cost
    from mlff_triton.model.tensornet import TensorNet


def calibrate(
    model: Annotated[
        str, typer.Option(help="Shipped model or checkpoint; only an ensemble's first member.")
    ] = "default",
    coulomb: CoulombOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    out: Annotated[
        Path | None, typer.Option(help="File to write the costs to, instead of the cache.")
    ] = None,
) -> None:
    """Measure the backends that can run a model on this machine, to choose the fastest from now on.

    The costs apply to all models of the same architecture, number of channels and layers, in the
    same dtype and with the same software versions.
    """
    from mlff_triton._common.devices import find_device, find_dtype
    from mlff_triton.checkpoints import load_model
    from mlff_triton.engine.calibration import fastest_by_size, fit
    from mlff_triton.engine.costs import Costs, Target, keep
    from mlff_triton.model.prediction import members_of

    found, member = find_device(device), members_of(load_model(model, coulomb=coulomb))[0]
    where = Target.of(member.config, found, find_dtype(dtype))
    console = plain_console()
    console.print(f"{model} in {dtype} on {where.device}:")
    points: dict[str, list[Point]] = {}
    for point in _measured(console, member, found, dtype):
        points.setdefault(point.backend, []).append(point)
    if not points:
        raise BackendError(f"the memory of {found} is too small for any step: use device='cpu'")
    backends = {backend: fit(measured) for backend, measured in points.items()}
    console.print(_time_table(points), _cost_table(backends))
    max_atoms = max(point.atoms for measured in points.values() for point in measured)
    ranges = fastest_by_size(backends, member.cutoff, max_atoms)
    console.print(f"fastest: {_in_words(ranges)}")
    today = datetime.now(timezone.utc).date().isoformat()
    path = keep(Costs(where, today, backends), out)
    console.print(f"wrote {path}")


def _measured(
    console: Console, model: TensorNet, device: torch.device, dtype: str
) -> Iterator[Point]:
    """Measure all backends that can run the model, with a progress bar on a terminal."""
    from mlff_triton._common.devices import find_dtype
    from mlff_triton.engine.calibration import SIZES, measure_backend
    from mlff_triton.engine.dispatch import candidates, eligible
    from mlff_triton.engine.host_operators import can_load

    found = eligible(candidates([model], device, find_dtype(dtype)), device)
    backends = [backend for backend in found if can_load(backend)]
    steps = len(SIZES[device.type])
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=steps * len(backends))
        for k, backend in enumerate(backends):
            progress.update(task, description=backend, completed=k * steps)
            for point in measure_backend(model, device, dtype, backend):
                progress.advance(task)
                yield point
        progress.update(task, completed=steps * len(backends))


def _time_table(points: dict[str, list[Point]]) -> Table:
    """Make the table of measured times: one row per size, one column per backend."""
    table = Table("atoms", "edges", *points, title="Time per step, ms")
    ms_of = {(p.atoms, p.edges, p.backend): p.ms for measured in points.values() for p in measured}
    for atoms, edges in sorted({size[:2] for size in ms_of}):
        times = [ms_of.get((atoms, edges, backend)) for backend in points]
        cells = ["-" if ms is None else f"{ms:.3g}" for ms in times]
        table.add_row(str(atoms), str(edges), *cells)
    return table


def _cost_table(backends: dict[str, Cost]) -> Table:
    """Make the table of the costs that fit the times best."""
    table = Table(
        "backend", "launch, ms", "per atom, µs", "per edge, µs", "worst misfit", title="Costs"
    )
    for backend, cost in backends.items():
        values = (cost.launch, cost.per_atom * 1e3, cost.per_edge * 1e3)
        table.add_row(backend, *(f"{x:.3g}" for x in values), f"{cost.misfit:.0%}")
    return table


def _in_words(ranges: Sequence[tuple[int, str]]) -> str:
    """Describe which backend is fastest up to which size."""
    parts = [f"{name} below {end} atoms" for (_, name), (end, _) in pairwise(ranges)]
    rest = "above" if parts else "at every size"
    return ", ".join([*parts, f"{ranges[-1][1]} {rest}"])
