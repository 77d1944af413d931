"""Steps that stay on a GPU: neighbor matrix and fused kernels, captured as one CUDA graph.

A step uploads positions, replays a graph and downloads energies and forces. The step itself finds
out on the device whether the neighbor matrix is still valid, and reports this with its results. If
it is not, the step is repeated with a new matrix. No edge is ever dropped: a matrix with too few
slots is built again with more.

A program that has its positions on the GPU and needs the forces there uses a resident system. Its
steps download only energy, status and cell.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import GraphPool
from mlff_triton._common.torch_settings import own_settings
from mlff_triton.engine.batch import Batch, IntArray, to_tensor
from mlff_triton.engine.device_batches import DeviceBatches
from mlff_triton.engine.device_dynamics import DeviceDynamics
from mlff_triton.engine.device_neighbors import Capacity, DeviceModel, neighbors_in_liquid
from mlff_triton.engine.device_part import DevicePart
from mlff_triton.engine.device_resident import DeviceResident
from mlff_triton.engine.device_stream import DeviceStream
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.part import PartAtoms, reach
from mlff_triton.engine.steps import ResidentStep, Steps, TensorBatch, Units
from mlff_triton.errors import DeviceMemoryError
from mlff_triton.kernels.tensornet import operators as fused
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.tensornet2 import operators as charged
from mlff_triton.kernels.tensornet2.protocol import ChargedOperators
from mlff_triton.model.prediction import ExternalField, Prediction
from mlff_triton.neighbors.box import FloatArray
from mlff_triton.neighbors.neighbor_list import check_positions
from mlff_triton.neighbors.verlet_list import check_skin


class DeviceSteps(Steps):
    """Steps of one model on one GPU, from any thread, one call at a time.

    Parameters
    ----------
    parameters : Parameters
        The model, on the GPU.
    cutoff : float
        Cutoff in Å.
    device : torch.device
        The GPU.
    dtype : torch.dtype
        Precision of the network.
    skin : float or None
        Additional radius of the neighbor matrix in Å; None to choose it from the number of atoms.
    graphs : bool
        If True, steps are captured as CUDA graphs.
    operators : StepOperators
        Operators that compute the network.
    charged_operators : ChargedOperators
        Those that only a TensorNet2 needs.
    capacity : Capacity
        Slots per atom in the neighbor matrix.
    kept_sizes : int
        Number of most recently used batch sizes whose buffers are kept.
    """

    def __init__(
        self,
        parameters: Parameters,
        cutoff: float,
        device: torch.device,
        dtype: torch.dtype,
        skin: float | None,
        graphs: bool = True,
        *,
        operators: StepOperators = fused,
        charged_operators: ChargedOperators = charged,
        capacity: Capacity = Capacity(),  # noqa: B008 (immutable)
        kept_sizes: int = 8,
    ) -> None:
        if skin is not None:
            check_skin(skin)
        self.device, self.dtype, self.operators = device, dtype, operators
        self._model = DeviceModel(
            parameters=parameters,
            operators=operators,
            charged_operators=charged_operators,
            cutoff=cutoff,
            skin=skin,
            device=device,
            dtype=dtype,
            capacity=capacity,
            pool=GraphPool() if graphs else None,
        )
        self._kept_sizes = kept_sizes
        self._batches: OrderedDict[tuple[int, int], DeviceBatches] = OrderedDict()
        self._streams: OrderedDict[tuple[int, int], DeviceStream] = OrderedDict()

    @property
    def n_builds(self) -> int:
        """Number of neighbor matrices built so far."""
        return self._model.n_builds

    def check_species(self, numbers: IntArray) -> None:
        """Raise `UnknownElementError` unless the model knows all atomic numbers, int64 [N]."""
        self._model.parameters.species(to_tensor(numbers, self._model.device))

    def evaluate(self, batch: Batch) -> Prediction:
        """Compute energies, forces and virials of a batch; return them on the CPU."""
        with self._on_gpu(batch):
            return self._buffers(batch).fetch()

    def evaluate_in_field(self, batch: Batch, field: ExternalField) -> Prediction:
        """Compute a batch whose charges are in a field; return the results on the CPU."""
        with self._on_gpu(batch):
            return self._buffers(batch).fetch_in_field(field)

    @property
    def contact_reach(self) -> float:
        """Distance in Å up to which steps report contacts: the cutoff of the network."""
        return self.tensor_reach

    def watch(self, batch: Batch, limits: FloatArray) -> tuple[Prediction, bool]:
        """Compute a batch, and report its contacts; see `mlff_triton.engine.Engine.watch`."""
        with self._on_gpu(batch):
            buffers = self._buffers(batch)
            if buffers.is_due:  # other steps find out themselves
                check_positions(batch.positions)
            buffers.watch(limits)
            return buffers.fetch_views(), buffers.has_contacts

    def prepare(self, batch: Batch) -> Callable[[], Prediction]:
        """Return a function that queues the step of a batch, without waiting for it."""
        with self._on_gpu(batch):
            buffers = self._buffers(batch)
            buffers.prepare()

        def queue() -> Prediction:
            with torch.cuda.device_of(self._model.parameters.receiver):
                return buffers.run().prediction

        return queue

    def resident(self, batch: Batch, units: Units) -> ResidentStep:
        """Return the step of one system, see `DeviceResident.step`."""
        with self._on_gpu(batch):
            system = DeviceResident(self._model, batch, units)

        def step(positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
            with self._on_gpu(batch):
                return system.step(positions, cell)

        return step

    @property
    def reach(self) -> float:
        """Distance in Å up to which atoms influence the energy of an atom."""
        return reach(self._model.parameters.config)

    @property
    def exchange_reach(self) -> float | None:
        """Distance in Å up to which parts with an exchange need ghosts.

        None for a TensorNet2 whose Coulomb energy has no cutoff.
        """
        charges = self._model.parameters.charges
        is_far = charges is not None and charges.coulomb is not None and not charges.is_truncated
        return None if is_far else self._model.cutoff

    @property
    def tensor_reach(self) -> float:
        """Distance in Å up to which parts with an exchange need tensors of ghosts."""
        return self._model.parameters.network_cutoff

    def part(self, charge: float) -> DevicePart:
        """Return the steps of a part of a system with a total charge in elementary charges."""
        return DevicePart(self._model, charge, self._on_gpu)

    def queue(self, batch: TensorBatch) -> Prediction | None:
        """Queue the step of a batch on the GPU, see `DeviceStream.run`.

        Models with particle-mesh Ewald return None: the host has to see each cell.
        """
        if self._model.parameters.mesh_choice is not None:
            return None  # because the host chooses the mesh for the cells
        with self._on_gpu(batch):
            size = len(batch.numbers), len(batch.cell)
            stream = self._streams.pop(size, None) or DeviceStream(self._model, *size)
            self._streams[size] = stream
            while len(self._streams) > self._kept_sizes:
                self._streams.popitem(last=False)
            return stream.run(batch)

    def dynamics(
        self, batch: Batch, masses: FloatArray, limits: FloatArray | None = None
    ) -> DeviceDynamics:
        """Return the integrator of a batch; see `mlff_triton.engine.motion.Dynamics`.

        Simulations need much memory for a long time, so the memory of earlier steps is freed.
        """
        self._batches.clear()
        self._streams.clear()
        with self._on_gpu(batch):
            return DeviceDynamics(self._model, batch, masses, limits, lambda: self._moving(batch))

    @contextmanager
    def _moving(self, batch: Batch) -> Iterator[None]:
        """Make the GPU current for a simulation, whose calls do not pass through the engine."""
        with own_settings(), self._on_gpu(batch):
            yield

    @contextmanager
    def _on_gpu(self, batch: Batch | TensorBatch | PartAtoms) -> Iterator[None]:
        """Make the GPU current, and make out-of-memory errors say how much is needed."""
        parameters = self._model.parameters
        try:
            with torch.cuda.device_of(parameters.receiver):
                yield
        except torch.OutOfMemoryError as error:
            self._batches.clear()
            self._streams.clear()
            config, n_atoms = parameters.config, len(batch.numbers)
            size = config.hidden_channels, config.num_layers, self._model.dtype
            far = 0 if parameters.charges is None else neighbors_in_liquid(self._model.cutoff)
            need = step_memory(n_atoms, *size, far) / 2**30
            raise DeviceMemoryError(
                f"CUDA out of memory: {n_atoms} atoms need about {need:.2g} GiB of GPU memory, "
                f"more than is free{_free(self.device)}: use fewer atoms at a time, or "
                "dtype='float32'"
            ) from error

    def _buffers(self, batch: Batch) -> DeviceBatches:
        """Return the buffers for batches of this size, set to this one."""
        size = len(batch.numbers), len(batch.boxes)
        buffers = self._batches.pop(size, None) or DeviceBatches(self._model, *size)
        self._batches[size] = buffers
        while len(self._batches) > self._kept_sizes:
            self._batches.popitem(last=False)
        buffers.set(batch)
        return buffers


def _free(device: torch.device) -> str:
    """Return, in words, how much memory of a GPU a step could use."""
    if device.type != "cuda":  # of tests
        return ""
    torch.cuda.empty_cache()
    free, total = (x / 2**30 for x in torch.cuda.mem_get_info(device))
    name = torch.cuda.get_device_name(device)
    return f" ({free:.3g} of {total:.3g} GiB of {name}, {device})"


def step_memory(
    n_atoms: int, channels: int, layers: int, dtype: torch.dtype, far_slots: int = 0
) -> int:
    """Estimate the bytes of GPU memory that a step takes at its peak, in addition to a constant.

    Each layer keeps four tensors [9, N, F] for its backward pass, and eight others are alive at the
    peak. An atom has about ninety slots (5 Å in water), each with eight floats and integers, and as
    many more as are given for a Coulomb energy.
    """
    tensors = (8 + 4 * layers) * 9 * n_atoms * channels * dtype.itemsize
    return tensors + (90 + far_slots) * n_atoms * (6 * dtype.itemsize + 24)
