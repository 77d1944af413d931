"""MatGL with the weights of its MatPES model, which are not part of the repository."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from benchmarks.cpu.methods import Evaluate
from benchmarks.engine.implementations import Outcome
from benchmarks.systems.models import matpes_folder
from benchmarks.systems.systems import System
from mlff_triton.model.tensornet import TensorNet

PAIRS = "model.tensor_embedding.emb2.weight"  # of pairs of elements


def matgl(_model: TensorNet, system: System, *, compiled: bool) -> Evaluate:
    """Prepare MatGL's own ASE calculator, without stress."""
    from matgl.ext.ase import PESCalculator

    calculator = PESCalculator(potential(compiled=compiled), stress_unit="eV/A3")
    periodic = system.cell is not None
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=periodic)

    def evaluate(positions: NDArray[np.float64]) -> Outcome:
        atoms.positions = positions
        calculator.calculate(atoms, ["energy", "forces"])
        energy = torch.tensor([calculator.results["energy"]], dtype=torch.float64)
        return Outcome(energy, torch.from_numpy(calculator.results["forces"]))

    return evaluate


def potential(*, compiled: bool) -> Any:
    """Build the potential of MatGL 4.1 from the two files that need no unpickling of code."""
    from matgl.apps.pes import Potential
    from matgl.models import TensorNet as Network

    folder = matpes_folder()
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    given = json.loads((folder / "model.json").read_text())["kwargs"]["model"]["init_args"]
    known = inspect.signature(Network.__init__).parameters
    arguments = {name: value for name, value in given.items() if name in known}
    made = Potential(
        Network(**arguments | {"dtype": torch.float32}),
        element_refs=state["element_refs.property_offset"],
        calc_stresses=False,
    )
    # The version that wrote these files took both elements of an edge in the other order.
    state[PAIRS] = torch.cat(state[PAIRS].chunk(2, dim=1)[::-1], dim=1)
    made.load_state_dict(state, strict=False)  # some tables are not saved
    if compiled:
        made.model.compile(dynamic=True)  # as with its option `compile_model`
    return made.eval()
