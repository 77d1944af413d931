"""Locks and engines in forked processes."""

from __future__ import annotations

import threading

import pytest
import torch

from mlff_triton import Engine
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.fork_lock import ForkLock
from mlff_triton.errors import BackendError
from tests.support.tensornets import model_of

WATER = ([8, 1, 1], [[0.0, 0.0, 0.1], [0.0, 0.8, -0.5], [0.0, -0.8, -0.5]])


def test_a_lock_is_held_by_one_thread_and_reentrant():
    lock, done = ForkLock(is_lost_by_fork=False), threading.Event()

    def wait() -> None:
        with lock:
            done.set()

    thread = threading.Thread(target=wait)
    with lock, lock:
        thread.start()
        assert not done.wait(0.1)
    thread.join()
    assert done.is_set()


def test_a_fork_frees_what_another_thread_held():
    lock, held, done = ForkLock(is_lost_by_fork=False), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    lock.after_fork()
    with lock:
        done.set()
    thread.join()


def compute(engine: Engine) -> object:
    return engine.compute(*WATER)


def prepare(engine: Engine) -> object:
    return engine.prepare(*WATER)


def resident(engine: Engine) -> object:
    return engine.resident(WATER[0])


def dynamics(engine: Engine) -> object:
    return engine.dynamics(Batch.of(*WATER), [16.0, 1.0, 1.0])


def queue(engine: Engine) -> object:
    system, cell = torch.zeros(3, dtype=torch.int64), torch.zeros(1, 3, 3)
    return engine.queue(*map(torch.tensor, WATER), cell, False, system)


@pytest.mark.parametrize("call", [compute, prepare, resident, dynamics, queue])
def test_every_call_tells_that_cuda_is_lost(call):
    engine = Engine(model_of(num_layers=1), "cpu", "float32", "torch")
    engine.lock = ForkLock(is_lost_by_fork=True)
    engine.lock.after_fork()
    with pytest.raises(BackendError, match="CUDA does not work in a forked process"):
        call(engine)


def test_steps_of_resident_systems_tell_that_cuda_is_lost():
    engine = Engine(model_of(num_layers=1), "cpu", "float32", "torch")
    engine.lock = ForkLock(is_lost_by_fork=True)
    system = engine.resident(WATER[0])
    assert system.step(torch.tensor(WATER[1]))[0].isfinite()
    engine.lock.after_fork()
    with pytest.raises(BackendError, match="CUDA does not work in a forked process"):
        system.step(torch.tensor(WATER[1]))
