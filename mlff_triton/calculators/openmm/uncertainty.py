"""Uncertainty of the atoms of an OpenMM System, for programs that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mlff_triton.calculators.openmm.force import EngineForce, recipe_of_selection, selected
from mlff_triton.calculators.openmm.recipe import Options
from mlff_triton.model.prediction import Ensemble, check_has_uncertainty
from mlff_triton.model.tensornet import TensorNet

if TYPE_CHECKING:
    import openmm
    from openmm.app import Topology


def create_openmm_uncertainty(
    topology_or_numbers: Topology | ArrayLike,
    model: str | Path | TensorNet | Ensemble = "default",
    *,
    particles: Iterable[int] | None = None,
    periodic: bool | None = None,
    charge: int = 0,
    device: str = "auto",
    dtype: str | torch.dtype = "float32",
    backend: str = "auto",
) -> Callable[[openmm.State], NDArray[np.float64]]:
    """Make a function that returns the uncertainty of a model's forces in a state of a System.

    OpenMM stores no results other than energies and forces, so the function computes the state
    again. It takes as long as a step.

    Parameters
    ----------
    topology_or_numbers, model, particles, periodic, charge, device, dtype, backend
        Same as for `mlff_triton.calculators.create_openmm_force`.

    Returns
    -------
    callable
        Function of a state of the whole System with positions. It returns the expected error of
        the force on each atom of the model, float64 [M], in kJ/mol/nm.

    Raises
    ------
    InputError
        If the model does not know its uncertainty, and for the reasons given for
        `mlff_triton.calculators.create_openmm_force`. The function raises it for a state without
        positions.
    BackendError, CheckpointError
        As for `mlff_triton.calculators.create_openmm_force`.

    Examples
    --------
    Print the atom that the model is least sure of, every hundred steps:

    >>> def watch(simulation, model):
    ...     uncertainty = create_openmm_uncertainty(simulation.topology, model)
    ...     for _ in range(10):
    ...         simulation.step(100)
    ...         found = uncertainty(simulation.context.getState(positions=True))
    ...         print(f"atom {found.argmax()}: {found.max():.0f} kJ/mol/nm")
    """
    selection, box = selected(topology_or_numbers, particles)
    options = Options(
        model=model,
        periodic=box is not None if periodic is None else periodic,
        charge=charge,
        device=device,
        dtype=dtype,
        backend=backend,
    )
    recipe = recipe_of_selection(selection, options, box)
    engine = recipe.engine()
    check_has_uncertainty(engine.has_uncertainty)
    return EngineForce(recipe, engine).uncertainty
