"""Tables, made from the CSV files alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import cpu_tables
from benchmarks.lab.cells import (
    error_cell,
    gcups_cell,
    markdown,
    memory_cell,
    ms_cell,
    provenance,
    ratio_cell,
    speed_cell,
    times_in_ms,
)
from benchmarks.lab.docking_table import docking_table
from benchmarks.lab.electrostatics_tables import electrostatics_table, mixed_table
from benchmarks.lab.schema import Row, bytes_of, read_rows
from benchmarks.lab.selection import (
    ACCELERATED,
    AUTOCAST,
    BATCHES,
    BIO_OURS,
    BIO_PEERS,
    BIO_REFERENCE,
    COMMAND,
    CONVOLUTION_PEERS,
    DIVISIONS,
    KERNELS,
    LABELS,
    LAMMPS_MODELS,
    MODEL_PEERS,
    NEW_SIZE,
    NS_PER_DAY,
    ONE_RANK,
    OURS,
    SIMULATIONS,
    TORCHMD_NET,
    Times,
    best_peer,
    best_torchmd_net,
    by_model,
    fastest,
    is_scaling,
    other_models,
    p50,
    passed,
    predictions,
    speed_up,
    water_first,
)

EAGER = "torch"
OPENMM_PAIRS = (  # ours and TorchMD-NET's, first on the GPU, then on the host
    ("openmm-torch", "openmm-torchmd-net"),
    ("openmm-reference", "openmm-torchmd-net-reference"),
)
PAIR_PEERS = ("cuequivariance", "trifast", "compile", "torch")  # their names end in a precision
CELLS, ROWS = "torch-cells", "torch-rows"
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
CHARGED = "charged-"  # prefix of the simulations of a TensorNet2
CHARGED_PAIRS = (  # as `OPENMM_PAIRS`; TorchMD-NET's names may end in -graph
    ("openmm", f"{TORCHMD_NET}openmm"),
    ("openmm-host", f"{TORCHMD_NET}openmm-host"),
)


def tables(folder: Path) -> str:
    """Return every table that has data, as Markdown."""
    parts = [step_table(folder, bench) for bench in ("step", "charged", "shipped", "batch")]
    parts += [molecules_table(folder), operators_table(folder), overhead_table(folder)]
    parts += [
        openmm_table(folder),
        lammps_table(folder),
        lammps_weak_table(folder),
        training_table(folder),
        simulations(folder),
        charged_simulations(folder),
        step_table(folder, "matpes"),
        bio_table(folder),
        models_table(folder),
        predictions_table(folder),
        pairs_table(folder),
        convolution_table(folder),
        docking_table(folder),
        electrostatics_table(folder),
        mixed_table(folder),
    ]
    parts += [alignment_table(folder), cells_table(folder)]
    parts += [table(folder) for table in cpu_tables.TABLES.values()]
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
        error = error_cell(ours) + (f" ({error_cell(base)})" if base else "")
        lines.append(
            [
                f"{ours.atoms:,}" if case.isdigit() else case,
                ms_cell(base),
                f"{ms_cell(best)} ({best.impl})" if best else "–",
                f"**{ms_cell(ours)}**",
                ratio_cell(best, ours),
                memory_cell(ours) + (f" (peer {memory_cell(best)})" if best else ""),
                error,
            ]
        )
    return markdown(lines) + f"\n\n{provenance(times)}"


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
        ratios = [ratio_cell(eager, ours), ratio_cell(best, ours)]
        lines.append([case, str(ours.atoms), ms_cell(eager), ms_cell(best), ms_cell(ours), *ratios])
    if not over_eager:
        return ""
    means = [f"{sum(values) / len(values):.1f}x" for values in (over_eager, over_best)]
    lines.append(["mean", "", "", "", "", *means])
    return markdown(lines) + f"\n\n{provenance(times)}"


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
    return markdown(lines) + f"\n\n{note}{provenance(times)}"


def overhead_table(folder: Path) -> str:
    """Tabulate the overhead of ASE per step of the engine; empty without data."""
    times = passed(read_rows(folder / "ase.csv"))
    lines = [["atoms", "engine, ms", "calculator, ms", "overhead, ms"], ["---"] * 4]
    for rows in times.values():
        ours, calculator = rows.get(OURS), rows.get("calculator")
        if ours and calculator:
            overhead = p50(calculator) - p50(ours)
            lines.append([f"{ours.atoms:,}", ms_cell(ours), ms_cell(calculator), f"{overhead:.3f}"])
    return "" if len(lines) == 2 else markdown(lines) + f"\n\n{provenance(times)}"


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
        ours, theirs = (min(column, key=p50) for column in zip(*compared, strict=True))
        days = " and ".join(f"{NS_PER_DAY / p50(row):.3g}" for row in (ours, theirs))
        steps = [ms_cell(row) for column in zip(*platforms, strict=True) for row in column]
        name = f"{rows[OURS].atoms:,}"
        lines.append([name, ms_cell(rows[OURS]), *steps, ratio_cell(theirs, ours), days])
    if len(lines) == 2:
        return ""
    return markdown(lines) + f"\n\n{note}{provenance(times)}"


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
            ratio = ratio_cell(min(plain, key=p50), min(captured, key=p50))
            lines.append([case, *(ms_cell(rows.get(name)) for name in TRAINING), ratio])
    return times_in_ms(lines, times)


def lammps_table(folder: Path) -> str:
    """Tabulate steps of LAMMPS by the number of GPUs, and their speed-ups; empty without data."""
    times = passed(read_rows(folder / "lammps.csv"))
    measured = [name for name in DIVISIONS if any(name in rows for rows in times.values())]
    head = ["model", "atoms", "engine alone", *(DIVISIONS[name] for name in measured)]
    lines = [[*head, "speed-up", "memory of a GPU, GB"]]
    lines.append(["---"] * len(lines[0]))
    for model, label in LAMMPS_MODELS.items():
        boxes = [rows for case, rows in times.items() if is_scaling(case, model)]
        for rows in sorted(boxes, key=lambda rows: next(iter(rows.values())).atoms):
            found = {name: rows[name] for name in measured if name in rows}
            if not found:
                continue
            atoms = f"{next(iter(found.values())).atoms:,}"
            cells = [label, atoms, ms_cell(rows.get(OURS))]
            cells += [ms_cell(found.get(name)) for name in measured]
            cells += [_speed_ups(found), ", ".join(map(memory_cell, found.values()))]
            lines.append(cells)
    if len(lines) == 2:
        return ""
    note = "Times in ms per step of LAMMPS. Speed-ups are those over one GPU. "
    return markdown(lines) + f"\n\n{note}{provenance(times)}"


def _speed_ups(found: dict[str, Row]) -> str:
    """Return how many times as fast as one GPU several are."""
    one = found.get(ONE_RANK)
    others = [row for name, row in found.items() if name != ONE_RANK]
    return ", ".join(f"{p50(one) / p50(row):.2f}" for row in others) if one and others else "–"


def lammps_weak_table(folder: Path) -> str:
    """Tabulate steps of LAMMPS with as many atoms per GPU; empty without data."""
    times = passed(read_rows(folder / "lammps.csv"))
    measured = [name for name in DIVISIONS if any(name in rows for rows in times.values())]
    head = ["model", "atoms per GPU", *(DIVISIONS[name] for name in measured), "efficiency"]
    lines = [head, ["---"] * len(head)]
    for model, label in LAMMPS_MODELS.items():
        boxes = [rows for case, rows in times.items() if case.startswith(f"weak-{model}-")]
        found = {name: rows[name] for name in measured for rows in boxes if name in rows}
        one = found.get(ONE_RANK)
        if one is None:
            continue
        ratios = [p50(one) / p50(row) for name, row in found.items() if name != ONE_RANK]
        cells = [label, f"{one.atoms:,}", *(ms_cell(found.get(name)) for name in measured)]
        lines.append([*cells, ", ".join(f"{ratio:.0%}" for ratio in ratios) or "–"])
    return "" if len(lines) == 2 else markdown(lines)


def simulations(folder: Path) -> str:
    """Tabulate simulations with moving atoms; empty without data.

    The speed-up compares the command with the fastest route to TorchMD-NET.
    """
    times = passed(read_rows(folder / "md.csv"))
    times = {case: rows for case, rows in times.items() if not case.startswith(CHARGED)}
    head = ["case", "engine at rest", *SIMULATIONS.values(), "through ASE, NVE"]
    head += ["TorchMD-NET, best route", "speed-up"]
    lines = [head, ["---"] * len(head)]
    for case, rows in water_first(times).items():
        if COMMAND not in rows:
            continue
        ours, theirs = rows[COMMAND], best_torchmd_net(rows)
        cells = [speed_cell(rows.get(name)) for name in (*SIMULATIONS, "ase-verlet")]
        route = f" ({theirs.impl.removeprefix(TORCHMD_NET)})" if theirs else ""
        name = f"{ours.atoms:,}" if case.isdigit() else case
        rest = [
            ms_cell(rows.get(OURS)),
            *cells,
            speed_cell(theirs) + route,
            ratio_cell(theirs, ours),
        ]
        lines.append([name, *rest])
    if len(lines) == 2:
        return ""
    note = "ns/day at 0.5 fs, of each replica, with ms per step in parentheses; at rest in ms. "
    note += "The speed-up is that of the command over TorchMD-NET. "
    return markdown(lines) + f"\n\n{note}{provenance(times)}"


def first_step_table(folder: Path) -> str:
    """Tabulate the first seconds of a process by part; empty without data."""
    times = passed(read_rows(folder / "first-step.csv"))
    head = ["atoms", "caches", *FIRST_STEP.values()]
    lines = [head, ["---"] * len(head)]
    for case, rows in times.items():
        atoms, caches = case.split()
        seconds = [f"{p50(rows[name]) / 1e3:.2f}" for name in FIRST_STEP]
        lines.append([f"{int(atoms):,}", {"cold": "empty", "warm": "filled"}[caches], *seconds])
    if len(lines) == 2:
        return ""
    return markdown(lines) + f"\n\nTimes in seconds. {provenance(times)}"


def bio_table(folder: Path) -> str:
    """Tabulate forward passes of protein language models; empty without data."""
    times = passed(read_rows(folder / "bio.csv"))
    head = ["case", "as shipped, fp32", "best peer, fp16", "mlff_triton, fp16", "over shipped"]
    head += ["over the best", "memory, GB", "1 - cosine"]
    lines = [head, ["---"] * len(head)]
    for case in by_model(times):
        rows = times[case]
        if BIO_OURS not in rows:
            continue
        ours, shipped = rows[BIO_OURS], rows.get(BIO_REFERENCE)
        best = best_peer(rows, BIO_PEERS)
        peer = f"{ms_cell(best)} ({best.impl})" if best else "–"
        ratios = [ratio_cell(shipped, ours), ratio_cell(best, ours)]
        memory = memory_cell(ours) + (f" (shipped {memory_cell(shipped)})" if shipped else "")
        line = [
            case,
            ms_cell(shipped),
            peer,
            f"**{ms_cell(ours)}**",
            *ratios,
            memory,
            error_cell(ours),
        ]
        lines.append(line)
    return times_in_ms(lines, times)


def models_table(folder: Path) -> str:
    """Tabulate calls of genomic, design and binding models; empty without data."""
    times = other_models(passed(read_rows(folder / "models.csv")))
    head = ["case", "as shipped, fp32", "best peer", "mlff_triton", "over shipped", "over the best"]
    lines = [[*head, "memory, GB", "error"], ["---"] * (len(head) + 2)]
    for case in by_model(times):
        rows = times[case]
        ours = fastest(rows)
        if ours is None:
            continue
        shipped, best = rows.get(BIO_REFERENCE), best_peer(rows, MODEL_PEERS)
        peer = f"{ms_cell(best)} ({best.impl}, error {error_cell(best)})" if best else "–"
        own = f"**{ms_cell(ours)}** ({ours.impl.removeprefix(ACCELERATED)})"
        memory = memory_cell(ours) + (f" (shipped {memory_cell(shipped)})" if shipped else "")
        ratios = [ratio_cell(shipped, ours), ratio_cell(best, ours)]
        lines.append([case, ms_cell(shipped), peer, own, *ratios, memory, error_cell(ours)])
    return times_in_ms(lines, times)


def predictions_table(folder: Path) -> str:
    """Tabulate predictions of structures, whole ones and those of trunks; empty without data."""
    times = predictions(passed(read_rows(folder / "models.csv")))
    head = ["case", "with the package's kernels", "mlff_triton", "speed-up", "of a new size"]
    head += ["memory, GB (package)", "error (package)"]
    lines = [head, ["---"] * len(head)]
    for case in by_model(times):
        ours, theirs = times[case][AUTOCAST], times[case].get(KERNELS)
        memory, error = memory_cell(ours), error_cell(ours)
        if theirs:
            memory += f" ({memory_cell(theirs)})"
            error += f" ({error_cell(theirs)})" if theirs.error is not None else ""
        times_of_case = [ms_cell(theirs), f"**{ms_cell(ours)}**", ratio_cell(theirs, ours)]
        lines.append([case, *times_of_case, ms_cell(times[case].get(NEW_SIZE)), memory, error])
    return times_in_ms(lines, times)


def pairs_table(folder: Path) -> str:
    """Tabulate operators on pairs in both precisions, and errors; empty without data."""
    times = passed(read_rows(folder / "pairs.csv"))
    lines = [["case"], ["---"] * 9]
    for precision in ("bf16", "fp32"):
        lines[0] += [f"mlff_triton, {precision}", "best peer", "over the best", "error (peer)"]
    for case in by_model(times):
        cells = [case]
        for precision in ("bf16", "fp32"):
            ours = times[case].get(f"triton-{precision}")
            best = best_peer(times[case], [f"{peer}-{precision}" for peer in PAIR_PEERS])
            peer = f"{ms_cell(best)} ({best.impl.removesuffix(f'-{precision}')})" if best else "–"
            ratio, error = "–", "–"
            if ours:
                ratio = ratio_cell(best, ours)
                error = error_cell(ours) + (f" ({error_cell(best)})" if best else "")
            cells += [f"**{ms_cell(ours)}**" if ours else "–", peer, ratio, error]
        lines.append(cells)
    return times_in_ms(lines, times)


def convolution_table(folder: Path) -> str:
    """Tabulate convolutions, forward in CUDA graphs and with gradients; empty without data."""
    times = passed(read_rows(folder / "convolution.csv"))
    lines = [["case", "edges"], ["---"] * 10]
    for mode in ("in a CUDA graph", "with gradients"):
        lines[0] += [f"mlff_triton, {mode}", "best peer", "over the best", "error (peer)"]
    for case in by_model(times):
        first = next(iter(times[case].values()))
        cells = [case, f"{first.edges:,}"]
        for suffix in ("-graph", "-backward"):
            cells += _convolution_cells(times[case], suffix)
        lines.append(cells)
    return times_in_ms(lines, times)


def _convolution_cells(rows: dict[str, Row], suffix: str) -> list[str]:
    """Return our time, that of the best peer, their ratio and both errors."""
    ours = rows.get(f"triton{suffix}")
    best = best_peer(rows, [f"{peer}{suffix}" for peer in CONVOLUTION_PEERS])
    peer = f"{ms_cell(best)} ({best.impl.removesuffix(suffix)})" if best else "–"
    if ours is None:
        return ["–", peer, "–", "–"]
    error = error_cell(ours) + (f" ({error_cell(best)})" if best else "")
    return [f"**{ms_cell(ours)}**", peer, ratio_cell(best, ours), error]


def alignment_table(folder: Path) -> str:
    """Tabulate speeds of aligners and the speed-up over the best peer; empty without data.

    Both start from the same input: sequences on the GPU, or strings on the host.
    """
    times = passed(read_rows(folder / "alignment.csv"))
    head = ["case", "pairs", "parasail or edlib, one core", "parasail, all cores"]
    head += ["stringzillas-cuda", "mlff_triton", "from strings", "over the best", "memory, GB"]
    lines = [head, ["---"] * len(head)]
    for case in by_model(times):
        rows = times[case]
        if "kernel" not in rows or case.startswith(BATCHES):
            continue
        ours, host = rows["kernel"], rows.get("parasail", rows.get("edlib"))
        on_host = [row for row in (host, rows.get("parasail-threads")) if row]
        on_gpu, from_strings = rows.get("stringzillas"), rows.get("align")
        best = on_gpu or max(on_host, key=lambda row: row.gcups, default=None)
        compared = ours if on_gpu else from_strings
        line = [case, f"{ours.pairs:,}", gcups_cell(host), gcups_cell(rows.get("parasail-threads"))]
        line += [gcups_cell(on_gpu), f"**{gcups_cell(ours)}**", gcups_cell(from_strings)]
        line.append(f"{compared.gcups / best.gcups:.1f}x" if best and compared else "–")
        lines.append([*line, memory_cell(ours)])
    if len(lines) == 2:
        return ""
    return markdown(lines) + f"\n\nSpeeds in 1e9 cells per second. {provenance(times)}"


def cells_table(folder: Path) -> str:
    """Tabulate times of batches of alignments, ours and in PyTorch; empty without data."""
    times = passed(read_rows(folder / "alignment.csv"))
    head = ["pairs", "bases", "PyTorch, cell by cell", "row by row", "mlff_triton"]
    head += ["from strings", "over cells", "over rows"]
    lines = [head, ["---"] * len(head)]
    found = [rows for case, rows in times.items() if case.startswith(BATCHES) and "kernel" in rows]
    for rows in sorted(found, key=lambda rows: (rows["kernel"].rows, rows["kernel"].pairs)):
        ours, cells, by_row = rows["kernel"], rows.get(CELLS), rows.get(ROWS)
        line = [
            f"{ours.pairs:,}",
            str(ours.rows),
            ms_cell(cells),
            ms_cell(by_row),
            f"**{ms_cell(ours)}**",
        ]
        ratios = [f"{speed_up(row, ours):,.0f}x" if row else "–" for row in (cells, by_row)]
        lines.append([*line, ms_cell(rows.get("align")), *ratios])
    return times_in_ms(lines, times)


def _bandwidth(n_bytes: int, rows: dict[str, Row], name: str) -> float:
    return n_bytes / (p50(rows[name]) * 1e-3) if name in rows else math.nan
