"""Figures, drawn from the CSV files alone, except for that of published errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lab import accuracy
from benchmarks.lab.schema import Row, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from benchmarks.lab.selection import (
    AUTOCAST,
    BATCHES,
    BIO_OURS,
    BIO_PEERS,
    BIO_REFERENCE,
    COMMAND,
    CONVOLUTION_PEERS,
    DIVISIONS,
    DOCKING_OURS,
    DOCKING_PEERS,
    KERNELS,
    LABELS,
    LAMMPS_MODELS,
    MODEL_PEERS,
    NS_PER_DAY,
    ONE_RANK,
    OURS,
    SIMULATIONS,
    Times,
    best_peer,
    best_torchmd_net,
    by_model,
    fastest,
    is_scaling,
    largest_of_kind,
    other_models,
    p50,
    passed,
    predictions,
    rows_of,
    scaling,
    water_first,
)

ALIGNERS = {  # labels and markers
    "parasail": ("parasail, one core", "."),
    "parasail-threads": ("parasail, all cores", "x"),
    "edlib": ("edlib, one core", "+"),
    "stringzillas": ("stringzillas-cuda", "s"),
    "align": ("mlff_triton, from strings", "^"),
    "kernel": ("mlff_triton, sequences on the GPU", "o"),
}

# Text in an SVG is as wide as the reader's font
LEGEND_WIDTH = 0.9  # of the figure, at most
MARGIN = 0.15  # in inches, beside labels


def draw(folder: Path) -> list[Path]:
    """Draw every figure that has data, as an SVG file beside the CSV file."""
    drawn = []
    for name, plot in PLOTS.items():
        bench, select = PARTS.get(name, (name, dict))
        times = select(passed(read_rows(folder / f"{bench}.csv")))
        if times:
            drawn.append(_save(folder / f"{name}.svg", partial(plot, times=times), _gpu(times)))
    return drawn


def draw_published(folder: Path) -> Path:
    """Draw errors over speeds that others published, as an SVG file in the folder."""
    return _save(folder / "accuracy.svg", accuracy.plot, accuracy.TITLE)


def _save(path: Path, plot: Callable[[Axes], None], title: str) -> Path:
    """Save a figure of one panel, with a legend of what has a label, and return its path."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with mpl.rc_context({"svg.hashsalt": "mlff_triton", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.4, 4.8), layout=ConstrainedLayoutEngine(w_pad=MARGIN))
        axes = figure.subplots()
        plot(axes)
        axes.set_title(title)
        axes.grid(visible=True, which="major", alpha=0.3)
        _add_legend(figure)
        figure.savefig(path, metadata={"Date": None})
    return path


def _add_legend(figure: Figure) -> None:
    """Add a legend below the axes, in as many columns as fit."""
    for n_columns in (3, 2, 1):
        legend = figure.legend(
            loc="outside lower center", ncols=n_columns, frameon=False, fontsize="small"
        )
        if n_columns == 1 or legend.get_window_extent().width <= LEGEND_WIDTH * figure.bbox.width:
            return
        legend.remove()


def _plot_steps(axes: Axes, times: Times) -> None:
    """Plot times over the number of atoms, a line per implementation."""
    for name, label in LABELS.items():
        rows = sorted(rows_of(times, name), key=lambda row: row.atoms)
        if rows:
            style = {"linewidth": 2.5, "marker": "o"} if name == OURS else {"marker": "."}
            axes.loglog([r.atoms for r in rows], [r.ms_p50 for r in rows], label=label, **style)
    axes.set(xlabel="atoms", ylabel="energy and forces, ms per step")


def _plot_simulations(axes: Axes, times: Times) -> None:
    """Plot ns/day over the number of atoms, a line per route."""
    times = water_first(times)
    water = {case: rows for case, rows in times.items() if case.isdigit()}
    lines = {label: rows_of(water, name) for name, label in SIMULATIONS.items()}
    best = [best_torchmd_net(rows) for rows in water.values()]
    lines["TorchMD-NET, best route"] = [row for row in best if row]
    random = {case: rows for case, rows in times.items() if case.startswith("random-")}
    lines[f"{SIMULATIONS[COMMAND]}, random model (F = 128)"] = rows_of(random, COMMAND)
    for label, rows in lines.items():
        if rows:
            is_ours = label == SIMULATIONS[COMMAND]
            style = {"linewidth": 2.5, "marker": "o"} if is_ours else {"marker": "."}
            speeds = [NS_PER_DAY / p50(row) for row in rows]
            axes.loglog([row.atoms for row in rows], speeds, label=label, **style)
    axes.set(xlabel="atoms", ylabel="ns/day at 0.5 fs")


def _plot_bio(axes: Axes, times: Times) -> None:
    """Plot times of forward passes, one row per case."""
    best = [best_peer(rows, BIO_PEERS) for rows in times.values()]
    kinds = {
        "as shipped, fp32": (rows_of(times, BIO_REFERENCE), "s"),
        "best peer, fp16": ([row for row in best if row], "."),
        "mlff_triton, fp16": (rows_of(times, BIO_OURS), "o"),
    }
    _plot_points(axes, by_model(times), kinds, "ms_p50")
    axes.set(xlabel="forward pass, ms")


def _plot_models(axes: Axes, times: Times) -> None:
    """Plot times of calls, one row per case."""
    best = [best_peer(rows, MODEL_PEERS) for rows in times.values()]
    kinds = {
        "as shipped, fp32": (rows_of(times, BIO_REFERENCE), "s"),
        "best peer": ([row for row in best if row], "."),
        "mlff_triton": ([row for row in map(fastest, times.values()) if row], "o"),
    }
    _plot_points(axes, by_model(times), kinds, "ms_p50")
    axes.set(xlabel="call, ms")


def _plot_predictions(axes: Axes, times: Times) -> None:
    """Plot times of predictions, one row per case."""
    kinds = {
        "with the package's kernels": (rows_of(times, KERNELS), "s"),
        "mlff_triton": (rows_of(times, AUTOCAST), "o"),
    }
    _plot_points(axes, by_model(times), kinds, "ms_p50")
    axes.set(xlabel="prediction, ms")


def _plot_convolutions(axes: Axes, times: Times) -> None:
    """Plot times of convolutions in CUDA graphs, one row per case."""
    best = [
        best_peer(rows, [f"{peer}-graph" for peer in CONVOLUTION_PEERS]) for rows in times.values()
    ]
    kinds = {
        "best peer": ([row for row in best if row], "s"),
        "mlff_triton": (rows_of(times, "triton-graph"), "o"),
    }
    _plot_points(axes, by_model(times), kinds, "ms_p50")
    axes.set(xlabel="convolution in float32, ms")


def _plot_docking(axes: Axes, times: Times) -> None:
    """Plot times of docking models, one row per case."""
    kinds = {
        "as shipped": (rows_of(times, DOCKING_PEERS[0]), "s"),
        "compiled": (rows_of(times, DOCKING_PEERS[1]), "."),
        "mlff_triton": (rows_of(times, DOCKING_OURS), "o"),
    }
    _plot_points(axes, by_model(times), kinds, "ms_p50")
    axes.set(xlabel="call, or screening of one ligand, ms")


def _plot_alignment(axes: Axes, times: Times) -> None:
    """Plot speeds, one row per case, without the cases that are compared with PyTorch."""
    times = {case: rows for case, rows in times.items() if not case.startswith(BATCHES)}
    kinds = {label: (rows_of(times, name), marker) for name, (label, marker) in ALIGNERS.items()}
    _plot_points(axes, by_model(times), kinds, "gcups")
    axes.set(xlabel="cells, 1e9 per second")


LAMMPS_LINES = {"random": "-", "shipped": "--", "charged": ":"}


def _plot_divided(axes: Axes, times: Times) -> None:
    """Plot times over the number of atoms of the whole box, a line per model and division."""
    for model, label in LAMMPS_MODELS.items():
        boxes = {case: rows for case, rows in times.items() if is_scaling(case, model)}
        for name, kind in DIVISIONS.items():
            rows = sorted(rows_of(boxes, name), key=lambda row: row.atoms)
            if rows:
                style = {"marker": "o" if name == ONE_RANK else "."}
                style["linestyle"] = LAMMPS_LINES[model]
                points = [row.atoms for row in rows], [p50(row) for row in rows]
                axes.loglog(*points, label=f"{label}: {kind}", **style)
    axes.set(xlabel="atoms of the whole box", ylabel="ms per step")


def _plot_scaling(axes: Axes, times: Times) -> None:
    """Plot times over the number of threads, a line per box, and those of an ideal division."""
    for rows in times.values():
        found = sorted(rows.values(), key=lambda row: row.threads)
        threads = [row.threads for row in found]
        (line,) = axes.loglog(
            threads, list(map(p50, found)), "o-", label=f"{found[0].atoms:,} atoms"
        )
        ideal = [p50(found[0]) * threads[0] / n for n in threads]
        axes.loglog(threads, ideal, "--", color=line.get_color(), alpha=0.5)
    shown = sorted({row.threads for rows in times.values() for row in rows.values()})
    axes.set_xticks(shown, list(map(str, shown)))
    axes.minorticks_off()
    axes.set(xlabel="threads (dashed: an ideal division)", ylabel="energy and forces, ms per step")


def _plot_points(
    axes: Axes, cases: list[str], kinds: dict[str, tuple[list[Row], str]], column: str
) -> None:
    """Plot points, one row per case; ``kinds`` maps labels to rows and markers."""
    for label, (rows, marker) in kinds.items():
        if rows:
            heights = [cases.index(row.case) for row in rows]
            axes.semilogx([getattr(row, column) for row in rows], heights, marker, label=label)
    axes.set_yticks(range(len(cases)), cases, fontsize="small")
    axes.invert_yaxis()


PLOTS = {
    "step": _plot_steps,
    "charged": _plot_steps,
    "shipped": _plot_steps,
    "md": _plot_simulations,
    "bio": _plot_bio,
    "models": _plot_models,
    "predictions": _plot_predictions,
    "convolution": _plot_convolutions,
    "docking": _plot_docking,
    "alignment": _plot_alignment,
    "lammps": _plot_divided,
    "cpu": _plot_scaling,
}


def _compared(times: Times) -> Times:
    """Return the predictions that were compared with those of a package."""
    return {case: rows for case, rows in predictions(times).items() if KERNELS in rows}


def _of_sizes(times: Times) -> Times:
    """Return the cases that are named after their size alone."""
    return {case: rows for case, rows in times.items() if case.isdigit()}


PARTS: dict[str, tuple[str, Callable[[Times], Times]]] = {
    "charged": ("charged", _of_sizes),
    "models": ("models", other_models),
    "convolution": ("convolution", largest_of_kind),
    "predictions": ("models", _compared),
    "cpu": ("cpu", scaling),
}
"""Figures of a part of the cases of a bench, which is named first."""


def _gpu(times: Times) -> str:
    return ", ".join(sorted({row.machine for rows in times.values() for row in rows.values()}))
