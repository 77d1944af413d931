"""Molecules of MD17 and MD22, and a drug, built with RDKit and ASE.

``python -m benchmarks.systems.geometries`` writes ``geometries.xyz``. It is committed, so that
benchmarks do not need RDKit. The time of a step depends on composition and density alone, so
complexes are placed in contact without optimizing how they bind.

MD17 grew from eight molecules to ten. Here are the first eight and azobenzene, the largest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import molecule, nanotube
from ase.io import read, write

FILE = Path(__file__).with_name("geometries.xyz")
MIN_DISTANCE = 0.9  # Å; bonds to hydrogen are longer

MD17 = {  # name: SMILES, atoms
    "benzene": ("c1ccccc1", 12),
    "uracil": ("O=c1cc[nH]c(=O)[nH]1", 12),
    "naphthalene": ("c1ccc2ccccc2c1", 18),
    "aspirin": ("CC(=O)Oc1ccccc1C(=O)O", 21),
    "salicylic-acid": ("OC(=O)c1ccccc1O", 16),
    "malonaldehyde": ("O=CC=CO", 9),
    "ethanol": ("CCO", 9),
    "toluene": ("Cc1ccccc1", 15),
    "azobenzene": ("c1ccccc1N=Nc1ccccc1", 24),
}
MD22 = {  # name: atoms
    "Ac-Ala3-NHMe": 42,
    "DHA": 56,
    "stachyose": 87,
    "AT-AT": 60,
    "AT-AT-CG-CG": 118,
    "buckyball-catcher": 148,
    "double-walled-nanotube": 370,
}

PEPTIDE = "CC(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)NC"
DHA = r"CC/C=C\C/C=C\C/C=C\C/C=C\C/C=C\C/C=C\CCC(=O)O"
STACHYOSE = (
    "OC[C@H]1O[C@H](OC[C@H]2O[C@H](OC[C@H]3O[C@H](O[C@]4(CO)O[C@H](CO)[C@@H](O)[C@@H]4O)"
    "[C@H](O)[C@@H](O)[C@@H]3O)[C@H](O)[C@@H](O)[C@H]2O)[C@H](O)[C@@H](O)[C@H]1O"
)
RITONAVIR = (
    "CC(C)c1nc(CN(C)C(=O)N[C@@H](C(C)C)C(=O)N[C@@H](Cc2ccccc2)C[C@H](O)"
    "[C@H](Cc2ccccc2)NC(=O)OCc2cncs2)cs1"
)
DRUGS = {"ritonavir": (RITONAVIR, 98)}  # name: SMILES, atoms

BASES = {
    "A": "Nc1ncnc2[nH]cnc12",
    "T": "Cc1c[nH]c(=O)[nH]c1=O",
    "C": "Nc1cc[nH]c(=O)n1",
    "G": "Nc1nc2[nH]cnc2c(=O)[nH]1",
}
# Two corannulenes, each fused through a benzene ring to the eight-membered ring: C60H28.
CATCHER = (
    "c1ccc2c(c1)-c1cc3c(cc1-c1ccccc1-c1cc4c(cc1-2)c1ccc2ccc5ccc6ccc4c4c6c5c2c14)"
    "c1ccc2ccc4ccc5ccc3c3c5c4c2c13"
)


def build() -> list[Atoms]:
    """Build all molecules, with names in ``info``."""
    molecules = {name: from_smiles(smiles) for name, (smiles, _) in MD17.items()}
    molecules |= {
        "Ac-Ala3-NHMe": from_smiles(PEPTIDE),
        "DHA": from_smiles(DHA),
        "stachyose": from_smiles(STACHYOSE),
        "AT-AT": stack(["AT", "AT"]),
        "AT-AT-CG-CG": stack(["AT", "AT", "CG", "CG"]),
        "buckyball-catcher": caught_buckyball(),
        "double-walled-nanotube": double_walled_nanotube(),
    }
    molecules |= {name: from_smiles(smiles) for name, (smiles, _) in DRUGS.items()}
    for name, atoms in molecules.items():
        atoms.info["name"] = name
    return list(molecules.values())


def load() -> dict[str, Atoms]:
    """Read the committed molecules, by name."""
    images = read(FILE, index=":", format="extxyz")
    return {atoms.info["name"]: atoms for atoms in images}


def from_smiles(smiles: str) -> Atoms:
    """Build one conformer with hydrogens, relaxed with MMFF."""
    from rdkit import Chem
    from rdkit.Chem import AllChem

    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    if AllChem.EmbedMolecule(mol, randomSeed=0) != 0:
        AllChem.EmbedMolecule(mol, randomSeed=0, useRandomCoords=True)
    AllChem.MMFFOptimizeMolecule(mol, maxIters=2000)
    numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    atoms = Atoms(numbers, mol.GetConformer().GetPositions())
    atoms.positions -= atoms.positions.mean(0)
    return atoms


def stack(pairs: list[str]) -> Atoms:
    """Stack base pairs, each 3.4 Å above the last and rotated by 36°, as in DNA."""
    result = Atoms()
    for level, (left, right) in enumerate(pairs):
        a, b = flat(from_smiles(BASES[left])), flat(from_smiles(BASES[right]))
        b.positions[:, 0] += smallest_shift(a, b, gap=1.9)  # Å, a hydrogen bond
        pair = a + b
        pair.positions -= pair.positions.mean(0)
        pair.rotate(36.0 * level, "z")
        pair.positions[:, 2] += 3.4 * level
        result += pair
    return result


def flat(atoms: Atoms) -> Atoms:
    """Rotate a planar molecule into the xy plane."""
    axes = np.linalg.svd(atoms.positions, full_matrices=False)[2]
    atoms.positions = atoms.positions @ axes.T
    return atoms


def smallest_shift(a: Atoms, b: Atoms, gap: float) -> float:
    """Return the smallest shift of ``b`` along x, in Å, that leaves ``gap`` Å to ``a``."""
    return next(float(x) for x in np.arange(0, 50, 0.05) if nearest(a, b, x) >= gap)


def nearest(a: Atoms, b: Atoms, x: float = 0.0) -> float:
    """Return the smallest distance in Å between two molecules, the second shifted along x."""
    delta = a.positions[:, None] - b.positions - [x, 0.0, 0.0]
    return float(np.linalg.norm(delta, axis=-1).min())


def caught_buckyball() -> Atoms:
    """Build C60 in the hollow of its catcher, C60H28, as deep as possible without overlap."""
    ball, catcher = molecule("C60"), from_smiles(CATCHER)
    ball.positions -= ball.positions.mean(0)
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(200, 3))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    offsets = directions[:, None] * np.arange(0.0, 15.0, 0.25)[:, None]
    for offset in sorted(offsets.reshape(-1, 3), key=np.linalg.norm):
        moved = ball.copy()
        moved.positions += offset
        if nearest(catcher, moved) >= 3.0:
            return catcher + moved
    raise RuntimeError("no position of the ball is free of overlaps")


def double_walled_nanotube() -> Atoms:
    """Build C326H44: a (3, 3) tube in an (8, 8) tube, hydrogen at all ends."""
    return capped_tube(3, rows=17) + capped_tube(8, rows=14)


def capped_tube(n: int, rows: int) -> Atoms:
    """Build a centered armchair tube along z of ``rows`` rings of 2n carbons, with 4n hydrogens."""
    tube = nanotube(n, n, length=(rows + 1) // 2)
    heights = (tube.positions[:, 2] + 0.1) % tube.cell[2, 2]  # undo rounding to the next period
    tube.positions[:, 2] = heights
    order = np.argsort(heights.round(3), kind="stable")
    carbon = Atoms("C" * (2 * n * rows), tube.positions[order[: 2 * n * rows]])
    carbon.positions[:, 2] -= carbon.positions[:, 2].mean()
    carbon.positions[:, :2] -= carbon.positions[:, :2].mean(0)
    delta = carbon.positions[:, None] - carbon.positions
    bonded = (np.linalg.norm(delta, axis=-1) < 1.7) & ~np.eye(len(carbon), dtype=bool)
    ends = np.flatnonzero(bonded.sum(1) == 2)
    outward = (delta[ends] * bonded[ends][:, :, None]).sum(1)
    outward /= np.linalg.norm(outward, axis=1)[:, None]
    return carbon + Atoms("H" * len(ends), carbon.positions[ends] + 1.09 * outward)


if __name__ == "__main__":
    write(FILE, build(), format="extxyz", columns=["symbols", "positions"])
