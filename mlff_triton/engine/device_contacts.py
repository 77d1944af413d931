"""Record of atoms that come too close in a simulation on a GPU, checked with the neighbors."""

from __future__ import annotations

import numpy as np
import torch

from mlff_triton.engine.batch import to_tensor
from mlff_triton.engine.device_state import DeviceState
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.errors import OverlappingAtomsError
from mlff_triton.kernels.neighbors.contacts import note_contacts
from mlff_triton.kernels.types.motion import Motion
from mlff_triton.neighbors.box import FloatArray
from mlff_triton.neighbors.contacts import Contact


class DeviceContacts:
    """Record of atoms that are too close; the host reads it when it waits for the GPU anyway.

    Parameters
    ----------
    state : DeviceState
        The systems, with their batch.
    motion : Motion
        Their motion.
    limits : float64 [N] or None
        Length of each atom in Å: two atoms are too close below the sum of their lengths. None if
        they may be as close as the model allows.

    Attributes
    ----------
    step : int64 []
        First step in which atoms have come too close, or 0.
    first : int or None
        An atom that has come too close, once `raise_contact` knows.
    """

    def __init__(self, state: DeviceState, motion: Motion, limits: FloatArray | None) -> None:
        device = state.model.device
        self._state, self._motion = state, motion
        self._has_limits = limits is not None
        lengths = np.zeros(len(state.batch.numbers)) if limits is None else limits
        self._limits = to_tensor(lengths, device)
        self._partner = torch.zeros(len(self._limits), dtype=torch.int32, device=device)
        self._distance = torch.zeros(len(self._limits), dtype=torch.float64, device=device)
        self._graph: StepGraph[None] = StepGraph(state.model.pool)
        self._is_watching = False
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.first: int | None = None

    def reset(self, *, is_watching: bool) -> None:
        """Clear the record, and record more only if told to: a minimization may separate atoms."""
        self._partner.zero_()
        self.step.zero_()
        self.first = None
        self._is_watching = is_watching and self._has_limits

    def note(self) -> None:
        """Queue the check of the neighbor matrix that was queued last."""
        if self._is_watching:
            self._graph.run(self.launch, self._state.neighbors.layout)

    def launch(self) -> None:
        """Launch the check, unless there are no limits."""
        if not self._has_limits:
            return
        atoms, motion = self._state.atoms, self._motion
        given = atoms.positions, atoms.cell, atoms.system, self._limits
        notes = motion.clock, self._partner, self._distance, self.step
        note_contacts(*given, self._state.neighbors.matrix, *notes)

    def raise_contact(self) -> None:
        """Raise the error that names the first recorded pair of atoms. This waits."""
        partner = self._partner.cpu().numpy()
        first = self.first = int((partner > 0).argmax())
        second, batch = int(partner[first]) - 1, self._state.batch
        begin = int(batch.system_ptr[batch.system[first]])
        distance = float(self._distance[first])
        raise OverlappingAtomsError(str(Contact(first - begin, second - begin, distance)))
