"""Energies and forces from all periodic images, without any neighbor search of the package."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.geometry import complete_cell
from numpy.typing import NDArray

from mlff_triton import Ensemble, Graph, Prediction, TensorNet, TensorNetCalculator, predict
from tests.fuzz.kind import Finding

MOST_PAIRS = 2_000_000
RELATIVE_ERROR = 1e-7


def check_results(model: TensorNet | Ensemble, atoms: Atoms) -> None:
    """Compute energy and forces, and raise `Finding` unless they are finite and right.

    Exceptions of the package are passed on.
    """
    results = {
        backend: evaluate(model, atoms, backend=backend, dtype="float64")
        for backend in ("auto", "exact")
    }
    expected = by_all_images(model, atoms)
    for backend, (energy, forces) in results.items():
        if not (np.isfinite(energy) and np.isfinite(forces).all()):
            raise Finding(f"energy or forces are not finite, backend {backend}")
        if expected is not None:
            compare(energy, forces, expected, f"backend {backend} and a sum over all images")
    compare(*results["auto"], results["exact"], "backends auto and exact")


def evaluate(
    model: TensorNet | Ensemble, atoms: Atoms, **options: Any
) -> tuple[float, NDArray[np.float64]]:
    """Return energy and forces of the calculator."""
    calculator = TensorNetCalculator(model, device="cpu", **options)
    return calculator.get_potential_energy(atoms), calculator.get_forces(atoms)


def compare(
    energy: float, forces: NDArray[np.float64], expected: tuple[float, Any], names: str
) -> None:
    """Raise `Finding` unless results agree."""
    error = abs(energy - expected[0]) / max(1, abs(expected[0]))
    force_error = np.abs(forces - expected[1]).max() / max(1, np.abs(expected[1]).max())
    if not max(error, force_error) < RELATIVE_ERROR:
        raise Finding(
            f"{names} disagree: energies {energy:.12g} and {expected[0]:.12g} eV, forces by "
            f"{force_error:.1e}"
        )


def by_all_images(model: TensorNet | Ensemble, atoms: Atoms) -> tuple[float, Any] | None:
    """Return energy and forces with the pairs of all images, or None if these are too many."""
    graph = all_pairs(atoms, model.cutoff)
    if graph is None or isinstance(model, Ensemble):
        return None
    sum_of_atoms = np.rint(atoms.get_initial_charges().sum())
    charge = np.asarray(atoms.info.get("charge", sum_of_atoms))
    if np.iscomplexobj(charge) or charge.size != 1:
        raise Finding("a complex charge or several were accepted")
    prediction: Prediction = predict(
        model.double(),
        torch.tensor(atoms.numbers),
        torch.tensor(atoms.positions),
        graph,
        cell=torch.tensor(atoms.cell.array)[None],
        charge=torch.tensor([float(charge.item())]),
    )
    return float(prediction.energy[0]), prediction.forces.numpy()


def all_pairs(atoms: Atoms, cutoff: float) -> Graph | None:
    """Compare all atoms with all images of all atoms."""
    pbc = atoms.pbc
    cell = complete_cell(np.where(pbc[:, None], atoms.cell.array, 0.0))
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    reach = np.where(pbc, np.ceil(cutoff / heights) + 1, 0)
    if len(atoms) ** 2 * np.prod(2 * reach + 1) > MOST_PAIRS:
        return None
    home = np.where(pbc, np.floor(atoms.positions @ np.linalg.inv(cell)), 0)  # [N, 3]
    inside = atoms.positions - home @ cell
    shifts = np.array(list(product(*(range(-int(n), int(n) + 1) for n in reach))))  # [S, 3]
    between = inside[:, None, None] - inside[None, :, None] - shifts @ cell  # [N, N, S, 3]
    close = (between**2).sum(-1) < cutoff**2
    i, j, s = np.nonzero(close)
    is_other = (i != j) | shifts[s].any(1)
    i, j, s = i[is_other], j[is_other], s[is_other]
    moved = (shifts[s] + home[i] - home[j]).astype(np.int64)
    return Graph.from_pairs(*map(torch.from_numpy, (i, j, moved)), n_atoms=len(atoms))
