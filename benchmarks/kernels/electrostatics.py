"""Bench ``electrostatics``: particle-mesh Ewald of random charges at the density of water.

A call computes energy, forces and the gradients by charges, in float32, from a given neighbor list.
Cases of `pme_energy` are the whole, those of `ewald_pairs` and `mesh_ewald` its parts; "order-6"
has splines of order six on a coarser mesh. All implementations of a case have the same splitting,
mesh and order, which are chosen for an error of forces of 1e-5.

An error is the root mean square of the errors of forces over that of the true ones. The truth of
whole sums is the direct Ewald sum in float64, for up to 4,096 charges. For more, and for parts, it
is our reference in float64, so that the error is that of rounding alone. A million charges are
checked by the largest of the smaller cases: their own results must be finite, and forces must sum
to zero. The suffix ``-graph`` names calls that a CUDA graph replays.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.gate import check_plausible
from benchmarks.engine.implementations import Outcome
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from mlff_triton._common.availability import triton_obstacle
from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton._common.timing import measure, reset_peak
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.kernels.electrostatics.reference.ewald_pairs import ewald_pairs
from mlff_triton.kernels.electrostatics.reference.ewald_sum import ewald_sum
from mlff_triton.kernels.electrostatics.reference.mesh_ewald import mesh_ewald
from mlff_triton.kernels.electrostatics.reference.pme_energy import pme_energy
from mlff_triton.kernels.electrostatics.types import COULOMB, PMEParameters
from mlff_triton.neighbors.neighbor_list import neighbor_list

BENCH = "electrostatics"
OURS, GRAPH = "triton", "-graph"
PEER = "nvalchemi"
PEER_PACKAGE = "nvalchemiops"
IMPLEMENTATIONS = tuple(f"{way}{mode}" for way in (OURS, "torch", PEER) for mode in ("", GRAPH))

SIZES = 4096, 65_536
LARGE = 1_000_000
LARGEST_SUM = 4096  # charges of the direct sum
DENSITY = 0.1  # charges per Å^3
CUTOFF, SHORT_CUTOFF = 9.0, 7.5  # Å; the shorter one where lists would be too large
ERROR = 1e-5
KINDS = {"pme_energy": 5, "pme_energy-order-6": 6, "ewald_pairs": 5, "mesh_ewald": 5}
"""Operators of cases, and the order of their splines."""
WHOLE = "pme_energy"  # prefix of the cases that are not parts
CASES = {f"{kind}-{n}": (kind, n) for kind in KINDS for n in SIZES}
CASES |= {f"{kind}-{LARGE}": (kind, LARGE) for kind in KINDS if kind.startswith(WHOLE)}
STAND_INS = {f"{kind}-{LARGE}": f"{kind}-{SIZES[-1]}" for kind in KINDS if kind.startswith(WHOLE)}
"""Cases without a truth, and those that are compared with the truth instead."""

Energy = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """Charges in a cubic box, their neighbor list, and parameters of the sum."""

    charges: Tensor
    positions: Tensor
    cell: Tensor
    lists: tuple[Tensor, Tensor, Tensor]
    parameters: PMEParameters

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs [2, E], row pointers and shifts in int32, as the peer takes them."""
        row_ptr, senders, shifts = self.lists
        atoms = torch.arange(len(self.charges), device=senders.device, dtype=torch.int32)
        receivers = atoms.repeat_interleave(row_ptr.diff(), output_size=len(senders))
        return torch.stack([receivers, senders]), row_ptr.int(), shifts.int()

    def exact(self) -> Problem:
        """Return the same problem, with charges in float64."""
        return Problem(
            self.charges.double(), self.positions, self.cell, self.lists, self.parameters
        )


def run_electrostatics(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named cases with each of the named implementations."""
    for name in names:
        for implementation in implementations:
            way = implementation.removesuffix(GRAPH)
            if way == PEER and not name.startswith(WHOLE):  # whose parts are others
                continue
            obstacle = _obstacle(name, way, implementation, lab.device)
            if obstacle is not None:
                lab.skip(f"{BENCH} {name} {implementation}", obstacle)
            elif lab.budget.left <= 0:
                print(f"{BENCH} {name}: skipped, the time is up", file=sys.stderr)
                return
            else:
                run_one(lab, name, way, implementation)


def _obstacle(name: str, way: str, implementation: str, device: torch.device) -> str | None:
    if way == "torch" and name in STAND_INS:
        return "it needs more memory than a GPU has"
    if way == PEER and find_spec(PEER_PACKAGE) is None:
        return f"{PEER_PACKAGE} is not installed"
    if implementation.endswith(GRAPH) and device.type != "cuda":
        return "no GPU"
    return triton_obstacle(device) if way == OURS else None


def run_one(lab: Lab, name: str, way: str, implementation: str) -> None:
    """Report a row; rows of ours have no time if the error is larger than requested."""
    timing = error = None
    clean_up(lab.device)
    kind, n_atoms = CASES[name]
    cutoff = CUTOFF if n_atoms < LARGE else SHORT_CUTOFF
    problem = build(n_atoms, KINDS[kind], lab.device, cutoff)
    try:
        with at_most(lab.budget.left_for_one), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = error_of(STAND_INS.get(name, name), way, lab.device, cutoff)
            call = prepare(problem, energy_of(kind, way))
            gradients, potentials = call()
            check_plausible(Outcome(potentials, -gradients))
            if implementation.endswith(GRAPH):
                call = _replayed(call)
            clean_up(lab.device)
            reset_peak(lab.device)
            timing = measure(call, lab.device, seconds=lab.budget.sampling)
    except Exception as problem_of_peer:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"{BENCH} {name} {implementation}", problem_of_peer)
    limit = math.inf if way == PEER else ERROR
    shown = None if error is None or not error <= limit else timing
    size = n_atoms, len(problem.lists[1])
    lab.report(make_row(BENCH, name, implementation, size, lab.where, shown, error))


def error_of(name: str, way: str, device: torch.device, cutoff: float = CUTOFF) -> float:
    """Return the error of the forces of a case, with a cutoff in Å."""
    kind, n_atoms = CASES[name]
    expected = truth(name, device, cutoff)
    problem = build(n_atoms, KINDS[kind], device, cutoff)
    forces = prepare(problem, energy_of(kind, way))()[0].double()
    return float((forces - expected).norm() / expected.norm())


def build(n_atoms: int, order: int, device: torch.device, cutoff: float = CUTOFF) -> Problem:
    """Return charges in a box, with parameters for splines of an order."""
    charges, positions, cell, lists = box_of(n_atoms, device, cutoff)
    parameters = pme_parameters(cell, cutoff, ERROR, order=order)
    return Problem(charges, positions, cell, lists, parameters)


@lru_cache(maxsize=2)
def box_of(
    n_atoms: int, device: torch.device, cutoff: float
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return charges in float32, positions, cell and lists of neighbors.

    Charges are at random sites of a lattice and a fifth of its spacing off.
    """
    rng = np.random.default_rng(n_atoms)
    n_side = math.ceil(round(n_atoms ** (1 / 3), 6))
    length = (n_atoms / DENSITY) ** (1 / 3)
    sites = np.stack(np.unravel_index(rng.permutation(n_side**3)[:n_atoms], (n_side,) * 3), axis=1)
    positions = (sites + rng.uniform(-0.2, 0.2, sites.shape)) * (length / n_side)
    charges = rng.uniform(-1, 1, n_atoms)
    charges -= charges.mean()
    cell = length * np.eye(3)
    graph = neighbor_list(positions, cutoff, cell, True).to(device)
    return (
        torch.tensor(charges, dtype=torch.float32, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(cell[None], device=device),
        (graph.row_ptr, graph.senders.int(), graph.shifts.to(torch.int8)),
    )


def prepare(problem: Problem, energy: Energy) -> Callable[[], tuple[Tensor, ...]]:
    """Return a call that computes the gradients by positions and charges."""
    charges = problem.charges.clone().requires_grad_()
    positions = problem.positions.clone().requires_grad_()

    def call() -> tuple[Tensor, ...]:
        total = energy(charges, positions, problem)
        return torch.autograd.grad(total, (positions, charges))

    return call


def energy_of(kind: str, way: str) -> Energy:
    """Return a function of charges, positions and a problem: the total energy in eV."""
    if way == PEER:
        return _energy_of_peer
    whole: Any = pme_energy
    pairs: Any = ewald_pairs
    mesh: Any = mesh_ewald
    if way == OURS:
        from mlff_triton.kernels.electrostatics.ewald_pairs import ewald_pairs as pairs
        from mlff_triton.kernels.electrostatics.mesh_ewald import mesh_ewald as mesh
        from mlff_triton.kernels.electrostatics.pme_energy import pme_energy as whole

    def energy(charges: Tensor, positions: Tensor, problem: Problem) -> Tensor:
        atoms, p = (charges, positions, problem.cell, None), problem.parameters
        if kind == "ewald_pairs":
            return pairs(*atoms, *problem.lists, p.splitting, p.cutoff).energy.sum()
        if kind == "mesh_ewald":
            return mesh(*atoms, p).energy.sum()
        return whole(*atoms, *problem.lists, p, check=False).energy.sum()

    return energy


def _energy_of_peer(charges: Tensor, positions: Tensor, problem: Problem) -> Tensor:
    """Compute the energy by NVIDIA's package, all in the dtype of the charges."""
    from nvalchemiops.torch.interactions.electrostatics import particle_mesh_ewald

    pairs, row_ptr, shifts = problem.pairs
    energies = particle_mesh_ewald(
        positions.to(charges.dtype),
        charges,
        problem.cell.to(charges.dtype),
        alpha=problem.parameters.splitting,
        mesh_dimensions=problem.parameters.mesh,
        spline_order=problem.parameters.order,
        neighbor_list=pairs,
        neighbor_ptr=row_ptr,
        neighbor_shifts=shifts,
    )
    return COULOMB * energies.sum()


def _replayed(call: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that replays a call from a CUDA graph."""
    graph, result = record(call, GraphPool())

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return result

    return replay


@lru_cache(maxsize=2)
def truth(name: str, device: torch.device, cutoff: float = CUTOFF) -> Tensor:
    """Return the gradients by positions in float64."""
    kind, n_atoms = CASES[name]
    problem = build(n_atoms, KINDS[kind], device, cutoff).exact()
    if kind.startswith(WHOLE) and n_atoms <= LARGEST_SUM:

        def energy(charges: Tensor, positions: Tensor, problem: Problem) -> Tensor:
            return ewald_sum(charges, positions, problem.cell).energy.sum()

        return prepare(problem, energy)()[0]
    return prepare(problem, energy_of(kind, "torch"))()[0]
