"""TensorNet as an OpenMM force."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mlff_triton._common.devices import dtype_name, find_device
from mlff_triton._common.remedies import install
from mlff_triton.calculators._plausibility import Plausibility
from mlff_triton.calculators.openmm.atoms import Selection, box_of, check_bonds
from mlff_triton.calculators.openmm.recipe import Options, Recipe, lasting_model, load_lasting
from mlff_triton.engine.batch import Batch, check_charge
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.fork_lock import ForkLock
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.prediction import Ensemble, check_neutral, members_of
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

if TYPE_CHECKING:
    import openmm
    from openmm.app import Topology

FORCE_NAME = "mlff_triton"
ANY_BOX = 1e4 * np.eye(3)  # Å; each step has its own
ROUTES = ("auto", "python", "torch")


def create_openmm_force(
    topology_or_numbers: Topology | ArrayLike,
    model: str | Path | TensorNet | Ensemble = "default",
    *,
    particles: Iterable[int] | None = None,
    periodic: bool | None = None,
    charge: int = 0,
    device: str = "auto",
    dtype: str | torch.dtype = "float32",
    backend: str = "auto",
    route: str = "auto",
    skin: float | str = "auto",
    force_group: int = 0,
    remove_references: bool = False,
) -> openmm.Force:
    """Make a force for an OpenMM System that computes energies and forces with a TensorNet.

    Parameters
    ----------
    topology_or_numbers : openmm.app.Topology or int [N]
        All atoms of the System, or their atomic numbers.
    model : str, path, TensorNet or Ensemble
        ``"default"``, ``"default-charged"``, another name, address or checkpoint as in
        `mlff_triton.load_model`, or a loaded model, which is copied.
    particles : int [M], optional
        Indices of the atoms that the model computes; all by default. Other forces between these
        atoms are not removed. openmm-ml's ``createMixedSystem`` removes the classical ones.
    periodic : bool, optional
        If True, the model is periodic in all directions of the System's box. By default, True if
        the topology has box vectors. The box may change at any time, for example by a barostat.
    charge : int
        Total charge of the model's atoms, in elementary charges.
    device, dtype, backend, skin
        Same as for `mlff_triton.Engine`. OpenMM's platform may run on another device.
    route : {"auto", "python", "torch"}
        ``"python"``: an ``openmm.PythonForce``, on every platform. ``"torch"``: a TorchForce of
        OpenMM-Torch, faster with a GPU. `explain_openmm_route` describes the choice of "auto".
    force_group : int
        Group of the force, 0 to 31, for multiple time steps and for energies by group.
    remove_references : bool
        Subtract the constant reference energies and mean, to keep more digits in single precision.

    Returns
    -------
    openmm.Force
        Argument for ``System.addForce``, with the name "mlff_triton". A PythonForce can be written
        to XML and read again. OpenMM-Torch 1.5 crashes when it reads a TorchForce.

    Notes
    -----
    A barostat moves molecules as a whole, and recognizes them by the bonds between atoms. This
    force has no bonds: add those of `mlff_triton.calculators.create_openmm_bonds` to the System.

    With ``periodic=False``, atoms in a box are computed without their images. The bonds of the
    topology make wrapped molecules whole. With `particles`, each molecule is computed at the image
    whose middle is nearest to that of the largest molecule, and a step raises an error if molecules
    are within the cutoff only across a face of the box.

    The first step refuses atoms that are far too close, and warns by an `UnknownChemistryWarning`
    if the structure differs from all that the model was trained for, or if the model expects a
    larger error in the force on an atom than usual. By route "python", later steps warn as well.

    Raises
    ------
    InputError
        If an option, a particle or an element is invalid, a bond connects a particle with an atom
        that is not one of them, or the model cannot be periodic without a ``coulomb_cutoff``.
    BackendError
        If OpenMM is missing, or a device, backend or route cannot serve the model. The message
        names one that can.
    CheckpointError
        If the model cannot be loaded.

    Examples
    --------
    >>> import openmm
    >>> system = openmm.System()
    >>> for mass in (15.999, 1.008, 1.008):
    ...     _ = system.addParticle(mass)
    >>> _ = system.addForce(create_openmm_force([8, 1, 1], device="cpu"))
    >>> context = openmm.Context(system, openmm.VerletIntegrator(0.0005))
    >>> context.setPositions([[0, 0, 0.01], [0, 0.08, -0.05], [0, -0.08, -0.05]])
    >>> energy = context.getState(energy=True).getPotentialEnergy()
    >>> print(f"{energy.value_in_unit(openmm.unit.kilojoule_per_mole):.0f} kJ/mol")
    -13306 kJ/mol
    """
    selection, box = selected(topology_or_numbers, particles)
    options = Options(
        model=model,
        periodic=box is not None if periodic is None else periodic,
        charge=charge,
        device=device,
        dtype=dtype,
        backend=backend,
        route=route,
        skin=skin,
        force_group=force_group,
        remove_references=remove_references,
    )
    return force_of_selection(selection, options, box)


def selected(
    topology_or_numbers: Topology | ArrayLike, particles: Iterable[int] | None
) -> tuple[Selection, FloatArray | None]:
    """Return the atoms that the model computes, and the box of a topology, in nm."""
    if not isinstance(topology_or_numbers, import_openmm().app.Topology):
        return Selection.of_numbers(topology_or_numbers, particles), None
    selection = Selection.of_topology(topology_or_numbers, particles)
    check_bonds(topology_or_numbers, selection.particles)
    return selection, box_of(topology_or_numbers)


def force_of_selection(
    selection: Selection, options: Options, box: FloatArray | None
) -> openmm.Force:
    """Make a force for selected atoms as `create_openmm_force` does, without checking bonds.

    Atoms in a box, [3, 3] in nm, may be wrapped, even if the model is not periodic.
    """
    recipe = recipe_of_selection(selection, options, box)
    route, _ = choose_route(options.route, find_device(options.device))
    force = _torch_force(recipe) if route == "torch" else _python_force(recipe)
    force.setForceGroup(options.force_group)
    force.setName(FORCE_NAME)
    return force


def recipe_of_selection(selection: Selection, options: Options, box: FloatArray | None) -> Recipe:
    """Return the checked recipe of a force; takes the arguments of `force_of_selection`."""
    charge = check_charge(options.charge)
    _check_options(options)
    lasting = lasting_model(options.model)
    members = members_of(load_lasting(lasting))
    for member in members:
        selection.check_elements(member.config.elements)
        check_neutral(member.uses_charge, charge)
        _check_box(member, bool(options.periodic))
    is_torn = box is not None and not options.periodic and len(selection.numbers) > 1
    return Recipe(
        model=lasting,
        numbers=selection.numbers,
        particles=selection.particles,
        periodic=bool(options.periodic),
        charge=int(options.charge),
        device=str(options.device),
        dtype=dtype_name(options.dtype),
        backend=options.backend,
        skin=options.skin,
        shift=_reference_energy(members, selection) if options.remove_references else 0.0,
        bonds=selection.bonds if is_torn else None,
        box=box if is_torn else None,
    )


def explain_openmm_route(device: str = "auto") -> str:
    """Return the route that "auto" takes for a model on a device, and the reason, in one line.

    Examples
    --------
    >>> explain_openmm_route("cpu")
    'python: the model runs on the CPU, where positions and forces are anyway'
    """
    return ": ".join(choose_route("auto", find_device(device)))


def choose_route(route: str, device: torch.device) -> tuple[str, str]:
    """Return the route to take, and the reason.

    In small systems, an empty PythonForce costs less than an empty TorchForce. With a model on the
    GPU, however, both switch between the CUDA contexts of OpenMM and PyTorch, and the TorchForce
    was faster at all sizes on an H200, from 21 to 65,856 atoms.

    Raises
    ------
    InputError
        If the route is unknown.
    BackendError
        If "torch" is requested and does not work here.
    """
    if route not in ROUTES:
        raise InputError(f"route={route!r} is unknown: use one of {', '.join(ROUTES)}")
    if route == "python":
        return route, "as requested"
    if route == "torch":
        obstacle = _torch_obstacle()
        if obstacle is not None:
            raise BackendError(f"route='torch': {obstacle}; use route='python'")
        return route, "as requested"
    if device.type == "cpu":
        return "python", "the model runs on the CPU, where positions and forces are anyway"
    obstacle = _torch_obstacle()
    if obstacle is not None:
        return "python", f"TorchForce would keep positions and forces on the GPU, but {obstacle}"
    return "torch", "positions and forces stay on the GPU"


class EngineForce:
    """The function of a PythonForce, from a State to energy and forces in OpenMM's units.

    Parameters
    ----------
    recipe : Recipe
        Model, atoms and options. Copies and files of the force contain only the recipe.
    engine : Engine, optional
        An engine for the recipe; made at the first call by default.
    """

    def __init__(self, recipe: Recipe, engine: Engine | None = None) -> None:
        self.recipe = recipe
        self._engine = engine
        self._batch: Batch | None = None
        self._plausibility: Plausibility | None = None
        self._molecules = recipe.molecules()
        self._lock = ForkLock(is_lost_by_fork=False)  # Contexts may step in several threads

    def __reduce__(self) -> tuple[type[EngineForce], tuple[Any, ...]]:
        return EngineForce, (self.recipe,)

    @property
    def engine(self) -> Engine:
        """The engine, which owns the neighbor list."""
        if self._engine is None:
            self._engine = self.recipe.engine()
        return self._engine

    def __call__(self, state: openmm.State) -> tuple[float, NDArray[np.float64]]:
        """Compute the energy in kJ/mol and forces in kJ/mol/nm.

        The class of an exception is prepended to its message, because OpenMM passes on only the
        message.
        """
        try:
            return self.compute(state)
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("interrupted from the keyboard") from interrupt
        except Exception as error:
            part = "" if self.recipe.particles is None else " (atoms counted within particles)"
            line = str(error).partition("\n")[0]
            raise RuntimeError(f"{FORCE_NAME}: {type(error).__name__}: {line}{part}") from error

    def compute(self, state: openmm.State) -> tuple[float, NDArray[np.float64]]:
        """Compute energy and forces as a call does, and raise errors unchanged."""
        with self._lock:
            batch = self._update(state, positions_of(state))
            prediction = self.engine.evaluate(batch)
            if self._plausibility is not None:
                self._plausibility.judge(batch, prediction)
        energy = (prediction.energy.item() - self.recipe.shift) * EV_TO_KJ_PER_MOL
        return energy, prediction.forces.double().numpy() * (EV_TO_KJ_PER_MOL * NM)

    def uncertainty(self, state: openmm.State) -> NDArray[np.float64]:
        """Compute the expected error of the force on each atom in kJ/mol/nm.

        Parameters
        ----------
        state : openmm.State
            State of a whole System, with positions.
        """
        if not state.getDataTypes() & import_openmm().State.Positions:
            raise InputError("the state has no positions: ask for getState(positions=True)")
        positions, particles = positions_of(state), self.recipe.particles
        own = positions if particles is None else positions[particles]
        with self._lock:
            found = self.engine.evaluate(self._update(state, own)).uncertainty
        assert found is not None
        return found.double().numpy() * (EV_TO_KJ_PER_MOL * NM)

    def _update(self, state: openmm.State, positions: NDArray[np.float64]) -> Batch:
        """Return atoms at positions in nm; only changed parts are checked again."""
        recipe = self.recipe
        positions *= NM
        if len(positions) != len(recipe.numbers):
            raise InputError(
                f"the System has {len(positions)} particles, but the force was made for "
                f"{len(recipe.numbers)} atoms: make it from the System's own topology, or name the "
                "atoms by particles=[...]"
            )
        box = np.array(state.getPeriodicBoxVectors()._value) if recipe.uses_box else recipe.box
        if self._molecules is not None and box is not None:
            positions = self._molecules.whole(positions, NM * box, self.engine.cutoff)
        cell = NM * box if recipe.periodic and box is not None else None
        if self._batch is None:
            charge, pbc = recipe.charge, recipe.periodic
            batch = Batch.of(recipe.numbers, positions, cell, pbc, charge=charge)
            self._plausibility = Plausibility.of(self.engine)
            self._plausibility.check(batch)
            self._batch = batch
        else:
            self._batch = self._batch.with_box(cell).with_positions(positions)
        return self._batch


def import_openmm() -> Any:
    """Import `openmm` and ``openmm.app``.

    Raises
    ------
    BackendError
        If it is missing, or too old.
    """
    try:
        import openmm
        import openmm.app
    except ImportError as error:
        raise BackendError(
            f"OpenMM is needed and cannot be loaded ({error}): {install('openmm')}"
        ) from error
    if not hasattr(openmm, "PythonForce"):
        raise BackendError(
            f"OpenMM 8.6 or later is needed, this is {openmm.__version__}: {install('openmm')}"
        )
    return openmm


def positions_of(
    state: openmm.State, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return positions in nm, in a given array if any.

    ``State.getPositions(asNumpy=True)`` returns the same, but spends ten times as long on units.
    """
    positions = np.empty((state._getNumParticles(), 3)) if out is None else out
    state._getVectorAsNumpy(state.Positions, positions)
    return positions


def _check_box(model: TensorNet, periodic: bool) -> None:
    """Raise `InputError` if a model cannot be periodic, with advice for users of OpenMM."""
    try:
        model.check_box(Box.of(ANY_BOX, periodic))
    except InputError as error:
        if not periodic:
            raise
        raise InputError(
            f"{error}; for molecules in a periodic System, such as a ligand in water, pass "
            "periodic=False, which computes them without their periodic images"
        ) from error


def _check_options(options: Options) -> None:
    if not isinstance(options.periodic, (bool, np.bool_)):
        raise InputError(
            f"periodic must be True or False, for all directions at once, not {options.periodic!r}"
        )
    if options.force_group not in range(32):
        raise InputError(
            f"force_group must be an integer from 0 to 31, not {options.force_group!r}"
        )


def _reference_energy(members: Sequence[TensorNet], selection: Selection) -> float:
    """Return the sum of reference energies and the mean, averaged over the members, in eV."""
    numbers = torch.from_numpy(selection.numbers)
    energies = [m.references[m.species(numbers)].sum() + m.mean for m in members]
    return float(torch.stack(energies).mean())


def _python_force(recipe: Recipe) -> openmm.Force:
    import openmm

    force = openmm.PythonForce(EngineForce(recipe, recipe.engine()))
    force.setUsesPeriodicBoundaryConditions(recipe.uses_box)
    if recipe.particles is not None:
        force.setParticles(recipe.particles.tolist())
    return force


def _torch_force(recipe: Recipe) -> openmm.Force:
    from mlff_triton.calculators.openmm.torch_force import create_torch_force

    return create_torch_force(recipe)


def _torch_obstacle() -> str | None:
    from mlff_triton.calculators.openmm.torch_force import torch_route_obstacle

    return torch_route_obstacle()
