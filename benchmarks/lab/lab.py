"""The state of a run: its device, its time budget and its results."""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from benchmarks.lab.schema import AnyRow, Results
from mlff_triton._common.timing import Environment, synchronize


@dataclass
class Budget:
    """Time limits of a run.

    Attributes
    ----------
    total : float
        Seconds after which no new measurement starts.
    each : float
        Seconds for one implementation on one case, compilation included.
    sampling : float
        Approximate seconds for which a step is repeated.
    """

    total: float = 3600.0
    each: float = 240.0
    sampling: float = 1.0
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.total - (time.monotonic() - self.started)

    @property
    def left_for_one(self) -> float:
        """Seconds that the next measurement may take."""
        return min(self.each, self.left)


@dataclass
class Lab:
    """A device and the files that receive its measurements.

    Attributes
    ----------
    device : torch.device
        The device under test.
    where : Environment
        Description of the device and the software.
    results : Results
        The CSV files.
    budget : Budget
        Time limits.
    errors : dict
        Errors of implementations that passed the gate in this run, by case and name.
    """

    device: torch.device
    where: Environment
    results: Results
    budget: Budget = field(default_factory=Budget)
    errors: dict[tuple[Hashable, str], float] = field(default_factory=dict)

    def report(self, row: AnyRow) -> None:
        """Write a row and print it."""
        self.results.add([row])
        print(row.summary, flush=True)

    def skip(self, name: str, reason: str) -> None:
        """Print to stderr why a measurement is skipped."""
        print(f"{name}: skipped, {reason}", file=sys.stderr, flush=True)

    def complain(self, name: str, error: BaseException) -> None:
        """Print to stderr why a measurement failed; end the run if the device is lost."""
        text = " ".join(str(error).split())[:500]
        print(f"{name}: {type(error).__name__}: {text}", file=sys.stderr, flush=True)
        try:
            synchronize(self.device)
        except RuntimeError as lost:
            raise SystemExit(
                f"{name} has left the device unusable: start again without it"
            ) from lost
