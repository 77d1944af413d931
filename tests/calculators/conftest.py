from __future__ import annotations

import pytest
import torch

from mlff_triton.engine import parameters
from mlff_triton.engine.radial_tables import RadialTables, tabulate
from mlff_triton.model.tensornet import TensorNet


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
