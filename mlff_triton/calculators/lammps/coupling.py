"""A running LAMMPS whose atoms are moved by the forces of a model."""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlff_triton.calculators._plausibility import (
    contact_limits,
    unknown_atoms,
    unknown_bonds,
    unknown_composition,
)
from mlff_triton.calculators.lammps.atoms import KnownAtoms, is_rebuilt, positions_of, view
from mlff_triton.calculators.lammps.contacts import ROUNDING, ContactChecks
from mlff_triton.calculators.lammps.coverage import check_coverage
from mlff_triton.calculators.lammps.exchange import FeatureExchange, Transport, near_ghosts
from mlff_triton.calculators.lammps.guard import Guard
from mlff_triton.calculators.lammps.motion import MotionCheck
from mlff_triton.calculators.lammps.owners import Directory
from mlff_triton.calculators.lammps.ranks import (
    end_all,
    end_together,
    one_line,
)
from mlff_triton.calculators.lammps.reverse import ReverseCommunication
from mlff_triton.calculators.lammps.settings import (
    check_integrator,
    check_timestep,
    find_box,
    find_units,
)
from mlff_triton.calculators.lammps.whole import WholeSystem
from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import OwnImages, PartPrediction
from mlff_triton.errors import DeviceMemoryError, MlffTritonError, SimulationError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.neighbors.box import FloatArray

FIX = "mlff_triton"
"""ID of the ``fix external`` in LAMMPS."""
LAMMPS_ORDER = [0, 4, 8, 1, 2, 5]
"""xx, yy, zz, xy, xz, yz in a 3x3 matrix row by row."""


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
    transport : Transport
        Path of tensors from rank to rank.

    Attributes
    ----------
    engine : Engine
        The model.
    guard : Guard
        Errors of the model, and the fix that ends a run because of them.
    should_stop : callable
        Called in each step; if it returns True, the run ends as by Ctrl-C.
    """

    def __init__(
        self,
        lmp: Any,
        comm: Any,
        engine: Engine,
        numbers: IntArray,
        charge: int,
        skin: float,
        transport: Transport,
    ) -> None:
        self.engine = engine
        self.should_stop: Callable[[], bool] = lambda: False
        self._lmp = lmp
        self.guard = Guard(lmp)
        self._comm = comm
        self._numbers = numbers
        self._limits = ROUNDING * contact_limits(numbers)
        self._is_watched = 2 * self._limits.max() <= engine.contact_reach
        self._charge = charge
        self._skin = skin
        part, kinds = engine.part(charge, find_units(lmp)), numbers[1:]
        self._is_alone = comm.size == 1
        self._transport = transport
        # All tensors of a shared GPU would pass through the host, which takes longer than computing
        # ghosts.
        is_fast = self._is_alone or transport.is_queued or engine.device.type == "cpu"
        self._exchanges = part.exchange_reach is not None and (is_fast or not engine.is_local)
        no_ghosts = OwnImages(np.zeros(0, dtype=np.int32), len(kinds)) if self._exchanges else None
        part.set_atoms(kinds, len(kinds), len(kinds), no_ghosts)  # raises for unknown elements
        self._part = WholeSystem(lmp, engine, part, charge) if self._is_alone else part
        shorter = part.exchange_reach if self._exchanges else None
        self._reach = part.reach if shorter is None else shorter
        self._tensor_reach = part.tensor_reach
        self._atoms = KnownAtoms(lmp)
        self._motion = MotionCheck(lmp, skin)
        self._directory = Directory(comm)
        self._reverse: ReverseCommunication | None = None
        self._exchange: FeatureExchange | None = None
        self._last_step = -2  # precedes none
        self._begins = True
        self._contacts = ContactChecks()
        self._is_known = False

    def attach(self) -> None:
        """Make the ``fix external`` in LAMMPS, and let LAMMPS communicate enough ghosts."""
        lmp, cutoff = self._lmp, self._reach + self._skin
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
        with_ghosts = per_atom or not self._is_alone
        look = partial(self._look, step, n_own, with_ghosts=with_ghosts)
        (n_changed,) = self._together(look, 1)
        if self._begins or not self._is_watched:
            self._together(lambda: self._check_contacts(step, n_own))
        if n_changed:
            self._reverse = None
        is_new = with_ghosts and self._reverse is None
        if is_new:
            self._renew_ghosts(n_own)
        if n_changed or is_new:
            self._together(lambda: self._give_atoms(n_own))
        prediction, energy, has_contacts = self._compute(step, n_own, per_atom=per_atom)
        if has_contacts:
            self._together(lambda: self._search_contacts(step, n_own))
        if not math.isfinite(energy):
            raise _RankError(
                SimulationError(
                    f"the energy or the virial is not finite in step {step}: check the structure, "
                    "or take a shorter time step"
                )
            )
        if not self._is_known:
            self._warn_of_chemistry(n_own, prediction)
            self._is_known = True
        self._pass_on(step, prediction, energy, forces)
        self.guard.confirm(step)

    def _together(
        self,
        phase: Callable[[], Sequence[float] | None],
        n_results: int = 0,
        *,
        waits: bool = False,
    ) -> list[float]:
        """Run a phase on all ranks, and return the sums of its results; `_RankError` if one fails.

        If ranks wait for one another in the phase, an error ends all of them at once.
        """
        results, error = [0.0] * n_results, None
        try:
            results[:] = phase() or ()
        except BaseException as caught:  # noqa: BLE001 (others must know of it)
            if waits and self._comm.size > 1:
                end_all(self._comm, _message(caught, self._comm))
            error = caught
        *sums, n_failed = self._sum(*results, error is not None)
        if n_failed:
            raise _RankError(error)
        return sums

    def _look(self, step: int, n_own: int, *, with_ghosts: bool) -> tuple[bool]:
        """Check the step, and return True if its atoms differ from the last ones."""
        if self.should_stop():
            raise KeyboardInterrupt
        lmp = self._lmp
        check_timestep(lmp)
        self._begins = is_rebuilt(lmp) and step != self._last_step + 1
        self._last_step = step
        if self._begins:
            check_integrator(lmp)
            self._directory.forget()
        if is_rebuilt(lmp):
            self._contacts.forget()
        if not self.engine.is_local:  # the first rank warns of a charged cell
            charge = 0 if self._comm.rank else self._charge
            self.engine.check_box(*find_box(lmp), charge)
        has_changed = self._atoms.update(n_own, with_ghosts=with_ghosts)
        self._motion.update(n_own, begins=self._begins)
        if with_ghosts:
            self._motion.check()
        return (has_changed,)

    def _check_contacts(self, step: int, n_own: int) -> None:
        """Check that atoms are apart."""
        cell, _ = find_box(self._lmp)
        if n_own and self._contacts.may_exist(positions_of(self._lmp, n_own), cell):
            self._search_contacts(step, n_own)

    def _search_contacts(self, step: int, n_own: int) -> None:
        """Raise the error of atoms that are too close, if there are any."""
        lmp = self._lmp
        cell, _ = find_box(lmp)
        if n_own:
            n_atoms = n_own + lmp.extract_setting("nghost")
            numbers, labels = self._numbers[view(lmp, "type", n_atoms)], view(lmp, "id", n_atoms)
            given = numbers, positions_of(lmp, n_atoms), cell, n_own, labels
            self._contacts.search(*given, step=None if self._begins else step)

    def _renew_ghosts(self, n_own: int) -> None:
        """Find the owners of all ghosts again."""
        atoms = self._atoms
        owners = self._directory.find_owners(atoms.tags, n_own, atoms.n_total)
        self._reverse = ReverseCommunication(self._comm, owners, n_own)
        if self._exchanges:
            given = self._comm, owners, n_own, self._transport, self._find_near(n_own)
            self._exchange = FeatureExchange(*given, last=self._exchange)
        positions = self._motion.at_exchange
        if len(positions) == n_own:
            check_coverage(self._lmp, positions, self._reverse.n_copies, self._reach)

    def _find_near(self, n_own: int) -> NDArray[np.bool_] | None:
        """Find the ghosts that the network may need before LAMMPS exchanges them, if not all."""
        if self._tensor_reach >= self._reach:
            return None
        # Atoms move by half the skin after an exchange, so by the skin between two steps.
        moves = self._skin if is_rebuilt(self._lmp) else 2 * self._skin
        positions = positions_of(self._lmp, len(self._atoms.tags))
        return near_ghosts(positions, n_own, self._tensor_reach + moves)

    def _give_atoms(self, n_own: int) -> None:
        """Give the part its present atoms."""
        exchange = self._exchange if n_own and self._reverse is not None else None
        types = self._atoms.types
        given = self._numbers[types], n_own, self._atoms.n_total, exchange, self._limits[types]
        self._part.set_atoms(*given)

    def _compute(
        self, step: int, n_own: int, *, per_atom: bool
    ) -> tuple[PartPrediction, float, bool]:
        """Compute the part at its present positions.

        Returns
        -------
        PartPrediction
            Results of this part.
        float
            Energy of all parts.
        bool
            True if any part may have contacts.
        """
        prediction: PartPrediction | None = None

        def compute() -> tuple[float, bool]:
            nonlocal prediction
            positions = positions_of(self._lmp, len(self._atoms.types))
            cell, pbc = find_box(self._lmp) if self.engine.uses_mesh else (None, False)
            try:
                prediction = self._part.step(positions, per_atom=per_atom, cell=cell, pbc=pbc)
            except MlffTritonError:
                self._search_contacts(step, n_own)  # whose errors say more
                raise
            is_finite = math.isfinite(prediction.energy + prediction.virial.sum())
            return prediction.energy if is_finite else math.nan, prediction.has_contacts

        energy, n_contacts = self._together(compute, 2, waits=self._exchanges)
        assert prediction is not None
        return prediction, energy, n_contacts > 0

    def _warn_of_chemistry(self, n_own: int, prediction: PartPrediction) -> None:
        """Make the first rank warn if atoms differ from all that the model was trained for."""
        reasons = [*self._unknown_chemistry(n_own), *self._unknown_atoms(n_own, prediction)]
        reasons = [reason for found in self._comm.allgather(reasons) for reason in found]
        if reasons and self._comm.rank == 0:
            warnings.warn(reasons[0], UnknownChemistryWarning, stacklevel=2)

    def _unknown_chemistry(self, n_own: int) -> list[str]:
        """Return what is unknown to the model: about all atoms, and about bonds of own atoms."""
        domain, lmp = self.engine.known_domain, self._lmp
        if domain is None:
            return []
        n_atoms = n_own + lmp.extract_setting("nghost")
        types = view(lmp, "type", n_atoms)
        counts = self._sum(*np.bincount(types[:n_own], minlength=len(self._numbers)))
        numbers = np.repeat(self._numbers, np.array(counts, dtype=np.int64))
        reasons = list(unknown_composition(numbers, int(self._charge), domain))
        if n_own and not self._charge:
            batch = Batch.of(self._numbers[types], positions_of(lmp, n_atoms))
            reasons += islice(unknown_bonds(batch, domain, view(lmp, "id", n_atoms), n_own), 1)
        return reasons

    def _unknown_atoms(self, n_own: int, prediction: PartPrediction) -> list[str]:
        """Return, on one rank, which atom of all ranks the model is least sure of, if too much."""
        limit, known = self.engine.uncertainty_limit, prediction.uncertainty
        if limit is None:
            return []
        lmp, units = self._lmp, find_units(self._lmp)
        if known is None:  # without own atoms
            known = np.zeros(0)
        known = known * (units.energy / units.length)
        (above,) = self._sum(float(np.count_nonzero(known > limit)))
        most = self._comm.allgather(float(known.max(initial=0.0)))
        if not above or most.index(max(most)) != self._comm.rank:
            return []
        numbers, labels = self._numbers[view(lmp, "type", n_own)], view(lmp, "id", n_own)
        return [unknown_atoms(numbers, known, limit, labels, int(above))]

    def _sum(self, *values: float) -> list[float]:
        """Sum values over all ranks."""
        total = np.empty(len(values))
        self._comm.Allreduce(np.array(values, dtype=np.float64), total)
        return total.tolist()

    def _pass_on(
        self, step: int, prediction: PartPrediction, energy: float, forces: FloatArray
    ) -> None:
        """Give results to LAMMPS: the total energy, and everything else for own atoms."""
        lmp, reverse = self._lmp, self._reverse
        sums_forces = self._is_alone or (self._exchanges and self._transport.is_queued)
        if sums_forces and prediction.atom_virials is None:
            forces[:] = prediction.forces[: len(forces)]
        else:
            assert reverse is not None
            reverse.add(prediction.forces, forces)
        if reverse is not None and prediction.atom_virials is not None:
            virials = np.empty((len(forces), 6))
            reverse.add(_for_lammps(prediction.atom_virials), virials)
            if len(forces):
                lmp.numpy.fix_external_set_virial_peratom(FIX, virials)
        if lmp.extract_global("eflag_atom") == step:
            lmp.numpy.fix_external_set_energy_peratom(FIX, prediction.atom_energies)
        lmp.fix_external_set_energy_global(FIX, energy)
        # LAMMPS divides by the number of ranks, and sums over them.
        lmp.fix_external_set_virial_global(FIX, _for_lammps(prediction.virial) * self._comm.size)

    def _fail(self, error: BaseException | None, forces: FloatArray) -> None:
        """End all ranks with the message of the first failure, or stop the run of a single rank."""
        comm = self._comm
        if comm.size > 1:
            first = min(comm.allgather(comm.size if error is None else comm.rank))
            self._lmp.flush_buffers()
            end_together(comm, _message(error, comm), speaker=first)
        self._atoms.forget()  # because the next run begins anew
        self._last_step = -2
        self.guard.fail(error)
        self._void(forces)

    def _void(self, forces: FloatArray) -> None:
        """Replace all results of the last step by NaN, for programs that continue."""
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
    """Change the last step with virials of atoms to -1, because LAMMPS begins with step 0."""
    extract = lmp.lib.lammps_extract_global
    extract.restype = ctypes.POINTER(ctypes.c_int64)
    extract(lmp.lmp, b"vflag_atom")[0] = -1


def _for_lammps(virials: FloatArray) -> FloatArray:
    """Convert derivatives with respect to strain [..., 3, 3] to LAMMPS's virials [..., 6]."""
    rows = (virials + virials.swapaxes(-1, -2)) / -2
    return rows.reshape(*virials.shape[:-2], 9)[..., LAMMPS_ORDER]
