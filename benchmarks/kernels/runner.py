"""Measure single operators, forward and with backward, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.gate import GateError
from benchmarks.kernels.cases import OPERATORS, Function, Operator
from benchmarks.kernels.source import Inputs, Source
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row, with_bytes
from mlff_triton._common.timing import COPY_BYTES, Timing, copy_timing, measure
from mlff_triton.testing import tolerance

CHECK_ATOMS = 4096  # the largest size at which the float64 truth is computed
SAMPLING = 0.2  # s
TOLERANCE = tolerance(1, "float32")
OURS, EAGER, COPY = "triton", "torch", "copy"


def run_operators(
    lab: Lab, sizes: Sequence[int], operators: Sequence[Operator] = OPERATORS
) -> None:
    """Measure a copy, then each operator at each number of atoms."""
    clean_up(lab.device)
    copied = with_bytes("copy", 2 * COPY_BYTES)
    timing = copy_timing(lab.device)
    lab.report(make_row("bandwidth", copied, EAGER, (0, 0), lab.where, timing, 0.0))
    for operator in operators:
        for n_atoms in sizes:
            for backward in (False, True)[: 1 + operator.differentiable]:
                if lab.budget.left <= 0:
                    lab.skip(f"ops {operator.name}", "the time is up")
                    return
                run_operator(lab, operator, n_atoms, backward)


def run_operator(lab: Lab, operator: Operator, n_atoms: int, backward: bool) -> None:
    """Measure one operator, ours and PyTorch's, and a copy that moves as many bytes."""
    case = operator.name + ("+grad" if backward else "") + f"-{n_atoms}"
    moved = 0
    for implementation, function in ((OURS, operator.ours), (EAGER, operator.eager)):
        timing, error, edges = None, None, 0
        clean_up(lab.device)
        try:
            with at_most(lab.budget.left_for_one), quiet():
                error = _error(lab.device, operator, function, min(n_atoms, CHECK_ATOMS), backward)
                clean_up(lab.device)
                inputs = operator.inputs(Source(n_atoms, lab.device))
                edges = Source(n_atoms, lab.device).graph.n_edges if operator.has_edges else 0
                moved = traffic(inputs, function(*inputs))
                call = _call(function, inputs, backward, operator.n_constants)
                timing = measure(call, lab.device, seconds=SAMPLING, flush=True)
                del inputs, call
        except Exception as problem:  # noqa: BLE001 - a failure must not stop the run
            error = problem.error if isinstance(problem, GateError) else error
            lab.complain(f"ops {case} {implementation}", problem)
        _report(lab, case, implementation, (n_atoms, edges), timing, error)
        if timing is not None and not backward:
            _report(lab, with_bytes(case, moved), implementation, (n_atoms, edges), timing, error)
    if moved and not backward:
        try:
            copied = copy_timing(lab.device, moved // 2)
            _report(lab, with_bytes(case, moved), COPY, (n_atoms, edges), copied, 0.0)
        except Exception as problem:  # noqa: BLE001 - the operators' rows are valid without it
            lab.complain(f"ops {case} {COPY}", problem)


def _report(
    lab: Lab,
    case: str,
    implementation: str,
    size: tuple[int, int],
    timing: Timing | None,
    error: float | None,
) -> None:
    bench = "bandwidth" if "@" in case else "ops"
    lab.report(make_row(bench, case, implementation, size, lab.where, timing, error))


def traffic(inputs: Inputs, outputs: Any) -> int:
    """Return the bytes of all inputs and outputs, which any implementation must move."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs_of(outputs)))


def outputs_of(outputs: Any) -> Inputs:
    """Return the outputs of a function as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _call(
    function: Function, inputs: Inputs, backward: bool, n_constants: int
) -> Callable[[], Inputs]:
    """Bind the inputs: return outputs, or the gradients of real inputs but the last few."""
    if not backward:
        return lambda: outputs_of(function(*inputs))
    variable = inputs[: len(inputs) - n_constants]
    leaves = [t.requires_grad_() for t in variable if t.is_floating_point()]
    cotangents = [_random_like(t) for t in outputs_of(function(*inputs))]
    return lambda: torch.autograd.grad(outputs_of(function(*inputs)), leaves, cotangents)


def _random_like(output: Tensor) -> Tensor:
    """Return random numbers that are the same in every precision."""
    generator = torch.Generator(output.device).manual_seed(1)
    numbers = torch.randn(output.shape, generator=generator, device=output.device)
    return numbers.to(output.dtype)


def _error(
    device: torch.device, operator: Operator, function: Function, n_atoms: int, backward: bool
) -> float:
    """Return the largest error against eager PyTorch in float64, over the largest true value."""
    given = operator.inputs(Source(n_atoms, device))
    exact = tuple(t.double() if t.is_floating_point() else t for t in given)
    expected = _call(operator.eager, exact, backward, operator.n_constants)()
    actual = _call(function, given, backward, operator.n_constants)()
    errors = [_relative(a, e) for a, e in zip(actual, expected, strict=True)]
    for error in errors:
        if not error <= TOLERANCE:  # catches NaN too
            raise GateError(f"off by {error:.1e}, more than {TOLERANCE:.0e}", error)
    return max(errors)


def _relative(actual: Tensor, expected: Tensor) -> float:
    if actual.shape != expected.shape:
        raise GateError(f"the shape is {list(actual.shape)} instead of {list(expected.shape)}")
    scale = float(expected.abs().max())
    difference = float((actual.double() - expected).abs().max())
    return difference / scale if scale else difference
