"""Checks in processes of their own, with limits of time and memory.

The processes are forked from a server that has imported everything once, so that a case takes
milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.fuzz.kind import Kind
from tests.fuzz.verdict import CONFIRMED, FINDING, Verdict, verdict_on

FACTS = "facts.json"
DATE = 1e9  # of members of zips and gzips
READY = "ready"  # sent before the check begins
INPUT, WORK = "input", "work"  # folders: of the generator, and of the check, which may change it

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["__main__", "tests.fuzz.cases", "tests.fuzz.preload"])


@dataclass(frozen=True)
class Limits:
    """Limits of one case.

    Attributes
    ----------
    cpu : int
        Processor time in s. It does not depend on what else the machine does.
    wall : float
        Elapsed time in s, for cases that wait forever.
    memory : int
        Address space in bytes, in addition to that of a process that has imported everything.
    """

    cpu: int = 20
    wall: float = 60.0
    memory: int = 3 << 29


def run(kind: Kind, name: str, seed: int, folder: Path, limits: Limits) -> Verdict:
    """Draw a case from a seed, and check it.

    Parameters
    ----------
    kind : Kind
        Kind of the case.
    name : str
        Name of its generator.
    seed : int
        Seed of its random numbers.
    folder : Path
        Folder for its files. Those of the generator remain in its subfolder ``input``.
    limits : Limits
        Limits of the check; generators have none but the elapsed time.

    Raises
    ------
    RuntimeError
        If the generator fails.
    """
    return _judged(limits, folder, kind, name, seed)


def replay(kind: Kind, folder: Path, limits: Limits) -> Verdict:
    """Check a case whose files are in the subfolder ``input``."""
    return _judged(limits, folder, kind, None, 0)


def draw(kind: Kind, name: str, seed: int, folder: Path) -> None:
    """Write the files and the facts of a case to a new folder, always the same for a seed."""
    folder.mkdir()
    torch.manual_seed(seed)
    with mock.patch("time.time", return_value=DATE):
        facts = kind.generators[name](np.random.default_rng(seed), folder)
    (folder / FACTS).write_text(json.dumps(facts))


def _judged(limits: Limits, folder: Path, kind: Kind, name: str | None, seed: int) -> Verdict:
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_work, args=(sender, limits, folder, kind, name, seed))
    process.start()
    sender.close()
    with receiver:
        answer = _received(receiver)
        if answer != READY:
            raise RuntimeError(f"the generator {name} failed with seed {seed}:\n{answer}")
        if not receiver.poll(limits.wall):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
            return Verdict(FINDING, f"hang: not done after {limits.wall:g} s")
        verdict = _received(receiver)
    process.join()
    return verdict or _verdict_on_exit(process.exitcode or 0, limits)


def _received(receiver: Connection) -> Any:
    """Return what the process sends next, or None if it ends without sending anything."""
    try:
        return receiver.recv()
    except EOFError:
        return None


def _verdict_on_exit(code: int, limits: Limits) -> Verdict:
    if code == -signal.SIGXCPU:
        return Verdict(FINDING, f"hang: {limits.cpu} s of processor time did not suffice")
    if code < 0:
        return Verdict(FINDING, f"crash by {signal.Signals(-code).name}")
    return Verdict(FINDING, f"the process ended by itself with code {code}")


def _work(
    sender: Connection, limits: Limits, folder: Path, kind: Kind, name: str | None, seed: int
) -> None:
    """Write the files of a case unless they exist, check it, and send the verdict."""
    os.setsid()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # drivers of GPUs need far more address space
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        if name is not None:
            draw(kind, name, seed, folder / INPUT)
        facts = json.loads((folder / INPUT / FACTS).read_text())
        shutil.copytree(folder / INPUT, folder / WORK, symlinks=True)
        os.chdir(folder / WORK)
    except BaseException:  # noqa: BLE001 - the parent raises it
        sender.send(traceback.format_exc())
        os._exit(1)
    sender.send(READY)
    _limit(limits)
    try:
        kind.check(folder / WORK, facts)
        verdict = Verdict(CONFIRMED)
    except BaseException as error:  # noqa: BLE001 - any exception is judged
        verdict = verdict_on(error)
    sender.send(verdict)
    os._exit(0)  # leaves out what libraries do at the end of a process


def _limit(limits: Limits) -> None:
    """Set the limits of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used + limits.cpu, used + limits.cpu + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
