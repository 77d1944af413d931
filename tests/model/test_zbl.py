"""The end of the nuclear repulsion."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.model.config import ZBLConfig
from mlff_triton.model.zbl import zbl_energy

CUTOFF = 1.5  # Å, as long as a bond


@pytest.mark.parametrize(("is_smooth", "jump"), [(True, 0.0), (False, 3.7)])
def test_only_a_smooth_end_keeps_the_curvature_of_bonds(is_smooth, jump):
    """A cosine adds to the curvature of bonds that are a little shorter, half of it here."""
    zbl = ZBLConfig(CUTOFF, 14.4, is_smooth=is_smooth)
    carbon = torch.tensor(6.0, dtype=torch.float64)

    def energy(distance):
        return zbl_energy(zbl, distance, carbon, carbon)

    inside, outside = (
        torch.autograd.functional.hessian(energy, torch.tensor(CUTOFF + step).double())
        for step in (-1e-4, 1e-4)
    )
    assert float(outside) == 0
    assert float(inside) == pytest.approx(jump, abs=0.05)


def test_both_ends_are_alike_close_to_the_nuclei():
    distance = torch.linspace(0.02, 0.2, 10, dtype=torch.float64)
    z = torch.tensor(6.0, dtype=torch.float64)
    cosine, smooth = (
        zbl_energy(ZBLConfig(CUTOFF, 14.4, is_smooth=x), distance, z, z) for x in (False, True)
    )
    assert torch.allclose(smooth, cosine, rtol=0.05)
