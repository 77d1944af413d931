"""Build geometries of the molecules in `compounds.py`, and keep them in one file of arrays.

Usage: ``python conformers.py --out conformers.npz --workers 16``

RDKit embeds the molecules by ETKDG and relaxes them with MMFF94, or with UFF where it has no
parameters. Needs RDKit: ``pip install mlff-triton[train]``. Whoever reads the file does not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from geometry import Structure, centered
from numpy.typing import NDArray

if TYPE_CHECKING:
    from compounds import Compound

CONFORMERS = 2  # per molecule, and one for those without a rotatable bond
PRUNE = 0.3  # Å, between conformers
ITERATIONS = 500
STRETCH = 1.35  # of the sum of covalent radii, beyond which the force field has broken a bond


def built(compound: Compound) -> list[Structure]:
    """Build conformers of one molecule; none if RDKit finds no geometry."""
    from rdkit import Chem, RDLogger
    from rdkit.Chem import AllChem
    from structures import rotations

    RDLogger.DisableLog("rdApp.*")
    mol = Chem.AddHs(Chem.MolFromSmiles(compound.smiles))
    options = AllChem.ETKDGv3()
    options.randomSeed = 7
    options.pruneRmsThresh = PRUNE
    options.maxIterations = 20
    torsions = rotations(mol)
    ids = AllChem.EmbedMultipleConfs(mol, CONFORMERS if torsions else 1, options)
    if AllChem.MMFFHasAllMoleculeParams(mol):
        AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=ITERATIONS)
    elif AllChem.UFFHasAllMoleculeParams(mol):
        AllChem.UFFOptimizeMoleculeConfs(mol, maxIters=ITERATIONS)
    made = [
        Structure(
            name=compound.name,
            conformer=k,
            group=compound.family,
            split=compound.split,
            numbers=np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()]),
            positions=centered(mol.GetConformer(conformer).GetPositions()),
            bonds=tuple((b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()),
            torsions=torsions,
            charge=compound.charge,
        )
        for k, conformer in enumerate(ids)
    ]
    return [structure for structure in made if is_bonded(structure)]


def is_bonded(structure: Structure) -> bool:
    """Return True if all positions are finite and no bond is much longer than its usual length."""
    from ase.data import covalent_radii

    if not np.isfinite(structure.positions).all():
        return False
    i, j = np.array(structure.bonds, dtype=int).reshape(-1, 2).T
    lengths = np.linalg.norm(structure.positions[i] - structure.positions[j], axis=1)
    usual = covalent_radii[structure.numbers[i]] + covalent_radii[structure.numbers[j]]
    return bool((lengths < STRETCH * usual).all())


def save_structures(path: Path, structures: Sequence[Structure]) -> None:
    """Write structures as flat arrays, with the numbers of atoms, bonds and torsions of each."""
    rows: dict[str, NDArray[Any]] = {
        name: np.array([getattr(each, name) for each in structures])
        for name in ("name", "conformer", "group", "split", "charge")
    }
    for name, width in WIDTHS.items():
        parts = [np.array(getattr(each, name)).reshape(-1, width) for each in structures]
        rows[name] = np.concatenate(parts).astype(np.float32 if name == "positions" else np.int16)
        rows[f"n_{name}"] = np.array([len(part) for part in parts])
    np.savez_compressed(path, **rows)


def load_structures(path: Path) -> list[Structure]:
    """Read a file of `save_structures`."""
    with np.load(path) as file:
        rows = dict(file)
    ends = {name: rows[f"n_{name}"].cumsum()[:-1] for name in WIDTHS}
    parts = {name: np.split(rows[name], end) for name, end in ends.items()}
    return [
        Structure(
            name=str(rows["name"][k]),
            conformer=int(rows["conformer"][k]),
            group=str(rows["group"][k]),
            split=str(rows["split"][k]),
            numbers=parts["numbers"][k][:, 0].astype(np.int64),
            positions=parts["positions"][k].astype(np.float64),
            bonds=tuple(map(tuple, parts["bonds"][k].tolist())),
            torsions=tuple(map(tuple, parts["torsions"][k].tolist())),
            charge=int(rows["charge"][k]),
        )
        for k in range(len(rows["name"]))
    ]


WIDTHS = {"numbers": 1, "positions": 3, "bonds": 2, "torsions": 4}


def build_all(molecules: Sequence[Compound], workers: int) -> Iterable[list[Structure]]:
    """Yield the conformers of each molecule in order, built by several processes."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(built, molecules, chunksize=16)


def main() -> None:
    """Build all conformers and write them to a file."""
    from compounds import compounds

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("conformers.npz"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, help="number of molecules, for a trial run")
    args = parser.parse_args()
    molecules = compounds()
    if args.limit is not None:
        molecules = molecules[:: -(-len(molecules) // args.limit)]
    made = list(build_all(molecules, args.workers))
    structures = [structure for each in made for structure in each]
    save_structures(args.out, structures)
    missing = sum(not each for each in made)
    print(f"{len(structures)} conformers; {missing} of {len(made)} molecules have no geometry")


if __name__ == "__main__":
    main()
