"""Sample geometries of conformers, and label them by a teacher, for ``mlff-triton train``.

Usage: ``python label_data.py --teacher aimnet2_wb97m-d3_ens.jpt --conformers conformers.npz``

The work is cut into parts, of neutral or of charged molecules. Each writes one HDF5 file
atomically, so the same command resumes a run that was interrupted. Several processes, each with a
GPU of its own, take a ``--share`` of the parts. Needs h5py: ``pip install mlff-triton[tables]``.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from conformers import load_structures
from geometry import Structure, centered
from numpy.typing import NDArray
from recipes import ATOM_PAIR, Partners, Sample, atom_pairs, samples
from separation import separated
from teacher import Labels, Teacher, descended, label_inside, load_teacher
from wall import wall_radius

PART = 1500  # conformers per file, so that batches are large
CHUNK = 50  # conformers whose samples a process makes at a time
ROOM = 8  # sizes of structures are filled up to multiples of this, so that batches are few
PAIRS = 600_000  # of atoms per batch, such as 1,024 structures of 24 atoms
LARGEST_BATCH = 4096
MAX_FORCE, MAX_PAIR_FORCE = 200.0, 300.0  # eV/Å, in molecules and between two atoms
MAX_ENERGY_SPREAD = 0.03  # eV per atom
MAX_SPREAD, HALF_SPREAD = 0.1, 0.05  # relative to the largest force; the second halves the weight
MAX_INTERACTION = 1.0  # eV; what binds more is not made of molecules
SMALL_FORCE = 2.0  # eV/Å, added to the largest force, so that relaxed structures are kept
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
EXIT_INTERRUPTED = 130  # the exit code of shells after Ctrl-C

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Part:
    """The conformers whose samples are in one file."""

    name: str
    structures: list[Structure]


def plan(structures: list[Structure]) -> list[Part]:
    """Cut the conformers into parts, each a sample of all that are neutral or charged.

    The first part is of pairs of atoms.
    """
    parts = [Part("neutral-pairs", atom_pairs(structures))]
    for kind in ("neutral", "charged"):
        chosen = [s for s in structures if bool(s.charge) == (kind == "charged")]
        chosen.sort(key=lambda s: (zlib.crc32(s.name.encode()), s.conformer))
        count = -(-len(chosen) // PART)
        parts += [Part(f"{kind}-{k:04d}", chosen[k::count]) for k in range(count)]
    return parts


def chunks(part: Part) -> list[Part]:
    """Cut a part, so that several processes make its samples."""
    every = range(0, len(part.structures), CHUNK)
    return [replace(part, structures=part.structures[k : k + CHUNK]) for k in every]


def sampled(part: Part, partners: Partners) -> tuple[Part, list[Sample]]:
    """Make the samples of a part."""
    return part, [each for start in part.structures for each in samples(start, partners)]


def labeled(teacher: Teacher, made: Iterable[Sample], device: str) -> tuple[Arrays, int]:
    """Label samples in batches of similar sizes.

    Returns
    -------
    dict of arrays
        What `save` writes.
    int
        Number of samples whose labels were dropped.
    """
    classes: dict[tuple[int, ...], list[Sample]] = defaultdict(list)
    for sample in made:
        is_pair = sample.structure.group == ATOM_PAIR
        n = -(-len(sample.structure.numbers) // ROOM) * ROOM
        classes[n, bool(sample.pair), bool(sample.steps), is_pair].append(sample)
    rows, dropped = [], 0
    for (n, has_wall, moves, made_of_two), chosen in sorted(
        classes.items(), key=lambda item: item[0]
    ):
        size = batch_size(n)
        chosen.sort(key=lambda sample: sample.steps)  # as batches take the steps of their last
        for first in range(0, len(chosen), size):
            batch = chosen[first : first + size]
            if moves:
                batch = moved_down(teacher, batch, device)
            good = good_rows(teacher, batch, device)
            dropped += len(batch) - len(good)
            rows += good.values()
            if not made_of_two and not has_wall:
                rows += separated_rows(teacher, batch, good, device)
    return gathered(rows), dropped


def batch_size(n: int) -> int:
    """Return the number of structures of up to n atoms that a GPU labels at a time."""
    return min(LARGEST_BATCH, max(1, PAIRS // n**2))


def good_rows(teacher: Teacher, batch: list[Sample], device: str) -> dict[int, Arrays]:
    """Label a batch, of pairs of atoms or of others, and return the rows with good labels.

    The keys are their places in the batch.
    """
    found = label_batch(teacher, batch, device)
    spread = relative_spread(found)
    made_of_two = batch[0].structure.group == ATOM_PAIR
    kept = is_wall(found) if made_of_two else is_good(found, spread, batch)
    return {k: row(batch[k], found, spread, k) for k in kept.nonzero()[:, 0].tolist()}


def separated_rows(
    teacher: Teacher, batch: list[Sample], good: dict[int, Arrays], device: str
) -> list[Arrays]:
    """Label the clusters among good samples again, with their molecules far from each other.

    Both rows get one name in ``series``, by which a training compares their energies.
    """
    apart = {k: separated(batch[k].structure) for k in good}
    places = [k for k, structure in apart.items() if structure is not None]
    if not places:
        return []
    moved = [replace(batch[k], structure=apart[k], recipe="separated") for k in places]
    rows = []
    for at, found in good_rows(teacher, moved, device).items():
        near = good[places[at]]
        if abs(near["energy"] - found["energy"]) <= MAX_INTERACTION:
            name = hashlib.sha256(near["positions"].tobytes()).hexdigest()[:16]
            near["series"] = found["series"] = np.array([name], dtype=object)
            rows.append(found)
    return rows


def label_batch(teacher: Teacher, batch: list[Sample], device: str) -> Labels:
    """Label samples, all of them inside the wall or all outside; see `inputs_of`."""
    z, x, charge = inputs_of(batch, device)
    if not batch[0].pair:
        found = teacher(z, x, charge)
    else:
        pair = tensor((each.pair for each in batch), torch.int64, device)
        side = filled((each.side for each in batch), z.shape[1], torch.bool, device)
        radius = tensor(wall_radius(*z.gather(1, pair).T.cpu().numpy()), torch.float64, device)
        found = label_inside(teacher, z, x, charge, pair, side, radius)
    return Labels(*(label.cpu() for label in found))


def moved_down(teacher: Teacher, batch: list[Sample], device: str) -> list[Sample]:
    """Move samples down the energy, each by its own number of steps."""
    z, x, charge = inputs_of(batch, device)
    x = descended(teacher, z, x, charge, tensor((s.steps for s in batch), torch.int64, device))
    moves = []
    for sample, moved in zip(batch, x.double().cpu().numpy(), strict=True):
        made = sample.structure
        positions = centered(moved[: len(made.numbers)])
        moves.append(replace(sample, structure=replace(made, positions=positions)))
    return moves


def inputs_of(batch: list[Sample], device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return atomic numbers [B, N], positions [B, N, 3] in Å, and total charges [B].

    Smaller structures have atoms of number 0 at the end, which the teacher leaves out.
    """
    largest = max(len(each.structure.numbers) for each in batch)
    z = filled((each.structure.numbers for each in batch), largest, torch.int64, device)
    x = (centered(each.structure.positions) for each in batch)
    charge = tensor((each.structure.charge for each in batch), torch.float32, device)
    return z, filled(x, largest, torch.float32, device), charge


def filled(values: Iterable[NDArray[Any]], n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Stack arrays [k, ...] with k <= n into a tensor [B, n, ...], with zeros at the end."""
    rows = list(values)
    stack = np.zeros((len(rows), n, *rows[0].shape[1:]))
    for place, value in zip(stack, rows, strict=True):
        place[: len(value)] = value
    return torch.from_numpy(stack).to(device, dtype)


def tensor(values: Iterable[Any], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Stack values into a tensor."""
    return torch.tensor(np.array(list(values)), dtype=dtype, device=device)


def is_good(found: Labels, spread: torch.Tensor, batch: list[Sample]) -> torch.Tensor:
    """Return True [B] where the networks agree, and no force is excessive."""
    n_atoms = torch.tensor([len(each.structure.numbers) for each in batch])
    return (
        (found.energy_spread <= MAX_ENERGY_SPREAD * n_atoms)
        & (spread <= MAX_SPREAD)
        & (found.forces.norm(dim=2).amax(1) <= MAX_FORCE)
        & found.energy.isfinite()
    )


def is_wall(found: Labels) -> torch.Tensor:
    """Return True [B] where two atoms repel each other, whatever the networks think of them."""
    force = found.forces.norm(dim=2).amax(1)
    return (force <= MAX_PAIR_FORCE) & found.energy.isfinite()


def relative_spread(found: Labels) -> torch.Tensor:
    """Return the spread of forces relative to the largest of each structure [B]."""
    return found.force_spread / (SMALL_FORCE + found.forces.norm(dim=2).amax(1))


def row(sample: Sample, found: Labels, spread: torch.Tensor, k: int) -> Arrays:
    """Return one labeled structure, under the names that ``mlff-triton train`` recognizes.

    It uses partial charges and dipole with ``--charges``, and ignores the spread. The dipole in e Å
    is that of the partial charges about the centroid, the spread is `relative_spread`, and the
    weight falls with it.
    """
    n = len(sample.structure.numbers)
    charges, disagreement = found.charges[k, :n].numpy(), spread[k].item()
    weight = 1 / (1 + (disagreement / HALF_SPREAD) ** 2)
    labels = found.energy[k].item(), found.forces[k, :n].numpy()
    common = common_row(sample, sample.structure.group, *labels, weight)
    return common | {
        "charges": charges,
        "dipole": (charges @ common["positions"])[None],
        "spread": np.array([disagreement]),
    }


def common_row(
    sample: Sample, group: str, energy: float, forces: NDArray[Any], weight: float
) -> Arrays:
    """Return what every labeled structure has: energy in eV, forces [N, 3] in eV/Å, and others."""
    made = sample.structure
    return {
        "n_atoms": np.array([len(made.numbers)]),
        "numbers": made.numbers.astype(np.int8),
        "positions": centered(made.positions).astype(np.float32),
        "energy": np.array([energy]),
        "forces": forces,
        "charge": np.array([made.charge]),
        "group": np.array([f"{group} {sample.recipe}"], dtype=object),
        "split": np.array([made.split], dtype=object),
        "weight": np.array([weight]),
        "series": np.array([""], dtype=object),
    }


def gathered(rows: list[Arrays]) -> Arrays:
    """Join labeled structures into flat arrays."""
    return {name: np.concatenate([each[name] for each in rows]) for name in (rows or [{}])[0]}


def save(path: Path, arrays: Arrays, source: str) -> None:
    """Write a part atomically."""
    partial = path.with_name(path.name + ".part")
    with h5py.File(partial, "w") as file:
        file.attrs["source"] = source
        for name, array in arrays.items():
            is_text = array.dtype == object
            file.create_dataset(name, data=array, dtype=h5py.string_dtype() if is_text else None)
    partial.replace(path)


def unfinished(parts: list[Part], folder: Path, source: str) -> Iterator[Part]:
    """Yield the parts without a file; refuse a folder of other conformers or another teacher."""
    for part in parts:
        path = folder / f"{part.name}.h5"
        if not path.exists():
            yield part
            continue
        with h5py.File(path) as file:
            if file.attrs.get("source") != source:
                sys.exit(f"{path} has other conformers or another teacher: choose another --out")


def source_of(*paths: Path) -> str:
    """Return a hash of the contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run(args: argparse.Namespace) -> None:
    """Label all unfinished parts, while other processes sample the next ones."""
    structures = load_structures(args.conformers)
    source = source_of(args.conformers, args.teacher)
    number, count = args.share
    parts = plan(structures)[: args.limit][number::count]
    todo = list(unfinished(parts, args.out, source))
    print(f"{len(todo)} of {len(parts)} parts to do", flush=True)
    teacher = load_teacher(args.teacher, args.device)
    make = functools.partial(sampled, partners=Partners.among(structures))
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")  # workers read them when they load NumPy
    deadline = time.monotonic() + 60 * args.minutes
    with multiprocessing.get_context("spawn").Pool(args.workers, ignore_interrupts) as pool:
        made = pool.imap(make, [chunk for part in todo for chunk in chunks(part)])
        for name, found in itertools.groupby(made, key=lambda each: each[0].name):
            if time.monotonic() > deadline:
                break
            every = [sample for _, some in found for sample in some]
            arrays, dropped = labeled(teacher, every, args.device)
            save(args.out / f"{name}.h5", arrays, source)
            count = len(every) - dropped
            print(f"{name}: {count} structures, {dropped} dropped", flush=True)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def share(text: str) -> tuple[int, int]:
    """Return the number of a process, from 0 on, and that of all, of a text such as 0/4."""
    number, count = (int(part) for part in text.split("/"))
    if not 0 <= number < count:
        raise argparse.ArgumentTypeError(f"{text}: the first of four processes has 0/4")
    return number, count


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", type=Path, required=True, help="TorchScript of an ensemble")
    parser.add_argument("--conformers", type=Path, default=Path("conformers.npz"))
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that sample")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time limit")
    parser.add_argument("--limit", type=int, help="number of parts, for a trial run")
    parser.add_argument(
        "--share", type=share, default=(0, 1), help="such as 0/4, on the first GPU of four"
    )
    args = parser.parse_args()
    for path in (args.teacher, args.conformers):
        if not path.is_file():
            parser.error(f"there is no {path}")
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    """Label the data, and say how to continue if interrupted."""
    try:
        run(parse_arguments())
    except KeyboardInterrupt:
        print("interrupted: finished parts are kept, and the same command resumes", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
