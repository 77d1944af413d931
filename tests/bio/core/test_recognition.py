"""Recognition of modules that compute what their classes are known for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mlff_triton.bio.core.recognition import is_unmodified


def module_of(source: str) -> nn.Module:
    """Return a module whose class and ``forward`` come from a Python module."""

    def forward(_: nn.Module, x: Tensor) -> Tensor:
        return x

    forward.__module__ = source
    kind = type("Layer", (nn.Module,), {"__module__": source, "forward": forward})
    return nn.Sequential(kind(), nn.ReLU())


@pytest.mark.parametrize(
    ("source", "known", "expected"),
    [
        ("package.layers", "package.layers", True),
        ("package.layers.norm", "package.layers", True),
        ("package.layers_variant", "package.layers", False),
        ("package.layers", "package.", True),
        ("package", "package.", False),
        ("packages.layers", "package", False),
    ],
)
def test_names_of_sources_are_whole(source, known, expected):
    assert is_unmodified(module_of(source), "other", known) == expected


def test_no_instance_has_its_own_forward():
    module = nn.Sequential(nn.ReLU())
    assert is_unmodified(module)
    module[0].forward = torch.tanh
    assert not is_unmodified(module)
