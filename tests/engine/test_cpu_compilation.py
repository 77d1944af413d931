"""Loops of a step: all compiled before the first one runs, and the same bits in all threads."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import torch

pytest.importorskip("numba")

from numba.core.serialize import dumps

from mlff_triton import Engine
from mlff_triton.kernels.common.cpu import compilation
from mlff_triton.testing import random_cluster, random_crystal
from tests.support.charged import charged_model
from tests.support.tensornets import model_of

AHEAD = """
from mlff_triton import Engine
from mlff_triton.kernels.common.cpu import compilation
from mlff_triton.kernels.common.cpu.loop_cache import LoopCache
from mlff_triton.testing import random_cluster
from tests.support.charged import charged_model
from tests.support.tensornets import model_of, uncertain

compile_all, load = compilation.compile_all, LoopCache.load_overload
is_ahead, late = False, set()

def ahead(*arguments):
    global is_ahead
    is_ahead = True
    compile_all(*arguments)
    is_ahead = False

def loaded(self, *arguments):
    if not is_ahead:
        late.add(self._loop.__name__)
    return load(self, *arguments)

compilation.compile_all, LoopCache.load_overload = ahead, loaded
for model in (model_of(num_layers=2), charged_model(num_layers=2)):
    engine = Engine(uncertain(model), "cpu", "float32", "cpu")
    atoms = random_cluster(70)
    engine.compute(atoms.numbers, atoms.positions)
    if engine.is_local:
        part = engine.part()
        part.set_atoms(atoms.numbers, 30, 70)
        part.step(atoms.positions)
print(*sorted(late))
"""


def test_no_loop_is_compiled_after_the_first_has_run():
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", AHEAD],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("\n", "")


# What a process that compiles does before it compiles, which would take seconds.
LOAD = """
import pickle, sys
path, tasks = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from numba.core.serialize import loads
from mlff_triton.kernels.common.cpu.child import leave_pytorch_out
leave_pytorch_out()
for task in tasks:
    loop, types = loads(task)
    print(loop.__name__, len(types))
"""


def test_other_processes_get_all_loops(monkeypatch):
    """A loop that they could not take would end them, and this process would compile the rest."""
    tasks = []
    monkeypatch.setattr(compilation, "compile_all", lambda found, _: tasks.extend(found))
    atoms = random_cluster(5)
    for maker in (model_of, charged_model):
        engine = Engine(maker(num_layers=2), "cpu", "float32", "cpu")
        engine.compute(atoms.numbers, atoms.positions)
    tasks = list(dict.fromkeys(tasks))
    assert len(tasks) > 40
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-I", "-c", LOAD],
        input=pickle.dumps((sys.path, [dumps(tuple(task)) for task in tasks])),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    names = [f"{task.loop.__name__} {len(task.types)}" for task in tasks]
    assert done.stdout.decode().splitlines() == names


STORED = """
import sys
from mlff_triton import Engine
from mlff_triton.testing import random_cluster
from tests.support.tensornets import model_of

atoms = random_cluster(5)
Engine(model_of(num_layers=2), "cpu", "float32", "cpu").compute(atoms.numbers, atoms.positions)
print("numba.np.linalg" in sys.modules)
"""


def test_stored_loops_load_no_compiler():
    """The rest of Numba takes three times as long to load as all loops of a step."""
    atoms = random_cluster(5)
    Engine(model_of(num_layers=2), "cpu", "float32", "cpu").compute(atoms.numbers, atoms.positions)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", STORED],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("maker", [model_of, charged_model])
def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch, maker, dtype):
    monkeypatch.setattr(compilation, "FEWEST", 3)
    atoms = random_crystal(40, "triclinic")
    engine = Engine(maker(num_layers=2), "cpu", dtype, "cpu")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            box = atoms.cell.array, maker is model_of
            found.append(engine.compute(atoms.numbers, atoms.positions, *box).tensors)
    finally:
        torch.set_num_threads(before)
    for tensors in found[1:]:
        assert all(torch.equal(tensors[name], found[0][name]) for name in found[0])
