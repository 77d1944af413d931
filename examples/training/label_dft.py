"""Label geometries of the smallest molecules, and lone atoms, by density functional theory.

Usage: ``python label_dft.py --conformers conformers.npz --out data/small.h5 --workers 16``

Networks that learned many molecules know the smallest ones worst: AIMNet2 gives two bends of
methane 1,283 instead of 1,583 /cm. Of open shells they know nothing, so lone atoms are labeled as
well, in their ground states: models then know what a bond costs.

The functional, its dispersion and the basis are those of AIMNet2's labels, ωB97M-D3(BJ) and
def2-TZVPP, so energies fit to them. The weight in training is large, since labels are few. Results
are kept one by one, so the same command resumes a run that was interrupted. Needs PySCF and h5py:
``pip install pyscf pyscf-dispersion mlff-triton[tables]``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from ase.data import atomic_numbers, ground_state_magnetic_moments
from conformers import load_structures
from geometry import Structure
from label_data import THREAD_VARIABLES, common_row, gathered, save
from recipes import Partners, Sample, samples

from mlff_triton.units import BOHR, HARTREE

FUNCTIONAL, BASIS = "wb97m-d3bj", "def2-tzvpp"
RECIPES = ("relaxed", "thermal", "stretched")
ATOMS = 6
LONE = "atom"  # group of lone atoms
HEAVIEST = 36  # atomic number without an effective core potential
Labeled = tuple[Sample, float, list[list[float]]]
MAX_FORCE = 30.0  # eV/Å: one closed-shell determinant does not describe bonds that break


def lone_atoms(elements: list[str]) -> Iterator[tuple[str, Sample]]:
    """Yield an atom of each element with a name."""
    alone = Structure("", 0, LONE, "train", np.zeros(1, dtype=np.int64), np.zeros((1, 3)), ())
    for symbol in elements:
        numbers = np.array([atomic_numbers[symbol]])
        sample = Sample(
            "alone", replace(alone, name=symbol, numbers=numbers), (), np.array([False])
        )
        yield f"{symbol}-alone", sample


def chosen(
    structures: list[Structure], elements: list[str], rounds: int
) -> Iterator[tuple[str, Sample]]:
    """Yield samples of small molecules of some elements with names, the first of each first."""
    known = [atomic_numbers[symbol] for symbol in elements]
    small = [s for s in structures if len(s.numbers) <= ATOMS and s.split == "train"]
    small = [s for s in small if np.isin(s.numbers, known).all() and not s.conformer]
    partners = Partners.among(structures)
    for number in range(rounds):
        turns = []
        for start in small:
            seeded = replace(start, conformer=start.conformer + 1000 * number)
            made = [s for s in samples(seeded, partners) if s.recipe in RECIPES and not s.pair]
            turns.append([(f"{s.structure.name}-{number}-{k}", s) for k, s in enumerate(made)])
        for turn in itertools.zip_longest(*turns):
            yield from (each for each in turn if each is not None)


def labeled(item: tuple[str, Sample]) -> tuple[str, float, list[list[float]]] | None:
    """Return name, energy in eV and forces in eV/Å; None if there is no converged solution."""
    from pyscf import dft, gto

    name, sample = item
    made = sample.structure
    atoms = [(int(z), x.tolist()) for z, x in zip(made.numbers, made.positions, strict=True)]
    cores = {"ecp": BASIS} if made.numbers.max() > HEAVIEST else {}
    spin = int(ground_state_magnetic_moments[made.numbers[0]]) if made.group == LONE else 0
    mol = gto.M(atom=atoms, basis=BASIS, charge=made.charge, spin=spin, verbose=0, **cores)
    kind = dft.UKS if spin else dft.RKS
    method = kind(mol, xc=FUNCTIONAL).density_fit()
    energy = method.kernel()
    if not method.converged:
        return None
    forces = -method.nuc_grad_method().kernel() * HARTREE / BOHR
    return name, energy * HARTREE, forces.tolist()


def run(args: argparse.Namespace) -> None:
    """Label what has no label yet, then write all labels to one file per total charge."""
    molecules = chosen(load_structures(args.conformers), args.elements, args.rounds)
    todo = dict([*lone_atoms(args.elements), *molecules])
    notes = args.out.with_suffix(".jsonl")
    lines = notes.read_text().splitlines() if notes.exists() else []
    done = {name: found for name, *found in map(json.loads, lines)}
    rest = [(name, sample) for name, sample in todo.items() if name not in done]
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")  # workers read them when they load NumPy
    deadline = time.monotonic() + 60 * args.minutes
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool, notes.open("a") as file:
        results = pool.imap_unordered(labeled, rest)
        for found in itertools.takewhile(lambda _: time.monotonic() < deadline, results):
            if found is not None:
                done[found[0]] = list(found[1:])
                print(json.dumps(found), file=file, flush=True)
    write({name: (todo[name], *found) for name, found in done.items() if name in todo}, args)


def write(known: dict[str, Labeled], args: argparse.Namespace) -> None:
    """Write the labels of neutral and of charged molecules to a file each."""
    source = f"{FUNCTIONAL}/{BASIS} {zlib.crc32(str(sorted(known)).encode())}"
    for kind in ("neutral", "charged"):
        rows = [
            common_row(sample, "DFT", energy, np.array(forces, dtype=np.float32), args.weight)
            for sample, energy, forces in known.values()
            if bool(sample.structure.charge) == (kind == "charged")
            and np.linalg.norm(forces, axis=1).max() <= MAX_FORCE
        ]
        if rows:
            path = args.out.with_name(f"{kind}-{args.out.name}")
            save(path, gathered(rows), source)
            print(f"{path}: {len(rows)} structures")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conformers", type=Path, default=Path("conformers.npz"))
    parser.add_argument("--out", type=Path, default=Path("data/small.h5"))
    parser.add_argument("--elements", nargs="+", default=["H", "C", "N", "O"])
    parser.add_argument("--rounds", type=int, default=2, help="of samples of each molecule")
    parser.add_argument("--weight", type=float, default=10.0, help="in the loss")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time limit")
    return parser.parse_args()


if __name__ == "__main__":
    run(parse_arguments())
