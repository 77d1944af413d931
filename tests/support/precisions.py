"""Matrix of precision x autocast x backend, in which accelerated models agree with their own."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core import fast_forward

PRECISIONS = (None, "fp32", "bf16", "fp16")
AUTOCASTS = (None, torch.bfloat16, torch.float16)
BACKENDS = ("torch", "triton")

FLOORS = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}
"""Relative errors, root mean square, that count as rounding in products of a dtype."""

Call = Callable[[nn.Module], Any]
Outputs = dict[str, Tensor]

MARGIN = 2  # times the error of the model's own forward in the same context


class Setting(NamedTuple):
    """Options of `bio.accelerate`, and the dtype of autocast around the call."""

    precision: str | None
    autocast: torch.dtype | None
    backend: str

    def __str__(self) -> str:
        cast = str(self.autocast).removeprefix("torch.") if self.autocast else "none"
        return f"{self.precision or 'own precision'}, autocast {cast}, {self.backend}"

    @property
    def floor(self) -> float:
        """Relative error that the lowest precision may cause."""
        chosen = None if self.precision is None else fast_forward.PRECISIONS[self.precision]
        return max(FLOORS[dtype or torch.float32] for dtype in (chosen, self.autocast))


SETTINGS = [
    pytest.param(setting, id=str(setting), marks=[pytest.mark.gpu] * (setting.backend == "triton"))
    for setting in itertools.starmap(Setting, itertools.product(PRECISIONS, AUTOCASTS, BACKENDS))
]

in_all_settings = pytest.mark.parametrize("setting", SETTINGS)
"""Decorator of a test that takes a `Setting`."""

in_all_settings_once_in_float16 = pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, id=each.id, marks=[*each.marks, *[pytest.mark.slow] * is_repeated])
        for each in SETTINGS
        for setting in each.values
        for is_repeated in [setting.autocast is torch.float16 and setting.precision is not None]
    ],
)
"""Decorator for models that refuse autocast to float16, whatever the precision: it runs once."""

ONCE_UNDER_AUTOCAST = {torch.bfloat16: "fp16", torch.float16: None}

in_settings_without_autocast = pytest.mark.parametrize(
    "setting",
    [
        each
        for each in SETTINGS
        for precision, autocast, _ in each.values
        if autocast is None or ONCE_UNDER_AUTOCAST[autocast] == precision
    ],
)
"""Decorator for models whose fast forward refuses autocast: each dtype of it occurs once."""


def check_setting(model: nn.Module, call: Call, setting: Setting) -> None:
    """Compare an accelerated float32 model with its own forward in the same context.

    Outputs have the same dtypes. Their errors against the model without autocast are at most
    twice those of its own forward under autocast, or rounding in the lowest precision. What the
    model does not support itself may raise.

    Parameters
    ----------
    model : torch.nn.Module
        Model in float32 and in evaluation mode. It is returned to its state.
    call : callable
        Calls a model. Returns tensors in nested tuples, lists and mappings, without outputs at
        padding.
    setting : Setting
        Options and autocast to check.
    """
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        exact, own = (_own(model, call, autocast) for autocast in (None, setting.autocast))
        assert not isinstance(exact, Exception)
        options = {"precision": setting.precision, "backend": setting.backend}
        with bio.accelerated(model, **options):
            found = _attempt(model, call, setting.autocast)
    if isinstance(found, Exception):
        assert isinstance(own, Exception), f"only the accelerated model raises {found!r}"
        return
    assert found.keys() == exact.keys()
    for name, values in found.items():
        assert torch.isfinite(values).all(), name
        allowed = setting.floor
        if not isinstance(own, Exception):
            assert values.dtype == own[name].dtype, name
            allowed = max(allowed, MARGIN * error_of(own[name], exact[name]))
        assert error_of(values, exact[name]) <= allowed, name


def error_of(found: Tensor, exact: Tensor) -> float:
    """Return the relative error of a tensor, root mean square."""
    assert found.shape == exact.shape
    found, exact = found.double(), exact.double()
    scale = exact.square().mean().sqrt().clamp(min=1e-12)
    return float((found - exact).square().mean().sqrt() / scale)


def _attempt(model: nn.Module, call: Call, autocast: torch.dtype | None) -> Outputs | Exception:
    """Return the outputs under autocast or without, or the exception that the call raised."""
    device = next(model.parameters()).device.type
    try:
        with torch.autocast(device, autocast, enabled=autocast is not None):
            return dict(flat(call(model)))
    except Exception as error:  # noqa: BLE001 - models raise many kinds
        return error


_own = lru_cache(maxsize=4)(_attempt)  # of the model without acceleration


def flat(outputs: Any, path: str = "") -> Iterable[tuple[str, Tensor]]:
    """Yield the tensors of nested outputs with their paths."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield path, outputs
    elif isinstance(outputs, Mapping):
        for name, part in outputs.items():
            yield from flat(part, f"{path}/{name}")
    elif isinstance(outputs, tuple | list):
        for number, part in enumerate(outputs):
            yield from flat(part, f"{path}/{number}")
