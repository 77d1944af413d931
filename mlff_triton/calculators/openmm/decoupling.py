"""Decoupling of a region from its surroundings by global parameters, for free energies."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlff_triton.calculators.openmm.decoupling_checks import (
    ELECTROSTATICS,
    STERICS,
    STERICS_NAME,
    check_can_decouple,
    check_region,
    nonbonded_of,
)
from mlff_triton.calculators.openmm.force import import_openmm
from mlff_triton.errors import DecouplingWarning, InputError

if TYPE_CHECKING:
    import openmm

SOFTCORE = 0.5
COULOMB = 138.93545764438198  # kJ nm/mol/e^2, the constant of OpenMM's own kernels
NEUTRAL = 1e-3  # elementary charges by which rounded charges of a molecule may deviate from zero
QUADRATURE = np.polynomial.legendre.leggauss(64)
LENNARD_JONES = "4*epsilon*((sigma/r)^12-(sigma/r)^6)"
INTERIOR_NAME = "interior of a decoupled region"
TAIL_NAME = "dispersion correction of a decoupled region"

Floats = NDArray[np.float64]
Pair = tuple[int, int]


def decouple(system: openmm.System, atoms: Iterable[int]) -> openmm.System:
    """Copy a System, with parameters that scale the interaction of a region with everything else.

    The copy has two global parameters, which are 1 by default. With both at 1, energies and forces
    are those of the System. With both at 0, region and surroundings do not interact: a molecule is
    in vacuum. Interactions within the region, by a model or a force field, and within the
    surroundings stay unchanged (decoupling, not annihilation).

    Parameters
    ----------
    system : openmm.System
        A classical System, or a mixed one of openmm-ml, with one NonbondedForce. It is not changed.
    atoms : int [M]
        Indices of the region, which consists of whole molecules.

    Returns
    -------
    openmm.System
        The copy, with the context parameters ``lambda_sterics`` and ``lambda_electrostatics``,
        which have no unit. `energy_derivatives` returns derivatives by both.

    Notes
    -----
    ``lambda_electrostatics`` multiplies the charges of the region, by parameter offsets of the
    NonbondedForce. Coulomb energies within the region do not scale. With Ewald sums, the region's
    interaction with its own periodic images scales with the square, and ends at zero.

    ``lambda_sterics`` scales the Lennard-Jones energy between region and surroundings, with a soft
    core [1]_ of alpha = 0.5 and the exponents 1, 1 and 6, the default of openmmtools::

        U = 4 epsilon lambda x (x - 1),  x = sigma^6 / (alpha (1 - lambda) sigma^6 + r^6)

    Cutoff, switching function and long-range correction are those of the NonbondedForce. Within
    the region, Lennard-Jones and, with a reaction field, Coulomb energies keep them as well.

    Atoms without a core must not carry charges: first lower ``lambda_electrostatics`` to 0, and
    then ``lambda_sterics``.

    Each pair of atoms of the region without an exception gets one, or a term of its own. The number
    of pairs grows quadratically, which suits molecules, not proteins.

    Decouple a System before openmm-ml mixes it, or afterwards. A System with a TorchForce cannot be
    copied, so it is decoupled before. So is one with ``embedding="ml-charges"``, for which the
    region is that of the model; ``lambda_electrostatics`` then multiplies the charges of the model,
    where they act with others. Systems with ``interpolate=True`` are decoupled afterwards.

    Raises
    ------
    InputError
        If the region is empty or everything, or an atom of it does not exist or is a virtual site;
        if a bond or a constraint connects region and surroundings, or a force does whose
        interactions between them would not scale; if there is not one NonbondedForce, or it uses
        LJPME, has parameter offsets, or leaves out direct space; or if the System is decoupled.
    BackendError
        If OpenMM is missing, or too old.

    Warns
    -----
    DecouplingWarning
        If the region is charged and the System has Ewald sums. The energy with a neutralizing
        background depends on the size of the box; the correction for it is yours to add.

    References
    ----------
    .. [1] T. C. Beutler et al., Chem. Phys. Lett. 222, 529 (1994), doi:10.1016/0009-2614(94)00397-1

    Examples
    --------
    Two argon atoms, one of them decoupled:

    >>> import openmm
    >>> system = openmm.System()
    >>> force = openmm.NonbondedForce()
    >>> for _ in range(2):
    ...     _ = system.addParticle(39.948), force.addParticle(0.0, 0.34, 0.996)
    >>> _ = system.addForce(force)
    >>> context = openmm.Context(decouple(system, [0]), openmm.VerletIntegrator(0.001))
    >>> context.setPositions([[0, 0, 0], [0.38, 0, 0]])
    >>> for value in (1.0, 0.5, 0.0):
    ...     context.setParameter("lambda_sterics", value)
    ...     print(f"{context.getState(energy=True).getPotentialEnergy()._value:.3f} kJ/mol")
    -0.995 kJ/mol
    -0.494 kJ/mol
    0.000 kJ/mol
    """
    if not isinstance(system, import_openmm().System):
        raise InputError(f"decouple takes an openmm.System, not {type(system).__name__}")
    region = check_region(atoms, system.getNumParticles())
    check_can_decouple(system, region)
    decoupled = copy.deepcopy(system)
    force = nonbonded_of(decoupled)
    particles = [force.getParticleParameters(i) for i in range(force.getNumParticles())]
    charges, sigmas, epsilons = np.array([[x._value for x in row] for row in particles]).T
    _warn_if_charged(force, charges[region].sum())
    _add_tail(decoupled, force, sigmas[region], epsilons[region])
    _keep_interior(decoupled, force, region, charges, sigmas, epsilons)
    _add_sterics(decoupled, force, region, sigmas, epsilons)
    _scale_charges(force, region, charges, sigmas)
    return decoupled


def energy_derivatives(context: openmm.Context) -> dict[str, float]:
    """Compute derivatives of the energy by the global parameters of a decoupled System.

    OpenMM's NonbondedForce and PythonForce do not report derivatives, so a State has no derivative
    by ``lambda_electrostatics``. The energy is quadratic in it: the difference of the energies half
    a unit above and below is the exact derivative, apart from rounding, and costs two energies of
    the NonbondedForce's group. With ``embedding="ml-charges"``, it costs two steps of the model.

    Parameters
    ----------
    context : openmm.Context
        A Context with positions. It is in the same state afterwards.

    Returns
    -------
    dict
        Derivatives in kJ/mol, by the name of the parameter: ``lambda_electrostatics``, and all that
        a State of the Context reports, such as ``lambda_sterics``.

    Raises
    ------
    InputError
        If the System of the Context was not made by `decouple`.

    Examples
    --------
    Thermodynamic integration averages them over a simulation:

    >>> def mean_derivative(simulation, name, samples=100):
    ...     total = 0.0
    ...     for _ in range(samples):
    ...         simulation.step(100)
    ...         total += energy_derivatives(simulation.context)[name]
    ...     return total / samples
    """
    import_openmm()
    system = context.getSystem()
    if STERICS_NAME not in [force.getName() for force in system.getForces()]:
        raise InputError(
            "the System of this Context is not decoupled: make it by decouple(system, atoms); "
            "other derivatives are in getState(parameterDerivatives=True)"
        )
    state = context.getState(parameterDerivatives=True)
    derivatives = {name: float(x) for name, x in state.getEnergyParameterDerivatives().items()}
    force = nonbonded_of(system)
    groups = {force.getForceGroup(), force.getReciprocalSpaceForceGroup()} - {-1}
    groups |= {f.getForceGroup() for f in system.getForces() if _scales_charges_of_a_model(f)}
    value = context.getParameter(ELECTROSTATICS)
    energies = []
    try:
        for shifted in (value - 0.5, value + 0.5):
            context.setParameter(ELECTROSTATICS, shifted)
            state = context.getState(energy=True, groups=groups)
            energies.append(float(state.getPotentialEnergy()._value))
    finally:
        context.setParameter(ELECTROSTATICS, value)
    derivatives[ELECTROSTATICS] = energies[1] - energies[0]
    return derivatives


def _scales_charges_of_a_model(force: openmm.Force) -> bool:
    is_python = force.__class__.__name__ == "PythonForce"
    return is_python and ELECTROSTATICS in force.getGlobalParameters()


def _warn_if_charged(force: openmm.NonbondedForce, charge: float) -> None:
    if force.getNonbondedMethod() in (force.Ewald, force.PME) and abs(charge) > NEUTRAL:
        warnings.warn(
            f"the region has a charge of {charge:+.3g}: with Ewald sums, its free energy of "
            "decoupling depends on the size of the box, and lacks a correction for finite size, "
            "which is yours to add; or decouple a neutral pair of ions",
            DecouplingWarning,
            stacklevel=3,
        )


def _scale_charges(
    force: openmm.NonbondedForce, region: Sequence[int], charges: Floats, sigmas: Floats
) -> None:
    """Leave particles of the region only charges that scale, and no Lennard-Jones energy."""
    force.addGlobalParameter(ELECTROSTATICS, 1.0)
    for i in region:
        force.setParticleParameters(i, 0.0, sigmas[i], 0.0)
        force.addParticleParameterOffset(ELECTROSTATICS, i, charges[i], 0.0, 0.0)


def _keep_interior(
    system: openmm.System,
    force: openmm.NonbondedForce,
    region: Sequence[int],
    charges: Floats,
    sigmas: Floats,
    epsilons: Floats,
) -> None:
    """Give pairs of the region energies that do not scale, without changing existing exceptions.

    Exceptions have no cutoff, so interactions with a cutoff become a force of their own. Unlike
    bonds, its pairs do not make the region a molecule.
    """
    import openmm

    excepted = {tuple(sorted(force.getExceptionParameters(k)[:2])) for k in _exceptions(force)}
    pairs = [
        (i, j)
        for n, i in enumerate(region)
        for j in region[:n]
        if (min(i, j), max(i, j)) not in excepted
    ]
    if not pairs:
        return
    method = force.getNonbondedMethod()
    has_field = method in (force.CutoffNonPeriodic, force.CutoffPeriodic)
    has_cutoff = method != force.NoCutoff
    if method in (force.Ewald, force.PME):
        # A molecule may lie across a face of the box, with another one at the far side
        force.setExceptionsUsePeriodicBoundaryConditions(True)
    bonds = openmm.CustomCompoundBondForce(2, _interior_energy(force))
    bonds.setName(INTERIOR_NAME)
    bonds.setForceGroup(force.getForceGroup())
    bonds.setUsesPeriodicBoundaryConditions(has_cutoff and method != force.CutoffNonPeriodic)
    for name in ("product", "sigma", "epsilon"):
        bonds.addPerBondParameter(name)
    for i, j in pairs:
        product = charges[i] * charges[j]
        sigma = 0.5 * (sigmas[i] + sigmas[j])
        epsilon = float(np.sqrt(epsilons[i] * epsilons[j]))
        inside = 0.0 if has_field else product
        force.addException(i, j, inside, sigma, 0.0 if has_cutoff else epsilon)
        if has_cutoff:
            bonds.addBond([i, j], [product - inside, sigma, epsilon])
    if has_cutoff:
        system.addForce(bonds)


def _interior_energy(force: openmm.NonbondedForce) -> str:
    """Return the energy of a pair in the NonbondedForce within the cutoff."""
    cutoff = force.getCutoffDistance()._value
    switched = LENNARD_JONES
    if force.getUseSwitchingFunction():
        start = force.getSwitchingDistance()._value
        switched += f"*(1+step(x)*x^3*(-10+x*(15-6*x))); x=(r-{start!r})/{cutoff - start!r}"
    dielectric = force.getReactionFieldDielectric()
    k = (dielectric - 1) / (2 * dielectric + 1) / cutoff**3
    c = 3 * dielectric / (2 * dielectric + 1) / cutoff
    field = f"{COULOMB!r}*product*(1/r+{k!r}*r^2-{c!r})"
    return f"step({cutoff!r}-r)*({field}+lj); lj={switched}; r=distance(p1,p2)"


def _add_sterics(
    system: openmm.System,
    force: openmm.NonbondedForce,
    region: Sequence[int],
    sigmas: Floats,
    epsilons: Floats,
) -> None:
    """Add the Lennard-Jones energy with a soft core between region and surroundings."""
    import openmm

    energy = f"{STERICS}*4*epsilon*core*(core-1); core=sigma6/({SOFTCORE}*(1-{STERICS})*sigma6+r^6)"
    mixing = "sigma6=(0.5*(sigma1+sigma2))^6; epsilon=sqrt(epsilon1*epsilon2)"
    sterics = openmm.CustomNonbondedForce(f"{energy}; {mixing}")
    sterics.setName(STERICS_NAME)
    sterics.setForceGroup(force.getForceGroup())
    sterics.addGlobalParameter(STERICS, 1.0)
    sterics.addEnergyParameterDerivative(STERICS)
    sterics.addPerParticleParameter("sigma")
    sterics.addPerParticleParameter("epsilon")
    for sigma, epsilon in zip(sigmas, epsilons, strict=True):
        sterics.addParticle([sigma if epsilon else 1.0, epsilon])  # of 0, a core would be 0/0
    outside = set(range(system.getNumParticles())).difference(region)
    sterics.addInteractionGroup(region, outside)
    for k in _exceptions(force):
        sterics.addExclusion(*force.getExceptionParameters(k)[:2])
    method = force.getNonbondedMethod()
    if method in (force.Ewald, force.PME):
        method = force.CutoffPeriodic
    sterics.setNonbondedMethod(method)
    sterics.setCutoffDistance(force.getCutoffDistance())
    sterics.setUseSwitchingFunction(force.getUseSwitchingFunction())
    sterics.setSwitchingDistance(force.getSwitchingDistance())
    is_periodic = method == force.CutoffPeriodic
    sterics.setUseLongRangeCorrection(is_periodic and force.getUseDispersionCorrection())
    system.addForce(sterics)


def _add_tail(
    system: openmm.System, force: openmm.NonbondedForce, sigmas: Floats, epsilons: Floats
) -> None:
    """Add the contribution of pairs of the region to the System's dispersion correction."""
    import openmm

    is_periodic = force.usesPeriodicBoundaryConditions()
    if not (is_periodic and force.getUseDispersionCorrection()):
        return
    kinds, counts = np.unique(np.stack([sigmas, epsilons]), axis=1, return_counts=True)
    i, j = np.triu_indices(len(counts))
    n_pairs = np.where(i == j, counts[i] * (counts[i] + 1) / 2, counts[i] * counts[j])
    sigma = 0.5 * (kinds[0, i] + kinds[0, j])
    epsilon = np.sqrt(kinds[1, i] * kinds[1, j])
    cutoff = force.getCutoffDistance()._value
    tail = epsilon * (sigma**12 / (9 * cutoff**9) - sigma**6 / (3 * cutoff**3))
    if force.getUseSwitchingFunction():
        start = force.getSwitchingDistance()._value
        x, weights = 0.5 * (QUADRATURE[0] + 1), 0.5 * (cutoff - start) * QUADRATURE[1]
        r = start + (cutoff - start) * x
        missing = weights * x**3 * (10 - x * (15 - 6 * x))
        tail += epsilon * (sigma**12 * (missing / r**10).sum() - sigma**6 * (missing / r**4).sum())
    n = system.getNumParticles()
    total = 16 * np.pi * n / (n + 1) * float((n_pairs * tail).sum())
    volume = openmm.CustomVolumeForce(f"{total!r}/v")
    volume.setName(TAIL_NAME)
    volume.setForceGroup(force.getForceGroup())
    system.addForce(volume)


def _exceptions(force: Any) -> range:
    return range(force.getNumExceptions())
