"""Activations of loops for CPUs are those of the reference, however large their arguments."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.common.cpu.activations import activate_with_slope
from mlff_triton.kernels.common.reference.activations import activate, activate_derivative


@pytest.mark.parametrize("activation", ["silu", "swish", "tanh", "ssp", "mish"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_slopes(activation, dtype):
    tiny = torch.finfo(dtype).eps
    x = torch.cat([torch.linspace(-40, 40, 994), torch.tensor([-1e30, -1e4, 0.0, 1e4, 1e8, 1e30])])
    x = x.to(dtype).reshape(-1, 8)
    value, slope = x.clone(), torch.full_like(x, torch.nan)
    activate_with_slope(value.numpy(), activation, slope.numpy())
    z = x.double()
    exact = activate(z, activation)
    assert ((value - exact).abs() <= 4 * tiny * exact.abs().clamp(min=1)).all()
    assert (slope - activate_derivative(z, activation)).abs().max() < 40 * tiny
