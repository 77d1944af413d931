"""Enumerate the molecules that a teacher labels, and split them by scaffold.

Usage: ``python compounds.py --out compounds.csv``

RDKit combines the building blocks of `chemistry.py`. Every molecule is distinct and has a closed
shell. The list, its order and its splits are the same in every run. Needs RDKit: ``pip install
mlff-triton[train]``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from chemistry import (
    ANIONS,
    BASES,
    CARBOHYDRATES,
    CATIONS,
    CHARGED_SIDE_CHAINS,
    CORES,
    GROUPS,
    HELD_OUT,
    INORGANICS,
    IONS,
    LINKS,
    RINGS,
    SMALL,
    SOLVENTS,
    SPACERS,
    SUGARS,
    TORSIONS,
)
from molecules import CHAINS, FRAGMENTS, MD17, RESIDUES, SIDE_CHAINS
from rdkit import Chem, RDLogger
from rdkit.Chem.Scaffolds import MurckoScaffold

ELEMENTS = frozenset({1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 35, 53})
MAX_HEAVY, MAX_ATOMS = 24, 48  # named molecules may be larger
COMMON = 0.02  # scaffolds of a larger share of all molecules are trained on
HELD_SHARE = 6  # per cent of the other scaffolds for validation, and as many for the test


@dataclass(frozen=True)
class Compound:
    """A molecule of the list.

    Attributes
    ----------
    name, smiles : str
        Name, or else the canonical SMILES, and the canonical SMILES.
    family : str
        Part of the list that it comes from. Those of ``held_out`` and ``torsion`` are tested only.
    charge : int
        Total charge in elementary charges.
    scaffold : str
        SMILES of the Bemis-Murcko scaffold, empty for a molecule without rings.
    split : str
        ``train``, ``valid`` or ``test``.
    """

    name: str
    smiles: str
    family: str
    charge: int
    scaffold: str
    split: str = "train"


def compounds() -> list[Compound]:
    """Enumerate all molecules, with their splits."""
    RDLogger.DisableLog("rdApp.*")  # combinations that violate a valence are left out
    found: dict[str, Compound] = {}
    for family, table in NAMED.items():
        for name, smiles in table.items():
            compound = parsed(smiles, family, name)
            if compound is None:
                raise ValueError(f"{name} has an open shell or is invalid: {smiles}")
            found.setdefault(compound.smiles, compound)
    for family, quota, combined in families():
        # A checksum orders the combinations, so that each part of a family is a sample of it.
        fresh = (parsed(text, family) for text in sorted(set(combined), key=checksum))
        new = (each for each in fresh if each is not None and each.smiles not in found)
        for _ in range(quota):
            compound = next(new, None)
            if compound is None:
                break
            found[compound.smiles] = compound
    return with_splits(list(found.values()))


NAMED = {
    "held_out": HELD_OUT,
    "torsion": TORSIONS,
    "inorganic": INORGANICS,
    "ion": IONS,
    "solvent": SOLVENTS,
    "fragment": FRAGMENTS | MD17,
    "carbohydrate": CARBOHYDRATES,
    "peptide": RESIDUES | CHAINS,
}


def families() -> Iterator[tuple[str, int, Iterable[str]]]:
    """Yield name, largest number and SMILES of the molecules of each family that is combined."""
    yield "amino_acid", 1000, amino_acids()
    yield "dipeptide", 1000, dipeptides()
    bases = [base.replace("n8", "n8({0})", 1) for base in BASES]
    yield "nucleoside", 200, filled(bases, SUGARS, [""])
    yield "chain", 2500, filled(SPACERS, GROUPS, GROUPS)
    yield "single", 2500, filled(CORES, GROUPS, ["[H]"])
    yield "double", 4500, filled(CORES, GROUPS, GROUPS)
    linked = [ring if link == "-" else link + ring for link in LINKS for ring in RINGS]
    yield "linked", 3000, filled(CORES, SMALL, linked)
    charged = ANIONS + CATIONS
    yield "charged_ring", 1200, filled(CORES, charged, [*SMALL, "C(N)=O", "S(N)(=O)=O"])
    yield "charged_chain", 600, filled(SPACERS, charged, GROUPS)
    yield "zwitterion", 400, filled(CORES + SPACERS, ANIONS, CATIONS)


def filled(templates: list[str], first: list[str], second: list[str]) -> Iterator[str]:
    """Yield the templates with all pairs of groups at their two sites."""
    for template, a, b in itertools.product(templates, first, second):
        yield template.format(a, b)


def amino_acids() -> Iterator[str]:
    """Yield amino acids: neutral, zwitterionic, cationic, anionic, and with caps."""
    ends = [("N", "O"), ("[NH3+]", "[O-]"), ("[NH3+]", "O"), ("N", "[O-]")]
    ends += [("CC(=O)N", "NC"), ("CC(=O)N", "[O-]"), ("[NH3+]", "NC"), ("CN", "OC")]
    for (n_end, c_end), residue in itertools.product(ends, residues(charged=True)):
        yield f"{n_end}{residue}{c_end}"


def dipeptides() -> Iterator[str]:
    """Yield all dipeptides of uncharged side chains, and some charged forms."""
    for first, second in itertools.product(residues(charged=False), repeat=2):
        yield f"N{first}N{second}O"
        yield f"[NH3+]{first}N{second}[O-]"
    for first, second in itertools.product(residues(charged=True), repeat=2):
        yield f"CC(=O)N{first}N{second}NC"


def residues(charged: bool) -> list[str]:
    """Return residues from the alpha carbon to the carbonyl group."""
    side_chains = [*SIDE_CHAINS.values(), *(CHARGED_SIDE_CHAINS.values() if charged else ())]
    return ["CC(=O)", *(f"[C@@H]({side_chain})C(=O)" for side_chain in side_chains)]


def parsed(smiles: str, family: str, name: str = "") -> Compound | None:
    """Return a molecule of closed shells in canonical form, or None if it is not one.

    Molecules without a name must also be of the usual elements and size.
    """
    mol = Chem.MolFromSmiles(smiles)
    if mol is None or "." in smiles:
        return None
    full = Chem.AddHs(mol)
    numbers = [atom.GetAtomicNum() for atom in full.GetAtoms()]
    charge = Chem.GetFormalCharge(mol)
    radical = any(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms())
    if radical or (sum(numbers) - charge) % 2 or not ELEMENTS.issuperset(numbers):
        return None
    if not name and (mol.GetNumHeavyAtoms() > MAX_HEAVY or len(numbers) > MAX_ATOMS):
        return None
    canonical = Chem.MolToSmiles(mol)
    scaffold = MurckoScaffold.MurckoScaffoldSmiles(mol=mol, includeChirality=False)
    return Compound(name or canonical, canonical, family, charge, scaffold)


def with_splits(molecules: list[Compound]) -> list[Compound]:
    """Return the molecules with their splits.

    Molecules without rings and those of common scaffolds are trained on. A checksum of each other
    scaffold chooses its split, and those of held-out molecules are tested. Held-out molecules are
    tested whatever their scaffold.
    """
    counts = Counter(each.scaffold for each in molecules)
    common = {s for s, count in counts.items() if not s or count > COMMON * len(molecules)}
    tested = {each.scaffold for each in molecules if each.family in ("held_out", "torsion")}

    def split(each: Compound) -> str:
        if each.family in ("held_out", "torsion"):
            return "test"
        if each.scaffold in common:
            return "train"
        draw = checksum(each.scaffold) % 100
        if each.scaffold in tested or draw < HELD_SHARE:
            return "test"
        return "valid" if draw < 2 * HELD_SHARE else "train"

    return [replace(each, split=split(each)) for each in molecules]


def checksum(text: str) -> int:
    """Return a number that depends on the text alone, in every run and on every machine."""
    return zlib.crc32(text.encode())


def write_compounds(path: Path, molecules: list[Compound]) -> None:
    """Write the list as CSV."""
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, [field.name for field in fields(Compound)])
        rows.writeheader()
        rows.writerows(map(asdict, molecules))


def main() -> None:
    """Write the list and print the number of molecules of each family and split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("compounds.csv"))
    args = parser.parse_args()
    molecules = compounds()
    write_compounds(args.out, molecules)
    for what in ("family", "split"):
        counts = Counter(getattr(each, what) for each in molecules)
        print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"{len(molecules)} molecules of {len({each.scaffold for each in molecules})} scaffolds")


if __name__ == "__main__":
    main()
