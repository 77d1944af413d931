"""Changes of what the whole process shares: each has a place and a reason in a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.patches import find_patches

ROOT = Path(__file__).parents[1]

PLACES = {
    # Undone at the end of a block or a function
    "_common/figures.py:figure_class": "hides Matplotlib's way to draw while it is imported",
    "_common/garbage.py:GarbageKept": "suspends garbage collection while a graph is captured",
    "_common/interrupt.py:StopRequest": "records a signal during a simulation",
    "_common/spawned.py:_interrupts_blocked": "keeps Ctrl-C from a process that it starts",
    "_common/torch_settings.py:_exact_products": "multiplies in float32",
    "_common/torch_settings.py:_new_settings": "computes with the settings of a new process",
    "_common/torch_settings.py:using_threads": "sets the number of PyTorch's threads",
    "_common/triton_start.py:_lent": "lends Triton a key for seconds, until it has hashed itself",
    "bio/docking/package.py:quiet": "hides what DiffDock prints",
    "bio/embedding.py:_without_reports": "hides what transformers reports",
    "cli/_streams.py:Streams": "gives a command streams that can write any text",
    "cli/main.py:main": "shows warnings in one line, and ends by Ctrl-C, while a command runs",
    "dispersion/on_gpu.py:_start": "hides what Warp prints",
    "engine/radial_tables.py:_one_thread": "makes tables with the same bits on any machine",
    "kernels/common/cpu/threads.py:_Turns": "lets PyTorch use one thread in each of ours",
    "testing/launches.py:_choices_for": "chooses the GPU of a test",
    "testing/launches.py:recorded_launches": "records launches in a test",
    "testing/settings.py:": "changes a setting in a test",
    "testing/settings.py:_default_dtype": "changes a setting in a test",
    "testing/settings.py:_deterministic": "changes a setting in a test",
    "testing/settings.py:_rounded_products": "changes a setting in a test",
    "testing/tf32.py:tf32": "changes a setting in a test",
    "training/run.py:_new_model": "draws weights; the random stream is put back",
    # In a process of our own
    "_common/child_process.py:leave_pytorch_out": "compiles without PyTorch",
    "_common/spawned.py:_run": "sets threads before it computes",
    "cli/_streams.py:_Pipe": "lets a command write nowhere when its reader is gone",
    "cli/bench.py:load_benchmarks": "imports the benchmarks of a checkout under their name",
    "dynamics/device_process.py:_obey": "hides warnings that the process of the run gives",
    "engine/fork_lock.py:_after_fork": "has none of PyTorch's threads after a fork",
    "kernels/common/child.py:Task": "compiles in the environment of its parent",
    "kernels/common/child.py:_fork": "leads a group, so that it ends with the assembler",
    "kernels/common/child.py:main": "leaves garbage alone in its forks",
    "kernels/common/cpu/child.py:_import": "makes empty modules",
    "kernels/common/cpu/child.py:serve": "keeps its output free for results",
    "kernels/common/cpu/threads.py:_help": "sets its number of threads while the caller's is one",
    # For good, as documented
    "bio/docking/package.py:Package": "imports DiffDock's code from its folder, as it expects",
    "calculators/lammps/ranks.py:choose_device": "gives each rank of LAMMPS a GPU and cores",
    "jobs/cluster.py:Cluster": "keeps Dask from logging errors, which are raised",
    "training/ranks.py:_join": "joins the ranks of a training",
    # Entries in registries that are made for this
    "engine/fork_lock.py:": "frees locks in a forked process",
    "kernels/common/compilers.py:start_early": "ends processes with this one",
    "kernels/common/cpu/loop_compiler.py:_Lowering": "names a compiler pass of ours for Numba",
    "kernels/common/cpu/threads.py:": "forgets threads in a forked process",
    "kernels/common/cpu/vector_types.py:_VectorModel": "names a type of ours for Numba",
}
"""Files and functions or classes there that change something of the process, with the reason."""


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.backends.cudnn.benchmark = True",
        "def f():\n    from triton.runtime.jit import JITFunction\n    JITFunction.run = None",
        "import triton.runtime.cache as c\nc.triton_key, x = None, 1",
        "from triton import knobs\nsetattr(knobs, 'compilation', 1)",
        "from triton import knobs\nobject.__setattr__(knobs, 'compilation', 1)",
        "import os\nos.environ['A'] = 'b'",
        "import os\ndel os.environ['A']",
        "from torch import nn\nnn.Linear.forward += 1",
    ],
)
def test_assignments_to_imported_names_are_found(source):
    assert find_patches(source)


@pytest.mark.parametrize(
    "source",
    [
        "def find_key(module: object): module.triton_key = None",
        "def find_key(module: ModuleType): module.triton_key = None",
        "def change(kind: type[nn.Module]): kind.forward = None",
        "def change(kind: type): setattr(kind, 'forward', None)",
        "import json\ndef change(it: Any): it.loads = None\nchange(json)",
        "import json\ndef change(it: Any): it.loads = None\nchange(it=json)",
        "def change(it: Any): it.loads = None\nchange(import_module('json'))",
    ],
)
def test_modules_and_classes_as_arguments_are_found(source):
    assert find_patches(source)


@pytest.mark.parametrize(
    "source",
    [
        "import_module('json').loads = None",
        "json = importlib.import_module('json')\njson.loads = None",
        "if json := import_module('json'):\n    json.loads = None",
        "import sys\nsys.modules['json'].loads = None",
        "import sys\njson = sys.modules.get('json')\njson.loads = None",
        "import sys\nfor module in list(sys.modules.values()): module.x = None",
        "parts = [import_module(name) for name in NAMES]\nparts[0].loads = None",
        "import torch\nfor each in (torch.backends.cuda, torch.backends.cudnn): each.allow = True",
        "import torch\nboth = [torch.cuda, torch.cpu]\nfor x in [b.y for b in both]: x.z = True",
        "def change(model): type(model).forward = None",
        "def change(model): model.__class__.forward = None",
        "import torch\nx = torch.backends if True else None\nx.y = 1",
    ],
)
def test_modules_and_classes_that_are_looked_up_are_found(source):
    assert find_patches(source)


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.meta_path.insert(0, None)",
        "import sys\nsys.path.append('folder')",
        "from os import environ\nenviron.clear()",
        "import os\nos.environ.update({})",
        "vars(import_module('torch.version')).update({})",
        "import torch\ntorch.version.__dict__.update({})",
        "from mlff_triton.bio.models.families import FAMILIES\nFAMILIES.append(None)",
        "import torch\ntorch.set_num_threads(1)",
        "from torch import set_num_threads\nset_num_threads(1)",
        "import torch\ntorch.backends.cuda.enable_flash_sdp(False)",
        "import torch\ntorch.manual_seed(0)",
        "import signal\nsignal.signal(signal.SIGINT, None)",
        "import os\nos.chdir('folder')",
        "import os\nos.putenv('A', 'b')",
        "import warnings\nwarnings.simplefilter('ignore')",
        "import logging\nlogging.getLogger('torch').setLevel(0)",
        "import logging\n_LOG = logging.getLogger('torch')\n_LOG.addHandler(None)",
        "import contextlib\nwith contextlib.redirect_stdout(None): pass",
        "from unittest import mock\nimport torch\nmock.patch.object(torch, 'compile')",
        "from unittest import mock\nmock.patch('torch.compile')",
        "from unittest.mock import patch\npatch.dict('os.environ', A='b')",
    ],
)
def test_calls_that_change_the_process_are_found(source):
    assert find_patches(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nx = torch.ones(1)\nx.y = 1\nx.z[0] = torch.ones(1)",
        "import torch\nx = [torch.float32]\nx.append(torch.float64)",
        "import torch\ntorch.add(x, y)",
        "import os\nenvironment = dict(os.environ)\nenvironment['A'] = 'b'",
        "import torch\nwith torch.enable_grad(): pass",
        "import json\ndef change(x: Tensor, json: dict[str, int]): json['a'] = 1",
        "import warnings\nwith warnings.catch_warnings(): warnings.simplefilter('ignore')",
        "from mlff_triton.cli.options import set_charge\nset_charge(atoms, 1)",
        "def change(model: nn.Module): model.forward = None",
        "def change(model): model.__class__ = Other",
    ],
)
def test_what_a_module_owns_is_no_patch(source):
    assert not find_patches(source)


def test_a_patch_has_a_place():
    source = "import os\nclass A:\n    def f(self):\n        os.chdir('x')\nos.umask(0)"
    assert find_patches(source) == [("A", "os.chdir('x')"), ("", "os.umask(0)")]


def test_patches_of_the_whole_process_have_a_reason():
    package = ROOT / "mlff_triton"
    found = {
        f"{path.relative_to(package).as_posix()}:{patch.place}"
        for path in package.rglob("*.py")
        for patch in find_patches(path.read_text(encoding="utf-8"))
    }
    assert sorted(found) == sorted(PLACES)
