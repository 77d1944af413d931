"""Build the start geometries of the training set and write them to one extended-XYZ file.

Usage: ``python structures.py --out structures.xyz``

Needs RDKit: ``pip install mlff-triton[train]``. The file beside this script was written this
way, and `make_data.py` needs nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ase.data import chemical_symbols
from ase.io import read
from clusters import complexes, hydrated, waters
from geometry import Structure, centered
from molecules import CHAINS, FRAGMENTS, HELD_OUT, MD17, RESIDUES

if TYPE_CHECKING:
    from rdkit import Chem


def build(seed: int) -> list[Structure]:
    """Build every structure of the training set."""
    rng = np.random.default_rng(seed)
    families = (
        (MD17, "md17", 3),
        (RESIDUES, "peptide", 4),
        (CHAINS, "chain", 6),
        (FRAGMENTS, "fragment", 2),
    )
    single = [
        structure
        for table, group, conformers in families
        for name, smiles in table.items()
        for structure in embed(name, smiles, group, conformers, seed)
    ]

    def find(name: str, conformer: int) -> Structure:
        found = [s for s in single if s.name == name]
        return found[conformer % len(found)]

    return [*single, *waters(rng), *hydrated(rng, find), *complexes(rng, find)]


def embed(name: str, smiles: str, group: str, conformers: int, seed: int) -> list[Structure]:
    """Make geometries of one molecule: ETKDG for the conformers, MMFF to relax them.

    Parameters
    ----------
    name, smiles, group : str
        Name, SMILES and family of the molecule.
    conformers : int
        Number of conformers to try; near-duplicates are dropped.
    seed : int
        Seed of the embedding.
    """
    # Imported here because reading the file does not need RDKit.
    from rdkit import Chem
    from rdkit.Chem import AllChem

    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    options = AllChem.ETKDGv3()
    options.randomSeed = seed
    options.pruneRmsThresh = 0.3
    ids = list(AllChem.EmbedMultipleConfs(mol, conformers, options))
    if not ids:
        raise RuntimeError(f"no geometry for {name} ({smiles})")
    if AllChem.MMFFHasAllMoleculeParams(mol):
        AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=2000)
    bonds = tuple((b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds())
    torsions = rotations(mol)
    return [
        Structure(
            name=name,
            conformer=i,
            group=group,
            split="test_molecule" if name in HELD_OUT else "train",
            numbers=np.array([a.GetAtomicNum() for a in mol.GetAtoms()]),
            positions=centered(mol.GetConformer(conf).GetPositions()),
            bonds=bonds,
            torsions=torsions,
        )
        for i, conf in enumerate(ids)
    ]


def rotations(mol: Chem.Mol) -> tuple[tuple[int, int, int, int], ...]:
    """Return the torsions about the rotatable bonds of a molecule with hydrogens."""
    from rdkit import Chem

    rotatable = Chem.MolFromSmarts("[!$(*#*);!D1]-&!@[!$(*#*);!D1]")
    bonds = tuple((b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds())
    return tuple(_quadruple(bonds, j, k) for j, k in mol.GetSubstructMatches(rotatable))


def _quadruple(bonds: tuple[tuple[int, int], ...], j: int, k: int) -> tuple[int, int, int, int]:
    """Return the torsion about the bond j-k, with the first other neighbor at either end."""

    def neighbor(atom: int, other: int) -> int:
        return next(a + b - atom for a, b in bonds if atom in (a, b) and other not in (a, b))

    return neighbor(j, k), j, k, neighbor(k, j)


def write_structures(path: Path, structures: list[Structure]) -> None:
    """Write extended XYZ with four decimals, to keep the file small."""
    with path.open("w") as file:
        for s in structures:
            file.write(f"{len(s.numbers)}\n{_header(s)}\n")
            for number, (x, y, z) in zip(s.numbers, s.positions, strict=True):
                file.write(f"{chemical_symbols[number]} {x:.4f} {y:.4f} {z:.4f}\n")


def read_structures(path: Path) -> list[Structure]:
    """Read a file of `write_structures`."""
    return [
        Structure(
            name=atoms.info["name"],
            conformer=int(atoms.info["conformer"]),
            group=atoms.info["group"],
            split=atoms.info["split"],
            numbers=atoms.numbers,
            positions=atoms.positions,
            bonds=_decode(atoms.info.get("bonds", "")),
            torsions=_decode(atoms.info.get("torsions", "")),
            wall=float(atoms.info["wall"]),
            charge=int(atoms.info["charge"]),
        )
        for atoms in read(path, ":", format="extxyz")
    ]


def _header(s: Structure) -> str:
    fields = [
        "Properties=species:S:1:pos:R:3",
        f"name={s.name} conformer={s.conformer} group={s.group} split={s.split}",
        f"charge={s.charge} wall={s.wall:.3f}",
    ]
    fields += [f'bonds="{_encode(s.bonds)}"'] if s.bonds else []
    fields += [f'torsions="{_encode(s.torsions)}"'] if s.torsions else []
    return " ".join([*fields, 'pbc="F F F"'])


def _encode(items: tuple[tuple[int, ...], ...]) -> str:
    return " ".join("-".join(map(str, item)) for item in items)


def _decode(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in item.split("-")) for item in text.split())


def main() -> None:
    """Build the structures and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("structures.xyz"))
    parser.add_argument("--seed", type=int, default=2024)
    args = parser.parse_args()
    structures = build(args.seed)
    write_structures(args.out, structures)
    print(f"{len(structures)} structures of {len({s.name for s in structures})} molecules")


if __name__ == "__main__":
    main()
