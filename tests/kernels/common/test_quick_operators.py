"""The interpreter of tests has the results and types that Triton's own has."""

from __future__ import annotations

import dataclasses
import operator
from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from triton.language import semantic
from triton.runtime import interpreter

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")

DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
VALUES = [3.0, 1.0, 0.0, 7.0, 1.0, 0.0, 9.0, 2.0]
NUMBERS = (0, -0.0, 2, -3, 0.1, 1e-40, 1e300, 2**24 + 1, 2**31, 2**40, float("nan"), True)
OPERATORS = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne")
} | {name: getattr(operator, f"{name}_") for name in ("and", "or")}
RANKS = ("scalar", "block", "column", "row")


def _seen(results: list[object], name: str, function, *operands) -> None:
    """Note what an operation of a kernel returns: shape, types and bits, or the error."""
    try:
        found = function(*operands)
    except (TypeError, ValueError, AttributeError, semantic.IncompatibleTypeErrorImpl) as error:
        results.append((name, type(error).__name__))
        return
    if isinstance(found, tl.tensor):
        data = found.handle.data
        results.append((name, str(found.type), str(data.dtype), data.shape, data.tobytes()))
    else:
        results.append((name, repr(found)))


@triton.jit
def _operators_kernel(x_ptr, y_ptr, note):
    at = tl.arange(0, 8)
    x = (tl.load(x_ptr + 1), tl.load(x_ptr + at), tl.load(x_ptr + at[:, None]), x_ptr + at)
    y = (tl.load(y_ptr + 1), tl.load(y_ptr + at), tl.load(y_ptr + at[None, :]), y_ptr)
    note(x, y)


def results_of(x, y, numbers) -> list[object]:
    """Return what operators of all pairs of operands return, and those with numbers."""
    results: list[object] = []

    def note(left, right):
        _operators(results, left, right, numbers)
        _masks(results, left, right)
        _conversions_and_choices(results, left, right, numbers)

    _operators_kernel[(1,)](x, y, note)
    return results


def _operators(results: list[object], left, right, numbers) -> None:
    for name, function in OPERATORS.items():
        for (i, one), (k, two) in product(enumerate(RANKS), enumerate(RANKS)):
            _seen(results, f"{name} {one} {two}", function, left[i], right[k])
            _seen(results, f"{name} {two} {one}", function, right[k], left[i])
        for (i, one), number in product(enumerate(RANKS), numbers):
            _seen(results, f"{name} {one} {number}", function, left[i], number)
            _seen(results, f"{name} {number} {one}", function, number, left[i])
            _seen(results, f"{name} {one} constexpr", function, left[i], tl.constexpr(number))


def _masks(results: list[object], left, right) -> None:
    """Masks that come from masks of other ranks are integers of several sizes."""
    masks = [left[0] > right[0], left[1] > right[1], left[2] != right[2], left[1] == left[1]]
    if left[0].dtype.is_int() and right[0].dtype.is_int():
        masks += [masks[0] & masks[1], masks[1] | masks[0], ~masks[0]]
    for name in ("and", "or", "eq", "ne"):
        for (i, one), (k, two) in product(enumerate(masks), enumerate(masks)):
            _seen(results, f"{name} of masks {i} {k}", OPERATORS[name], one, two)


def _conversions_and_choices(results: list[object], left, right, numbers) -> None:
    ranks = list(enumerate(RANKS))[:3]
    masks = (right[0] > left[0], right[1] > left[1], right[2] > 0)
    for i, one in ranks:
        _seen(results, f"neg {one}", operator.neg, left[i])
        _seen(results, f"as {one}", left[i].to, right[0].dtype)
        for mask, (k, two) in product(masks, ranks):
            _seen(results, f"where {one} {two}", tl.where, mask, left[i], right[k])
        for mask, number in product(masks, numbers):
            _seen(results, f"where {one} {number}", tl.where, mask, left[i], number)
            _seen(results, f"where {number} {one}", tl.where, mask, number, left[i])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", DTYPES)
def test_operators_are_those_of_triton(first, monkeypatch):
    pairs = []
    for second in DTYPES:
        x = torch.tensor(VALUES).to(getattr(torch, first))
        y = torch.tensor(VALUES[::-1]).to(getattr(torch, second))
        pairs.append((x, y, NUMBERS if second == first else ()))
    quick = [results_of(*pair) for pair in pairs]
    monkeypatch.undo()  # the fixtures of this folder
    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=False)
    monkeypatch.setattr(builder, "options", options)
    for found, pair in zip(quick, pairs, strict=True):
        expected = results_of(*pair)
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            assert one == other
