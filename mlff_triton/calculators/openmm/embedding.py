"""Mixed systems in which the model's charges interact with those of the force field.

The energy of ``embedding="ml-charges"`` is

    E = E_MM + E_ML(R_ML) + E_Coulomb(q(R_ML), R_ML, R_MM)

E_MM is that of the force field without the charges of the part, and without bonded terms and
Lennard-Jones interactions within it. E_Coulomb is in `cross_coulomb`. In a System of `decouple`,
``lambda_electrostatics`` multiplies the charges q in E_Coulomb.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlff_triton._common.text import short_repr
from mlff_triton.calculators.openmm.atoms import Selection, check_same_structure, name_of
from mlff_triton.calculators.openmm.cross_coulomb import Surroundings
from mlff_triton.calculators.openmm.decoupling_checks import ELECTROSTATICS, is_decoupled
from mlff_triton.calculators.openmm.embedded_force import EmbeddedForce
from mlff_triton.calculators.openmm.force import FORCE_NAME, recipe_of_selection
from mlff_triton.calculators.openmm.molecules import bonds_of_selection
from mlff_triton.calculators.openmm.recipe import Options, load_lasting
from mlff_triton.engine.batch import IntArray
from mlff_triton.errors import BackendError, EmbeddingWarning, InputError
from mlff_triton.kernels.electrostatics.parameters import LARGEST_ERROR, SMALLEST_ERROR
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.prediction import Ensemble, members_of
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.units import NM

if TYPE_CHECKING:
    import openmm
    from openmm.app import Topology

EMBEDDING = "ml-charges"
OPTIONS = (
    "charge",
    "device",
    "dtype",
    "backend",
    "route",
    "skin",
    "remove_references",
    "damping",
    "pme_error",
)
"""Options of `createMixedSystem` with this embedding."""
DAMPING = 0.1  # nm
SHORTEST_REACH = 5.0
"""Smallest ratio of the cutoff to the damping length; 2e-12 of the damping is left there."""
NEUTRAL = 1e-3  # elementary charges, above the rounding errors of force fields
FRACTION = 0.5  # elementary charges that a part may lack where it ends within a molecule
UNSUPPORTED = (
    "AmoebaGeneralizedKirkwoodForce",
    "AmoebaMultipoleForce",
    "AmoebaVdwForce",
    "AmoebaWcaDispersionForce",
    "CustomGBForce",
    "DrudeForce",
    "GBSAOBCForce",
    "GayBerneForce",
    "HippoNonbondedForce",
)
"""Forces with charges of their own, or with interactions within the part that would remain."""
WITH_PARAMETERS = ("CustomHbondForce", "CustomManyParticleForce", "CustomNonbondedForce")
"""Forces that may have charges among the parameters of particles."""


@dataclass(frozen=True)
class Request:
    """Options of a mixed system, checked.

    Attributes
    ----------
    options : Options
        Those of the force of the part.
    damping : float
        Damping length in nm.
    pme_error : float
        Requested relative error of the Coulomb forces between both parts.
    interpolate : bool
        True for a global parameter from the force field to the mixed system.
    """

    options: Options
    damping: float
    pme_error: float
    interpolate: bool

    @classmethod
    def of(
        cls,
        model: Any,
        force_group: int,
        interpolate: bool,
        given: dict[str, Any],
    ) -> Request:
        """Check the options of a call.

        Raises
        ------
        InputError
            If an option is unknown or invalid.
        BackendError
            If a route does not support this embedding.
        """
        unknown = [name for name in given if name not in OPTIONS]
        if unknown:
            raise InputError(
                f"{', '.join(unknown)} is unknown to embedding={EMBEDDING!r}: the options are "
                f"{', '.join(OPTIONS)}"
            )
        given = dict(given)
        damping = _length(given.pop("damping", DAMPING))
        error = given.pop("pme_error", 1e-4)
        if (
            not isinstance(error, (int, float, np.floating))
            or not SMALLEST_ERROR <= error <= LARGEST_ERROR
        ):
            raise InputError(f"pme_error={short_repr(error)} is out of range: use 1e-9 to 1e-2")
        if given.get("route", "auto") not in ("auto", "python"):
            raise BackendError(
                f"embedding={EMBEDDING!r} has no route={given['route']!r}: use route='python'"
            )
        given |= {"route": "python"}
        options = Options(model=model, periodic=False, force_group=force_group, **given)
        return cls(options, damping, float(error), bool(interpolate))


def create_embedded_system(
    topology: Topology, system: openmm.System, atoms: Sequence[int], request: Request
) -> openmm.System:
    """Make a mixed system from a classical one.

    Parameters
    ----------
    topology : openmm.app.Topology
        All atoms.
    system : openmm.System
        A classical system of these atoms, which is not changed. A part that is decoupled in it
        stays decoupled in the mixed system.
    atoms : sequence of int
        Indices of the machine-learning part.
    request : Request
        Options.

    Returns
    -------
    openmm.System

    Raises
    ------
    InputError
        If the model predicts no charges, or the system has something that is not supported, such as
        another region that is decoupled.

    Warns
    -----
    EmbeddingWarning
        If the part has another total charge in the force field than in the model, or the model
        scales its Coulomb energy.
    """
    from openmmml.embeddings import utilities

    check_same_structure(topology, system.getNumParticles())
    selection = Selection.of_topology(topology, atoms)
    assert selection.particles is not None
    decoupled = is_decoupled(system, selection.particles.tolist())
    nonbonded = _nonbonded_of(system, selection.particles.tolist() if decoupled else [])
    _check_forces(system, request.interpolate)
    _check_borders(topology, system, nonbonded, selection.particles)
    surroundings = _surroundings_of(system, nonbonded, selection.particles, request)
    box = _box_of(system) if surroundings.periodic else None
    recipe = recipe_of_selection(selection, request.options, box)
    _check_model(load_lasting(recipe.model))
    _warn_of_charge(nonbonded, selection.particles, recipe.charge, surroundings.method)

    part = [int(atom) for atom in selection.particles]
    mixed = utilities.removeBonds(system, topology, part, True)
    for force in mixed.getForces():
        if type(force).__name__ == "NonbondedForce":
            _remove_part(force, part)
        elif type(force).__name__ == "CustomNonbondedForce":
            utilities.addCustomNonbondedExclusions(force, part)
    force = _force_of(
        EmbeddedForce(recipe, surroundings, decoupled, recipe.engine()),
        request.options.force_group,
    )
    if request.interpolate:
        helper = utilities.InterpolationHelper()
        helper.addMLTerm(force)
        helper.addMMBondedTerms(system, topology, part)
        _interpolate_nonbonded(helper, mixed, nonbonded)
        helper.setupInterpolation(mixed)
    else:
        mixed.addForce(force)
    if len(selection.bonds):
        mixed.addForce(bonds_of_selection(selection))
    return mixed


def _force_of(function: EmbeddedForce, force_group: int) -> openmm.Force:
    import openmm

    force = openmm.PythonForce(function, {ELECTROSTATICS: 1.0} if function.is_decoupled else {})
    force.setUsesPeriodicBoundaryConditions(function.surroundings.periodic)
    force.setForceGroup(force_group)
    force.setName(FORCE_NAME)
    return force


def _interpolate_nonbonded(
    helper: Any, mixed: openmm.System, classical: openmm.NonbondedForce
) -> None:
    """Move the `NonbondedForce` of the mixed system and of the classical one to a helper.

    The classical force gets its own Context, because all forces of a Context need equal exceptions.
    """
    import openmm

    index = next(
        k for k, force in enumerate(mixed.getForces()) if isinstance(force, openmm.NonbondedForce)
    )
    helper.addMLTerm(copy.deepcopy(mixed.getForce(index)))
    mixed.removeForce(index)
    alone = openmm.CustomCVForce("nonbonded")
    alone.addCollectiveVariable("nonbonded", copy.deepcopy(classical))
    helper.addMMTerm(alone)


def _remove_part(nonbonded: openmm.NonbondedForce, part: Sequence[int]) -> None:
    """Remove the charges of a part, with their offsets, and all interactions within it."""
    for k, first in enumerate(part):
        _, sigma, epsilon = nonbonded.getParticleParameters(first)
        nonbonded.setParticleParameters(first, 0.0, sigma, epsilon)
        for second in part[:k]:
            nonbonded.addException(first, second, 0.0, 1.0, 0.0, True)
    for k in range(nonbonded.getNumParticleParameterOffsets()):
        name, particle, *_ = nonbonded.getParticleParameterOffset(k)
        nonbonded.setParticleParameterOffset(k, name, particle, 0.0, 0.0, 0.0)


def _surroundings_of(
    system: openmm.System, nonbonded: openmm.NonbondedForce, part: IntArray, request: Request
) -> Surroundings:
    """Read the charges outside a part, and the method by which they are summed."""
    methods = {
        nonbonded.NoCutoff: "all-pairs",
        nonbonded.CutoffNonPeriodic: "reaction-field",
        nonbonded.CutoffPeriodic: "reaction-field",
        nonbonded.Ewald: "pme",
        nonbonded.PME: "pme",
    }
    method = methods.get(nonbonded.getNonbondedMethod())
    if method is None:
        raise InputError(f"embedding={EMBEDDING!r} does not support LJPME: use nonbondedMethod=PME")
    charges = _charges_of(nonbonded)
    outside = np.delete(np.arange(len(charges)), part)
    if not len(outside):
        raise InputError("no atoms are left to the force field: use createSystem for all of them")
    sites = outside[charges[outside] != 0]
    if not len(sites):
        raise InputError(
            "all charges outside of the machine-learning part are zero: use embedding='mechanical'"
        )
    cutoff = math.inf if method == "all-pairs" else NM * _number(nonbonded.getCutoffDistance())
    damping = NM * request.damping
    if damping * SHORTEST_REACH > cutoff:
        raise InputError(
            f"damping={request.damping:g} nm is too long for a cutoff of {cutoff / NM:g} nm: use "
            f"at most {cutoff / NM / SHORTEST_REACH:g}"
        )
    periodic = nonbonded.usesPeriodicBoundaryConditions()
    if periodic:
        _check_size(_box_of(system), cutoff / NM)
    return Surroundings(
        sites=sites,
        charges=charges[sites],
        method=method,
        periodic=periodic,
        cutoff=cutoff,
        dielectric=nonbonded.getReactionFieldDielectric(),
        damping=damping,
        pme_error=request.pme_error,
    )


def _nonbonded_of(system: openmm.System, region: Sequence[int]) -> openmm.NonbondedForce:
    """Return the only `NonbondedForce` of a system, if charges can be read from it.

    Its offsets may be those of `decouple` for a region.
    """
    found = [force for force in system.getForces() if type(force).__name__ == "NonbondedForce"]
    if len(found) != 1:
        raise InputError(
            f"embedding={EMBEDDING!r} reads charges from one NonbondedForce, but the System has "
            f"{len(found)}: make it with all charges in one"
        )
    (force,) = found
    count = force.getNumParticleParameterOffsets()
    offsets = {tuple(force.getParticleParameterOffset(k)[:2]) for k in range(count)}
    known = {(ELECTROSTATICS, particle) for particle in region}
    if not offsets <= known or force.getNumExceptionParameterOffsets():
        raise InputError(
            "the NonbondedForce has offsets, which change charges with global parameters: "
            f"embedding={EMBEDDING!r} needs fixed charges, so make a System without them"
        )
    if not force.getIncludeDirectSpace():
        raise InputError(
            f"the NonbondedForce has no direct space, which embedding={EMBEDDING!r} needs: call "
            "its setIncludeDirectSpace(True)"
        )
    return force


def _check_forces(system: openmm.System, interpolate: bool) -> None:
    """Raise `InputError` for forces with other charges, or interactions that would remain."""
    for force in system.getForces():
        kind = type(force).__name__
        if kind in UNSUPPORTED:
            raise InputError(
                f"embedding={EMBEDDING!r} does not support {kind}, in which the model's charges "
                "would have no part: use a force field without it, or embedding='mechanical'"
            )
        if kind not in WITH_PARAMETERS:
            continue
        if interpolate and kind == "CustomNonbondedForce":
            raise InputError(
                "openmm-ml cannot interpolate Systems with a CustomNonbondedForce: use "
                "interpolate=False, or a force field without it"
            )
        names = _parameters_of(force)
        charged = [name for name in names if name == "q" or "charge" in name.lower()]
        if charged:
            raise InputError(
                f"a {kind} has the parameter {charged[0]!r}, which seems to be a charge: "
                f"embedding={EMBEDDING!r} reads charges from the NonbondedForce only, so move "
                "them there"
            )


def _parameters_of(force: openmm.Force) -> list[str]:
    """List the names of the parameters of each particle of a custom force."""
    names = []
    for of in ("", "Donor", "Acceptor", "Particle"):
        count = getattr(force, f"getNumPer{of or 'Particle'}Parameters", None)
        name = getattr(force, f"getPer{of or 'Particle'}ParameterName", None)
        if count is not None and name is not None:
            names += [name(k) for k in range(count())]
    return names


def _check_borders(
    topology: Topology, system: openmm.System, nonbonded: openmm.NonbondedForce, part: IntArray
) -> None:
    """Raise `InputError` if something connects a part to the force field's atoms."""
    inside = set(part.tolist())
    remedy = (
        f"take whole molecules, as embedding={EMBEDDING!r} does not cap bonds, or use "
        "embedding='mechanical'"
    )
    names = [name_of(atom) for atom in topology.atoms()]

    def check(what: str, first: int, second: int) -> None:
        if (first in inside) != (second in inside):
            ours, theirs = (first, second) if first in inside else (second, first)
            raise InputError(
                f"{what} leaves the machine-learning part, from {names[ours]} to {names[theirs]}: "
                f"{remedy}"
            )

    for bond in topology.bonds():
        check("a bond", bond[0].index, bond[1].index)
    for k in range(nonbonded.getNumExceptions()):
        first, second, *_ = nonbonded.getExceptionParameters(k)
        check("an exception of the NonbondedForce", first, second)
    for k in range(system.getNumConstraints()):
        first, second, _ = system.getConstraintParameters(k)
        check("a constraint", first, second)
    for k in range(system.getNumParticles()):
        if not system.isVirtualSite(k):
            continue
        site = system.getVirtualSite(k)
        if k in inside:
            raise InputError(f"{names[k]} is a virtual site, which the model cannot compute")
        for j in range(site.getNumParticles()):
            check("a virtual site", k, site.getParticle(j))


def _check_model(model: TensorNet | Ensemble) -> None:
    """Raise `InputError` unless a model has charges, and the energy of molecules in vacuum.

    Warn about a model whose Coulomb energy is scaled.
    """
    for member in members_of(model):
        if not member.has_charges:
            raise InputError(
                "the model predicts no charges: take a TensorNet2 with charges, or use "
                "embedding='mechanical'"
            )
        if abs(float(member.std) - 1) > NEUTRAL:
            warnings.warn(
                f"the model multiplies its own Coulomb energy by {float(member.std):.3g} eV, the "
                "scale of its energies, so that its charges may not be those of other programs: "
                "compare the energy of a dimer with and without embedding",
                EmbeddingWarning,
                stacklevel=2,
            )
        assert isinstance(member.config, TensorNet2Config)
        if member.config.coulomb_method != "all-pairs":
            raise InputError(
                f"the model has coulomb={member.config.coulomb_method!r}, but the part is in "
                "vacuum but for the force field's charges: load it by load_model(..., "
                "coulomb='all-pairs')"
            )


def _check_size(box: Any, cutoff: float) -> None:
    """Raise `InputError` if a cutoff exceeds half of a box, both in nm."""
    least = float(np.diag(box).min())
    if 2 * cutoff > least:
        raise InputError(
            f"the cutoff of {cutoff:g} nm exceeds half of the box of {least:.4g} nm: use a larger "
            "box or a smaller cutoff"
        )


def warn_of_charge(system: openmm.System, part: IntArray, charge: int) -> None:
    """Warn if the part of a system has another total charge in the force field than in the model.

    Charges that add up to the same integer agree: a part that ends within a molecule has a
    fraction of a charge in many force fields.

    Warns
    -----
    EmbeddingWarning
        If they differ.
    """
    forces = [f for f in system.getForces() if type(f).__name__ == "NonbondedForce"]
    if len(forces) == 1:
        _warn_of_charge(forces[0], part, charge, "", tolerance=FRACTION)


def _warn_of_charge(
    nonbonded: openmm.NonbondedForce,
    part: IntArray,
    charge: int,
    method: str,
    tolerance: float = NEUTRAL,
) -> None:
    """Warn if the total charge of the part differs from that in the force field."""
    classical = float(_charges_of(nonbonded)[part].sum())
    if abs(classical - charge) <= tolerance:
        return
    classical = round(classical, 3) + 0.0  # no negative zero
    reason = ", and a uniform background neutralizes the box" if method == "pme" else ""
    warnings.warn(
        f"the machine-learning part has the charge {classical:+g} e in the force field, but "
        f"{charge:+d} e in the model{reason}: check the option charge",
        EmbeddingWarning,
        stacklevel=3,
    )


def _charges_of(nonbonded: openmm.NonbondedForce) -> Any:
    """Return the charges of all particles, float64 [N], in elementary charges, if not decoupled."""
    count = nonbonded.getNumParticles()
    charges = np.array([_number(nonbonded.getParticleParameters(k)[0]) for k in range(count)])
    for k in range(nonbonded.getNumParticleParameterOffsets()):
        _, particle, charge, *_ = nonbonded.getParticleParameterOffset(k)
        charges[particle] += charge
    return charges


def _box_of(system: openmm.System) -> Any:
    """Return the default box vectors of a system, float64 [3, 3] in nm."""
    vectors: Iterable[Any] = system.getDefaultPeriodicBoxVectors()
    return np.array([[_number(x) for x in vector] for vector in vectors])


def _length(value: Any) -> float:
    """Return a damping length in nm, given a number or a Quantity."""
    from openmm import unit

    if unit.is_quantity(value) and value.unit.is_compatible(unit.nanometer):
        value = value.value_in_unit(unit.nanometer)
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise InputError(
            f"damping must be a length in nm, or 0 for point charges, not {short_repr(value)}"
        )
    return float(value)


def _number(quantity: Any) -> float:
    """Return the value of a quantity in OpenMM's own units."""
    return float(getattr(quantity, "_value", quantity))
