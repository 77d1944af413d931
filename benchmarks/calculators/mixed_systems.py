"""Bench ``mixed``: steps of OpenMM with a model for 48 atoms in water, coupled in either way.

The part is the 16 molecules nearest to the center of a box of rigid water, whose rest is TIP3P with
particle-mesh Ewald and a cutoff of 0.9 nm. The model has the architecture of AceFF-2, random
weights and nuclear repulsion. By the host's clock, with atoms that stand still as in bench
``openmm``. An error is that of the forces of the model and of its coupling, relative to the largest
one: the truth is the same System with the exact module in float64 on a CPU.

- ``mechanical`` and ``ml-charges`` are the embeddings with the options of a user.
- ``mechanical-python`` has the route of ``ml-charges``, through the host.
- ``ml-charges-exact`` has the exact module.
- ``openmm-ml`` is TorchMD-NET with the same weights as openmm-ml runs it, compiled, by mechanical
  embedding. In a box it requires a Coulomb cutoff, with a reaction field, and so has its truth.
  All pairs of the part are within the cutoff, so that it computes as many as ours.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.calculators.openmm_forces import PLATFORMS, STEPS, TIME_STEP
from benchmarks.engine.implementations import OUR_TOLERANCE, PEER_TOLERANCE
from benchmarks.engine.peers import save_checkpoint
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from benchmarks.systems.models import charged_model
from benchmarks.systems.systems import water
from mlff_triton._common.timing import measure, reset_peak
from mlff_triton.errors import InputError
from mlff_triton.model.tensornet2 import TensorNet2
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

BENCH = "mixed"
CASES = {f"48-in-{3 * n}": n for n in (1331, 9261)}
"""Numbers of molecules by names of cases; cubic numbers fill the box."""
PART = 16  # molecules
CUTOFF = 0.9  # nm
COULOMB_CUTOFF = 1.2  # nm, of models that need one: the default of openmm-ml
GROUP = 1  # of the model's force
PEER, PEER_PACKAGE = "openmm-ml", "torchmdnet"
MECHANICAL, WITH_CUTOFF, ML_CHARGES = "mechanical", "mechanical-cutoff", "ml-charges"
COUPLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    MECHANICAL: (MECHANICAL, {"periodic": False}),
    WITH_CUTOFF: (MECHANICAL, {"periodic": True}),
    ML_CHARGES: (ML_CHARGES, {}),
}
"""Embedding and its options by names."""
IMPLEMENTATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    MECHANICAL: (MECHANICAL, {}),
    "mechanical-python": (MECHANICAL, {"route": "python"}),
    ML_CHARGES: (ML_CHARGES, {}),
    "ml-charges-exact": (ML_CHARGES, {"backend": "exact"}),
    PEER: (WITH_CUTOFF, {}),
}
"""Coupling and options by names."""


class Problem(NamedTuple):
    """A box of water: its topology, its classical System, positions in nm, and a part."""

    topology: Any
    system: Any
    positions: NDArray[np.float64]
    part: list[int]


def run_mixed(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named cases with each of the named implementations."""
    for name in names:
        for implementation in implementations:
            if lab.budget.left <= 0:
                print(f"{BENCH} {name}: skipped, the time is up", file=sys.stderr)
                return
            if implementation == PEER and find_spec(PEER_PACKAGE) is None:
                lab.skip(f"{BENCH} {name} {PEER}", f"{PEER_PACKAGE} is not installed")
                continue
            run_one(lab, name, implementation)


def run_one(lab: Lab, name: str, implementation: str) -> None:
    """Report a row, which has no time if forces are wrong."""
    timing = error = None
    clean_up(lab.device)
    n_molecules = CASES[name]
    coupling, options = IMPLEMENTATIONS[implementation]
    limit = PEER_TOLERANCE if implementation == PEER else OUR_TOLERANCE
    try:
        with at_most(lab.budget.left_for_one), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = truth(n_molecules, coupling)
            reset_peak(lab.device)
            if implementation == PEER:
                context = prepare_peer(n_molecules, lab.device)
            else:
                context = prepare(n_molecules, coupling, lab.device, **options)
            error = float(np.abs(forces_of(context) - expected).max() / np.abs(expected).max())
            if error <= limit:
                integrator, seconds = context.getIntegrator(), lab.budget.sampling
                step = lambda: integrator.step(STEPS)  # noqa: E731
                timing = measure(step, lab.device, seconds=seconds, wall=True).of_one(STEPS)
    except Exception as problem:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"{BENCH} {name} {implementation}", problem)
    lab.report(
        make_row(BENCH, name, implementation, (3 * n_molecules, 0), lab.where, timing, error)
    )


@lru_cache(maxsize=1)
def build(n_molecules: int) -> Problem:
    """Return a box of water."""
    from openmm import app, unit

    box = water(n_molecules)
    if box.cell is None:
        raise InputError("a droplet has no box for particle-mesh Ewald: take more molecules")
    topology = app.Topology()
    chain = topology.addChain()
    elements = [app.Element.getByAtomicNumber(int(n)) for n in box.numbers]
    for first in range(0, len(elements), 3):
        residue = topology.addResidue("HOH", chain)
        oxygen, *hydrogens = (
            topology.addAtom(atom, elements[first + k], residue)
            for k, atom in enumerate(("O", "H1", "H2"))
        )
        for hydrogen in hydrogens:
            topology.addBond(oxygen, hydrogen)
    topology.setPeriodicBoxVectors(box.cell / NM * unit.nanometer)
    system = app.ForceField("amber14/tip3p.xml").createSystem(
        topology, nonbondedMethod=app.PME, nonbondedCutoff=CUTOFF, removeCMMotion=False
    )
    distance = np.linalg.norm(box.positions[::3] - box.cell.sum(0) / 2, axis=1)
    molecules = sorted(distance.argsort()[:PART])
    part = [3 * int(m) + k for m in molecules for k in range(3)]
    return Problem(topology, system, box.positions / NM, part)


@lru_cache(maxsize=2)
def model(coulomb_cutoff: float | None = None) -> TensorNet2:
    """Return a model that does not scale its Coulomb energy, which may have a cutoff in Å."""
    found = charged_model(repulsion=True, coulomb_cutoff=coulomb_cutoff)
    found.std.fill_(1.0)
    return found


def prepare(n_molecules: int, coupling: str, device: torch.device, **options: Any) -> Any:
    """Return a Context of a mixed system with a model of ours."""
    from openmmml import MLPotential

    embedding, given = COUPLINGS[coupling]
    network = model(COULOMB_CUTOFF * NM) if coupling == WITH_CUTOFF else model()
    potential = MLPotential("mlff-triton", modelPath=network)
    return _context(potential, n_molecules, device, embedding=embedding, **given | options)


def prepare_peer(n_molecules: int, device: torch.device) -> Any:
    """Return a Context of a mixed system with TorchMD-NET, with capacity for all pairs."""
    from openmmml import MLPotential

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.ckpt"
        save_checkpoint(
            model(COULOMB_CUTOFF * NM), path, coulomb_neighbors=len(build(n_molecules).part)
        )
        potential = MLPotential(
            "torchmdnet", modelPath=str(path), energyScale=EV_TO_KJ_PER_MOL, lengthScale=1 / NM
        )
        return _context(
            potential, n_molecules, device, coulomb_cutoff=COULOMB_CUTOFF, mlLongRange=False
        )


def _context(potential: Any, n_molecules: int, device: torch.device, **options: Any) -> Any:
    import openmm

    problem = build(n_molecules)
    mixed = potential.createMixedSystem(
        problem.topology,
        copy.deepcopy(problem.system),
        problem.part,
        forceGroup=GROUP,
        device=str(device),
        **options,
    )
    platform = openmm.Platform.getPlatformByName(PLATFORMS[device.type])
    context = openmm.Context(mixed, openmm.VerletIntegrator(TIME_STEP), platform)
    context.setPositions(problem.positions)
    context.setVelocities(np.zeros_like(problem.positions))
    return context


@lru_cache(maxsize=3)
def truth(n_molecules: int, coupling: str) -> NDArray[np.float64]:
    """Return the forces of the exact module and of its coupling, in kJ/mol/nm."""
    options = {"backend": "exact", "dtype": "float64"}
    return forces_of(prepare(n_molecules, coupling, torch.device("cpu"), **options))


def forces_of(context: Any) -> NDArray[np.float64]:
    """Return the forces of the model's force in kJ/mol/nm."""
    state = context.getState(forces=True, groups={GROUP})
    found: NDArray[np.float64] = state.getForces(asNumpy=True)._value
    return found
