"""A process that moves some systems of a run on a device, with its own calculator."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton._common.spawned import Spawned
from mlff_triton.dynamics.systems import make_dynamics
from mlff_triton.engine.motion import Conditions, Dynamics, Observation, State, Suspect
from mlff_triton.errors import DeviceMemoryError, MlffTritonError, SimulationError


class Failure(NamedTuple):
    """An error in a process: its traceback, and the step and the atom to blame if they matter."""

    error: Exception
    trace: str
    step: int = 0
    suspect: Suspect | None = None


class DeviceProcess:
    """A process that moves some systems on a device; requests are methods of `_Mover`.

    Parameters
    ----------
    make : callable
        Makes the calculator in that process.
    device : str
        Name of the device.
    """

    def __init__(self, make: Callable[[], Calculator], device: str) -> None:
        self._device = device
        self._process = Spawned(_obey, (make,), torch.get_num_threads())
        self._expected = 0  # answers

    def ask(self, request: str, *arguments: Any) -> None:
        """Send a request, and return at once."""
        self._expected += 1
        try:
            self._process.pipe.send((request, arguments))
        except OSError as error:
            raise self._lost() from error

    def answer(self) -> Any:
        """Wait for the answers to all requests; return the last answer, or the first failure."""
        failure = last = None
        while self._expected:
            try:
                last = self._process.pipe.recv()
            except (EOFError, OSError) as error:
                raise self._lost() from error
            self._expected -= 1
            if failure is None and isinstance(last, Failure):
                failure = last
        return failure or last

    def end(self) -> None:
        """End the process, immediately if it is working."""
        if self._expected:
            self._process.terminate()
        self._process.end()

    def _lost(self) -> SimulationError:
        return SimulationError(
            f"the process of {self._device} has ended: look for a lack of memory; a script must "
            "start its work below if __name__ == '__main__'"
        )


class _Mover:
    """The other side of a `DeviceProcess`: each method answers a request of the same name."""

    def __init__(self, make: Callable[[], Calculator]) -> None:
        self._make = make
        self._calculator: Calculator | None = None
        self._dynamics: Dynamics | None = None

    def prepare(self, systems: Sequence[Atoms], threads: int | None) -> int:
        """Prepare systems to be moved, and return the number of blocks that may be queued."""
        self._dynamics = None  # frees its memory
        self._calculator = self._calculator or self._make()
        self._dynamics = make_dynamics(systems, self._calculator, threads)
        return self._dynamics.depth

    def begin(self, state: State, conditions: Conditions, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step."""
        return self._moving.begin(state, conditions, is_continued=is_continued)

    def queue(self, stop: int, is_observed: bool) -> None:
        """Queue a block."""
        self._moving.queue(stop, is_observed=is_observed)

    def collect(self) -> Observation | None:
        """Return what was observed at the end of the oldest block."""
        return self._moving.collect()

    def observe(self) -> Observation:
        """Return what can be observed."""
        return self._moving.observe()

    @property
    def _moving(self) -> Dynamics:
        assert self._dynamics is not None  # because `prepare` precedes everything else
        return self._dynamics

    def failure(self, error: Exception) -> Failure:
        """Return an error, with its explanation if it is the error of a step."""
        trace, dynamics = traceback.format_exc(), self._dynamics
        is_of_step = isinstance(error, MlffTritonError)
        is_of_step &= not isinstance(error, DeviceMemoryError | SimulationError)
        if dynamics is None or not is_of_step:
            return Failure(error, trace)
        return Failure(error, trace, dynamics.step, dynamics.suspect())


def _obey(pipe: Connection, make: Callable[[], Calculator]) -> None:
    """Answer the requests that come through a pipe, until it is closed."""
    warnings.simplefilter("ignore")  # given by the process of the run
    logging.getLogger("mlff_triton").setLevel(logging.ERROR)
    mover = _Mover(make)
    while True:
        try:
            request, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(mover, request)(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where the request came from
            answer = mover.failure(error)
        pipe.send(answer)
