"""Interactions of a water dimer, an ion pair and a slab, by each way to couple or sum charges.

Usage: ``python 21_couplings.py [--model default-charged] [--out FOLDER]``; then
``python 21_couplings.py --redraw [--out FOLDER]`` draws the same table again

Two rigid molecules move apart. The model computes both, with each sum of its Coulomb energy, or one
of them, coupled to a force field: TIP3P for water, CHARMM36 for ions. The slab is a layer of water
molecules with parallel dipoles, in cells of growing height. The script writes ``couplings.csv``,
and draws it as ``couplings.svg`` and ``coulomb.svg``. It needs
``pip install 'mlff-triton[openmm]'``.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import openmm
from ase import Atoms
from ase.build import molecule
from ase.data import s22
from ase.io import read
from ase.neighborlist import natural_cutoffs, neighbor_list
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from openmm import app
from openmmml import MLPotential

from mlff_triton import TensorNetCalculator, load_model
from mlff_triton.units import EV_TO_KCAL_PER_MOL, NM

IONS = Path(__file__).parent / "structures" / "ion_pair.xyz"
KCAL = 4.184  # kJ
COULOMB = 332.06  # kcal/mol Å, of two elementary charges
FAR = 1e7  # Å, where force fields are zero
BOX = 30.0  # Å, edge of the cube in which a pair is repeated
CUTOFF = 9.0  # Å, of reaction fields and PME
LAYER = 4.0  # Å, between the molecules of the slab
NO_DAMPING = "ml-charges, damping=0"
SLAB = "pme, pbc=[True, True, False]"
PUBLISHED = "CCSD(T)"

COUPLINGS = {  # labels and formats of lines
    "force field": ("force field alone", "k-"),
    "mechanical": ("mechanical embedding", "k."),
    NO_DAMPING: (NO_DAMPING, "C1--"),
    "ml-charges": ("ml-charges", "C1-"),
    "all-pairs": ("model for both", "C0-"),
    PUBLISHED: (PUBLISHED, "kx"),
}
SUMS = {
    "all-pairs": ("all-pairs", "C0-"),
    SLAB: (SLAB, "C0-"),
    "reaction-field": ("reaction-field", "C2-"),
    "pme": ("pme, pbc=True", "C3--"),
}
TITLES = {  # of panels, and labels of their axes
    "water dimer": ("water dimer", "O to O, Å"),
    "ion pair": ("methylammonium and acetate", "N to C of the carboxylate, Å"),
    "slab": ("layer of water, per molecule", "height of the cell, Å"),
}


class Row(NamedTuple):
    """Energy of one system; for a slab, the distance is the height of the cell."""

    system: str
    choice: str
    distance_A: float  # noqa: N815 - a column with its unit
    energy_kcal_mol: float


@dataclass(frozen=True)
class Pair:
    """Two rigid molecules, the first of which is the model's in mixed systems.

    Their distance is that of the first atoms.

    Attributes
    ----------
    name : str
        Its name in the table.
    molecules : Atoms, Atoms
        Total charges are in their ``info``.
    force_field : str
        Its file in OpenMM.
    longest : float
        End of the distances, Å.
    """

    name: str
    molecules: tuple[Atoms, Atoms]
    force_field: str
    longest: float

    def at(self, distance: float) -> Atoms:
        """Return both molecules at a distance in Å."""
        first, second = (each.copy() for each in self.molecules)
        apart = second.positions[0] - first.positions[0]
        second.positions += (distance / np.linalg.norm(apart) - 1) * apart
        first += second
        first.info["charge"] = sum(each.info["charge"] for each in self.molecules)
        return first


def pairs() -> tuple[Pair, Pair]:
    """Return the water dimer in the geometry of S22, with the donor first, and the ion pair."""
    ions = read(IONS)
    cation, anion = ions[:8], ions[8:]
    cation.info["charge"], anion.info["charge"] = 1, -1
    water = s22.create_s22_system("Water_dimer")
    donor, acceptor = water[:3], water[3:]
    donor.info["charge"] = acceptor.info["charge"] = 0
    return (
        Pair("water dimer", (donor, acceptor), "amber14/tip3p.xml", 6.0),
        Pair("ion pair", (cation, anion), "charmm36.xml", 12.0),
    )


def topology_of(molecules: Iterable[Atoms]) -> app.Topology:
    """Return the atoms and bonds of molecules, each a residue."""
    topology = app.Topology()
    chain = topology.addChain()
    for atoms in molecules:
        residue = topology.addResidue("MOL", chain)
        elements = map(app.Element.getBySymbol, atoms.symbols)
        added = [topology.addAtom(element.symbol, element, residue) for element in elements]
        for i, j in zip(*neighbor_list("ij", atoms, natural_cutoffs(atoms, mult=1.2)), strict=True):
            if i < j:
                topology.addBond(added[i], added[j])
    return topology


def coupled(pair: Pair, model: Any) -> Iterator[tuple[str, openmm.System]]:
    """Yield the classical System and each mixed one."""
    topology = topology_of(pair.molecules)
    classical = app.ForceField(pair.force_field).createSystem(topology)
    mixed = partial(
        MLPotential("mlff-triton", modelPath=model).createMixedSystem,
        topology,
        classical,
        list(range(len(pair.molecules[0]))),
        charge=pair.molecules[0].info["charge"],
        dtype="float64",
    )
    yield "force field", classical
    yield "mechanical", mixed()
    yield NO_DAMPING, mixed(embedding="ml-charges", damping=0)
    yield "ml-charges", mixed(embedding="ml-charges")


def energy_in(system: openmm.System) -> Callable[[Atoms], float]:
    """Return a function that computes an energy by OpenMM in kcal/mol."""
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)

    def energy(atoms: Atoms) -> float:
        context.setPositions(atoms.positions / NM)
        return context.getState(energy=True).getPotentialEnergy()._value / KCAL

    return energy


def energy_by(calculator: TensorNetCalculator, atoms: Atoms) -> float:
    """Return an energy of the model in kcal/mol."""
    return calculator.get_potential_energy(atoms) * EV_TO_KCAL_PER_MOL


def boxed(atoms: Atoms, cell: Any, pbc: Any = True) -> Atoms:
    """Return atoms in a cell."""
    atoms = atoms.copy()
    atoms.set_cell(cell)
    atoms.pbc = pbc
    return atoms


def scan(
    pair: Pair, model: Any, sums: dict[str, TensorNetCalculator], points: int
) -> Iterator[Row]:
    """Yield energies of a pair minus those of its molecules alone."""
    distances = np.linspace(2.4, pair.longest, points).round(6).tolist()
    row = partial(Row, pair.name)
    for choice, system in coupled(pair, model):
        energy = energy_in(system)
        apart = energy(pair.at(FAR))
        yield from (row(choice, x, energy(pair.at(x)) - apart) for x in distances)
    for choice, calculator in sums.items():
        alone = sums["all-pairs"] if choice == "pme" else calculator  # PME needs a cell
        apart = sum(energy_by(alone, each) for each in pair.molecules)
        for x in distances:
            atoms = boxed(pair.at(x), [BOX] * 3) if choice == "pme" else pair.at(x)
            yield row(choice, x, energy_by(calculator, atoms) - apart)


def published() -> Iterator[Row]:
    """Yield interaction energies of the water dimer in S22x5 (doi:10.1021/ct1002253)."""
    for ratio in (0.9, 1.0, 1.2, 1.5, 2.0):
        distance = s22.create_s22_system("Water_dimer", ratio).get_distance(0, 3)
        energy = s22.get_interaction_energy_s22x5("Water_dimer", ratio)
        yield Row("water dimer", PUBLISHED, distance, energy * EV_TO_KCAL_PER_MOL)


def layers(sums: dict[str, TensorNetCalculator], points: int) -> Iterator[Row]:
    """Yield energies of the slab per molecule, minus that of a molecule alone."""
    water = molecule("H2O")
    kinds: dict[str, tuple[str, Any, int]] = {
        SLAB: ("pme", [True, True, False], 1),
        "pme": ("pme", True, 1),
        "reaction-field": ("reaction-field", True, 5),  # which needs cells of twice the cutoff
    }
    for choice, (name, pbc, times) in kinds.items():
        alone = energy_by(sums["all-pairs" if name == "pme" else name], water)
        for height in np.linspace(8, 56, points).round(6).tolist():
            if name == "pme" or height >= 2 * CUTOFF:
                atoms = boxed(water, [LAYER, LAYER, height], pbc).repeat((times, times, 1))
                yield Row("slab", choice, height, energy_by(sums[name], atoms) / times**2 - alone)


def compute(model_name: str, points: int) -> Iterator[Row]:
    """Yield all rows of a model, given its name or file."""
    model = load_model(model_name, coulomb="all-pairs")
    models = {"all-pairs": model}
    for name in ("reaction-field", "pme"):
        models[name] = load_model(model_name, coulomb=name, coulomb_cutoff=CUTOFF)
    sums = {name: TensorNetCalculator(each, dtype="float64") for name, each in models.items()}
    for pair in pairs():
        yield from scan(pair, model, sums, points)
    yield from published()
    yield from layers(sums, points)


def plot(axes: Axes, rows: list[Row], system: str, styles: dict[str, tuple[str, str]]) -> None:
    """Plot energies of one system, with one value of each choice in the legend."""
    is_slab = system == "slab"
    for choice, (label, style) in styles.items():
        found = [row for row in rows if (row.system, row.choice) == (system, choice)]
        if found:
            distances = [row.distance_A for row in found]
            energies = [row.energy_kcal_mol for row in found]
            value = energies[-1] if is_slab else min(energies)
            axes.plot(distances, energies, style, ms=4, label=f"{label}: {value:.2f}")
    if system == "ion pair":
        attraction = [-COULOMB / x for x in distances]
        axes.plot(distances, attraction, color="gray", linewidth=0.8, label="point charges")
    title, label = TITLES[system]
    axes.set(title=title, xlabel=label)
    legend = f"at {distances[-1]:g} Å, kcal/mol" if is_slab else "lowest energy, kcal/mol"
    axes.legend(title=legend, fontsize="x-small", title_fontsize="x-small")


def draw(out: Path) -> list[Path]:
    """Draw the table in a folder as SVG files, and return their paths."""
    with (out / "couplings.csv").open(newline="") as file:
        rows = [
            Row(system, choice, float(distance), float(energy))
            for system, choice, distance, energy in list(csv.reader(file))[1:]
        ]
    figures = {
        "couplings.svg": (COUPLINGS, ("water dimer", "ion pair")),
        "coulomb.svg": (SUMS, ("water dimer", "ion pair", "slab")),
    }
    with mpl.rc_context({"svg.hashsalt": "mlff_triton", "svg.fonttype": "none"}):
        for name, (styles, systems) in figures.items():
            figure = Figure(figsize=(4.2 * len(systems), 4.2), layout="constrained")
            for axes, system in zip(figure.subplots(1, len(systems)), systems, strict=True):
                plot(axes, rows, system, styles)
            figure.supylabel("interaction energy, kcal/mol", fontsize="medium")
            figure.savefig(out / name, metadata={"Date": None})
    return [out / name for name in figures]


def main() -> None:
    """Compute the table, unless it is to be drawn again, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default="default-charged", help="name or checkpoint of a TensorNet2"
    )
    parser.add_argument("--points", type=int, default=49, help="distances of each scan")
    parser.add_argument("--redraw", action="store_true", help="draw an earlier table")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()
    if not args.redraw:
        rows = list(compute(args.model, args.points))
        args.out.mkdir(parents=True, exist_ok=True)
        with (args.out / "couplings.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Row._fields)
            for row in rows:
                writer.writerow([*row[:2], f"{row.distance_A:.3f}", f"{row.energy_kcal_mol:.4f}"])
    for path in draw(args.out):
        print(path)


if __name__ == "__main__":
    main()
