"""Activations of loops for CPUs are those of the reference, however large their arguments."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.common.cpu.activations import activate_backward, activate_with_slope
from mlff_triton.kernels.common.reference.activations import activate, activate_derivative


@pytest.mark.parametrize("activation", ["silu", "swish", "tanh", "ssp", "mish"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_slopes(activation, dtype):
    tiny = torch.finfo(dtype).eps
    z = torch.cat([torch.linspace(-40, 40, 997), torch.tensor([-1e30, -1e4, 0.0, 1e4, 1e8, 1e30])])
    z = z.to(dtype)
    slope = torch.full_like(z, torch.nan)
    value = activate_with_slope(z, activation, slope)
    exact = activate(z.double(), activation)
    assert ((value - exact).abs() <= 4 * tiny * exact.abs().clamp(min=1)).all()
    assert (slope - activate_derivative(z.double(), activation)).abs().max() < 40 * tiny
    assert torch.equal(activate_backward(torch.ones_like(z), z, activation), slope)
