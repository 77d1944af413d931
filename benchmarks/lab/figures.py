"""Figures and tables, drawn from the CSV files alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lab.schema import AlignmentRow, AnyRow, Row, bytes_of, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = "engine"
EAGER = "torch"
PEERS = ("torch", "warp", "warp-graph", "warp-compile")
LABELS = {
    "engine": "mlff_triton",
    "exact": "mlff_triton, exact module",
    "torch": "TorchMD-NET, PyTorch",
    "warp": "TorchMD-NET, Warp",
    "warp-graph": "TorchMD-NET, Warp + CUDA graph",
    "warp-compile": "TorchMD-NET, Warp + torch.compile",
}
OPENMM_PAIRS = (  # ours and TorchMD-NET's, first on the GPU, then on the host
    ("openmm-torch", "openmm-torchmd-net"),
    ("openmm-reference", "openmm-torchmd-net-reference"),
)
BIO_OURS, BIO_REFERENCE = "accelerated-fp16", "reference"
BIO_PEERS = ("sdpa-fp16", "sdpa-fp16-graph", "compile-fp16")
ACCELERATED = "accelerated-"  # prefix of our precisions
MODEL_PEERS = ("reference-graph", "half", "half-graph", "compile", "compile-half")
PAIR_PEERS = ("cuequivariance", "trifast", "compile", "torch")  # their names end in a precision
ALIGNERS = {  # labels and markers
    "parasail": ("parasail, one core", "."),
    "parasail-threads": ("parasail, all cores", "x"),
    "edlib": ("edlib, one core", "+"),
    "stringzillas": ("stringzillas-cuda", "s"),
    "align": ("mlff_triton, from strings", "^"),
    "kernel": ("mlff_triton, sequences on the GPU", "o"),
}
CELLS, ROWS = "torch-cells", "torch-rows"
COMMAND, TORCHMD_NET = "command", "torchmd-net-"  # prefix of all routes to TorchMD-NET
SIMULATIONS = {  # labels of routes, all with Langevin dynamics, by name
    "command": "mlff-triton md",
    "ase": "through ASE",
    "openmm": "through OpenMM on the GPU",
    "openmm-host": "through OpenMM on the host",
    "torch-sim": "through TorchSim",
}
FIRST_STEP = {  # columns of parts of the first seconds
    "import": "import",
    "engine": "engine",
    "forces": "first forces",
    "total": "all",
}
CAPTURED = "-captured"  # suffix of steps in a CUDA graph
TRAINING = {  # columns of training steps
    "torch": "PyTorch operators",
    "warp": "Warp operators",
    f"warp{CAPTURED}": "Warp operators in a graph",
    "ours-eager": "accelerated",
    f"ours{CAPTURED}": "accelerated, in a graph",
    "exact": "our module",
    f"exact{CAPTURED}": "our module, in a graph",
}
ONE_RANK = "ranks-1"
DIVISIONS = {  # columns and lines of boxes that are divided
    ONE_RANK: "LAMMPS, one rank",
    "part-of-2": "part of two",
    "part-of-4": "part of four",
}
LAMMPS_MODELS = {"random": "F = 128", "shipped": "shipped"}
LARGEST = "1000000"  # a random box, although it is named after its size
CHARGED = "charged-"  # prefix of the simulations of a TensorNet2
CHARGED_PAIRS = (  # as `OPENMM_PAIRS`; TorchMD-NET's names may end in -graph
    ("openmm", f"{TORCHMD_NET}openmm"),
    ("openmm-host", f"{TORCHMD_NET}openmm-host"),
)
BATCHES = "batch-"  # prefix of the cases that are compared with PyTorch only
NS_PER_DAY = 0.5e-6 * 86400e3  # for steps of 0.5 fs that take 1 ms
Times = dict[str, dict[str, Any]]  # case -> implementation -> row that passed


def draw(folder: Path) -> list[Path]:
    """Draw every figure that has data, as an SVG file beside the CSV file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = []
    for bench, plot in PLOTS.items():
        times = passed(read_rows(folder / f"{bench}.csv"))
        if not times:
            continue
        with mpl.rc_context({"svg.hashsalt": "mlff_triton", "svg.fonttype": "none"}):
            figure = Figure(figsize=(6.4, 4.8), layout="constrained")
            axes = figure.subplots()
            plot(axes, times)
            axes.set_title(_gpu(times))
            axes.grid(visible=True, which="major", alpha=0.3)
            figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
            path = folder / f"{bench}.svg"
            figure.savefig(path, metadata={"Date": None})
            drawn.append(path)
    return drawn


def _plot_steps(axes: Axes, times: Times) -> None:
    """Plot times over the number of atoms, a line per implementation."""
    for name, label in LABELS.items():
        rows = sorted(_rows_of(times, name), key=lambda row: row.atoms)
        if rows:
            style = {"linewidth": 2.5, "marker": "o"} if name == OURS else {"marker": "."}
            axes.loglog([r.atoms for r in rows], [r.ms_p50 for r in rows], label=label, **style)
    axes.set(xlabel="atoms", ylabel="energy and forces, ms per step")


def _plot_simulations(axes: Axes, times: Times) -> None:
    """Plot ns/day over the number of atoms, a line per route."""
    times = _water_first(times)
    water = {case: rows for case, rows in times.items() if case.isdigit()}
    lines = {label: _rows_of(water, name) for name, label in SIMULATIONS.items()}
    best = [best_torchmd_net(rows) for rows in water.values()]
    lines["TorchMD-NET, best route"] = [row for row in best if row]
    random = {case: rows for case, rows in times.items() if case.startswith("random-")}
    lines[f"{SIMULATIONS[COMMAND]}, random model (F = 128)"] = _rows_of(random, COMMAND)
    for label, rows in lines.items():
        if rows:
            is_ours = label == SIMULATIONS[COMMAND]
            style = {"linewidth": 2.5, "marker": "o"} if is_ours else {"marker": "."}
            speeds = [NS_PER_DAY / _p50(row) for row in rows]
            axes.loglog([row.atoms for row in rows], speeds, label=label, **style)
    axes.set(xlabel="atoms", ylabel="ns/day at 0.5 fs")


def _water_first(times: Times) -> Times:
    """Sort simulations by kind: first water, whose names are sizes; the largest box is random."""
    named = {f"random-{name}" if name == LARGEST else name: rows for name, rows in times.items()}
    return dict(sorted(named.items(), key=lambda item: item[0].rstrip("0123456789")))


def _plot_bio(axes: Axes, times: Times) -> None:
    """Plot times of forward passes, one row per case."""
    best = [best_peer(rows, BIO_PEERS) for rows in times.values()]
    kinds = {
        "as shipped, fp32": (_rows_of(times, BIO_REFERENCE), "s"),
        "best peer, fp16": ([row for row in best if row], "."),
        "mlff_triton, fp16": (_rows_of(times, BIO_OURS), "o"),
    }
    _plot_points(axes, _by_model(times), kinds, "ms_p50")
    axes.set(xlabel="forward pass, ms")


def _plot_models(axes: Axes, times: Times) -> None:
    """Plot times of calls, one row per case."""
    best = [best_peer(rows, MODEL_PEERS) for rows in times.values()]
    kinds = {
        "as shipped, fp32": (_rows_of(times, BIO_REFERENCE), "s"),
        "best peer": ([row for row in best if row], "."),
        "mlff_triton": ([row for row in map(_fastest, times.values()) if row], "o"),
    }
    _plot_points(axes, _by_model(times), kinds, "ms_p50")
    axes.set(xlabel="call, ms")


def _fastest(rows: dict[str, Row]) -> Row | None:
    """Return the fastest of the precisions that the accelerated model was measured in."""
    return best_peer(rows, [name for name in rows if name.startswith(ACCELERATED)])


def _plot_alignment(axes: Axes, times: Times) -> None:
    """Plot speeds, one row per case, without the cases that are compared with PyTorch."""
    times = {case: rows for case, rows in times.items() if not case.startswith(BATCHES)}
    kinds = {label: (_rows_of(times, name), marker) for name, (label, marker) in ALIGNERS.items()}
    _plot_points(axes, _by_model(times), kinds, "gcups")
    axes.set(xlabel="cells, 1e9 per second")


def _plot_divided(axes: Axes, times: Times) -> None:
    """Plot times over the number of atoms of the whole box, a line per model and division."""
    for model, label in LAMMPS_MODELS.items():
        boxes = {case: rows for case, rows in times.items() if _is_scaling(case, model)}
        for name, kind in DIVISIONS.items():
            rows = sorted(_rows_of(boxes, name), key=lambda row: row.atoms)
            if rows:
                style = {"marker": "o" if name == ONE_RANK else "."}
                style["linestyle"] = "-" if model == "random" else "--"
                points = [row.atoms for row in rows], [_p50(row) for row in rows]
                axes.loglog(*points, label=f"{label}: {kind}", **style)
    axes.set(xlabel="atoms of the whole box", ylabel="ms per step")


def _is_scaling(case: str, model: str) -> bool:
    kind, name, _ = case.split("-")
    return name == model and kind != "check"


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
    "alignment": _plot_alignment,
    "lammps": _plot_divided,
}


def tables(folder: Path) -> str:
    """Return every table that has data, as Markdown."""
    parts = [step_table(folder, bench) for bench in ("step", "charged", "shipped", "batch")]
    parts += [molecules_table(folder), operators_table(folder), overhead_table(folder)]
    parts += [
        openmm_table(folder),
        lammps_table(folder),
        training_table(folder),
        simulations(folder),
        charged_simulations(folder),
        step_table(folder, "matpes"),
        bio_table(folder),
        models_table(folder),
        pairs_table(folder),
    ]
    parts += [alignment_table(folder), cells_table(folder)]
    return "\n\n".join(part for part in parts if part)


def step_table(folder: Path, bench: str = "step") -> str:
    """Tabulate times of PyTorch, the best peer and ours; empty without data."""
    times = passed(read_rows(folder / f"{bench}.csv"))
    if not any(OURS in rows for rows in times.values()):
        return ""
    baseline = EAGER if any(EAGER in rows for rows in times.values()) else "exact"
    head = ["atoms", LABELS[baseline], "best peer", "mlff_triton", "over the best", "memory, GB"]
    head.append("force error (PyTorch in float32)")
    lines = [head, ["---"] * len(head)]
    for case, rows in times.items():
        ours, best = rows.get(OURS), best_peer(rows)
        if ours is None:
            continue
        base = rows.get(baseline)
        error = _error(ours) + (f" ({_error(base)})" if base else "")
        lines.append(
            [
                case if bench in ("matpes", "batch") else f"{ours.atoms:,}",
                _ms(base),
                f"{_ms(best)} ({best.impl})" if best else "–",
                f"**{_ms(ours)}**",
                _ratio(best, ours),
                _memory(ours) + (f" (peer {_memory(best)})" if best else ""),
                error,
            ]
        )
    return _markdown(lines) + f"\n\n{_provenance(times)}"


def molecules_table(folder: Path) -> str:
    """Tabulate ms per step and speed-ups on MD17 and MD22, with means; empty without data."""
    lines = [["molecule", "atoms", "PyTorch", "best peer", "ours", "over PyTorch", "over the best"]]
    lines.append(["---"] * 7)
    over_eager, over_best = [], []
    times: Times = {}
    for bench in ("md17", "md22"):
        times |= passed(read_rows(folder / f"{bench}.csv"))
    for case, rows in times.items():
        ours, eager, best = rows.get(OURS), rows.get(EAGER), best_peer(rows)
        if ours is None or eager is None or best is None:
            continue
        over_eager.append(speed_up(eager, ours))
        over_best.append(speed_up(best, ours))
        ratios = [_ratio(eager, ours), _ratio(best, ours)]
        lines.append([case, str(ours.atoms), _ms(eager), _ms(best), _ms(ours), *ratios])
    if not over_eager:
        return ""
    means = [f"{sum(values) / len(values):.1f}x" for values in (over_eager, over_best)]
    lines.append(["mean", "", "", "", "", *means])
    return _markdown(lines) + f"\n\n{_provenance(times)}"


def operators_table(folder: Path) -> str:
    """Tabulate speed-ups of operators over PyTorch, and bandwidths relative to a copy, by size."""
    times = passed(read_rows(folder / "ops.csv"))
    moved = {
        case.split("@")[0]: (bytes_of(case), rows)
        for case, rows in passed(read_rows(folder / "bandwidth.csv")).items()
    }
    copy = _bandwidth(*moved["copy"], EAGER) if "copy" in moved else math.nan
    operators: dict[str, dict[int, str]] = {}
    for case, rows in times.items():
        ours, eager = rows.get("triton"), rows.get(EAGER)
        if ours is None or eager is None:
            continue
        share = ""
        if case in moved:
            n_bytes, measured = moved[case]
            limit = _bandwidth(n_bytes, measured, "copy") if "copy" in measured else copy
            share = f" ({_bandwidth(n_bytes, measured, 'triton') / limit:.0%})"
        name = case.rpartition("-")[0]
        operators.setdefault(name, {})[ours.atoms] = f"{speed_up(eager, ours):.1f}x{share}"
    if not operators:
        return ""
    sizes = sorted({size for row in operators.values() for size in row})
    lines = [["operator", *(f"{size:,} atoms" for size in sizes)], ["---"] * (len(sizes) + 1)]
    for name, row in operators.items():
        lines.append([name, *(row.get(size, "–") for size in sizes)])
    note = "In parentheses: bandwidth relative to a copy of as many bytes or, if there is none, "
    note += f"to the {copy / 1e12:.2f} TB/s of a large copy. "
    return _markdown(lines) + f"\n\n{note}{_provenance(times)}"


def overhead_table(folder: Path) -> str:
    """Tabulate the overhead of ASE per step of the engine; empty without data."""
    times = passed(read_rows(folder / "ase.csv"))
    lines = [["atoms", "engine, ms", "calculator, ms", "overhead, ms"], ["---"] * 4]
    for rows in times.values():
        ours, calculator = rows.get(OURS), rows.get("calculator")
        if ours and calculator:
            overhead = _p50(calculator) - _p50(ours)
            lines.append([f"{ours.atoms:,}", _ms(ours), _ms(calculator), f"{overhead:.3f}"])
    return "" if len(lines) == 2 else _markdown(lines) + f"\n\n{_provenance(times)}"


def openmm_table(folder: Path) -> str:
    """Tabulate steps through OpenMM; empty without data.

    The speed-up compares the fastest times of ours and of TorchMD-NET among the platforms that both
    ran on.
    """
    note = "Times in ms per step; ns/day at 0.5 fs, for the two that are compared. "
    return _platforms_table(passed(read_rows(folder / "openmm.csv")), OPENMM_PAIRS, note)


def charged_simulations(folder: Path) -> str:
    """Tabulate simulations of a TensorNet2 through OpenMM; empty without data."""
    times: Times = {}
    for case, rows in passed(read_rows(folder / "md.csv")).items():
        if case.startswith(CHARGED):
            best = {peer: best_peer(rows, (peer, f"{peer}-graph")) for _, peer in CHARGED_PAIRS}
            times[case] = rows | {peer: row for peer, row in best.items() if row}
    note = (
        "Simulations of such a TensorNet2 with nuclear repulsion, through OpenMM at 300 K; ms per "
    )
    note += "step, and ns/day at 0.5 fs. "
    return _platforms_table(times, CHARGED_PAIRS, note)


def _platforms_table(times: Times, pairs: Sequence[tuple[str, str]], note: str) -> str:
    """Tabulate steps of ours and of TorchMD-NET, on the GPU and on the host."""
    head = ["atoms", "engine alone", "OpenMM on the GPU", "on the host", "TorchMD-NET, GPU", "host"]
    lines = [[*head, "speed-up", "ns/day"], ["---"] * 8]
    for rows in times.values():
        platforms = [tuple(map(rows.get, names)) for names in pairs]
        compared = [(ours, theirs) for ours, theirs in platforms if ours and theirs]
        if OURS not in rows or not compared:
            continue
        ours, theirs = (min(column, key=_p50) for column in zip(*compared, strict=True))
        days = " and ".join(f"{NS_PER_DAY / _p50(row):.3g}" for row in (ours, theirs))
        steps = [_ms(row) for column in zip(*platforms, strict=True) for row in column]
        name = f"{rows[OURS].atoms:,}"
        lines.append([name, _ms(rows[OURS]), *steps, _ratio(theirs, ours), days])
    if len(lines) == 2:
        return ""
    return _markdown(lines) + f"\n\n{note}{_provenance(times)}"


def training_table(folder: Path) -> str:
    """Tabulate steps of an optimizer, in a graph and without one; empty without data."""
    times = passed(read_rows(folder / "training.csv"))
    head = ["case", *TRAINING.values(), "best without a graph over the best with one"]
    lines = [head, ["---"] * len(head)]
    for case, rows in times.items():
        theirs = {name: row for name, row in rows.items() if not name.startswith("exact")}
        captured = [row for name, row in theirs.items() if name.endswith(CAPTURED)]
        plain = [row for row in theirs.values() if row not in captured]
        if captured and plain:
            ratio = _ratio(min(plain, key=_p50), min(captured, key=_p50))
            lines.append([case, *(_ms(rows.get(name)) for name in TRAINING), ratio])
    return "" if len(lines) == 2 else _markdown(lines) + f"\n\nTimes in ms. {_provenance(times)}"


def lammps_table(folder: Path) -> str:
    """Tabulate steps of LAMMPS on one rank, and of parts of the same boxes; empty without data."""
    times = passed(read_rows(folder / "lammps.csv"))
    head = ["model", "atoms", "engine alone", "LAMMPS, one rank", "memory, GB"]
    parts = [name for name in DIVISIONS if name != ONE_RANK]
    lines = [[*head, *(f"{DIVISIONS[name]} (ghosts)" for name in parts)]]
    lines.append(["---"] * len(lines[0]))
    for model, label in LAMMPS_MODELS.items():
        boxes = [rows for case, rows in times.items() if _is_scaling(case, model)]
        for rows in sorted(boxes, key=lambda rows: next(iter(rows.values())).atoms):
            whole, found = rows.get(ONE_RANK), [rows.get(name) for name in parts]
            if not any((whole, *found)):
                continue
            cells = [label, f"{next(iter(rows.values())).atoms:,}", _ms(rows.get(OURS))]
            cells += [_ms(whole), _memory(whole) if whole else "–"]
            cells += [f"{_ms(row)} ({row.edges:,})" if row else "–" for row in found]
            lines.append(cells)
    if len(lines) == 2:
        return ""
    note = "Times in ms per step. A part is what one of so many GPUs computes, without LAMMPS. "
    return _markdown(lines) + f"\n\n{note}{_provenance(times)}"


def simulations(folder: Path) -> str:
    """Tabulate simulations with moving atoms; empty without data.

    The speed-up compares the command with the fastest route to TorchMD-NET.
    """
    times = passed(read_rows(folder / "md.csv"))
    times = {case: rows for case, rows in times.items() if not case.startswith(CHARGED)}
    head = ["case", "engine at rest", *SIMULATIONS.values(), "through ASE, NVE"]
    head += ["TorchMD-NET, best route", "speed-up"]
    lines = [head, ["---"] * len(head)]
    for case, rows in _water_first(times).items():
        if COMMAND not in rows:
            continue
        ours, theirs = rows[COMMAND], best_torchmd_net(rows)
        cells = [_speed(rows.get(name)) for name in (*SIMULATIONS, "ase-verlet")]
        route = f" ({theirs.impl.removeprefix(TORCHMD_NET)})" if theirs else ""
        name = f"{ours.atoms:,}" if case.isdigit() else case
        rest = [_ms(rows.get(OURS)), *cells, _speed(theirs) + route, _ratio(theirs, ours)]
        lines.append([name, *rest])
    if len(lines) == 2:
        return ""
    note = "ns/day at 0.5 fs, of each replica, with ms per step in parentheses; at rest in ms. "
    note += "The speed-up is that of the command over TorchMD-NET. "
    return _markdown(lines) + f"\n\n{note}{_provenance(times)}"


def first_step_table(folder: Path) -> str:
    """Tabulate the first seconds of a process by part; empty without data."""
    times = passed(read_rows(folder / "first-step.csv"))
    head = ["atoms", "caches", *FIRST_STEP.values()]
    lines = [head, ["---"] * len(head)]
    for case, rows in times.items():
        atoms, caches = case.split()
        seconds = [f"{_p50(rows[name]) / 1e3:.2f}" for name in FIRST_STEP]
        lines.append([f"{int(atoms):,}", {"cold": "empty", "warm": "filled"}[caches], *seconds])
    if len(lines) == 2:
        return ""
    return _markdown(lines) + f"\n\nTimes in seconds. {_provenance(times)}"


def bio_table(folder: Path) -> str:
    """Tabulate forward passes of protein language models; empty without data."""
    times = passed(read_rows(folder / "bio.csv"))
    head = ["case", "as shipped, fp32", "best peer, fp16", "mlff_triton, fp16", "over shipped"]
    head += ["over the best", "memory, GB", "1 - cosine"]
    lines = [head, ["---"] * len(head)]
    for case in _by_model(times):
        rows = times[case]
        if BIO_OURS not in rows:
            continue
        ours, shipped = rows[BIO_OURS], rows.get(BIO_REFERENCE)
        best = best_peer(rows, BIO_PEERS)
        peer = f"{_ms(best)} ({best.impl})" if best else "–"
        ratios = [_ratio(shipped, ours), _ratio(best, ours)]
        memory = _memory(ours) + (f" (shipped {_memory(shipped)})" if shipped else "")
        line = [case, _ms(shipped), peer, f"**{_ms(ours)}**", *ratios, memory, _error(ours)]
        lines.append(line)
    return "" if len(lines) == 2 else _markdown(lines) + f"\n\nTimes in ms. {_provenance(times)}"


def models_table(folder: Path) -> str:
    """Tabulate calls of genomic, design and binding models; empty without data."""
    times = passed(read_rows(folder / "models.csv"))
    head = ["case", "as shipped", "best peer", "mlff_triton", "over shipped", "over the best"]
    lines = [[*head, "memory, GB", "error"], ["---"] * (len(head) + 2)]
    for case in _by_model(times):
        rows = times[case]
        ours = _fastest(rows)
        if ours is None:
            continue
        shipped, best = rows.get(BIO_REFERENCE), best_peer(rows, MODEL_PEERS)
        peer = f"{_ms(best)} ({best.impl})" if best else "–"
        own = f"**{_ms(ours)}** ({ours.impl.removeprefix(ACCELERATED)})"
        memory = _memory(ours) + (f" (shipped {_memory(shipped)})" if shipped else "")
        ratios = [_ratio(shipped, ours), _ratio(best, ours)]
        lines.append([case, _ms(shipped), peer, own, *ratios, memory, _error(ours)])
    return "" if len(lines) == 2 else _markdown(lines) + f"\n\nTimes in ms. {_provenance(times)}"


def pairs_table(folder: Path) -> str:
    """Tabulate operators on pairs in both precisions, and errors; empty without data."""
    times = passed(read_rows(folder / "pairs.csv"))
    lines = [["case"], ["---"] * 9]
    for precision in ("bf16", "fp32"):
        lines[0] += [f"mlff_triton, {precision}", "best peer", "over the best", "error (peer)"]
    for case in _by_model(times):
        cells = [case]
        for precision in ("bf16", "fp32"):
            ours = times[case].get(f"triton-{precision}")
            best = best_peer(times[case], [f"{peer}-{precision}" for peer in PAIR_PEERS])
            peer = f"{_ms(best)} ({best.impl.removesuffix(f'-{precision}')})" if best else "–"
            ratio, error = "–", "–"
            if ours:
                ratio = _ratio(best, ours)
                error = _error(ours) + (f" ({_error(best)})" if best else "")
            cells += [f"**{_ms(ours)}**", peer, ratio, error]
        lines.append(cells)
    return "" if len(lines) == 2 else _markdown(lines) + f"\n\nTimes in ms. {_provenance(times)}"


def alignment_table(folder: Path) -> str:
    """Tabulate speeds of aligners and the speed-up over the best peer; empty without data.

    Both start from the same input: sequences on the GPU, or strings on the host.
    """
    times = passed(read_rows(folder / "alignment.csv"))
    head = ["case", "pairs", "parasail or edlib, one core", "parasail, all cores"]
    head += ["stringzillas-cuda", "mlff_triton", "from strings", "over the best", "memory, GB"]
    lines = [head, ["---"] * len(head)]
    for case in _by_model(times):
        rows = times[case]
        if "kernel" not in rows or case.startswith(BATCHES):
            continue
        ours, host = rows["kernel"], rows.get("parasail", rows.get("edlib"))
        on_host = [row for row in (host, rows.get("parasail-threads")) if row]
        on_gpu, from_strings = rows.get("stringzillas"), rows.get("align")
        best = on_gpu or max(on_host, key=lambda row: row.gcups, default=None)
        compared = ours if on_gpu else from_strings
        line = [case, f"{ours.pairs:,}", _gcups(host), _gcups(rows.get("parasail-threads"))]
        line += [_gcups(on_gpu), f"**{_gcups(ours)}**", _gcups(from_strings)]
        line.append(f"{compared.gcups / best.gcups:.1f}x" if best and compared else "–")
        lines.append([*line, _memory(ours)])
    if len(lines) == 2:
        return ""
    return _markdown(lines) + f"\n\nSpeeds in 1e9 cells per second. {_provenance(times)}"


def cells_table(folder: Path) -> str:
    """Tabulate times of batches of alignments, ours and in PyTorch; empty without data."""
    times = passed(read_rows(folder / "alignment.csv"))
    head = ["pairs", "bases", "PyTorch, cell by cell", "row by row", "mlff_triton"]
    head += ["from strings", "over cells", "over rows"]
    lines = [head, ["---"] * len(head)]
    found = [rows for case, rows in times.items() if case.startswith(BATCHES) and "kernel" in rows]
    for rows in sorted(found, key=lambda rows: (rows["kernel"].rows, rows["kernel"].pairs)):
        ours, cells, by_row = rows["kernel"], rows.get(CELLS), rows.get(ROWS)
        line = [f"{ours.pairs:,}", str(ours.rows), _ms(cells), _ms(by_row), f"**{_ms(ours)}**"]
        ratios = [f"{speed_up(row, ours):,.0f}x" if row else "–" for row in (cells, by_row)]
        lines.append([*line, _ms(rows.get("align")), *ratios])
    return "" if len(lines) == 2 else _markdown(lines) + f"\n\nTimes in ms. {_provenance(times)}"


def passed(rows: Sequence[AnyRow]) -> Times:
    """Group rows with a time by case, in order of size, and by implementation."""
    times: Times = {}
    for row in sorted(rows, key=lambda row: row.size):
        if row.ms_p50 is not None:
            times.setdefault(row.case, {})[row.impl] = row
    return times


def best_peer(rows: dict[str, Row], peers: Sequence[str] = PEERS) -> Row | None:
    """Return the fastest of the peers that passed."""
    found = [rows[name] for name in peers if name in rows]
    return min(found, key=_p50, default=None)


def best_torchmd_net(rows: dict[str, Row]) -> Row | None:
    """Return the fastest simulation of TorchMD-NET that passed."""
    return best_peer(rows, [name for name in rows if name.startswith(TORCHMD_NET)])


def speed_up(slow: Row, fast: Row) -> float:
    """Return the ratio of the medians."""
    return _p50(slow) / _p50(fast)


def _by_model(times: Times) -> list[str]:
    """Sort cases by model, keeping the order of size."""
    return sorted(times, key=lambda case: case.rpartition("-")[0])


def _rows_of(times: Times, name: str) -> list[Row]:
    return [rows[name] for rows in times.values() if name in rows]


def _p50(row: Row) -> float:
    return math.nan if row.ms_p50 is None else row.ms_p50


def _bandwidth(n_bytes: int, rows: dict[str, Row], name: str) -> float:
    return n_bytes / (_p50(rows[name]) * 1e-3) if name in rows else math.nan


def _ms(row: Row | None) -> str:
    return f"{_p50(row):.3g}" if row else "–"


def _speed(row: Row | None) -> str:
    """Write ns/day, and ms per step in parentheses."""
    return f"{NS_PER_DAY / _p50(row):.3g} ({_ms(row)})" if row else "–"


def _gcups(row: AlignmentRow | None) -> str:
    if row is None:
        return "–"
    return f"{row.gcups:.3g}" if row.gcups < 1000 else f"{row.gcups:,.0f}"


def _ratio(slow: Row | None, fast: Row) -> str:
    return f"{speed_up(slow, fast):.1f}x" if slow else "–"


def _memory(row: Row) -> str:
    return "–" if row.peak_mib is None else f"{row.peak_mib / 1024:.2g}"


def _error(row: Row) -> str:
    return "–" if row.error is None else f"{row.error:.0e}"


def _gpu(times: Times) -> str:
    return ", ".join(sorted({row.gpu for rows in times.values() for row in rows.values()}))


def _provenance(times: Times) -> str:
    """Name the devices, versions, commits and dates of the measurements."""
    rows = [row for by_name in times.values() for row in by_name.values()]
    parts: list[Callable[[Row], str]] = [
        lambda r: r.gpu,
        lambda r: f"PyTorch {r.torch}",
        lambda r: f"Triton {r.triton}",
        lambda r: f"commit {r.commit}",
        lambda r: r.date,
    ]
    return "Measured: " + ", ".join(" and ".join(sorted(set(map(part, rows)))) for part in parts)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
