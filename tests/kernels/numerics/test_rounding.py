"""Losses of sums on tensor cores, which kernels restore where they are known."""

from __future__ import annotations

import logging
from unittest import mock

import pytest
import torch

from mlff_triton.kernels.numerics import rounding
from mlff_triton.kernels.numerics.rounding import MEASURED, UNMEASURED, loss_of
from mlff_triton.kernels.numerics.split import SplitWeight, split_weight
from mlff_triton.kernels.pairs.plane_products import plane_products

ON = {
    name: mock.patch.object(rounding, "architecture", return_value=name)
    for name in ("sm_75", "sm_80", "sm_90", "sm_100", "gfx942")
}


def test_only_measured_architectures_have_losses():
    assert loss_of(torch.empty(0)) is UNMEASURED
    for name, architecture in ON.items():
        with architecture:
            assert loss_of(torch.empty(0)) is MEASURED.get(name, UNMEASURED)


def test_unmeasured_gpus_are_named_in_the_log(caplog):
    caplog.set_level(logging.INFO, "mlff_triton")
    for name in ("cpu", "cuda", "gfx942", "sm_90"):
        rounding._loss.__wrapped__(name)
    assert not caplog.records
    rounding._loss.__wrapped__("sm_80")
    assert "sm_80 is unmeasured" in caplog.text


def test_weights_exceed_their_value_where_the_loss_is_known():
    weight = torch.randn(3, 128, 128)
    for name in ("sm_80", "sm_90"):
        with ON[name]:
            split, loss = SplitWeight.of(weight), loss_of(weight)
        more = (split.high.double() + split.low.double()) / weight.double() - 1
        assert more.mean() == pytest.approx(loss.tf32_sum, rel=0.05, abs=1e-9)


def test_sums_are_restored_where_the_loss_is_known(device):
    a, b = (split_weight(x, "shifted_halves").movedim(1, 0) for x in torch.rand(2, 2, 64, 64))
    a, b = a.contiguous().to(device), b.contiguous().to(device)
    with ON["sm_80"]:
        found = plane_products(a, b).double()
    with ON["sm_90"]:
        more = plane_products(a, b).double() / found - 1
    assert 3e-8 < more.mean() < 1e-7  # rounded to float32
