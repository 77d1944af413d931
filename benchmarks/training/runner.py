"""Measure steps of an optimizer: ours, and TorchMD-NET in every mode that can train on forces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.engine.gate import GateError
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from benchmarks.training.cases import (
    CASES,
    LEARNING_RATE,
    Batch,
    Case,
    Loss,
    batches,
    build,
    exact_loss,
    loss_of,
)
from mlff_triton._common.timing import Timing, measure
from mlff_triton.torchmd_net.patch import accelerate
from mlff_triton.training.step import TrainingStep

BENCH = "training"
TOLERANCE = 1e-3  # largest error of a gradient over the largest true one


@dataclass(frozen=True)
class Mode:
    """A way to train.

    Attributes
    ----------
    ours, warp, exact : bool
        True with our operators, with TorchMD-NET's Warp operators, and with our own module instead
        of TorchMD-NET's.
    captured : bool
        True if steps are captured in a CUDA graph.
    compiled : bool
        True if the model is compiled by ``torch.compile``.
    """

    ours: bool = False
    warp: bool = False
    exact: bool = False
    captured: bool = False
    compiled: bool = False


IMPLEMENTATIONS = {
    "ours-captured": Mode(ours=True, captured=True),
    "ours-eager": Mode(ours=True),
    "exact-captured": Mode(exact=True, captured=True),
    "exact": Mode(exact=True),
    "warp": Mode(warp=True),
    "warp-captured": Mode(warp=True, captured=True),
    "torch": Mode(),
    "warp-compile": Mode(warp=True, compiled=True),
    "torch-compile": Mode(compiled=True),
}


def run_training(lab: Lab, cases: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure each implementation on each case, ours first, as far as the time allows."""
    truths: dict[tuple[str, bool], list[torch.Tensor]] = {}
    for implementation, name in itertools.product(implementations, cases):
        if lab.budget.left <= 0:
            lab.skip(f"{BENCH} {name} {implementation}", "the time is up")
            continue
        key = name, IMPLEMENTATIONS[implementation].exact
        if key not in truths:
            truths[key] = true_gradients(CASES[name], lab.device, exact=key[1])
        _run_one(lab, CASES[name], implementation, truths[key])


def _run_one(lab: Lab, case: Case, implementation: str, truth: list[torch.Tensor]) -> None:
    mode = IMPLEMENTATIONS[implementation]
    timing: Timing | None = None
    error: float | None = None
    system = case.systems()
    size = (system.n_atoms, system.count_edges(case.model().config.cutoff_upper))
    clean_up(lab.device)
    try:
        with at_most(lab.budget.left_for_one), quiet():
            model = prepare(case, mode, lab.device)
            data = batches(case, lab.device)
            loss = exact_loss(case, lab.device) if mode.exact else loss_of
            if mode.ours and lab.device.type == "cuda":
                compile_kernels(model, data[0])
            error = _error(gradients(model, data[0], loss), truth)
            step = stepper(model, data, mode, loss)
            timing = measure(step, lab.device, seconds=lab.budget.sampling)
            if not error <= TOLERANCE:  # catches NaN too
                timing = None
                raise GateError(f"gradients are off by {error:.1e}", error)
    except Exception as problem:  # noqa: BLE001 - a failure must not stop the run
        lab.complain(f"{BENCH} {case.name} {implementation}", problem)
    lab.report(make_row(BENCH, case.name, implementation, size, lab.where, timing, error))


def prepare(case: Case, mode: Mode, device: torch.device) -> nn.Module:
    """Build the model of a case for a mode of training."""
    if mode.exact:
        return _exact_module(case, device)
    fixed = mode.captured or mode.compiled
    model = build(case, warp=mode.warp, static_shapes=fixed).to(device)
    if mode.ours:
        accelerate(model, "auto" if device.type == "cuda" else "torch")
    if mode.compiled:
        loss_of(model, batches(case, device)[0])  # sets the number of systems
        return torch.compile(model, dynamic=False)  # type: ignore[return-value]
    return model


def _exact_module(case: Case, device: torch.device) -> nn.Module:
    return case.model().to(device).train().requires_grad_(True)


def stepper(
    model: nn.Module, data: Sequence[Batch], mode: Mode, loss: Loss = loss_of
) -> Callable[[], torch.Tensor]:
    """Return a function that takes a step of AdamW on the next batch."""
    fused = next(model.parameters()).is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused)
    step = TrainingStep(model, loss, optimizer, capture=mode.captured)
    following = itertools.cycle(data)
    return lambda: step(next(following))


def compile_kernels(model: nn.Module, batch: Batch) -> None:
    """Compile the kernels of `gradients` and of a training step side by side, which saves time."""
    from mlff_triton.kernels.common.compilation import compile_ahead  # imports Triton

    parameters = [p for p in model.parameters() if p.requires_grad]

    def launch() -> None:
        gradients(model, batch)
        inputs = {name: tensor.detach() for name, tensor in batch.items()}
        loss_of(model, inputs).backward(inputs=parameters)

    with torch.autograd.set_multithreading_enabled(False):  # backward passes in this thread too
        compile_ahead(launch)


def gradients(model: nn.Module, batch: Batch, loss: Loss = loss_of) -> list[torch.Tensor]:
    """Return the gradient of the loss by each parameter, float64; zeros where there is none."""
    model.zero_grad()
    loss(model, {name: tensor.detach() for name, tensor in batch.items()}).backward()
    return [
        (torch.zeros_like(p) if p.grad is None else p.grad).double() for p in model.parameters()
    ]


def true_gradients(case: Case, device: torch.device, *, exact: bool = False) -> list[torch.Tensor]:
    """Return the gradients in float64, by TorchMD-NET's PyTorch operations or by our own module.

    The order of parameters differs between the two.
    """
    if exact:
        model, loss = _exact_module(case, device), exact_loss(case, device)
    else:
        model, loss = build(case, warp=False, static_shapes=False).to(device), loss_of
    batch = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in batches(case, device)[0].items()
    }
    return gradients(model.double(), batch, loss)


def _error(found: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """Return the largest error over the largest true value, of all parameters."""
    scale = max(float(expected.abs().max()) for expected in truth)
    errors = [
        (actual - expected).abs().max() for actual, expected in zip(found, truth, strict=True)
    ]
    return float(torch.stack(errors).max()) / scale
