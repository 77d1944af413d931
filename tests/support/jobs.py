"""Jobs whose tasks take no time: texts of numbers, and workers that misbehave."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlff_triton.errors import InputError
from mlff_triton.jobs.job import Job, Task, Workers, run
from mlff_triton.jobs.workers import Done, OwnProcess, Pool, Processes


@dataclass(frozen=True)
class Texts:
    """Lines of numbers, one result per line.

    Attributes
    ----------
    folder : str
        Folder for marks of what has happened.
    deaths : int
        Number of times that a worker dies at number 7.
    seconds : float
        Time of a task.
    """

    folder: str = ""
    deaths: int = 0
    seconds: float = 0.0

    def start(self, device: str) -> Callable[[list[int]], Done]:
        del device

        def compute(numbers: list[int]) -> Done:
            time.sleep(self.seconds * (1 + numbers[0] % 3))
            if 3 in numbers:
                warnings.warn("three", UserWarning, stacklevel=1)
            marks = list(Path(self.folder).glob("death*")) if self.deaths else []
            if 7 in numbers and len(marks) < self.deaths:
                (Path(self.folder) / f"death{len(marks)}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            errors = sum(number % 10 == 9 for number in numbers)
            return Done(text_of(numbers), len(numbers), errors, "nine" * bool(errors))

        return compute


def text_of(numbers: list[int]) -> bytes:
    return b"".join(b"%d %s\n" % (k, b"x" * (k % 50)) for k in numbers)


def tasks(n: int, first: int = 0, damage: int | None = None) -> Iterator[Task]:
    """Yield tasks of up to three numbers, from `first` to n, whose input ends in damage."""
    for k in range(first, n, 3):
        if damage is not None and k >= damage:
            raise InputError(f"damaged at {k}")
        numbers = list(range(k, min(k + 3, n)))
        yield Task(numbers, zlib.crc32(bytes(str(numbers), "ascii")), k + len(numbers), f"{k}")


WHOLE = text_of(list(range(30)))


def job(out: Path, n: int = 30, work: Texts = Texts(), damage: int | None = None, **options) -> Job:
    settings = {"job": "texts", **options.pop("settings", {})}
    return Job(partial(tasks, n, damage=damage), work, out, settings, **options)


class Here(Workers):
    """This process, without asking PyTorch for devices."""

    def pool(self, work: Texts, *, apart: bool = False) -> Pool:
        return Processes(work, ["cpu"]) if apart else OwnProcess(work, "cpu")


class Parts(Texts):
    """Texts that can be divided, and say which numbers are lost."""

    def nothing(self) -> list[int]:
        return []

    def parts(self, numbers: list[int]) -> list[list[int]]:
        middle = len(numbers) // 2
        return [numbers[:middle], numbers[middle:]] if middle else [numbers]

    def lost(self, numbers: list[int], reason: str) -> Done:
        return Done(b"%d is lost\n" % numbers[0], 1, 1, f"{numbers[0]}: {reason}")

    def merged(self, payloads: list[bytes]) -> bytes:
        return b"".join(payloads)

    def start(self, device: str) -> Callable[[list[int]], Done]:
        compute = super().start(device)
        return lambda numbers: compute(numbers) if numbers else Done(b"", 0)


def main() -> None:
    """Run a job slowly, to be killed; print a line at its start and after each task.

    If a third argument is given, it is the folder of a job that dies at number 7.
    """
    out, n, *folder = sys.argv[1:]
    work = Parts(folder[0], deaths=100) if folder else Texts(seconds=0.002)
    show = partial(print, flush=True)
    run(job(Path(out), int(n), work, head=b"head\n"), Here(), show=lambda _: show())


if __name__ == "__main__":
    main()
