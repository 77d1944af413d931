"""Checks that a System can be decoupled: everything between region and surroundings must scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mlff_triton.calculators.openmm.atoms import check_indices
from mlff_triton.errors import InputError

if TYPE_CHECKING:
    import openmm

STERICS = "lambda_sterics"
ELECTROSTATICS = "lambda_electrostatics"
STERICS_NAME = "sterics of a decoupled region"

WITHOUT_ATOMS = {  # or acting on each one alone
    "AndersenThermostat",
    "CMMotionRemover",
    "CustomExternalForce",
    "CustomVolumeForce",
    "MonteCarloAnisotropicBarostat",
    "MonteCarloBarostat",
    "MonteCarloFlexibleBarostat",
    "MonteCarloMembraneBarostat",
    "RPMDMonteCarloBarostat",
}
TERMS = {  # number of atoms; they come first among the parameters of each term
    "Bond": 2,
    "Angle": 3,
    "Torsion": 4,
}
OF_TERMS = {
    "CustomAngleForce",
    "CustomBondForce",
    "CustomTorsionForce",
    "HarmonicAngleForce",
    "HarmonicBondForce",
    "PeriodicTorsionForce",
    "RBTorsionForce",
}
OF_PARTICLES = {"PythonForce", "RGForce", "RMSDForce"}


def check_region(atoms: Iterable[int], n_particles: int) -> list[int]:
    """Return the indices of a region in ascending order.

    Raises
    ------
    InputError
        If one is invalid, or the region is empty or everything.
    """
    region = check_indices(atoms, n_particles, "atoms", "name those of a molecule")
    if len(region) == n_particles:
        raise InputError(
            "atoms names all particles, which have no surroundings: name those of the molecule"
        )
    return sorted(region.tolist())


def check_can_decouple(system: openmm.System, region: list[int]) -> None:
    """Raise `InputError` if a region's interactions with its surroundings would not all scale."""
    inside = set(region)
    for force in system.getForces():
        _check_not_decoupled(force)
    for i in range(system.getNumParticles()):
        if system.isVirtualSite(i):
            site = system.getVirtualSite(i)
            parents = [site.getParticle(k) for k in range(site.getNumParticles())]
            if not inside.isdisjoint([i, *parents]):
                raise InputError(
                    f"particle {i} is a virtual site of the region, which is not supported: use a "
                    "force field without virtual sites for it"
                )
    for k in range(system.getNumConstraints()):
        i, j, _ = system.getConstraintParameters(k)
        _check_together([i, j], inside, "a constraint")
    nonbonded = nonbonded_of(system)
    for force in system.getForces():
        if force.__class__.__name__ != "NonbondedForce":
            _check_force(force, inside)
    _check_nonbonded(nonbonded, inside)


def check_stays_decoupled(
    system: openmm.System, atoms: Iterable[int], *, sums_images: bool
) -> None:
    """Raise `InputError` if a model of some atoms would couple a region that is decoupled.

    The same holds for a model that sums charges over periodic images, as the force field of a
    decoupled region does so as well.
    """
    kept = [i for i in atoms if not system.isVirtualSite(i)]  # without caps of bonds
    for region in _decoupled_regions(system):
        if sums_images and not region.isdisjoint(kept):
            raise InputError(
                "the model sums charges over periodic images by particle-mesh Ewald, and so does "
                "the force field of the decoupled region: use a model with coulomb='all-pairs', "
                "and periodic=False"
            )
        if not _is_on_one_side(kept, region):
            raise InputError(
                "the model would compute interactions between the decoupled region and other "
                "atoms, which do not scale: decouple all atoms of the model, or more"
            )


def is_decoupled(system: openmm.System, atoms: Iterable[int]) -> bool:
    """Return True if these atoms are a region that is decoupled in a System.

    Raises
    ------
    InputError
        If another region is decoupled.
    """
    regions = _decoupled_regions(system)
    if regions and regions != [set(atoms)]:
        raise InputError(
            "the charges of the model act with those of all other atoms, and must scale for all of "
            "the decoupled region and nothing else: decouple exactly the atoms of the model"
        )
    return bool(regions)


def _decoupled_regions(system: openmm.System) -> list[set[int]]:
    return [
        set(force.getInteractionGroupParameters(0)[0])
        for force in system.getForces()
        if force.getName() == STERICS_NAME
    ]


def nonbonded_of(system: openmm.System) -> openmm.NonbondedForce:
    """Return the only NonbondedForce of a System.

    Raises
    ------
    InputError
        If there is not exactly one.
    """
    found = [f for f in system.getForces() if f.__class__.__name__ == "NonbondedForce"]
    if not found:
        raise InputError(
            "the System has no NonbondedForce, which is what decouple scales (AMOEBA and models of "
            "all atoms have none): give it a classical System, or one of createMixedSystem"
        )
    if len(found) > 1:
        raise InputError(
            f"the System has {len(found)} NonbondedForces, and decouple scales one: join them"
        )
    return found[0]


def _check_not_decoupled(force: openmm.Force) -> None:
    if not hasattr(force, "getNumGlobalParameters"):
        return
    for k in range(force.getNumGlobalParameters()):
        name = force.getGlobalParameterName(k)
        if name in (STERICS, ELECTROSTATICS):
            raise InputError(
                f"the System has a parameter {name} already, as decouple makes it: decouple all "
                "atoms of the region at once, starting from the original System"
            )


def _check_nonbonded(force: openmm.NonbondedForce, inside: set[int]) -> None:
    if force.getNonbondedMethod() == force.LJPME:
        raise InputError(
            "LJPME cannot be decoupled, as Lennard-Jones energies beyond the cutoff would not "
            "scale: make the System with PME"
        )
    if force.getNumParticleParameterOffsets() or force.getNumExceptionParameterOffsets():
        raise InputError(
            "the NonbondedForce has parameter offsets already, which decouple would overwrite: "
            "start from a System without them"
        )
    if not force.getIncludeDirectSpace():
        raise InputError(
            "the NonbondedForce leaves out direct space, so that another force must compute it: "
            "start from a System whose NonbondedForce computes both parts"
        )
    for k in range(force.getNumExceptions()):
        pair = force.getExceptionParameters(k)[:2]
        _check_together(pair, inside, "an exception of the NonbondedForce")


def _check_force(force: openmm.Force, inside: set[int]) -> None:
    """Raise `InputError` unless each term of a force is within the region, or outside it."""
    kind = force.__class__.__name__
    if kind in WITHOUT_ATOMS:
        return
    if kind == "CustomCVForce":
        for k in range(force.getNumCollectiveVariables()):
            _check_force(force.getCollectiveVariable(k), inside)
        return
    terms = _terms_of(force)
    if terms is None:
        raise InputError(_unknown(kind))
    for term in terms:
        if kind in OF_PARTICLES and not _is_on_one_side(term, inside):
            raise InputError(
                f"a {kind} acts on atoms of the region and on others, so that it couples them "
                "whatever the parameters are: let it act on the region alone"
            )
        _check_together(term, inside, f"a term of the {kind}")


def _terms_of(force: openmm.Force) -> Iterator[list[int]] | None:
    """Return the atoms of each term of a force, or None if they are unknown."""
    kind = force.__class__.__name__
    if kind in OF_TERMS:
        name = next(name for name in TERMS if name in kind)
        get, count = getattr(force, f"get{name}Parameters"), getattr(force, f"getNum{name}s")()
        return (list(get(k)[: TERMS[name]]) for k in range(count))
    if kind == "CMAPTorsionForce":
        count = force.getNumTorsions()
        return (list(force.getTorsionParameters(k)[1:]) for k in range(count))
    if kind == "CustomCompoundBondForce":
        count = force.getNumBonds()
        return (list(force.getBondParameters(k)[0]) for k in range(count))
    if kind in OF_PARTICLES:
        particles = list(force.getParticles())
        return iter([particles]) if particles else None  # none stands for all
    return None


def _unknown(kind: str) -> str:
    if kind == "TorchForce":
        return (
            "OpenMM cannot copy a TorchForce, nor tell its atoms: decouple the classical System, "
            "and let createMixedSystem mix it afterwards, or use route='python'"
        )
    if kind in OF_PARTICLES:
        return (
            f"a {kind} acts on all atoms, so that it couples region and surroundings whatever the "
            "parameters are: let it act on the region alone; with embedding='ml-charges', decouple "
            "first, and mix afterwards"
        )
    return (
        f"a {kind} may couple region and surroundings, and decouple does not scale it: use a "
        "System whose interactions between molecules are those of one NonbondedForce"
    )


def _is_on_one_side(atoms: Iterable[int], inside: set[int]) -> bool:
    return len({i in inside for i in atoms}) < 2


def _check_together(atoms: list[int], inside: set[int], what: str) -> None:
    if not _is_on_one_side(atoms, inside):
        within = next(i for i in atoms if i in inside)
        outside = next(i for i in atoms if i not in inside)
        raise InputError(
            f"{what} connects atom {within} of the region with atom {outside} outside it: the "
            "region must consist of whole molecules"
        )
