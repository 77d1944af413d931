"""Label what a trained model itself visits, for another round of its training.

Usage: ``python explore.py --model default/model.safetensors --teacher aimnet2_wb97m-d3_ens.jpt``

A model may have minima that its teacher has not, and no sample of the teacher's own is there. Here
samples of conformers move by the forces of the model, half of them downhill and half as in dynamics
at 300 to 1,000 K. Those that the model is least certain of are labeled. The file is one more of
those that ``mlff-triton train`` takes, also with ``--from`` the model. Needs h5py: ``pip install
mlff-triton[tables]``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from ase import units
from ase.data import atomic_masses
from conformers import load_structures
from geometry import centered
from label_data import (
    LARGEST_BATCH,
    Arrays,
    batch_size,
    gathered,
    good_rows,
    inputs_of,
    save,
    separated_rows,
    source_of,
)
from recipes import COLD, HOT, Partners, Sample, outside_wall, samples
from teacher import LONGEST_MOVE, Labels, Teacher, descended, load_teacher
from torch import Tensor

from mlff_triton import Engine, load_model
from mlff_triton.model.prediction import members_of

RECIPES = ("relaxed", "turned", "stretched", "dimer", "solvated", "bound")  # to begin with
TIMESTEP = 0.5 * units.fs
FRICTION = 0.01 / units.fs
MOST_DOWN, MOST_STEPS = 60, 600  # steps downhill, and of dynamics


def student(engine: Engine) -> Teacher:
    """Return a model in the form of a teacher, with uncertainties in place of a spread."""

    def label(z: Tensor, x: Tensor, charge: Tensor) -> Labels:
        real = z > 0
        owner = real.nonzero()[:, 0]
        found = engine.compute(z[real], x[real], batch=owner, charge=charge)
        forces, atoms = torch.zeros_like(x), x.new_zeros(z.shape)
        forces[real] = found.forces.to(x)
        if found.uncertainty is not None:
            atoms[real] = found.uncertainty.to(x)
        nothing = torch.zeros_like(found.energy)
        return Labels(found.energy, forces, torch.zeros_like(atoms), nothing, atoms.amax(1))

    return label


def wandered(
    model: Teacher, z: Tensor, x: Tensor, charge: Tensor, steps: Tensor, kelvin: Tensor, seed: int
) -> Tensor:
    """Move structures by Langevin dynamics, each for its number of steps at its temperature.

    Parameters
    ----------
    model : Teacher
        Gives the forces.
    z, x, charge : int64 [B, N], [B, N, 3], [B]
        Atomic numbers, 0 for filler; positions in Å; total charges.
    steps, kelvin : int64 [B], [B]
        Numbers of steps, and temperatures in K.
    seed : int
        Seed of the velocities.

    Returns
    -------
    [B, N, 3]
        The last positions in Å. No atom moves by more than 0.05 Å in a step.
    """
    random = torch.Generator().manual_seed(seed)
    mass = torch.from_numpy(atomic_masses).to(x)[z][:, :, None].clamp(min=1.0)
    width = (units.kB * kelvin.to(x)[:, None, None] / mass).sqrt()

    def noise() -> Tensor:
        return width * torch.randn(x.shape, generator=random).to(x)

    kept = math.exp(-FRICTION * TIMESTEP)
    velocity, force = noise(), model(z, x, charge).forces
    for k in range(int(steps.max())):
        velocity = velocity + 0.5 * TIMESTEP * force / mass
        velocity = kept * velocity + math.sqrt(1 - kept**2) * noise()
        moves = ((k < steps)[:, None] & (z > 0))[:, :, None]
        step = (TIMESTEP * velocity).clamp(-LONGEST_MOVE, LONGEST_MOVE)
        x = torch.where(moves, x + step, x)
        force = model(z, x, charge).forces
        velocity = velocity + 0.5 * TIMESTEP * force / mass
    return x


def starts(args: argparse.Namespace, elements: set[int], *, takes_charge: bool) -> list[Sample]:
    """Return samples of as many conformers as were asked for, that the model can compute."""
    structures = [
        each
        for each in load_structures(args.conformers)
        if elements.issuperset(each.numbers.tolist()) and (takes_charge or not each.charge)
    ]
    partners = Partners.among(structures)
    random = np.random.default_rng(args.seed)
    chosen = random.permutation(len(structures))[: args.conformers_count]
    made = []
    for k in chosen:
        found = [each for each in samples(structures[k], partners) if each.recipe in RECIPES]
        if found:
            made.append(found[random.integers(len(found))])
    return made


def batches(made: list[Sample]) -> Iterator[list[Sample]]:
    """Cut samples, by size, into batches for a GPU."""
    made = sorted(made, key=lambda sample: len(sample.structure.numbers))
    while made:
        largest = len(made[min(len(made), LARGEST_BATCH) - 1].structure.numbers)
        size = batch_size(largest)
        yield made[:size]
        made = made[size:]


def visited(model: Teacher, batch: list[Sample], device: str, seed: int) -> list[Sample]:
    """Move samples by the model, and return those outside of walls, the least certain first."""
    random = np.random.default_rng(seed)
    z, x, charge = inputs_of(batch, device)
    downhill = torch.from_numpy(random.random(len(batch)) < 0.5).to(x.device)
    share = torch.from_numpy(random.random(len(batch))).to(x)
    kelvin = COLD + (HOT - COLD) * torch.from_numpy(random.random(len(batch))).to(x)
    down = torch.where(downhill, (share * MOST_DOWN).long() + 1, 0)
    steps = torch.where(downhill, 0, (share * MOST_STEPS).long() + 1)
    x = descended(model, z, x, charge, down)
    x = wandered(model, z, x, charge, steps, kelvin, seed)
    doubt = model(z, x, charge).force_spread.cpu().numpy()
    found = []
    for k in np.argsort(-doubt, kind="stable"):
        made = batch[k].structure
        positions = centered(x[k, : len(made.numbers)].double().cpu().numpy())
        moved = outside_wall(replace(made, positions=positions))
        if moved is not None:
            found.append(replace(batch[k], recipe="visited", structure=moved[0], steps=0))
    return found


def labeled(
    teacher: Teacher, model: Teacher, made: list[Sample], args: argparse.Namespace
) -> tuple[Arrays, int]:
    """Return labels of what the model visits, for `save`, and the number that was dropped."""
    rows, dropped = [], 0
    for k, batch in enumerate(batches(made)):
        moved = visited(model, batch, args.device, args.seed + k)
        chosen = moved[: math.ceil(args.share * len(moved))]
        if not chosen:
            continue
        good = good_rows(teacher, chosen, args.device)
        dropped += len(chosen) - len(good)
        rows += [*good.values(), *separated_rows(teacher, chosen, good, args.device)]
        print(f"{len(rows)} structures, {dropped} dropped", flush=True)
    return gathered(rows), dropped


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="checkpoint or name")
    parser.add_argument("--teacher", type=Path, required=True, help="TorchScript of an ensemble")
    parser.add_argument("--conformers", type=Path, default=Path("conformers.npz"))
    parser.add_argument("--out", type=Path, default=Path("data/visited-0000.h5"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=20_000, dest="conformers_count")
    parser.add_argument("--share", type=float, default=0.5, help="of the least certain ones")
    parser.add_argument("--seed", type=int, default=0, help="another one for each round")
    args = parser.parse_args()
    if not 0 < args.share <= 1:
        parser.error(f"--share must be above 0 and at most 1, not {args.share:g}")
    for path in (args.teacher, args.conformers):
        if not path.is_file():
            parser.error(f"there is no {path}")
    if args.out.exists():
        parser.error(f"{args.out} exists: choose another --out")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    """Let the model move, and label where it comes to."""
    args = parse_arguments()
    model = load_model(args.model)
    engine = Engine(model, device=args.device)
    elements = set.intersection(*(set(m.config.elements) for m in members_of(model)))
    made = starts(args, elements, takes_charge=model.uses_charge)
    arrays, _ = labeled(load_teacher(args.teacher, args.device), student(engine), made, args)
    if not arrays:
        sys.exit("no structure has good labels")
    save(args.out, arrays, source_of(args.conformers, args.teacher))


if __name__ == "__main__":
    main()
