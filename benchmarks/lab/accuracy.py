"""Speed at equal accuracy: published errors and speeds beside our measurements of the same models.

Published numbers come from `benchmarks.lab.published`, measured ones from the CSV files. They have
columns of their own, and the figure holds published ones only, of one benchmark on one GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lab.cells import markdown, provenance
from benchmarks.lab.published import BENCHMARKS, MATPES, SPICE, Benchmark, Published
from benchmarks.lab.schema import Row, read_rows
from benchmarks.lab.selection import OUR_LOOPS, OURS, PEERS, Times, best_peer, p50, passed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Published: NVIDIA RTX PRO 6000, float32 with TF32 allowed"
CRYSTALS = {"NaCl-4096": "NaCl", "MgO-512": "MgO", "Si-64": "Si"}
CHARGED = "4096"  # box of a random TensorNet2
WATER = "matpes-192"  # on a CPU
MARKERS = {"AceFF": "o", "AIMNet2": "v", "MACE": "s", "Orb": "^", "UMA": "D"}  # by family


def accuracy_table(folder: Path) -> str:
    """Tabulate errors and speeds by benchmark; empty without measurements of these models."""
    crystals, charged, cpu = (
        passed(read_rows(folder / f"{bench}.csv")) for bench in ("matpes", "charged", "cpu")
    )
    if not (crystals and charged and cpu):
        return ""
    measured = {
        (SPICE, "AceFF-2.0"): _charged_cell(charged[CHARGED]),
        (MATPES, "TensorNet 2025.2"): f"{_crystals_cell(crystals)}; {_cpu_cell(cpu[WATER])}",
    }
    lines = [["model", "error", "published speed", "measured here, µs per atom and step"]]
    lines.append(["---"] * 4)
    for benchmark in BENCHMARKS:
        speed = f"[{benchmark.speed}]({benchmark.speed_address})"
        name = f"**[{benchmark.name}]({benchmark.address})**"
        lines.append([name, f"*{benchmark.error}*", f"*{speed}*", ""])
        for model in benchmark.models:
            cell = measured.get((benchmark, model.model), "–")
            lines.append([model.model, _error(model), _speed(benchmark, model), cell])
    shown = {c: crystals[c] for c in CRYSTALS} | {CHARGED: charged[CHARGED], WATER: cpu[WATER]}
    return f"{markdown(lines)}\n\n{provenance(shown)}"


def _error(model: Published) -> str:
    """Write an error with at most three digits, as a link if it has a source of its own."""
    text = "none found" if model.error is None else f"{model.error:.3g}"
    return f"[{text}]({model.source})" if model.source else text


def _speed(benchmark: Benchmark, model: Published) -> str:
    speed = benchmark.speed_of(model)
    return "–" if speed is None else _digits(speed)


def _digits(value: float) -> str:
    """Write a number with three digits."""
    return f"{float(f'{value:.3g}'):,g}"


def _per_atom(row: Row) -> str:
    """Write µs per atom and step."""
    return _digits(p50(row) * 1e3 / row.atoms)


def _charged_cell(rows: dict[str, Row]) -> str:
    """Write the speeds of random weights in the architecture of AceFF-2 and of the best peer."""
    ours, best = rows[OURS], best_peer(rows, PEERS)
    peer = f" (TorchMD-NET, {best.impl}: {_per_atom(best)})" if best else ""
    return (
        f"**{_per_atom(ours)}**{peer}: {ours.machine}, float32, random weights of this "
        f"architecture, {ours.atoms:,} atoms"
    )


def _crystals_cell(times: Times) -> str:
    """Write the speeds on crystals, with those of the exact module."""
    cells = [
        f"**{_per_atom(times[case][OURS])}** (exact module: {_per_atom(times[case]['exact'])}) "
        f"for {times[case][OURS].atoms:,} atoms of {name}"
        for case, name in CRYSTALS.items()
    ]
    machine = times[next(iter(CRYSTALS))][OURS].machine
    return f"{', '.join(cells)}: {machine}, float32, with stress"


def _cpu_cell(rows: dict[str, Row]) -> str:
    """Write the speeds on a CPU with the most threads, and those of the best peer."""
    threads = max(row.threads for row in rows.values())
    chosen = {row.impl: row for row in rows.values() if row.threads == threads}
    ours = chosen[OUR_LOOPS]
    best = best_peer(chosen, [name for name in chosen if name.startswith("matgl")])
    peer = f" ({best.impl}: {_per_atom(best)})" if best else ""
    return (
        f"**{_per_atom(ours)}**{peer} for {ours.atoms:,} atoms of water: {ours.machine}, "
        f"{threads} threads, {ours.precision}"
    )


def points() -> Sequence[tuple[str, float, float]]:
    """Return names, µs per atom and step, and errors of the models in the figure."""
    found = [(model.model, SPICE.speed_of(model), model.error) for model in SPICE.models]
    return [(name, speed, error) for name, speed, error in found if speed and error]


def plot(axes: Axes) -> None:
    """Plot published errors over published speeds, with the name of each model at its point."""
    shown = points()
    for family, marker in MARKERS.items():
        chosen = [(speed, error) for name, speed, error in shown if name.startswith(family)]
        axes.loglog(*zip(*chosen, strict=True), marker, label=family)
    for name, speed, error in shown:
        axes.annotate(
            name,
            (speed, error),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    axes.margins(x=0.15, y=0.15)
    errors = (0.5, 1, 2, 4)
    axes.set_yticks(errors, list(map(str, errors)))
    axes.minorticks_off()
    axes.set(xlabel="µs per atom and step, 2,224 atoms", ylabel="SPICE v3: error, kcal/mol")
