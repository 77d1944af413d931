"""The field of a force field's charges at a part, from positions of all particles on the host."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton._common.availability import triton_obstacle
from mlff_triton.calculators.openmm.cross_coulomb import (
    CrossCoulomb,
    CrossSums,
    Field,
    Geometry,
    Surroundings,
)
from mlff_triton.engine.batch import IntArray
from mlff_triton.engine.mesh import MeshPlan
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.kernels.electrostatics.protocol import FieldOperators
from mlff_triton.model.prediction import FieldSums
from mlff_triton.neighbors.box import FloatArray
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

_LAYOUTS = itertools.count()
TRITON = ("triton-graph", "triton")


class ParticleField:
    """The field at a part of a System when particles move on the host.

    All tensors keep their addresses, and only the host waits for a GPU, once.

    Parameters
    ----------
    surroundings : Surroundings
        Charges of the force field.
    part : int64 [M]
        Indices of the part in the System.
    n_particles : int
        Particles of the System, P.
    device : torch.device
        Device that computes.
    backend : str
        Backend of the engine.

    Attributes
    ----------
    positions : float64 [P, 3]
        Positions in nm, to be written before each step.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        part: IntArray,
        n_particles: int,
        device: torch.device,
        backend: str,
    ) -> None:
        self._surroundings, self._device = surroundings, device
        self._coulomb = CrossCoulomb(surroundings, operators_of(device, backend), device)
        self._part = torch.from_numpy(part).to(device)
        self._sites = torch.from_numpy(surroundings.sites).to(device)
        self._particles = _Copied(device, n_particles, 3)
        self._own = _Copied(device, len(part), 3)
        self._box = _Copied(device, 3, 3)
        self._scale = _Copied(device, 1)
        self._forces = _Copied(device, n_particles, 3)
        self.positions = self._particles.host.numpy()
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._plan: MeshPlan | None = None
        self._total: NDArray[np.float64] | None = None
        self._n_calls = 0
        self._layout = next(_LAYOUTS)

    @property
    def layout(self) -> int:
        """Number that identifies the launches and addresses of this field, see `ExternalField`."""
        return self._layout

    def set(self, own: FloatArray, box: FloatArray | None, scale: float = 1.0) -> None:
        """Begin a step of the part at positions [M, 3] in a box [3, 3], in Å.

        ``scale`` multiplies the charges of the part in the field.
        """
        self._own.host.numpy()[:] = own
        self._scale.host.numpy()[:] = scale
        self._total, self._n_calls = None, 0
        if box is None or (self._plan is not None and np.array_equal(self._box.host, box)):
            return
        self._box.host.numpy()[:] = box
        if self._surroundings.method == "pme":
            self._plan_mesh(torch.from_numpy(box))

    def _plan_mesh(self, box: Tensor) -> None:
        """Keep the last mesh, or choose another one if it is too coarse or far too fine."""
        s = self._surroundings
        wanted = MeshPlan(pme_parameters(box[None], s.cutoff, s.pme_error))
        if self._plan is None or not self._plan.serves(wanted):
            self._plan, self._coulomb.mesh = wanted, wanted.parameters
            self._layout = next(_LAYOUTS)

    def prepare(self) -> None:
        """Queue the transfer of positions, and the potential of the force field's charges."""
        with self._beside_network():
            for each in (self._particles, self._own, self._box, self._scale):
                each.upload()
            sites = NM * self._particles.device.index_select(0, self._sites)
            box = self._box.device if self._surroundings.periodic else None
            self._field: Field = self._coulomb.at(Geometry(self._own.device, sites, box))

    def __call__(self, charges: Tensor) -> FieldSums:
        """Queue the energies of the part's charges [M], in the order of its atoms.

        Forces on all particles, and their transfer, are queued beside the rest of the step.
        """
        self._join()
        scale = self._scale.device
        self._sums: CrossSums = self._coulomb.sums(self._field, scale * charges)
        with self._beside_network():
            forces, factor = self._forces.device.zero_(), -EV_TO_KJ_PER_MOL * NM
            of_sites = self._coulomb.at_sites(self._field, self._sums)
            forces.index_copy_(0, self._sites, factor * of_sites)
            forces.index_copy_(0, self._part, factor * self._sums.of_own)
            self._forces.download()
        return FieldSums(self._sums.energies, scale * self._sums.potential)

    def finish(self) -> None:
        """Let the step wait for forces; until then, no memory that they read is used again."""
        self._join()
        del self._field, self._sums

    @contextmanager
    def _beside_network(self) -> Iterator[None]:
        """Queue work in parallel with the network, which uses little of a GPU for so few atoms."""
        if self._beside is None:
            yield
            return
        self._beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._beside):
            yield

    def _join(self) -> None:
        """Let the current stream wait for the work queued beside it."""
        if self._beside is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._beside)

    def collect(self) -> None:
        """Add the forces of the last step."""
        found = self._forces.host.numpy()
        self._total = found.copy() if self._total is None else self._total + found
        self._n_calls += 1

    @property
    def forces(self) -> NDArray[np.float64]:
        """Mean over all calls of the forces at fixed charges, [P, 3] in kJ/mol/nm; a new array."""
        assert self._total is not None  # because `collect` has been called
        return self._total / self._n_calls if self._n_calls > 1 else self._total


class _Copied:
    """Numbers on the host and on a device; on a CPU, they share memory."""

    def __init__(self, device: torch.device, *shape: int) -> None:
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(shape, dtype=torch.float64, pin_memory=on_gpu)
        self.device = torch.zeros_like(self.host, device=device) if on_gpu else self.host

    def upload(self) -> None:
        if self.device is not self.host:
            self.device.copy_(self.host, non_blocking=True)

    def download(self) -> None:
        if self.device is not self.host:
            self.host.copy_(self.device, non_blocking=True)


def operators_of(device: torch.device, backend: str) -> FieldOperators:
    """Import the operators of a field: those of the backend, and kernels for others on a GPU."""
    if backend in TRITON or triton_obstacle(device, interpreter=False) is None:
        from mlff_triton.kernels.electrostatics import operators as kernels

        return kernels
    if backend == "cpu":
        from mlff_triton.kernels.electrostatics.cpu import operators as loops

        return loops
    from mlff_triton.kernels.electrostatics.reference import operators as references

    return references
