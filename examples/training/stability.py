"""Hold molecules at 300 K for 50 ps and report whether a bond ever broke.

Usage: ``python stability.py --structures structures.xyz --out stability.csv --picoseconds 50``

Several copies each of alanine dipeptide, aspirin and a periodic box of 64 waters move in one batch
of the exact module with a Langevin thermostat. On a GPU the whole step is one CUDA graph.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms, units
from ase.data import covalent_radii
from ase.io import iread
from ase.optimize import FIRE
from torch import Tensor

from mlff_triton import Graph, TensorNet, TensorNetCalculator, load_model
from mlff_triton.errors import InputError
from mlff_triton.testing import water_box

BROKEN = 1.5  # times the start length
NO_BOX = 1e6  # Å, farther than anything moves


@dataclass
class Ensemble:
    """Copies of all systems in one batch.

    Attributes
    ----------
    positions, momenta : float64 [N, 3]
        Å and ASE's unit of momentum.
    masses : float64 [N, 1]
        Atomic masses in u.
    numbers, system : int64 [N]
        Atomic numbers, and the copy that each atom belongs to.
    box : float64 [E, 1]
        Edge of the cubic box that each pair lives in, Å.
    graph : Graph
        Every pair of atoms of a copy.
    bonds, length : int64 [M], float64 [M]
        Edges that are bonds, and their lengths at the start in Å.
    stretch : float64 [M]
        Largest length so far, in units of the one at the start.
    heat : float64 [N]
        Sum over steps of twice the kinetic energy, eV.
    """

    positions: Tensor
    momenta: Tensor
    masses: Tensor
    numbers: Tensor
    system: Tensor
    box: Tensor
    graph: Graph
    bonds: Tensor
    length: Tensor
    stretch: Tensor
    heat: Tensor

    @classmethod
    def of(cls, copies: list[Atoms], device: torch.device) -> Ensemble:
        """Put copies side by side, at rest."""
        counts = torch.tensor([len(atoms) for atoms in copies])
        system = torch.arange(len(copies)).repeat_interleave(counts)
        i, j = torch.nonzero(system[:, None] == system[None], as_tuple=True)
        i, j = i[i != j], j[i != j]
        graph = Graph.from_pairs(i, j, torch.zeros(len(i), 3, dtype=torch.int64), len(system))
        edges = torch.tensor([a.cell[0, 0] if a.pbc.all() else NO_BOX for a in copies])
        positions = torch.from_numpy(np.concatenate([atoms.positions for atoms in copies]))
        numbers = torch.from_numpy(np.concatenate([atoms.numbers for atoms in copies]))
        masses = torch.from_numpy(np.concatenate([atoms.get_masses() for atoms in copies]))
        box = edges[system[graph.receivers]][:, None].double()
        lengths = minimum_image(positions, graph, box).norm(dim=1)
        radii = torch.from_numpy(covalent_radii)[numbers]
        bonded = lengths < 1.25 * (radii[graph.receivers] + radii[graph.senders])
        bonds = bonded.nonzero()[:, 0]
        tensors = (positions, torch.zeros_like(positions), masses[:, None], numbers, system, box)
        return cls(
            *(tensor.to(device) for tensor in tensors),
            graph.to(device),
            bonds.to(device),
            lengths[bonds].to(device),
            torch.ones(len(bonds), dtype=torch.float64, device=device),
            torch.zeros(len(system), dtype=torch.float64, device=device),
        )


def minimum_image(positions: Tensor, graph: Graph, box: Tensor) -> Tensor:
    """Edge vectors in cubic boxes, [E, 3] in Å."""
    delta = positions[graph.receivers] - positions[graph.senders]
    return delta - box * torch.round(delta / box)


def langevin_step(
    state: Ensemble, model: TensorNet, time_step: float, friction: float, temperature: float
) -> Callable[[], None]:
    """A BAOAB step of the whole batch as a function (https://doi.org/10.1093/amrx/abs010)."""
    # The check of the elements waits for the device, which a captured graph must not.
    species = model.species(state.numbers)
    model.species = lambda _: species  # type: ignore[method-assign]
    charge = torch.zeros(len(state.numbers), device=state.numbers.device)
    keep = math.exp(-friction * time_step)
    noise = (temperature * units.kB * (1 - keep**2) * state.masses).sqrt()

    def forces() -> Tensor:
        vectors = minimum_image(state.positions, state.graph, state.box)
        vectors = vectors.to(model.dtype).requires_grad_()
        energy = model(state.numbers, vectors, state.graph, charge).sum()
        gradient = torch.autograd.grad(energy, vectors)[0].double()
        total = torch.zeros_like(state.positions)
        total.index_add_(0, state.graph.senders, gradient)
        return total.index_add_(0, state.graph.receivers, -gradient)

    force = forces()

    def step() -> None:
        state.momenta.add_(force, alpha=time_step / 2)
        state.positions.add_(state.momenta / state.masses, alpha=time_step / 2)
        state.momenta.mul_(keep).add_(noise * torch.randn_like(state.momenta))
        state.positions.add_(state.momenta / state.masses, alpha=time_step / 2)
        force.copy_(forces())
        state.momenta.add_(force, alpha=time_step / 2)
        lengths = minimum_image(state.positions, state.graph, state.box)[state.bonds].norm(dim=1)
        torch.maximum(state.stretch, lengths / state.length, out=state.stretch)
        state.heat.add_((state.momenta**2 / state.masses).sum(1))

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph, after a few steps that set everything up."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def start_structures(path: Path, model: str) -> dict[str, Atoms]:
    """The three systems; the water box is relaxed first, since it is built from a lattice."""
    found = {atoms.info["name"]: atoms for atoms in reversed(list(iread(path)))}
    try:
        systems = {name: found[name] for name in ("ac-ala-nme", "aspirin")}
    except KeyError as missing:
        raise InputError(f"{path} holds no {missing}: write it with structures.py") from missing
    box = water_box(64)
    box.calc = TensorNetCalculator(model)
    FIRE(box, logfile=None).run(fmax=0.5, steps=150)
    return systems | {"water-64": box}


def run(args: argparse.Namespace) -> None:
    """Simulate; after every picosecond write one row a copy."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    systems = start_structures(args.structures, args.model)
    names = [name for name in systems for _ in range(args.copies)]
    state = Ensemble.of([systems[name] for name in names], device)
    model = load_model(args.model)
    assert isinstance(model, TensorNet)
    model = model.to(device, torch.float32).requires_grad_(False)
    time_step = args.femtoseconds * units.fs
    step = langevin_step(state, model, time_step, 2e-3 / units.fs, args.temperature)
    if device.type == "cuda":
        step = captured(step)
    chunk = round(1000 / args.femtoseconds)  # a picosecond
    for picosecond in range(1, round(args.picoseconds) + 1):
        for _ in range(chunk):
            step()
        rows = [summary(state, k, name, picosecond * chunk, args) for k, name in enumerate(names)]
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for row in rows:
        print(*row.values())


def summary(
    state: Ensemble, copy: int, name: str, n_steps: int, args: argparse.Namespace
) -> dict[str, str | int]:
    """What became of one copy."""
    atoms = state.system == copy
    stretch = float(state.stretch[atoms[state.graph.receivers[state.bonds]]].max())
    n_atoms = int(atoms.sum())
    temperature = float(state.heat[atoms].sum()) / (3 * n_atoms * units.kB * n_steps)
    return {
        "system": name,
        "copy": copy % args.copies,
        "atoms": n_atoms,
        "picoseconds": f"{n_steps * args.femtoseconds / 1000:g}",
        "femtoseconds_a_step": args.femtoseconds,
        "mean_temperature_K": f"{temperature:.1f}",
        "largest_bond_stretch": f"{stretch:.4f}",
        "intact": "yes" if stretch < BROKEN else "no",
    }


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--structures", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--picoseconds", type=float, default=50.0)
    parser.add_argument("--femtoseconds", type=float, default=0.5)
    parser.add_argument("--temperature", type=float, default=300.0)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    run(parse_arguments())
