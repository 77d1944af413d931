"""Dock the ligands of an SDF file to a receptor by DiffDock, and rank them.

Usage: ``python 17_docking.py receptor.pdb ligands.sdf --code DiffDock --model MODEL``, with a
checkout of https://github.com/gcorso/DiffDock, the folder of weights that its first run downloads,
such as ``DiffDock/workdir/v1.1``, and ``pip install 'mlff-triton[dock]'``.

Writes ``poses.sdf``, with all poses, and ``ranking.csv``, with the best pose of each ligand, the
most confident one first, into ``--out``. The same command continues if it was interrupted. A ligand
that cannot be docked stands at the end of the ranking with the reason.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from rdkit import Chem

from mlff_triton import bio
from mlff_triton.errors import MlffTritonError

COLUMNS = ("ligand", "confidence", "x", "y", "z", "error")


def ranking(poses: Path) -> list[dict[str, object]]:
    """Return a row for the best pose of each ligand: its confidence and its center in Å."""
    rows: list[dict[str, object]] = []
    for mol in Chem.SDMolSupplier(str(poses)):
        name = mol.GetProp("_Name")
        if mol.HasProp("error"):
            rows.append({"ligand": name, "error": mol.GetProp("error")})
        elif mol.GetIntProp("rank") == 1:
            center = mol.GetConformer().GetPositions().mean(0).round(2)
            row = dict(zip("xyz", center.tolist(), strict=True), ligand=name)
            if mol.HasProp("confidence"):  # given a confidence model
                row["confidence"] = mol.GetDoubleProp("confidence")
            rows.append(row)
    return sorted(rows, key=lambda row: ("error" in row, -float(str(row.get("confidence", 0)))))


def main() -> None:
    """Dock, or continue, and rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("receptor", type=Path, help="PDB file")
    parser.add_argument("ligands", type=Path, help="SDF file; its positions are not used")
    parser.add_argument("--code", type=Path, help="checkout of DiffDock; else that in DIFFDOCK")
    parser.add_argument("--model", type=Path, required=True, help="folder of weights")
    parser.add_argument("--samples", type=int, default=10, help="poses of each ligand")
    parser.add_argument("--steps", type=int, help="steps of the diffusion; DiffDock's by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    poses = args.out / "poses.sdf"
    try:
        progress = bio.dock_files(
            args.receptor,
            args.ligands,
            poses,
            model=args.model,
            code=args.code,
            samples=args.samples,
            steps=args.steps,
            device=args.device,
        )
    except MlffTritonError as error:
        raise SystemExit(str(error)) from None
    rows = ranking(poses)
    with (args.out / "ranking.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
    print(f"{progress.items} ligands, {progress.errors} errors; the best is {rows[0]['ligand']}")


if __name__ == "__main__":  # processes of further GPUs import this script
    main()
