"""Settings of PyTorch around calls of accelerated models, which follow the model's own forward."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from mlff_triton import bio
from mlff_triton.testing.settings import CALLER_SETTINGS
from tests.support.precisions import FLOORS, MARGIN, Call, Outputs, error_of, flat

NAMES = [name for name in CALLER_SETTINGS if not name.startswith("autocast")]

in_all_caller_settings = pytest.mark.parametrize("setting", NAMES)
"""Decorator of a test that takes the name of a setting, except autocast: see `precisions`."""


def check_caller_setting(model: nn.Module, call: Call, setting: str, backend: str) -> None:
    """Compare an accelerated float32 model with its own forward in the same setting of a caller.

    Where the setting does not change the bits of the model's own forward, it does not change those
    of the accelerated one either, whether weights are read in the setting or before. Rounded
    products are an exception: PyTorch takes another library for products of some shapes. There, the
    error is at most `MARGIN` times that of the model's own forward in the setting.

    Parameters
    ----------
    model : torch.nn.Module
        Model in float32 and in evaluation mode. It is returned to its state.
    call : callable
        Calls a model, see `check_setting`.
    setting : str
        One of `NAMES`.
    backend : {"torch", "triton"}
        Backend of the accelerated model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of PyTorch
        before = _outputs(model, call)
        with CALLER_SETTINGS[setting]():
            try:
                own = _outputs(model, call)
            except Exception:  # noqa: BLE001 - models raise many kinds
                return
        with bio.accelerated(model, backend=backend):
            outside = _outputs(model, call)
            with CALLER_SETTINGS[setting]():
                inside = _outputs(model, call)
                bio.refresh(model)
                read_inside = _outputs(model, call)
            after = _outputs(model, call)
    _assert_equal(after, outside)
    _assert_equal(inside, read_inside)
    if setting != "rounded products" and all(map(torch.equal, own.values(), before.values())):
        _assert_equal(inside, outside)
    for name, values in inside.items():
        assert values.dtype == own[name].dtype, name
        limit, expected = FLOORS[torch.float32], own[name]
        if setting == "rounded products":  # which both may compute, each with its own errors
            expected = before[name]
            limit = max(limit, MARGIN * error_of(own[name], expected))
        assert error_of(values, expected) <= limit, name


def _assert_equal(found: Outputs, expected: Outputs) -> None:
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert torch.equal(values, expected[name]), name


def _outputs(model: nn.Module, call: Call) -> Outputs:
    torch.manual_seed(7)
    with torch.no_grad():
        return {name: values.clone() for name, values in flat(call(model))}
