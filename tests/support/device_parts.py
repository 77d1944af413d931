"""Steps of parts on a GPU that exchange tensors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ase import Atoms

from mlff_triton.engine.device_part import DevicePart
from mlff_triton.engine.device_steps import DeviceSteps
from mlff_triton.engine.part import Exchange, PartAtoms, PartPrediction
from mlff_triton.neighbors.box import Box
from tests.support.exchanges import Board, BoardExchange, atoms_near
from tests.support.parts import Part

NAMES = ("forces", "virial", "atom_energies", "atom_virials", "uncertainty")


def set_atoms(device_part: DevicePart, atoms: Atoms, part: Part, exchange: Exchange | None) -> None:
    numbers = atoms.numbers[part.index]
    device_part.set_atoms(PartAtoms.of(numbers, part.n_own, len(atoms), exchange))


def step(device_part: DevicePart, atoms: Atoms, part: Part) -> PartPrediction:
    """Return copies of what a step predicts."""
    box = Box.of(atoms.cell.array, atoms.pbc)
    found = device_part.step(part.positions(atoms), per_atom=True, box=box)
    copies = {name: getattr(found, name).copy() for name in NAMES}
    return PartPrediction(found.energy, **copies)


def compute_together(
    steps: Sequence[DeviceSteps],
    atoms: Atoms,
    parts: Sequence[Part],
    unused: int = 0,
    charge: float = 0.0,
    near: float | None = None,
) -> list[PartPrediction]:
    """Compute all parts, each in a thread; networks may need tensors up to a distance in Å only."""
    board = Board(len(parts))
    within = None if near is None else [atoms_near(atoms, part, near) for part in parts]

    def compute(k: int) -> PartPrediction:
        with board.turn():
            device_part = steps[k].part(charge)
            set_atoms(device_part, atoms, parts[k], BoardExchange(board, k, parts, unused, within))
            return step(device_part, atoms, parts[k])

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(compute, range(len(parts))))
