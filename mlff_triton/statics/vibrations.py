"""Harmonic vibrations of a structure from finite differences of forces, computed in batches.

Overall translations, and rotations of molecules, are projected out of the Hessian, as in Wilson,
Decius and Cross, Molecular Vibrations (1955), chapter 2. Atoms that are fixed are left out, as in
ASE. All modes of the others are kept; rotations about one or two fixed atoms have no frequency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.linalg
from ase import Atoms, units
from ase.thermochemistry import IdealGasThermo
from numpy.typing import NDArray

from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.stages import check_positive
from mlff_triton.errors import InputError
from mlff_triton.statics.single_points import IMAGES_PER_CALL

LINEAR = 0.01  # a molecule is linear if its smallest radius of gyration is this part of the largest
GEOMETRIES: dict[int, Literal["monatomic", "linear", "nonlinear"]]
GEOMETRIES = {3: "monatomic", 5: "linear", 6: "nonlinear"}  # by translations and rotations
QUANTUM = float(1e10 * units._hbar / np.sqrt(units._e * units._amu))
"""Energy of a quantum in eV, of a mode with the curvature of 1 eV/Å^2/amu."""


@dataclass(frozen=True)
class IdealGas:
    """Thermochemistry of a molecule as an ideal gas of rigid rotors and harmonic oscillators.

    Attributes
    ----------
    temperature, pressure : float
        In K and bar.
    enthalpy, gibbs_energy : float
        In eV; they include the potential energy.
    entropy : float
        In eV/K.
    """

    temperature: float
    pressure: float
    enthalpy: float
    entropy: float
    gibbs_energy: float


@dataclass(frozen=True)
class Vibrations:
    """Harmonic vibrations of a structure.

    Attributes
    ----------
    atoms : Atoms
        The structure.
    energy : float
        Its potential energy in eV.
    max_force : float
        The largest force on an atom that is not fixed, in eV/Å, which vanishes at a stationary
        point.
    hessian : float64 [3n, 3n]
        Second derivatives of the energy in eV/Å^2, by the coordinates of the n atoms that are not
        fixed.
    curvatures : float64 [M]
        Eigenvalues of the mass-weighted Hessian in eV/Å^2/amu, ascending, without translations and,
        in molecules, rotations. With fixed atoms, there are 3n.
    modes : float64 [M, N, 3]
        Displacements of the atoms, of norm 1 in each mode; zero for fixed atoms.
    """

    atoms: Atoms
    energy: float
    max_force: float
    hessian: NDArray[np.float64]
    curvatures: NDArray[np.float64]
    modes: NDArray[np.float64]

    @cached_property
    def energies(self) -> NDArray[np.complex128]:
        """Energies of a quantum of each mode in eV; imaginary where the curvature is negative."""
        return np.asarray(QUANTUM * np.sqrt(self.curvatures.astype(np.complex128)))

    @property
    def frequencies(self) -> NDArray[np.complex128]:
        """Wave numbers of the modes in 1/cm."""
        return self.energies / units.invcm

    @property
    def n_imaginary(self) -> int:
        """Number of modes along which the energy falls."""
        return int((self.curvatures < 0).sum())

    @property
    def zero_point_energy(self) -> float:
        """Half a quantum of each mode that is not imaginary, eV."""
        return float(self.energies.real.sum() / 2)

    def displaced(self, mode: int = 0, distance: float = 0.1) -> Atoms:
        """Return the structure displaced along a mode, such as an imaginary one to leave a saddle.

        Parameters
        ----------
        mode : int
            Number of the mode; 0 has the lowest curvature.
        distance : float
            Displacement in Å of the atom that moves most.
        """
        atoms: Atoms = self.atoms.copy()
        largest = np.linalg.norm(self.modes[mode], axis=1).max()
        atoms.positions += distance / largest * self.modes[mode]
        return atoms

    def ideal_gas(
        self,
        temperature: float,
        pressure: float = 1.0,
        symmetry_number: int = 1,
        spin: float = 0.0,
    ) -> IdealGas:
        """Compute the thermochemistry of a molecule with ``IdealGasThermo`` of ASE.

        Parameters
        ----------
        temperature, pressure : float
            In K and bar.
        symmetry_number : int
            Number of rotations that map the molecule to itself.
        spin : float
            Total electronic spin, such as 0.5 for a radical.

        Raises
        ------
        InputError
            If the structure is periodic or has fixed atoms, a mode is imaginary, or an option is
            invalid.
        """
        check_ideal_gas(self.atoms, temperature, pressure, symmetry_number, spin)
        if self.n_imaginary:
            raise InputError(
                "an ideal gas needs molecules without imaginary modes: relax the structure"
            )
        n_external = 3 * len(self.atoms) - len(self.curvatures)
        gas = IdealGasThermo(
            vib_energies=self.energies.real.tolist(),
            geometry=GEOMETRIES[n_external],
            potentialenergy=self.energy,
            atoms=self.atoms,
            symmetrynumber=symmetry_number,
            spin=spin,
        )
        enthalpy = float(gas.get_enthalpy(temperature, verbose=False))
        entropy = float(gas.get_entropy(temperature, pressure * 1e5, verbose=False))
        return IdealGas(temperature, pressure, enthalpy, entropy, enthalpy - temperature * entropy)


def check_ideal_gas(
    atoms: Atoms, temperature: float, pressure: float, symmetry_number: int, spin: float
) -> None:
    """Raise `InputError` if `Vibrations.ideal_gas` cannot take a structure and its options."""
    if atoms.pbc.any():
        raise InputError("an ideal gas consists of molecules, but the structure is periodic")
    if fixed_atoms(atoms).any():
        raise InputError("molecules of an ideal gas move freely: fix no atoms")
    for name, value in (("temperature", temperature), ("pressure", pressure)):
        check_positive(name, value)
    if symmetry_number < 1:
        raise InputError(f"symmetry number {symmetry_number} must be at least 1")
    if not (spin >= 0 and (2 * spin).is_integer()):
        raise InputError(f"spin {spin} must be a multiple of 1/2 and not negative")


def find_vibrations(
    atoms: Atoms,
    calculator: TensorNetCalculator,
    displacement: float = 0.01,
    progress: Callable[[int], None] | None = None,
) -> Vibrations:
    """Compute the harmonic vibrations of a structure, at the center of the Brillouin zone.

    Each coordinate is displaced in both directions. These 6N structures are computed in batches;
    fixed atoms are not displaced.

    Parameters
    ----------
    atoms : Atoms
        A structure at rest: frequencies mean little where forces do not vanish.
    calculator : TensorNetCalculator
        The calculator, best in float64: rounding in float32 shifts low frequencies by several 1/cm.
    displacement : float
        Displacement in Å.
    progress : callable, optional
        Called with the number of structures computed so far.

    Raises
    ------
    MlffTritonError
        If the displacement is not positive, the structure has a constraint that does more than fix
        atoms, or the model cannot compute it.
    """
    check_positive("displacement", displacement)
    fixed = fixed_atoms(atoms)
    moving = np.flatnonzero(~fixed)
    (rest,) = calculator.calculate_many([atoms])
    hessian = _hessian(atoms, moving, calculator, displacement, progress or (lambda _: None))
    root = np.sqrt(np.repeat(atoms.get_masses()[moving], 3))
    overall = _overall_motions(atoms, fixed)
    internal = scipy.linalg.null_space(overall) if len(overall) else np.eye(len(root))
    weighted = internal.T @ (hessian / np.outer(root, root)) @ internal
    curvatures, vectors = np.linalg.eigh(weighted)
    vectors = internal @ vectors
    if fixed.any():  # the remaining overall motion is a mode without curvature
        curvatures = np.concatenate([np.zeros(len(overall)), curvatures])
        vectors = np.concatenate([overall.T, vectors], axis=1)
        order = np.argsort(curvatures, kind="stable")
        curvatures, vectors = curvatures[order], vectors[:, order]
    modes = vectors.T / root
    modes /= np.linalg.norm(modes, axis=1, keepdims=True)
    of_atoms = np.zeros((len(modes), len(atoms), 3))
    of_atoms[:, moving] = modes.reshape(len(modes), len(moving), 3)
    return Vibrations(
        atoms=atoms.copy(),
        energy=rest["energy"],
        max_force=float(np.linalg.norm(rest["forces"][moving], axis=1).max()),
        hessian=hessian,
        curvatures=curvatures,
        modes=of_atoms,
    )


def _hessian(
    atoms: Atoms,
    moving: NDArray[np.int64],
    calculator: TensorNetCalculator,
    displacement: float,
    progress: Callable[[int], None],
) -> NDArray[np.float64]:
    """Return the symmetrized central differences of forces on atoms that move."""
    size = 3 * len(moving)
    slopes = np.empty((size, size))
    for start in range(0, size, IMAGES_PER_CALL // 2):
        part = range(start, min(start + IMAGES_PER_CALL // 2, size))
        images = [
            _displaced(atoms, moving[k // 3], k % 3, sign * displacement)
            for k in part
            for sign in (1, -1)
        ]
        forces = [result["forces"][moving].ravel() for result in calculator.calculate_many(images)]
        slopes[start : part.stop] = np.subtract(forces[1::2], forces[::2]) / (2 * displacement)
        progress(2 * part.stop)
    return (slopes + slopes.T) / 2


def _displaced(atoms: Atoms, atom: int, axis: int, distance: float) -> Atoms:
    image: Atoms = atoms.copy()
    image.positions[atom, axis] += distance
    return image


def _overall_motions(atoms: Atoms, fixed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the overall motions that leave fixed atoms in place, as orthonormal rows.

    These are translations and, without periodicity, rotations, in mass-weighted coordinates of the
    atoms that move. A molecule can rotate about one or two fixed atoms.
    """
    arms = atoms.positions - atoms.get_center_of_mass()
    motions = [np.broadcast_to(axis, arms.shape) for axis in np.eye(3)]
    if not atoms.pbc.any():
        motions += [np.cross(axis, arms) for axis in np.eye(3)]
    kinds = np.array(motions)
    if fixed.any():
        allowed = scipy.linalg.null_space(kinds[:, fixed].reshape(len(kinds), -1).T, rcond=1e-6)
        kinds = np.tensordot(allowed.T, kinds, 1)
    weighted = kinds[:, ~fixed] * np.sqrt(atoms.get_masses()[~fixed, None])
    flat = weighted.reshape(len(kinds), 3 * int((~fixed).sum()))
    _, sizes, rows = np.linalg.svd(flat, full_matrices=False)
    return np.asarray(rows[sizes > LINEAR * sizes.max(initial=0)])
