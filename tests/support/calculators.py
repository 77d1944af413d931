"""A calculator that passes every conformance check, and calculators that each fail one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.neighborlist import neighbor_list
from ase.stress import full_3x3_to_voigt_6_stress

from mlff_triton.testing import random_cluster, random_crystal

CUTOFF = 4.0


class Reference(Calculator):
    """A correct pair potential, ``sqrt(Z_i Z_j) / 8 (1 - d^2 / c^2)^4 (1 + q / 10)`` eV."""

    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]  # noqa: RUF012
    precision = np.float64

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        changes = super().check_state(atoms, tol)
        if self.atoms is not None and self.atoms.info.get("charge") != atoms.info.get("charge"):
            changes.append("charge")
        return changes

    def calculate(
        self, atoms: Atoms, properties: Any = ("energy",), system_changes: Any = all_changes
    ) -> None:
        self.refuse(atoms)
        super().calculate(atoms, properties, system_changes)
        self.results = self.evaluate(atoms)

    def refuse(self, atoms: Atoms) -> None:
        if len(atoms) == 0 or not np.isfinite(atoms.positions).all():
            raise ValueError("no such atoms")

    def evaluate(self, atoms: Atoms) -> dict[str, Any]:
        i, j, vectors = neighbor_list("ijD", atoms, CUTOFF)
        vectors = vectors.astype(self.precision)
        strength = np.sqrt(atoms.numbers[i] * atoms.numbers[j]) / 8
        strength *= 1 + 0.1 * atoms.info.get("charge", 0)
        inside = 1 - (vectors**2).sum(axis=1) / self.precision(CUTOFF**2)
        pushes = (-8 * strength * inside**3 / CUTOFF**2)[:, None] * vectors
        energies, forces = np.zeros(len(atoms)), np.zeros((len(atoms), 3))
        np.add.at(energies, i, 0.5 * strength * inside**4)
        np.add.at(forces, i, pushes)
        energy = float(energies.sum())
        results = {"energy": energy, "free_energy": energy, "energies": energies, "forces": forces}
        if atoms.cell.rank == 3:
            stress = 0.5 * vectors.T @ pushes / atoms.get_volume()
            results["stress"] = full_3x3_to_voigt_6_stress(stress)
        return results


class ArrayEnergy(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": np.array([results["energy"]])}


class InfiniteEnergy(Reference):
    def evaluate(self, atoms):
        return super().evaluate(atoms) | {"energy": float("inf")}


class EnergyOfAllPairs(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-6 * len(atoms) ** 2}


class ForcesOfWrongSign(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": -results["forces"]}


class ForcesSlightlyScaled(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"] * 1.00001}


class NetForce(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"] + 1e-4}


class StressOfWrongSign(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": -results["stress"]}


class StressInLexicalOrder(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"][[0, 1, 2, 5, 4, 3]]}


class StressOfEngineeringShear(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"] * [1, 1, 1, 2, 2, 2]}


class VirialForStress(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"] * atoms.get_volume()}


class NoStress(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        results.pop("stress", None)
        return results


class StressInVacuum(Reference):
    def evaluate(self, atoms):
        return {"stress": np.zeros(6)} | super().evaluate(atoms)


class AtomEnergiesOfWholePairs(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energies": 2 * results["energies"]}


class OneAtomEnergy(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energies": np.array([results["energy"]])}


class FreeEnergyWithEntropy(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"free_energy": results["energy"] - 1e-3}


class Anisotropic(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"] * [1, 1, 1 + 1e-6]}


class StressThatDoesNotTurn(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"] * [1, 1, 1, 1, 1, 1 + 1e-6]}


class TiedToTheOrigin(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-9 * atoms.positions[:, 0].sum()}


class ForcesInOrderOfHeight(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"][np.argsort(atoms.positions[:, 2])]}


class FirstAtomSpecial(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-6 * atoms.numbers[0]}


class WithoutImages(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        outside = np.floor(atoms.cell.scaled_positions(atoms.positions)) @ atoms.pbc
        return results | {"energy": results["energy"] + 1e-6 * outside.sum()}


class NeverCached(Reference):
    def check_state(self, atoms, tol=1e-15):  # noqa: ARG002
        return list(all_changes)


class BlindToPositions(Reference):
    ignored_changes = {"positions"}  # noqa: RUF012


class BlindToSmallMoves(Reference):
    def check_state(self, atoms, tol=1e-15):  # noqa: ARG002
        return super().check_state(atoms, tol=1e-4)


class BlindToNumbers(Reference):
    ignored_changes = {"numbers"}  # noqa: RUF012


class BlindToCell(Reference):
    ignored_changes = {"cell"}  # noqa: RUF012


class BlindToPeriodicity(Reference):
    ignored_changes = {"pbc"}  # noqa: RUF012


class BlindToCharge(Reference):
    def check_state(self, atoms, tol=1e-15):
        return Calculator.check_state(self, atoms, tol)


class KeepsFirstNumbers(Reference):
    def evaluate(self, atoms):
        vars(self).setdefault("numbers", atoms.numbers.copy())
        known = atoms.copy()
        known.numbers[:] = self.numbers[: len(atoms)]
        return super().evaluate(known)


class Drifting(Reference):
    n_served = 0

    def evaluate(self, atoms):
        self.n_served += 1
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-12 * self.n_served}


class GivesAwayItsCache(Reference):
    def get_property(self, name, atoms=None, allow_calculation=True):
        super().get_property(name, atoms, allow_calculation)
        return self.results[name]


class OneBuffer(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        buffer = vars(self).setdefault("buffer", np.zeros_like(results["forces"]))
        buffer[:] = results["forces"]
        return results | {"forces": buffer}


class Noisy(Reference):
    noise = itertools.count()

    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-12 * next(self.noise)}


class EnergyJumps(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        n_pairs = len(neighbor_list("i", atoms, CUTOFF))
        return results | {"energy": results["energy"] + 1e-6 * n_pairs}


class ForceJumps(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        i, vectors = neighbor_list("iD", atoms, CUTOFF)
        np.add.at(results["forces"], i, 1e-6 * vectors)
        return results


class WrapsPositions(Reference):
    def evaluate(self, atoms):
        atoms.positions += atoms.cell.array.sum(axis=0) + 1
        return super().evaluate(atoms)


class ShiftsCell(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        atoms.cell[0, 0] += 1.0
        return results


class OpensCell(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        atoms.pbc[2] = not atoms.pbc[2]
        return results


class LeavesANote(Reference):
    def evaluate(self, atoms):
        atoms.info["seen"] = True
        return super().evaluate(atoms)


class LeavesAnArray(Reference):
    def evaluate(self, atoms):
        atoms.set_array("seen", np.ones(len(atoms)))
        return super().evaluate(atoms)


class AnswersForNaN(Reference):
    def refuse(self, atoms):
        if len(atoms) == 0:
            raise ValueError("no atoms")

    def evaluate(self, atoms):
        sound = atoms.copy()
        sound.positions = np.nan_to_num(atoms.positions, posinf=0.0)
        return super().evaluate(sound)


class AnswersNaN(AnswersForNaN):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results if np.isfinite(atoms.positions).all() else results | {"energy": float("nan")}


class AnswersForInfinity(AnswersForNaN):
    def refuse(self, atoms):
        super().refuse(atoms)
        if np.isnan(atoms.positions).any():
            raise ValueError("NaN")


class SpoiltByAnError(Reference):
    def refuse(self, atoms):
        try:
            super().refuse(atoms)
        except ValueError:
            self.spoilt = True
            raise

    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-9 * hasattr(self, "spoilt")}


class AnswersForNothing(Reference):
    def refuse(self, atoms):
        if len(atoms):
            super().refuse(atoms)

    def evaluate(self, atoms):
        if not len(atoms):
            return {"energy": 0.0}
        return super().evaluate(atoms)


class FollowsAutocast(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        third = torch.full((8, 8), 1 / 3, device="cpu", dtype=torch.float32)
        return results | {"energy": results["energy"] * float((third @ third).mean())}


class NeedsGradients(Reference):
    def evaluate(self, atoms):
        torch.ones(1, device="cpu", requires_grad=True).sum().backward()
        return super().evaluate(atoms)


class KeepsWhatItWasMadeUnder(Reference):
    def __init__(self, **options):
        super().__init__(**options)
        self.unit = torch.ones((), device="cpu")

    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        self.unit.requires_grad_()
        return results


class DrawsFromTorch(Reference):
    def evaluate(self, atoms):
        torch.rand(1)
        return super().evaluate(atoms)


class DrawsFromNumPy(Reference):
    def __init__(self, **options):
        super().__init__(**options)
        np.random.rand()  # noqa: NPY002 (the global stream)


BROKEN: dict[str, tuple[type[Reference], ...]] = {
    "energy_is_a_float": (ArrayEnergy, InfiniteEnergy),
    "energy_is_extensive": (EnergyOfAllPairs,),
    "forces_match_energy": (ForcesOfWrongSign, ForcesSlightlyScaled, ForcesInOrderOfHeight),
    "forces_sum_to_zero": (NetForce,),
    "stress_matches_energy": (
        StressOfWrongSign,
        StressInLexicalOrder,
        StressOfEngineeringShear,
        VirialForStress,
        NoStress,
    ),
    "stress_needs_a_cell": (StressInVacuum,),
    "atom_energies_add_up": (AtomEnergiesOfWholePairs, OneAtomEnergy),
    "free_energy_is_energy": (FreeEnergyWithEntropy,),
    "rotation_turns_results": (Anisotropic, StressThatDoesNotTurn),
    "translation_changes_nothing": (TiedToTheOrigin,),
    "permutation_permutes_results": (ForcesInOrderOfHeight, FirstAtomSpecial),
    "images_are_the_same": (WithoutImages,),
    "results_are_cached": (NeverCached,),
    "changes_are_noticed": (
        BlindToPositions,
        BlindToSmallMoves,
        BlindToNumbers,
        BlindToCell,
        BlindToPeriodicity,
        BlindToCharge,
        KeepsFirstNumbers,
    ),
    "other_atoms_leave_no_trace": (Drifting, BlindToPositions),
    "returned_arrays_are_copies": (GivesAwayItsCache,),
    "old_results_survive": (OneBuffer,),
    "new_calculators_agree": (Noisy,),
    "cutoff_is_smooth": (EnergyJumps, ForceJumps),
    "atoms_are_not_modified": (WrapsPositions, ShiftsCell, OpensCell, LeavesANote, LeavesAnArray),
    "nan_is_refused": (AnswersForNaN, AnswersNaN, AnswersForInfinity, SpoiltByAnError),
    "empty_is_refused": (AnswersForNothing,),
    "settings_of_the_caller_change_nothing": (
        FollowsAutocast,
        NeedsGradients,
        KeepsWhatItWasMadeUnder,
    ),
    "random_streams_are_left_alone": (DrawsFromTorch, DrawsFromNumPy),
}

STRUCTURES = {
    "cluster": random_cluster(6),
    "single atom": random_cluster(1),
    "single atom in a small cell": random_crystal(1),
    **{kind: random_crystal(6, kind) for kind in ("cubic", "triclinic", "small", "slab", "rod")},
}
