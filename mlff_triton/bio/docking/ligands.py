"""Ligands of an SDF file: records, molecules of RDKit with a conformer, and poses as records."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlff_triton._common.text import first_line, one_line
from mlff_triton.bio.docking.screening import Poses
from mlff_triton.errors import InputError
from mlff_triton.jobs.job import Task

END = b"$$$$"
TRIES = 3  # to embed a molecule before random coordinates are used


class Record(NamedTuple):
    """A record of an SDF file.

    Attributes
    ----------
    number : int
        Its number, from 1.
    text : str
        Its lines.
    """

    number: int
    text: str

    @property
    def name(self) -> str:
        """Title of the record, or its number."""
        return one_line(self.text.partition("\n")[0]) or f"ligand {self.number}"


def tasks_of(path: Path, count: int) -> Iterator[Task]:
    """Yield the tasks of an SDF file, whose contents are lists of some records.

    Raises
    ------
    InputError
        If the file cannot be read or has no ligands.
    """
    records: list[Record] = []
    check = position = number = 0
    for block in _blocks(path):
        number += 1
        records.append(Record(number, block.decode("utf-8", "replace")))
        check, position = zlib.crc32(block, check), position + len(block)
        if len(records) == count:
            yield Task(records, check, position, f"ligand {records[0].number}")
            records, check = [], 0
    if records:
        yield Task(records, check, position, f"ligand {records[0].number}")
    if not number:
        raise InputError(f"{path} has no ligands")


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the records of an SDF file, without the lines that end them."""
    lines: list[bytes] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                if line.startswith(END):
                    yield b"".join(lines)
                    lines = []
                else:
                    lines.append(line)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from error
    if any(line.strip() for line in lines):
        yield b"".join(lines)


def molecule_of(record: Record, seed: int) -> Any:
    """Return a molecule with hydrogen atoms and a conformer, as DiffDock reads it.

    Raises
    ------
    InputError
        If RDKit cannot read it, or DiffDock cannot dock it.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

    blocked = rdBase.BlockLogs()
    molecule = Chem.MolFromMolBlock(record.text, sanitize=False, removeHs=False)
    if molecule is None or not molecule.GetNumAtoms():
        raise InputError("RDKit cannot read it")
    try:
        Chem.SanitizeMol(molecule)
    except Exception as error:
        raise InputError(f"RDKit cannot read it: {first_line(error)}") from error
    count = len(Chem.GetMolFrags(molecule))
    if count > 1:
        raise InputError(f"it consists of {count} molecules: keep one, without its salt")
    molecule.RemoveAllConformers()
    molecule = Chem.AddHs(molecule)
    how: Any = rdDistGeom.ETKDGv2()
    how.randomSeed = seed % 2**31
    for _ in range(TRIES):
        if rdDistGeom.EmbedMolecule(molecule, how) == 0:
            break
        how.randomSeed = (how.randomSeed + 1) % 2**31
    else:
        how.useRandomCoords = True
        if rdDistGeom.EmbedMolecule(molecule, how) != 0:
            raise InputError("RDKit finds no conformer")
        rdForceFieldHelpers.MMFFOptimizeMolecule(molecule, confId=0)
    del blocked
    return molecule


def written(
    record: Record, molecule: Any, poses: Poses, center: NDArray[np.float32], *, heavy: bool
) -> bytes:
    """Return the poses of a ligand as records of an SDF file, best first.

    Raises
    ------
    InputError
        If a position is not a number, or the atoms of molecule and poses differ.
    """
    from rdkit import Chem

    if heavy:
        molecule = Chem.RemoveAllHs(molecule)
    if molecule.GetNumAtoms() != poses.positions.shape[1]:
        raise InputError("the graph has other atoms than the molecule")
    if not np.isfinite(poses.positions).all():
        raise InputError("the model gives positions that are not numbers")
    stream = io.StringIO()
    writer = Chem.SDWriter(stream)
    molecule = Chem.Mol(molecule)
    molecule.SetProp("_Name", record.name)
    molecule.SetIntProp("record", record.number)
    for rank, pos in enumerate(poses.positions, 1):
        molecule.SetIntProp("rank", rank)
        if poses.confidences is not None:
            molecule.SetProp("confidence", f"{poses.confidences[rank - 1]:.4f}")
        molecule.GetConformer().SetPositions((pos + center).astype(np.float64))
        writer.write(molecule)
    writer.close()
    return stream.getvalue().encode()


def failed(record: Record, reason: str) -> bytes:
    """Return a record without atoms that says why a ligand has no poses."""
    return (
        f"{record.name}\n\n\n  0  0  0  0  0  0  0  0  0  0999 V2000\nM  END\n"
        f">  <record>\n{record.number}\n\n>  <error>\n{one_line(reason)}\n\n$$$$\n"
    ).encode()
