"""Fixtures of all tests: determinism, devices, optional data."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest
import torch

from mlff_triton._common import cache

hypothesis.settings.register_profile(
    "deterministic",
    derandomize=True,  # the same examples on every machine and at every run
    database=None,
    deadline=None,
    max_examples=50,
)
hypothesis.settings.load_profile("deterministic")

# Tensors are small, and other tests may run at the same time: one thread, in other processes too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


gc.disable()  # until all tests are collected, as modules live to the end

HERE = Path(__file__).parent
TRAINING = HERE.parent / "examples" / "training"
FUSED = ("kernels", "engine/fused", "model/fused", "torchmd_net/fused", "bio")
RUN_KERNELS = [HERE / folder for folder in FUSED]


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU; on a GPU, let ``-m gpu`` select every test of a kernel."""
    if torch.cuda.is_available():
        for item in items:
            if any(folder in item.path.parents for folder in RUN_KERNELS):
                item.add_marker("gpu")
        return
    skip = pytest.mark.skip(reason="needs a GPU, and PyTorch finds none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over all modules and tests, which live to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after fixtures of the file have ended
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Let the garbage collector also pass over what the tests of a file leave behind.

    Packages, caches and compiled code stay to the end. A million such objects take a second of each
    full collection, and many tests collect.
    """
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, although shells start background processes to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _empty_cache(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[None]:
    """Hide the costs that the user has calibrated; keep compiled loops from session to session."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "loops").symlink_to(pytestconfig.cache.mkdir("loops"), target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.FOLDER, str(folder))
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of third-party structures and checkpoints, outside the repository."""
    if not DATA.is_dir():
        pytest.skip(f"the optional data folder {DATA.parent.name}/{DATA.name} is not there")
    return DATA


@pytest.fixture
def training_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the training example, which is not a package."""
    monkeypatch.syspath_prepend(str(TRAINING))
    yield importlib.import_module
    for path in TRAINING.glob("*.py"):
        sys.modules.pop(path.stem, None)
