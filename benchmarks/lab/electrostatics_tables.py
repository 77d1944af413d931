"""Tables of electrostatics and of mixed systems, made from their CSV files alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.cells import error_cell, memory_cell, ms_cell, ratio_cell, times_in_ms
from benchmarks.lab.schema import read_rows
from benchmarks.lab.selection import best_peer, passed

OURS, GRAPH = "triton", "-graph"
PEER = "nvalchemi"
MECHANICAL = ("mechanical", "mechanical-python")
ML_CHARGES = "ml-charges"
OPENMM_ML = "openmm-ml"


def electrostatics_table(folder: Path) -> str:
    """Tabulate particle-mesh Ewald with gradients; empty without data.

    Each time is the shorter of those in a CUDA graph and without one.
    """
    times = passed(read_rows(folder / "electrostatics.csv"))
    times = {case: rows for case, rows in times.items() if case.startswith("pme_energy")}
    head = ["case", "PyTorch", PEER, "mlff_triton", f"over {PEER}", "memory, GB", f"error ({PEER})"]
    lines = [head, ["---"] * len(head)]
    for case, rows in times.items():
        torch, peer, ours = (
            best_peer(rows, (name, name + GRAPH)) for name in ("torch", PEER, OURS)
        )
        if ours is None:
            continue
        error = error_cell(ours) + (f" ({error_cell(peer)})" if peer else "")
        cells = [case, ms_cell(torch), ms_cell(peer), f"**{ms_cell(ours)}**"]
        lines.append([*cells, ratio_cell(peer, ours), memory_cell(ours), error])
    return times_in_ms(lines, times)


def mixed_table(folder: Path) -> str:
    """Tabulate steps of mixed systems by embedding; empty without data.

    The ratio is that to the faster route of mechanical embedding, over which that of openmm-ml is
    last.
    """
    times = passed(read_rows(folder / "mixed.csv"))
    head = ["atoms", "mechanical", "mechanical, route python", ML_CHARGES, "ratio", "memory, GB"]
    head += ["error", OPENMM_ML, f"{OPENMM_ML} over mechanical"]
    lines = [head, ["---"] * len(head)]
    for rows in times.values():
        ours, fixed = rows.get(ML_CHARGES), best_peer(rows, MECHANICAL)
        if ours is None or fixed is None:
            continue
        cells = [f"{ours.atoms:,}", *(ms_cell(rows.get(name)) for name in MECHANICAL)]
        cells += [ms_cell(ours), ratio_cell(ours, fixed), memory_cell(ours), error_cell(ours)]
        peer = rows.get(OPENMM_ML)
        cells += [ms_cell(peer), ratio_cell(peer, fixed)]
        lines.append(cells)
    return times_in_ms(lines, times)
