"""Traces of networks whose ``forward`` depends on flags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import Options
from mlff_triton.bio.models.encoders.row_parts import MLPForward

USES_GLOBAL = True


class Flags(nn.Module):
    """Network of two linear maps, whose activation depends on flags of all kinds."""

    of_class = True

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(8, 16), nn.Linear(16, 8), nn.GELU()
        self.own, self._hidden = True, True
        self.config = SimpleNamespace(inner={"used": [True]})
        self.options: dict[str, Any] = {"used": True}

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.is_used():
            x = self.act(x)
        return self.down(x)

    def is_used(self) -> bool:
        flags = self.own, self._hidden, self.of_class, self.config.inner["used"][0]
        return all(flags) and self.options["used"] and USES_GLOBAL


def unset(owner: Any, name: str) -> Any:
    """Return a function that sets a flag of a module to False."""
    return lambda patch, module: patch.setattr(owner(module), name, False)


CHANGES = {
    "attribute": unset(lambda m: m, "own"),
    "hidden attribute": unset(lambda m: m, "_hidden"),
    "class": unset(type, "of_class"),
    "global": unset(lambda _: __import__(__name__, fromlist=["_"]), "USES_GLOBAL"),
    "configuration": lambda patch, m: patch.setitem(m.config.inner, "used", [False]),
    "inside a list": lambda patch, m: patch.setattr(m.config, "inner", {"used": [False]}),
    "dictionary": lambda patch, m: patch.setitem(m.options, "used", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_flags_that_a_trace_has_read_are_noticed(change, monkeypatch):
    module, x = Flags().eval(), torch.randn(3, 8)
    forward = MLPForward(module, Options(backend="torch"))
    forward.install()
    with torch.no_grad():
        before = module(x)
        torch.testing.assert_close(before, Flags.forward(module, x))
        CHANGES[change](monkeypatch, module)
        found, own = module(x), Flags.forward(module, x)
        torch.testing.assert_close(found, own)
        assert not torch.allclose(found, before)
        monkeypatch.undo()
        torch.testing.assert_close(module(x), before)
    assert [part.state for part in bio.report(module)] == ["fast"]
