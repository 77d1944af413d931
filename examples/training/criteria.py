"""Comparisons of a default model with its teacher and with published values.

Each function takes `Methods` and yields what it finds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import Calculator
from ase.data import atomic_numbers, s22
from ase.data import covalent_radii as radii
from ase.optimize import BFGS
from ase.vibrations import VibrationsData
from comparison import Check, Finding, Gap, Methods, Result
from geometry import FloatArray, moving_side
from torsions import profile

from mlff_triton.training.uncertainty import Reliability
from mlff_triton.units import EV_TO_KCAL_PER_MOL

RATTLE = 0.05  # Å, standard deviation
SEEDS = range(4)
HYDROGEN_BONDED = 7  # the first dimers of S22
FORMULAS = ("H2O", "CH4", "CO2", "H2CO", "NH3", "C2H2", "HCN")
STEP = 0.005  # Å, of finite differences
LINEAR = 1e-3  # smallest moment of inertia of nonlinear molecules, relative to the largest
CLOSEST = 0.3  # Å
ACCEPTED, INSIDE = 0.31, 0.6  # distances relative to sums of covalent radii: what calculators
# accept, and what is inside the wall
FAR = 20.0  # Å
H2_LENGTH, H2_DISSOCIATED = 0.74, 6.0  # Å
H2_ENERGY = 109.5  # kcal/mol, of the bond without zero-point motion
PROTON_TRANSFER = 4.1  # kcal/mol, CCSD(T): Y. Wang et al., J. Chem. Phys. 2008, 128, 224314


def forces(methods: Methods) -> Iterator[Finding]:
    """Yield root mean squares of errors of the forces of rattled held-out molecules."""
    for name, atoms, _ in methods.family("held_out"):
        yield Finding("forces", name, "kcal/mol/Å", _rattled_error(methods, atoms), 0.0)


def ions(methods: Methods) -> Iterator[Result]:
    """Yield the same for charged molecules, those of the test set."""
    if methods.is_neutral:
        yield Gap("ions", "the model is for neutral molecules", is_missed=False)
        return
    for name, atoms, _ in methods.molecules(lambda each: each.split == "test" and each.charge):
        yield Finding("ions", name, "kcal/mol/Å", _rattled_error(methods, atoms), 0.0)


def uncertainty(methods: Methods) -> Iterator[Result]:
    """Yield shares of flagged molecules, of those with a large error of a force and of others."""
    if methods.limit is None:
        yield Gap("uncertainty", "the model does not know its uncertainty", is_missed=True)
        return
    known = list(methods.molecules(lambda each: each.split == "test"))
    if not known:
        return
    every = -(-len(known) // methods.sizes.molecules)
    predicted, actual = [], []
    for seed, (_, atoms, _) in enumerate(known[::every]):
        atoms.rattle(RATTLE, seed=seed)
        errors = _forces(methods.model, atoms) - _forces(methods.teacher, atoms)
        predicted.append(methods.model.get_property("uncertainty", atoms))
        actual.append(np.linalg.norm(errors, axis=1))
    start = np.cumsum([0, *map(len, actual)])
    found = Reliability(np.concatenate(predicted), np.concatenate(actual), start)
    for what, (flagged, count), expected in zip(
        ("badly described", "well described"), found.flagged(methods.limit), (100, 0), strict=True
    ):
        if count:
            item = f"{what}, {flagged} of {count} flagged"
            yield Finding("uncertainty", item, "%", 100 * flagged / count, expected)
        else:
            yield Gap("uncertainty", f"no molecule is {what}", is_missed=False)


def dimers(methods: Methods) -> Iterator[Finding]:
    """Yield interaction energies of S22, and CCSD(T)'s."""
    for k, name in enumerate(s22.s22):
        atoms = s22.create_s22_system(name)
        if not methods.knows(name.lower(), atoms):
            continue
        first = s22.get_number_of_dimer_atoms(name)[0]
        whole, a, b = (_energy(methods.model, x) for x in (atoms, atoms[:first], atoms[first:]))
        kind = "hydrogen bonds" if k < HYDROGEN_BONDED else "dimers"
        reference = s22.get_interaction_energy_s22(name) * EV_TO_KCAL_PER_MOL
        found = (whole - a - b) * EV_TO_KCAL_PER_MOL
        yield Finding(kind, name.lower(), "kcal/mol", found, reference)


def torsions(methods: Methods) -> Iterator[Finding]:
    """Yield relaxed torsional profiles, relative to their minima."""
    for name, atoms, structure in methods.family("torsion"):
        torsion = next(t for t in structure.torsions if (structure.numbers[list(t)] > 1).all())
        side = moving_side(structure, *torsion[1:3]).tolist()
        curves = []
        for method in (methods.model, methods.teacher):
            curve = dict(profile(atoms, torsion, side, method, 180))
            lowest = min(curve.values())
            curves.append({k: (e - lowest) * EV_TO_KCAL_PER_MOL for k, e in curve.items()})
        for degrees, found in curves[0].items():
            yield Finding("torsions", f"{name} {degrees}", "kcal/mol", found, curves[1][degrees])


def vibrations(methods: Methods) -> Iterator[Finding]:
    """Yield harmonic frequencies of small molecules, each method's at its own minimum."""
    for formula in FORMULAS:
        atoms = molecule(formula)
        if not methods.knows(formula, atoms):
            continue
        pairs = zip(*(frequencies(atoms, m) for m in (methods.model, methods.teacher)), strict=True)
        for k, (found, reference) in enumerate(pairs, start=1):
            yield Finding("vibrations", f"{formula} {k}", "1/cm", found, reference)


def frequencies(atoms: Atoms, calculator: Calculator) -> list[float]:
    """Return harmonic frequencies in 1/cm at the minimum in order, negative if unstable."""
    atoms = atoms.copy()
    atoms.calc = calculator
    BFGS(atoms, logfile=None).run(fmax=0.002, steps=500)
    x = atoms.positions.copy()
    rows = []
    for atom, axis in itertools.product(range(len(atoms)), range(3)):
        sides = []
        for sign in (1, -1):
            atoms.positions = x
            atoms.positions[atom, axis] += sign * STEP
            sides.append(atoms.get_forces().ravel())
        rows.append((sides[1] - sides[0]) / (2 * STEP))
    atoms.positions = x
    hessian = np.array(rows)
    found = VibrationsData.from_2d(atoms, (hessian + hessian.T) / 2).get_frequencies()
    moments = atoms.get_moments_of_inertia()
    free = 5 if moments.min() < LINEAR * moments.max() else 6
    found = found[np.argsort(np.abs(found))][free:]
    return sorted((found.real - found.imag).tolist())  # frequencies of unstable modes are imaginary


def walls(methods: Methods) -> Iterator[Finding]:
    """Yield the smallest force between two atoms inside their wall, which should repel."""
    for a, b in itertools.combinations_with_replacement(methods.symbols, 2):
        contact = radii[atomic_numbers[a]] + radii[atomic_numbers[b]]
        closest = max(CLOSEST, ACCEPTED * contact)
        distances = np.linspace(closest, max(closest, INSIDE * contact), 24)
        found = [_forces(methods.model, _pair(a, b, r))[1, 0] for r in distances]
        yield Finding("walls", f"{a}-{b}", "eV/Å", min(found), 0.0)


def atoms_alone(methods: Methods) -> Iterator[Finding]:
    """Yield what is left of the energy of two atoms or molecules far from each other."""
    for symbol in methods.symbols:
        alone = _energy(methods.model, Atoms([symbol]))
        left = _energy(methods.model, _pair(symbol, symbol, FAR)) - 2 * alone
        yield Finding("additive", f"{symbol} and {symbol}", "eV", left, 0.0)
    water, methane = molecule("H2O"), molecule("CH4")
    far = methane.copy()
    far.translate((FAR, 0, 0))
    left = _energy(methods.model, water + far)
    left -= _energy(methods.model, water) + _energy(methods.model, methane)
    yield Finding("additive", "H2O and CH4", "eV", left, 0.0)


def hydrogen(methods: Methods) -> Iterator[Finding]:
    """Yield the energy that holds a molecule of hydrogen together, and the published one."""
    apart, bound = (_energy(methods.model, _pair("H", "H", r)) for r in (H2_DISSOCIATED, H2_LENGTH))
    energy = (apart - bound) * EV_TO_KCAL_PER_MOL
    yield Finding("H2", "energy of its bond", "kcal/mol", energy, H2_ENERGY)


def proton_transfer(methods: Methods) -> Iterator[Finding]:
    """Yield the barrier of malonaldehyde's proton transfer, of the model and of its teacher."""
    found = [_barrier(method) for method in (methods.model, methods.teacher)]
    yield Finding("proton transfer", "malonaldehyde", "kcal/mol", found[0], PROTON_TRANSFER)
    yield Finding("proton transfer of the teacher", "malonaldehyde", "kcal/mol", *found)


CHECKS: tuple[Check, ...] = (
    walls,
    atoms_alone,
    hydrogen,
    dimers,
    vibrations,
    forces,
    ions,
    uncertainty,
    proton_transfer,
    torsions,
)


def _rattled_error(methods: Methods, atoms: Atoms) -> float:
    """Return the root mean square error in kcal/mol/Å of forces on rattled atoms."""
    errors = []
    for seed in SEEDS:
        moved = atoms.copy()
        moved.rattle(RATTLE, seed=seed)
        errors.append(_forces(methods.model, moved) - _forces(methods.teacher, moved))
    return float(np.sqrt(np.mean(np.square(errors)))) * EV_TO_KCAL_PER_MOL


def _barrier(calculator: Calculator) -> float:
    """Return the energy in kcal/mol of the symmetric form above the minimum."""
    energies = []
    for shift in (0.0, 0.25):
        atoms = malonaldehyde()
        atoms.positions[-1, 0] += shift
        atoms.calc = calculator
        BFGS(atoms, logfile=None).run(fmax=0.005, steps=400)
        energies.append(atoms.get_potential_energy())
    return (energies[0] - energies[1]) * EV_TO_KCAL_PER_MOL


def malonaldehyde() -> Atoms:
    """Return planar malonaldehyde, symmetric about x = 0, with its proton, the last atom, between.

    A minimization from here keeps the symmetry, so it ends at the saddle point.
    """
    half = {"O": (1.18, 0.0), "C": (1.22, 1.28), "H": (2.17, 1.84)}
    positions = {"C": (0.0, 1.98), "H": (0.0, 3.06)}
    symbols, places = list(positions), list(positions.values())
    for sign in (1, -1):
        symbols += half
        places += [(sign * x, y) for x, y in half.values()]
    places.append((0.0, -0.3))
    return Atoms([*symbols, "H"], [(x, y, 0.0) for x, y in places])


def _pair(a: str, b: str, distance: float) -> Atoms:
    return Atoms([a, b], [(0, 0, 0), (distance, 0, 0)])


def _energy(calculator: Calculator, atoms: Atoms) -> float:
    return float(calculator.get_potential_energy(atoms))


def _forces(calculator: Calculator, atoms: Atoms) -> FloatArray:
    found: FloatArray = calculator.get_forces(atoms).copy()
    return found
