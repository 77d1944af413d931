"""Texts of SDF, MOL2 and PDB files, written by hand after the definitions of these formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from ase import Atoms

CODES = {0: 0, 3: 1, 2: 2, 1: 3, -1: 5, -2: 6, -3: 7}  # of formal charges in atom lines


def v2000(
    atoms: Atoms,
    title: str = "",
    fields: Mapping[str, str] | None = None,
    charges: Mapping[int, int] | None = None,
    codes: Mapping[int, int] | None = None,
) -> str:
    """Write a record of an SDF file, with formal charges as M  CHG or as codes of atoms."""
    lines = [
        title,
        "  program           3D",
        "",
        f"{len(atoms):3}  0  0  0  0  0  0  0  0  0999 V2000",
    ]
    for k, atom in enumerate(atoms):
        x, y, z = atom.position
        code = CODES[(codes or {}).get(k, 0)]
        lines.append(f"{x:10.4f}{y:10.4f}{z:10.4f} {atom.symbol:3} 0{code:3}  0  0  0  0")
    if charges:
        pairs = "".join(f"{k + 1:4}{value:4}" for k, value in charges.items())
        lines.append(f"M  CHG{len(charges):3}{pairs}")
    return "\n".join([*lines, "M  END", *_fields(fields), "$$$$\n"])


def v3000(
    atoms: Atoms,
    title: str = "",
    fields: Mapping[str, str] | None = None,
    charges: Mapping[int, int] | None = None,
) -> str:
    """Write a record of an SDF file, in whose V3000 block one line is continued."""
    lines = [title, "  program           3D", "", "  0  0  0     0  0            999 V3000"]
    lines += ["M  V30 BEGIN CTAB", f"M  V30 COUNTS {len(atoms)} 0 0 0 0", "M  V30 BEGIN ATOM"]
    for k, atom in enumerate(atoms):
        x, y, z = atom.position
        charge = f" CHG={charges[k]}" if charges and k in charges else ""
        lines.append(f"M  V30 {k + 1} {atom.symbol} {x:.6f} {y:.6f} -")
        lines.append(f"M  V30 {z:.6f} 0{charge}")
    lines += ["M  V30 END ATOM", "M  V30 END CTAB", "M  END", *_fields(fields), "$$$$\n"]
    return "\n".join(lines)


def _fields(fields: Mapping[str, str] | None) -> list[str]:
    return [line for key, value in (fields or {}).items() for line in (f">  <{key}>", value, "")]


def mol2(
    atoms: Atoms,
    title: str = "*****",
    charges: Sequence[float] | None = None,
    types: Sequence[str] | None = None,
    formal: Mapping[int, int] | None = None,
) -> str:
    """Write a molecule of a MOL2 file."""
    kind = "NO_CHARGES" if charges is None else "USER_CHARGES"
    lines = ["@<TRIPOS>MOLECULE", title, f" {len(atoms)} 0 0 0 0", "SMALL", kind, ""]
    lines.append("@<TRIPOS>ATOM")
    for k, atom in enumerate(atoms):
        x, y, z = atom.position
        name = types[k] if types else atom.symbol
        charge = 0.0 if charges is None else charges[k]
        lines.append(f"{k + 1:7} A{k} {x:10.4f}{y:10.4f}{z:10.4f} {name} 1 LIG {charge:9.4f}")
    if formal:
        lines.append("@<TRIPOS>UNITY_ATOM_ATTR")
        lines += [line for k, q in formal.items() for line in (f"{k + 1} 1", f"charge {q}")]
    return "\n".join([*lines, "@<TRIPOS>BOND", ""])


def pdb(images: Sequence[Atoms], charges: Mapping[int, str] | None = None, head: str = "") -> str:
    """Write a PDB file, with a model for each structure if there are several."""
    lines = [head] if head else []
    for number, atoms in enumerate(images, 1):
        if len(images) > 1:
            lines.append(f"MODEL     {number:4}")
        for k, atom in enumerate(atoms):
            x, y, z = atom.position
            lines.append(
                f"HETATM{k + 1:5}  {atom.symbol:3} LIG A   1    {x:8.3f}{y:8.3f}{z:8.3f}"
                f"  1.00  0.00          {atom.symbol:>2}{(charges or {}).get(k, '  ')}"
            )
        if len(images) > 1:
            lines.append("ENDMDL")
    return "\n".join([*lines, "END\n"])


def same(read: Atoms, expected: Atoms, digits: float = 1e-3) -> bool:
    """Return True if elements and positions agree."""
    return bool(
        np.array_equal(read.numbers, expected.numbers)
        and np.allclose(read.positions, expected.positions, atol=digits)
    )
