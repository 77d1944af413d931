"""One system for programs that have its positions on the engine's device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from mlff_triton.engine.steps import ResidentStep
from mlff_triton.errors import InputError


@dataclass(frozen=True)
class ResidentSystem:
    """A system whose positions and forces stay on the engine's device; see `Engine.resident`.

    Attributes
    ----------
    n_atoms : int
        Number of atoms N.
    members : list of ResidentStep
        Step of each model.
    call : callable
        Returns the context of a call of the engine.

    Examples
    --------
    >>> system = Engine("default", device="cpu").resident([8, 1, 1])
    >>> positions = torch.tensor([[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
    >>> energy, forces = system.step(positions)
    >>> forces.shape
    torch.Size([3, 3])
    """

    n_atoms: int
    members: list[ResidentStep]
    call: Callable[[], AbstractContextManager[None]]

    def step(self, positions: Tensor, cell: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute energy and forces for the current positions, in the system's units.

        Any thread may call.

        Parameters
        ----------
        positions : [N, 3]
            Positions of any floating-point dtype; they are copied if they are not on the engine's
            device.
        cell : [3, 3], optional
            Lattice vectors (rows), treated in the same way; by default, those of the last step.

        Returns
        -------
        energy : float64 []
            On the CPU; the step waits for it.
        forces : [N, 3]
            On the engine's device, of the positions' dtype; a new tensor.

        Raises
        ------
        InputError
            If a shape is wrong, a value is not finite, or the cell is singular or too small.
        OverlappingAtomsError
            If two atoms coincide.
        BackendError
            If the GPU has too little memory. The message says how much is needed.
        """
        if positions.shape != (self.n_atoms, 3):
            raise InputError(
                f"{self.n_atoms} atoms need positions [{self.n_atoms}, 3], not "
                f"{list(positions.shape)}"
            )
        if cell is not None and cell.shape != (3, 3):
            raise InputError(f"the cell must have shape [3, 3], not {list(cell.shape)}")
        with self.call():
            results = [member(positions, cell) for member in self.members]
            if len(results) == 1:
                return results[0]
            energies, forces = zip(*results, strict=True)
            return torch.stack(energies).mean(0), torch.stack(forces).mean(0)
