"""The inference engine: energies, forces and virials, as fast as the device allows."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mlff_triton._common.devices import find_device, find_dtype
from mlff_triton._common.torch_settings import (
    check_not_transformed,
    own_settings,
    with_own_settings,
)
from mlff_triton._common.triton_start import start_triton
from mlff_triton.checkpoints import ALIASES, load_model, shipped_models
from mlff_triton.engine import dispatch, host_operators
from mlff_triton.engine.batch import Batch, as_array, check_charge
from mlff_triton.engine.fork_lock import ForkLock
from mlff_triton.engine.host_steps import ExactSteps, SequenceSteps
from mlff_triton.engine.motion import Dynamics
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.resident_system import ResidentSystem
from mlff_triton.engine.steps import CANNOT_PREPARE, Steps, TensorBatch, Units
from mlff_triton.engine.system_part import SystemPart
from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.common.compilers import start_early
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.mesh_coulomb import ChargedCellWarning, background, count_points
from mlff_triton.model.prediction import (
    Ensemble,
    ExternalField,
    Prediction,
    check_neutral,
    members_of,
)
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.verlet_list import CPU_SKIN, HOST_SKIN, check_skin

PRECISIONS = ("exact", "tf32")
ANGSTROM_EV = Units()


class Engine:
    """A model prepared for inference on one device.

    Parameters
    ----------
    model : TensorNet, Ensemble, path or str
        A loaded model, which is copied, a checkpoint, or the name of a shipped model.
    device : str or torch.device
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``...
    dtype : {"float32", "float64"} or torch.dtype
        Precision of the network. Energies, forces and virials are summed in float64 either way.
    backend : str
        ``"auto"``, or one of `dispatch.BACKENDS`: ``"triton-graph"`` (fused kernels in a CUDA
        graph), ``"triton"`` (without the graph), ``"cpu"`` (the same sequence in loops for CPUs,
        which Numba compiles), ``"torch"`` (in plain PyTorch) and ``"exact"`` (the module itself,
        without tables, differentiated by autograd).
    precision : {"exact", "tf32"}
        With "tf32", factors of float32 matrix products are rounded to eleven bits. This is faster,
        and accurate to three digits only.
    skin : float or "auto"
        Additional radius of the neighbor list in Å. Larger skins give longer lists, which are
        rebuilt less often. By default, it suits the device and the number of atoms. Results do not
        depend on it.

    Attributes
    ----------
    lock : ForkLock
        Held during each call; hold it to make several calls without others between them.
    weights : str
        Start of the SHA-256 of the model's weights, or of those of each member.
    elements : frozenset of int
        Atomic numbers that the model was made for.
    known_domain : KnownDomain or None
        Structures that the model was trained for, if they are recorded.
    has_charges : bool
        True if the model predicts partial charges.
    has_uncertainty : bool
        True if the model predicts the uncertainty of each atom.
    uncertainty_limit : float or None
        Uncertainty in eV/Å above which an atom is unlike those that the model was made for.
    recipe : tuple
        Arguments, in order, from which an equal engine is made.
    is_local : bool
        True if atoms depend only on others within a few cutoffs. Charges depend on all atoms.
    uses_mesh : bool
        True if a Coulomb energy uses particle-mesh Ewald.

    Notes
    -----
    Two computations of the same input agree to the bit, except with ``"exact"`` on a GPU, which
    uses atomic additions, as ``"torch"`` does for particle-mesh Ewald, and as far as a mesh is kept
    that was chosen for an earlier cell. With ``"cpu"``, bits do not depend on the number of
    threads. Any thread may call; calls wait for one another. Copies and pickles hold the arguments
    and the model, from which the engine is made again. After a fork, an engine on the CPU works in
    the child with a single thread, but CUDA does not. Autocast, inference mode, anomaly detection,
    the default device and the default dtype of a caller change nothing, nor does PyTorch's demand
    for deterministic algorithms, except that ``"exact"`` on a GPU follows it. Making an engine
    draws no random numbers. Unlike calculators, an engine does not look for atoms that are far too
    close, or for chemistry unknown to the model.

    Raises
    ------
    InputError
        If an option is unknown.
    BackendError
        If the requested device or backend cannot serve the model. The message names one that can.

    Examples
    --------
    >>> engine = Engine("default", device="cpu")
    >>> prediction = engine.compute([8, 1, 1], [[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
    >>> prediction.forces.shape
    torch.Size([3, 3])
    """

    @with_own_settings
    def __init__(
        self,
        model: TensorNet | Ensemble | str | Path = "default",
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        backend: str = "auto",
        precision: str = "exact",
        skin: float | str = "auto",
    ) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision={precision!r}: use one of {', '.join(PRECISIONS)}")
        self.device = find_device(device)
        self.dtype = find_dtype(dtype)
        if self.device.type == "cuda":
            start_triton()
            if backend in ("auto", "triton-graph", "triton"):
                start_early()
        if isinstance(model, (TensorNet, Ensemble)):
            loaded = copy.deepcopy(model)
        else:
            loaded = load_model(model)
        members = members_of(loaded)
        hashes = [member.weights_hash for member in members]
        self.weights = "-".join(hashes)
        self.known_domain = loaded.known_domain
        # Files may change or move; only names of shipped models last.
        lasting = model if isinstance(model, str) and is_shipped(model) else copy.deepcopy(loaded)
        self.recipe = lasting, device, dtype, backend, precision, skin
        self.uses_charge = loaded.uses_charge
        self.has_charges = loaded.has_charges
        self.has_uncertainty = loaded.has_uncertainty
        self.uncertainty_limit = loaded.uncertainty_limit
        self.is_local = loaded.is_local
        self.uses_mesh = loaded.uses_mesh
        self.cutoff = loaded.cutoff
        self.elements = frozenset.intersection(*(frozenset(m.config.elements) for m in members))
        self.backend = dispatch.choose(backend, members, self.device, self.dtype)
        self._keeps_determinism = self.backend == "exact" and self.device.type == "cuda"
        given = check_skin(skin)
        self._steps = [self._make_steps(member, precision, given) for member in members]
        self._members = members
        self._has_warned = False
        self.lock = ForkLock(self.device.type == "cuda")

    def __reduce__(self) -> tuple[type[Engine], tuple[object, ...]]:
        return Engine, self.recipe

    def _make_steps(self, model: TensorNet, precision: str, skin: float | None) -> Steps:
        on_host = HOST_SKIN if skin is None else skin
        if self.backend == "exact":
            return ExactSteps(model, self.device, self.dtype, on_host)
        tf32, halves = precision == "tf32", self.backend not in host_operators.PACKAGES
        parameters = Parameters.of(model, self.device, self.dtype, tf32, halves)
        common = (parameters, parameters.cutoff, self.device, self.dtype)
        if self.backend == "torch":
            return SequenceSteps(host_operators.load("torch"), *common, on_host)
        if self.backend == "cpu":  # This imports Numba, which need not be installed.
            from mlff_triton.engine.cpu_steps import CpuSteps

            on_cpu = CPU_SKIN if skin is None else skin
            return CpuSteps(host_operators.load("cpu"), parameters, self.dtype, on_cpu)
        # This imports Triton, which need not be installed.
        from mlff_triton.engine.device_steps import DeviceSteps

        return DeviceSteps(*common, skin, graphs=self.backend == "triton-graph")

    def expected_ms(self, n_atoms: int) -> float | None:
        """Return the time of a step in ms at the density of water, or None if it is not known."""
        ranked = dispatch.rank(self._members, self.device, self.dtype, n_atoms)
        return next((c.ms for c in ranked if c.backend == self.backend), None)

    @property
    def n_builds(self) -> int:
        """Number of neighbor lists built so far."""
        return sum(steps.n_builds for steps in self._steps)

    def compute(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        batch: ArrayLike | None = None,
        charge: ArrayLike | None = None,
    ) -> Prediction:
        """Compute energies, forces and virials of one or several systems.

        Parameters
        ----------
        numbers : int [N]
            Atomic numbers.
        positions : float [N, 3]
            Å; arrays or tensors on any device.
        cell : float [3, 3] or [B, 3, 3], optional
            Lattice vectors (rows) in Å, of all systems or of each.
        pbc : bool, bool [3] or bool [B, 3]
            Periodic directions, of all systems or of each.
        batch : int [N], optional
            System of each atom, ascending from 0 without gaps; one system by default.
        charge : int or int [B], optional
            Total charge in elementary charges; 0 by default.

        Returns
        -------
        Prediction
            New tensors on the engine's device.

        Raises
        ------
        InputError
            If a value is not finite, shapes disagree, a cell is far too small, or a charge is not
            an integer or the model was made for neutral systems. Also if a system is periodic and
            the model has a Coulomb energy without a cutoff, or with one above half the cell.
        UnknownElementError
            If the model was not made for an element.
        OverlappingAtomsError
            If two atoms coincide.
        BackendError
            If the GPU has too little memory. The message says how much is needed.
        """
        with self._call():
            prediction = self.evaluate(Batch.of(numbers, positions, cell, pbc, batch, charge))
            return prediction.map(lambda tensor: tensor.to(self.device))

    def evaluate(self, batch: Batch) -> Prediction:
        """Compute a checked batch as `compute` does, and return the results on the CPU.

        Warns
        -----
        ChargedCellWarning
            Once, if a cell is charged and its Coulomb energy is by particle-mesh Ewald.
        """
        self._check_charge(batch)
        with self._call():
            return Prediction.mean([steps.evaluate(batch) for steps in self._steps])

    def evaluate_in_field(self, batch: Batch, field: ExternalField) -> Prediction:
        """Compute a checked batch whose partial charges are in an external field.

        Parameters
        ----------
        batch : Batch
            The systems.
        field : ExternalField
            Energy of partial charges at the positions of the batch. It is called for each member of
            an ensemble, with tensors on the engine's device, while other calls wait.

        Returns
        -------
        Prediction
            On the CPU. The energies contain those in the field. The forces contain those due to the
            dependence of the charges on positions, but not the force of the field on fixed charges.

        Raises
        ------
        InputError
            If the model predicts no charges.
        """
        if not self.has_charges:
            raise InputError("the model predicts no charges: take a TensorNet2 with charges")
        self._check_charge(batch)
        found = []
        with self._call():
            for steps in self._steps:
                found.append(steps.evaluate_in_field(batch, field))
                field.collect()
        return Prediction.mean(found)

    def _check_charge(self, batch: Batch) -> None:
        """Refuse charged systems or warn about them, as `evaluate` does."""
        check_neutral(self.uses_charge, batch.charge)
        if batch.charge.any():
            self._warn_of_backgrounds(batch.charge, batch.boxes)

    def _warn_of_backgrounds(self, charges: Iterable[float], boxes: Iterable[Box]) -> None:
        """Warn once if a cell is charged and its Coulomb energy is by particle-mesh Ewald."""
        if self._has_warned or not self.uses_mesh:
            return
        systems = zip(charges, boxes, strict=True)
        charged = [(charge, box) for charge, box in systems if charge and box.pbc.any()]
        self._has_warned = bool(charged)
        for charge, box in charged[:1]:
            text = background(charge, slab=not box.pbc.all())
            warnings.warn(text, ChargedCellWarning, stacklevel=4)

    @property
    def contact_reach(self) -> float:
        """Distance in Å up to which steps report contacts of atoms; 0 for backends that do not."""
        return max(steps.contact_reach for steps in self._steps)

    def mesh_points(self, lengths: FloatArray) -> int:
        """Return the number of mesh points of each cell in a batch; 0 without meshes.

        Parameters
        ----------
        lengths : float64 [3]
            Length in Å of the longest first, second and third lattice vector of the batch.
        """
        configs = [member.config for member in self._members if member.uses_mesh]
        return max(
            (count_points(c, lengths) for c in configs if isinstance(c, TensorNet2Config)),
            default=0,
        )

    def watch(self, batch: Batch, limits: FloatArray) -> tuple[Prediction, bool]:
        """Compute a batch as `evaluate` does, and report whether atoms are in contact.

        Parameters
        ----------
        batch : Batch
            The systems, checked except for their positions.
        limits : float64 [N]
            Length of each atom in Å: two atoms are in contact below the sum of their lengths, up to
            rounding, if that is at most `contact_reach`.

        Returns
        -------
        Prediction
            On the CPU. The next step may overwrite it.
        bool
            True if there are contacts; always False if `contact_reach` is 0.

        Raises
        ------
        InputError
            If a position is not finite, and for the reasons given for `compute`.
        OverlappingAtomsError, BackendError
            As for `compute`.
        """
        self._check_charge(batch)
        with self._call():
            found = [steps.watch(batch, limits) for steps in self._steps]
        predictions, has_contacts = zip(*found, strict=True)
        return Prediction.mean(predictions), any(has_contacts)

    def prepare(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        batch: ArrayLike | None = None,
        charge: ArrayLike | None = None,
    ) -> Callable[[], Prediction]:
        """Prepare a step of fixed systems to be run repeatedly, for measurements.

        Parameters
        ----------
        numbers, positions, cell, pbc, batch, charge
            Same as for `compute`.

        Returns
        -------
        callable
            Queues one whole step on the current stream, and returns a `Prediction` that is valid
            once the GPU has finished, until the next step.

        Raises
        ------
        BackendError
            If the engine does not run on a GPU, or has several members.
        """
        if len(self._steps) > 1:
            raise BackendError(CANNOT_PREPARE)
        with self._call():
            return self._steps[0].prepare(Batch.of(numbers, positions, cell, pbc, batch, charge))

    def resident(
        self,
        numbers: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        charge: int = 0,
        units: Units = ANGSTROM_EV,
    ) -> ResidentSystem:
        """Prepare one system for programs that have its positions on the engine's device.

        Parameters
        ----------
        numbers, cell, pbc, charge
            Same as for `compute`. The cell may change at every step.
        units : Units
            Units of the steps' arguments and results; Å and eV by default.

        Returns
        -------
        ResidentSystem
            Its ``step`` takes and returns tensors on the engine's device. It owns its buffers and,
            on a GPU, its CUDA graph.

        Raises
        ------
        InputError
            If the cell or the charge is invalid.
        UnknownElementError
            If the model was not made for an element.
        """
        with self._call():
            atoms = as_array(numbers)
            batch = Batch.of(atoms, np.zeros((atoms.size, 3)), cell, pbc, charge=charge)
            if self.uses_mesh and batch.has_slabs:
                raise InputError(
                    "the mesh of particle-mesh Ewald depends on how thick a slab is, so that the "
                    "host has to see its positions: call compute() or evaluate() at each step"
                )
            self._check_charge(batch)
            for steps in self._steps:
                steps.check_species(batch.numbers)
            members = [steps.resident(batch, units) for steps in self._steps]
        return ResidentSystem(len(batch.numbers), members, self._call)

    def part(self, charge: int = 0, units: Units = ANGSTROM_EV) -> SystemPart:
        """Prepare part of a system that another program divides among processes.

        The program gives the atoms whose energies count and, as ghosts, copies of all atoms or
        periodic images within `SystemPart.reach` of them, or within `SystemPart.exchange_reach` if
        processes exchange tensors in each step.

        Parameters
        ----------
        charge : int
            Total charge of the whole system in elementary charges.
        units : Units
            Units of the steps' arguments and results; Å and eV by default.

        Returns
        -------
        SystemPart
            Its ``step`` takes and returns arrays on the CPU. It owns its buffers and, on a GPU, its
            CUDA graph. If the Coulomb energy uses particle-mesh Ewald, ``step`` needs the cell of
            the whole system.

        Raises
        ------
        InputError
            If the charge is invalid.
        BackendError
            If each atom depends on all others of its system, as in a TensorNet2, and the backend
            has no steps with an exchange.
        """
        total = check_charge(charge)
        check_neutral(self.uses_charge, total)
        reach = max(steps.reach for steps in self._steps) if self.is_local else math.inf
        shorter = [steps.exchange_reach for steps in self._steps]
        with_exchange = max((d for d in shorter if d is not None), default=None)
        if not self.is_local and with_exchange is None:
            raise BackendError(
                "charges of this model are not local: each depends on all atoms, so parts must "
                'exchange them: use device="cpu" with backend="cpu" or "torch", or on a GPU a '
                "Coulomb cutoff"
            )
        with self._call():
            members = [steps.part(float(total[0])) for steps in self._steps]
        tensors = max(steps.tensor_reach for steps in self._steps)
        return SystemPart(reach, with_exchange, tensors, members, self._call, units)

    def check_box(self, cell: ArrayLike | None, pbc: ArrayLike, charge: int = 0) -> None:
        """Raise `InputError` if the energy of a model with charges is not defined in a box.

        Parts do not check it. Other methods check it themselves.

        Parameters
        ----------
        cell, pbc, charge
            Same as for `compute`.

        Warns
        -----
        ChargedCellWarning
            As `evaluate` does.
        """
        box = Box.of(cell, pbc)
        for member in self._members:
            member.check_box(box)
        self._warn_of_backgrounds([charge], [box])

    def dynamics(
        self, batch: Batch, masses: ArrayLike, limits: FloatArray | None = None
    ) -> Dynamics | None:
        """Prepare a checked batch to be moved by the kernels or loops that compute its forces.

        Parameters
        ----------
        batch : Batch
            The systems.
        masses : float [N]
            amu; infinite for atoms that do not move.
        limits : float64 [N], optional
            Length of each atom in Å: atoms closer than the sum of their lengths end the motion with
            an `OverlappingAtomsError`.

        Returns
        -------
        Dynamics or None
            None if the backend is "torch" or "exact", or the engine has several members.

        Raises
        ------
        InputError, UnknownElementError, BackendError
            As for `compute`.
        """
        self._check_charge(batch)
        if len(self._steps) > 1:
            return None
        with self._call():
            return self._steps[0].dynamics(batch, np.asarray(masses, dtype=np.float64), limits)

    def queue(
        self,
        numbers: Tensor,
        positions: Tensor,
        cell: Tensor,
        pbc: Tensor | bool,
        batch: Tensor,
        charge: Tensor | None = None,
    ) -> Prediction:
        """Compute tensors that are on the engine's device, without waiting for a GPU.

        All values may change between calls. A call waits only if ``numbers``, ``pbc``, ``batch`` or
        ``charge`` are other tensors than in the last call for as many atoms and systems, or have
        been written to. Such a call raises the errors of `compute`. Other calls return NaN

        - for systems whose positions or cells are unusable, or in which atoms coincide,
        - for all systems if an atom has suddenly far more neighbors than ever before. A call soon
          after that raises an error, and provides for more neighbors.

        Parameters
        ----------
        numbers : int [N]
            Atomic numbers.
        positions : float [N, 3]
            Å; atoms may lie up to a million cells from the origin.
        cell : float [B, 3, 3]
            Lattice vectors (rows) in Å of each system.
        pbc : bool, bool [3] or bool [B, 3]
            Periodic directions, of all systems or of each.
        batch : int [N]
            System of each atom, ascending from 0 without gaps.
        charge : float [B], optional
            Total charge of each system in elementary charges; 0 by default.

        Returns
        -------
        Prediction
            New tensors on the engine's device, without gradients.

        Raises
        ------
        InputError
            If shapes disagree, and for the reasons given for `compute`.
        UnknownElementError, OverlappingAtomsError, BackendError
            As for `compute`.
        SimulationError
            If the results of an earlier call are NaN, because an atom had too many neighbors.

        Examples
        --------
        >>> engine = Engine("default", device="cpu")
        >>> positions = torch.tensor([[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
        >>> batch = torch.zeros(3, dtype=torch.int64)
        >>> cell = torch.zeros(1, 3, 3)
        >>> engine.queue(torch.tensor([8, 1, 1]), positions, cell, False, batch).energy.shape
        torch.Size([1])
        """
        given = TensorBatch(numbers, positions, cell, pbc, batch, charge)
        given.check_shapes()
        with self._call():
            queued = [steps.queue(given) for steps in self._steps]
            predictions = [prediction for prediction in queued if prediction is not None]
            if len(predictions) < len(queued):
                return self.compute(*given)
            return Prediction.mean(predictions)

    def _call(self) -> AbstractContextManager[None]:
        """Return a context that shields a call from other threads and the caller's settings."""
        check_not_transformed()
        return own_settings(self.lock, keep_determinism=self._keeps_determinism)


def is_shipped(model: str) -> bool:
    """Return True for the name of a model that is included in the package."""
    return model in ALIASES or model in shipped_models()
