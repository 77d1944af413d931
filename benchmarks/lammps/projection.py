"""A model of the cost of a step, fitted to ``lammps.csv``, for numbers of GPUs that we lack.

Usage: ``python -m benchmarks.lammps.projection [--atoms 1e8] [--gpus 64]``. Its results are
projections, not measurements.

Each rank has a box of the system. For an operator of the model, atoms count up to a number of
cutoffs around this box, fewer from layer to layer; their mean over the layers is the number of
visits, except on a single rank, which needs no ghosts. Ghosts fill the box that LAMMPS sends,
``(layers + 1) cutoff + skin`` wider on every side.
With ``t = c0 + c1 visits`` for the model and ``t = c2 + c3 own + c4 ghosts`` for LAMMPS and the
communication, non-negative least squares find the coefficients. Times of the model are those of
ranks with a GPU of their own, and of single parts (`benchmarks.lammps.parts`); those of the rest
may be of ranks that share a GPU. Communication is assumed to take as long per ghost between
machines as within one.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import pi
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from benchmarks.lab.schema import FAIL, RESULTS, Row, read_rows
from benchmarks.systems.systems import DENSITY
from mlff_triton.calculators.lammps.coupling import SKIN
from mlff_triton.errors import InputError

LAYERS = 2
CUTOFF = 5.0
NEEDED = 3  # measurements of one model
_RANKS = re.compile(r"((?P<is_part>part-of)|ranks)-(?P<ranks>\d+)(?P<shared>-gpus-\d+)?")


@dataclass(frozen=True)
class Domain:
    """The box of one rank in a cube of liquid density.

    Attributes
    ----------
    atoms : float
        Number of atoms of the whole system.
    ranks : int
        Number of ranks.
    """

    atoms: float
    ranks: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of domains in each direction; ranks divide the cube as evenly as possible."""
        return min(_grids(self.ranks), key=lambda g: g[0] * g[1] + g[1] * g[2] + g[0] * g[2])

    @property
    def sides(self) -> NDArray[np.float64]:
        """Sides in Å."""
        side: float = (self.atoms / DENSITY) ** (1 / 3)
        return side / np.array(self.grid, dtype=float)

    @property
    def own(self) -> float:
        """Number of own atoms."""
        return self.atoms / self.ranks

    @property
    def visits(self) -> float:
        """Mean number of atoms that a layer computes, of own atoms and ghosts.

        A single rank computes its box without ghosts.
        """
        if self.ranks == 1:
            return self.own
        return float(np.mean([self._within(k * CUTOFF) for k in range(LAYERS + 1)]))

    @property
    def ghosts(self) -> float:
        """Number of ghosts that LAMMPS sends."""
        reach = (LAYERS + 1) * CUTOFF + SKIN
        return float(DENSITY * np.prod(self.sides + 2 * reach) - self.own)

    def _within(self, distance: float) -> float:
        """Return the number of atoms up to a distance from the box, by Steiner's formula."""
        a, b, c = self.sides
        faces = 2 * (a * b + b * c + a * c) * distance
        edges = pi * (a + b + c) * distance**2
        return float(DENSITY * (a * b * c + faces + edges + 4 / 3 * pi * distance**3))


def _grids(ranks: int) -> Iterable[tuple[int, int, int]]:
    """Yield all grids of a number of ranks."""
    for a in range(1, ranks + 1):
        for b in range(1, ranks // a + 1):
            if ranks % (a * b) == 0:
                yield a, b, ranks // (a * b)


@dataclass(frozen=True)
class CostModel:
    """Coefficients in ms, and ms per atom.

    Attributes
    ----------
    of_model : float64 [2]
        Of a step, and of a visit.
    of_rest : float64 [3]
        Of a step, an own atom and a ghost.
    largest_error : float
        Largest relative deviation of a measured step, or of the model in it, from this.
    """

    of_model: NDArray[np.float64]
    of_rest: NDArray[np.float64]
    largest_error: float = float("nan")

    def step(self, domain: Domain) -> float:
        """Return the time of a step in ms."""
        return self.model(domain) + float(self.of_rest @ [1, domain.own, domain.ghosts])

    def model(self, domain: Domain) -> float:
        """Return the time of the model in a step in ms."""
        return float(self.of_model @ [1, domain.visits])

    @classmethod
    def fitted(cls, rows: Sequence[Row]) -> CostModel:
        """Fit the rows of one model on one kind of GPU.

        Raises
        ------
        InputError
            If there are too few.
        """
        times = {(r.case, r.impl): r.ms_p50 for r in rows if r.gate != FAIL and r.ms_p50}
        model, rest, whole = [], [], []
        for row in rows:
            found = _RANKS.fullmatch(row.impl)
            time = times.get((row.case, row.impl))
            if found is None or time is None:
                continue
            domain = Domain(row.atoms, int(found["ranks"]))
            inside = times.get((row.case, f"{row.impl}-model"))
            if found["is_part"]:
                model.append((domain, time))
            elif inside is not None:
                rest.append((domain, time - inside))
                if not found["shared"]:
                    model.append((domain, inside))
                    whole.append((domain, time))
        if min(len(model), len(rest)) < NEEDED:
            raise InputError(
                f"{min(len(model), len(rest))} measured cases are too few: run "
                "benchmarks.lammps.runner first"
            )
        cost = cls(
            _fit([[1, d.visits] for d, _ in model], [time for _, time in model]),
            _fit([[1, d.own, d.ghosts] for d, _ in rest], [time for _, time in rest]),
        )
        errors = [cost.model(d) / time - 1 for d, time in model]
        errors += [cost.step(d) / time - 1 for d, time in whole]
        return cls(cost.of_model, cost.of_rest, max(map(abs, errors)))


def _fit(terms: Sequence[Sequence[float]], times: Sequence[float]) -> NDArray[np.float64]:
    """Minimize relative errors with coefficients that are not negative."""
    target = np.maximum(np.asarray(times, dtype=float), 1e-6)
    matrix = np.asarray(terms, dtype=float) / target[:, None]
    scale = np.abs(matrix).max(axis=0)
    coefficients: NDArray[np.float64] = nnls(matrix / scale, np.ones(len(target)))[0] / scale
    return coefficients


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit each model that was measured, and print projections."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of lammps.csv")
    parser.add_argument("--atoms", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--gpus", type=int, nargs="+", default=[4, 16, 64])
    options = parser.parse_args(arguments)
    rows = [row for row in read_rows(options.results / "lammps.csv") if isinstance(row, Row)]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.gpu, row.case.split("-")[1]), []).append(row)
    if not groups:
        raise InputError(f"{options.results} has no lammps.csv: run benchmarks.lammps.runner first")
    for (gpu, name), group in groups.items():
        cost = CostModel.fitted(group)
        print(f"{name} model on {gpu}; measured steps deviate by {cost.largest_error:.0%} at most")
        for atoms in options.atoms:
            for ranks in options.gpus:
                seconds = cost.step(Domain(atoms, ranks)) / 1e3
                print(f"  projection: {atoms:,.0f} atoms on {ranks} GPUs, {seconds:.3g} s per step")


if __name__ == "__main__":
    main()
