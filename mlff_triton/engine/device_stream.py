"""Steps of batches that are on the GPU already and whose results stay there, without waiting.

The program may replace positions and cells between steps. Each step therefore finds out on the GPU
whether the neighbor matrix is valid, and builds it if not; the kernels that build it return at once
if it is. Everything is one graph.

The host waits for the first step of new atoms only. The host then counts neighbors, and gives the
neighbor matrix a reserve of slots. In later steps, the host learns with a delay of some steps how
many slots were needed, and adds more when the reserve shrinks. If a step needs more slots than
there are, its results are NaN, and the first step after the host has learned of it raises an error.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.device_neighbors import DeviceModel
from mlff_triton.engine.device_state import DeviceState
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.engine.steps import TensorBatch
from mlff_triton.errors import InputError, SimulationError
from mlff_triton.kernels.neighbors.renewal import FARTHEST, place_atoms
from mlff_triton.kernels.types.status import AGE
from mlff_triton.model.prediction import Prediction, check_neutral
from mlff_triton.neighbors.box import MAX_EDGES


class DeviceStream:
    """N atoms in B systems that a program keeps on the GPU.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    n_atoms, n_systems : int
        Size of the batches.
    """

    def __init__(self, model: DeviceModel, n_atoms: int, n_systems: int) -> None:
        self._model = model
        self._state = DeviceState(model, n_atoms, n_systems)
        self._graph: StepGraph[Prediction] = StepGraph(model.pool, keeps_state=True)
        self._batch: Batch | None = None
        self._marks: Marks | None = None
        # The program's values, and those derived from them: see `place_atoms`
        self._given = torch.zeros_like(self._state.atoms.positions)
        self._given_cell = torch.zeros_like(self._state.atoms.cell)
        self._wraps = torch.zeros_like(self._given)
        self._lost = torch.zeros(n_systems, dtype=torch.int32, device=model.device)
        self._wanted = torch.ones((), dtype=torch.int32, device=model.device)
        self._needed = LateMaximum(len(self._state.neighbors.capacities), model.device)

    @torch.no_grad()
    def run(self, given: TensorBatch) -> Prediction:
        """Queue a step, and return its results as new tensors on the GPU.

        Raises
        ------
        InputError, UnknownElementError, OverlappingAtomsError
            If these atoms are new, and cannot be computed.
        SimulationError
            If an earlier step had too few slots in its neighbor matrix.
        """
        self._receive_needed()
        self._given.copy_(given.positions)
        self._given_cell.copy_(given.cell)
        marks = Marks.of(given)
        batch, is_new = self._batch, False
        if not marks.are_those_of(self._marks):
            batch, is_new = self._meet(given)
        prediction = self._graph.run(self._launch, self._state.neighbors.layout)
        self._needed.send()
        if is_new:
            self._state.raise_problems()
        self._batch, self._marks = batch, marks
        return prediction.map(torch.clone)

    def _launch(self) -> Prediction:
        """Launch a step, from the program's positions to results that are NaN where invalid."""
        state = self._state
        self._place()
        state.launch_build(self._wanted)
        self._wanted.zero_()
        self._needed.update(state.neighbors.needed)
        outputs = state.launch()
        invalid = (outputs.totals.status > AGE) | (self._lost != 0)
        charges = self._model.parameters.charges
        if charges is not None and charges.is_truncated:
            invalid |= charges.is_too_low(state.atoms.cell, state.atoms.pbc)
        of_atom = torch.index_select(invalid, 0, state.atoms.system)
        some = {"charges": outputs.charges, "uncertainty": outputs.uncertainty}
        return Prediction(
            energy=outputs.totals.energy.masked_fill(invalid, torch.nan),
            forces=outputs.forces.masked_fill(of_atom[:, None], torch.nan),
            virial=outputs.totals.virial.masked_fill(invalid[:, None, None], torch.nan),
            atom_energies=outputs.atom_energies.masked_fill(of_atom, torch.nan),
            **{k: t.masked_fill(of_atom, torch.nan) for k, t in some.items() if t is not None},
        )

    def _place(self) -> None:
        """Launch the kernels that turn the program's positions into those of the step."""
        atoms = self._state.atoms
        place_atoms(
            self._given,
            self._given_cell,
            atoms.system,
            atoms.boxes,
            self._state.neighbors.matrix,
            self._wraps,
            self._model.cutoff,
            self._state.neighbors.radius,
            MAX_EDGES,
            positions=atoms.positions,
            lost=self._lost,
            wanted=self._wanted,
        )

    def _meet(self, given: TensorBatch) -> tuple[Batch, bool]:
        """Check atoms, and return them, and True if they are new. This waits.

        The neighbor matrix of new atoms gets a reserve of slots.
        """
        batch = Batch.of(*given)
        last, self._batch, self._marks = self._batch, None, None  # in case of an error
        is_new = last is None or not (last.same_atoms(batch) and _same_pbc(last, batch))
        if is_new:
            check_neutral(self._model.parameters.config.uses_charge, batch.charge)
            self._state.set_batch(batch)
            self._wanted.fill_(1)
            self._place()
            if self._lost.any():
                raise InputError(
                    f"atoms lie more than {FARTHEST.value} cells or Å from the origin: wrap them "
                    "into their cell, or the simulation may have blown up"
                )
            self._state.build()
            needed = self._state.neighbors.needed.tolist()
            self._reserve([n + n // 16 for n in needed])
        return batch, is_new

    def _receive_needed(self) -> None:
        """Add slots if a step that has ended needed most of them, or raise if it needed more."""
        needed, capacities = self._needed.receive(), self._state.neighbors.capacities
        lacks = [pair for pair in zip(needed, capacities, strict=True) if pair[0] > pair[1]]
        if lacks:
            self._needed.forget()  # so that this is reported once
        self._reserve(needed)
        if lacks:
            n, capacity = lacks[0]
            raise SimulationError(
                f"an atom suddenly had {n} neighbors, more than its {capacity} slots, so results "
                "of an earlier step are NaN: the neighbor list has been enlarged, so repeat that "
                "step or continue from a state before it"
            )

    def _reserve(self, needed: list[int]) -> None:
        """Let the next step build matrices with more slots if few are left."""
        neighbors = self._state.neighbors
        last, capacities = neighbors.matrix, neighbors.capacities
        if any(n + n // 16 >= slots for n, slots in zip(needed, capacities, strict=True)):
            neighbors.grow([n + n // 8 for n in needed])
            neighbors.matrix.positions.copy_(last.positions)
            neighbors.matrix.inverse.copy_(last.inverse)
            self._wanted.fill_(1)


class Marks(NamedTuple):
    """Tensors by which the atoms of a batch are recognized, and the number of writes to each."""

    tensors: tuple[Tensor | bool | None, ...]
    versions: tuple[object, ...]

    @classmethod
    def of(cls, batch: TensorBatch) -> Marks:
        """Mark the tensors of a batch, except for positions and cells."""
        tensors = batch.numbers, batch.system, batch.pbc, batch.charge
        return cls(tensors, tuple(map(_version, tensors)))

    def are_those_of(self, other: Marks | None) -> bool:
        """Return True if the tensors are the same and have not been written to."""
        return (
            other is not None
            and all(map(operator.is_, self.tensors, other.tensors))
            and self.versions == other.versions
        )


def _version(tensor: Tensor | bool | None) -> object:
    """Return the number of times PyTorch has written to a tensor, if it counts them."""
    if not isinstance(tensor, Tensor):
        return 0
    return object() if tensor.is_inference() else tensor._version


def _same_pbc(one: Batch, other: Batch) -> bool:
    boxes = zip(one.boxes, other.boxes, strict=True)
    return all((a.pbc == b.pbc).all() for a, b in boxes)


class LateMaximum:
    """Maxima of numbers on the GPU, which the host learns without waiting.

    Parameters
    ----------
    size : int
        Number of numbers.
    device : torch.device
        The GPU.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"  # Triton's interpreter computes on the CPU
        self._highest = torch.zeros(size, dtype=torch.int32, device=device)
        self._copy = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None
        self._is_on_its_way = False
        self._received = [0] * size

    def update(self, value: Tensor) -> None:
        """Take other values into account, int32 [size]."""
        torch.maximum(self._highest, value, out=self._highest)

    def send(self) -> None:
        """Queue a copy to the host, unless another one is on its way."""
        if self._is_on_its_way:
            return
        self._copy.copy_(self._highest, non_blocking=True)
        if self._event is not None:
            self._event.record()
        self._is_on_its_way = True

    def forget(self) -> None:
        """Start anew, after a copy has been received."""
        self._highest.zero_()
        self._received = [0] * len(self._received)

    def receive(self) -> list[int]:
        """Return the values of the last copy that has arrived; zeros if there is none."""
        if self._is_on_its_way and (self._event is None or self._event.query()):
            self._received = self._copy.tolist()
            self._is_on_its_way = False
        return self._received
