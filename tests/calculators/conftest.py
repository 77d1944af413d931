from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch

from mlff_triton.engine import parameters
from mlff_triton.engine.radial_tables import RadialTables, tabulate
from mlff_triton.model.tensornet import TensorNet
from tests.support.torch_sim_double import doubled


@pytest.fixture(scope="module")
def home() -> Iterator[ModuleType]:
    """Return the module of our model for TorchSim, with TorchSim or its double."""
    with nullcontext() if find_spec("torch_sim") else doubled():
        yield importlib.import_module("mlff_triton.calculators.torch_sim_model")


@pytest.fixture
def shared_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tabulate a model once, however many calculators are made of it.

    Each calculator makes tables of the same bits, which takes most of the time of checks that make
    a hundred calculators.
    """
    known: dict[object, RadialTables] = {}

    def tabulate_once(model: TensorNet, tolerances: tuple[float, float]) -> RadialTables:
        weights = torch.cat([value.flatten() for value in model.state_dict().values()])
        key = repr(model.config), tolerances, weights.numpy().tobytes()
        if key not in known:
            known[key] = tabulate(model, tolerances)
        return known[key]

    monkeypatch.setattr(parameters, "tabulate", tabulate_once)
