"""Models that are not Python modules are refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlff_triton import bio
from mlff_triton.errors import UnsupportedModelError


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_refused():
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(UnsupportedModelError, match="TorchScript, such as the models of chai-lab"):
        bio.accelerate(model)
