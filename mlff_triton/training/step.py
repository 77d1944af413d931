"""A step of an optimizer, captured in a CUDA graph and replayed for all batches of one shape.

Training on forces differentiates a model twice. For batches of molecules, the host then needs
longer to launch the kernels than a GPU needs to run them. A graph launches all kernels at once: the
forward pass, both backward passes, the clipping of gradients and the optimizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton.errors import InputError

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]
Signature = tuple[tuple[str, torch.Size, torch.dtype], ...]

MAX_GRAPHS = 8  # each holds the memory of a batch


class TrainingStep:
    """One step of an optimizer per call, with the losses and weights of the same step in PyTorch.

    On a GPU, the first batch of each shape takes an ordinary step, during which the step is also
    captured. Further batches of that shape are copied to the tensors of the graph, which is
    replayed. On a CPU, every step is ordinary.

    Parameters
    ----------
    model : torch.nn.Module
        Any model, such as one of TorchMD-NET after `mlff_triton.accelerate`. On a GPU it must not
        wait for the device or make tensors whose shapes depend on values: create models of
        TorchMD-NET with ``static_shapes=True``, and pass the number of systems to
        `mlff_triton.predict` for our own.
    loss : callable
        Function of the model and a batch that returns a scalar. The same conditions apply to it.
    optimizer : torch.optim.Optimizer
        Optimizer of the parameters. On a GPU it must be one that PyTorch can capture, such as
        ``AdamW``. A learning rate in ``optimizer.param_groups`` may be changed between steps, by a
        schedule or by hand, and is rounded to float32; other options are fixed at the first step.
    max_gradient_norm : float, optional
        Norm to which the gradients of all parameters are clipped together.
    after_step : callable, optional
        Called after each step of the optimizer, within the graph: for example an update of averaged
        weights in place. The conditions on the model apply.
    combine : callable, optional
        Called within the graph with the loss and all gradients before they are clipped, for example
        to sum them over processes in place. The conditions on the model apply.
    capture : bool
        If False, take ordinary steps on any device.

    Raises
    ------
    InputError
        If the optimizer or the model cannot be captured.

    Notes
    -----
    At most eight shapes are captured; batches of further ones take ordinary steps. For molecules of
    different sizes, see `mlff_triton.training.padding.pad_batch`. Weights, gradients and the state
    of the optimizer must keep their memory: load states before the first step. Models of
    TorchMD-NET with charges but without a ``coulomb_cutoff`` list all pairs of the first batch of a
    shape, so later ones must consist of molecules of the same sizes in the same order.

    Examples
    --------
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    >>> def loss(model, batch):
    ...     return (model(batch["x"]) - batch["y"]).square().mean()
    >>> step = TrainingStep(model, loss, optimizer)
    >>> step({"x": torch.ones(4, 2), "y": torch.ones(4, 1)}).shape
    torch.Size([])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        max_gradient_norm: float | None = None,
        after_step: Callable[[], None] | None = None,
        combine: Callable[[list[Tensor]], None] | None = None,
        capture: bool = True,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.max_gradient_norm = max_gradient_norm
        self.after_step = after_step
        self.combine = combine
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._graphs: dict[Signature, _Graph] = {}
        self._pool = GraphPool()
        self._rates: list[Tensor] = []
        on_gpu = all(parameter.is_cuda for parameter in self._parameters)
        self.captures = capture and on_gpu and bool(self._parameters)
        if self.captures:
            _check_model(model)
            _check_optimizer(optimizer)
            self._make_capturable()

    def __call__(self, batch: Batch) -> Tensor:
        """Take a step.

        Parameters
        ----------
        batch : dict of str to Tensor
            Arguments of the loss. They are copied, and not modified.

        Returns
        -------
        Tensor []
            The loss before the step, without a gradient. The next call does not overwrite it.

        Raises
        ------
        InputError
            If a tensor is on another device than the model, or the step cannot be captured.
        """
        if not self.captures:
            return self._step(dict(batch))
        device = self._parameters[0].device
        for name, tensor in batch.items():
            if tensor.device != device:
                raise InputError(f"batch[{name!r}] is on {tensor.device}, the model on {device}")
        with torch.cuda.device(device):
            return self._captured(batch)

    def _captured(self, batch: Batch) -> Tensor:
        """Take a step on the current GPU, captured or to be captured."""
        self._fill_rates()
        signature = tuple((name, t.shape, t.dtype) for name, t in batch.items())
        graph = self._graphs.get(signature)
        if graph is not None:
            return graph.replay(batch)
        if len(self._graphs) >= MAX_GRAPHS:
            return self._step(dict(batch))
        graph = _Graph(self._step, batch, self._pool)
        self._graphs[signature] = graph
        return graph.first_loss

    def _step(self, batch: dict[str, Tensor]) -> Tensor:
        """Take an ordinary step, or launch its kernels in a capture."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model, {name: tensor.detach() for name, tensor in batch.items()})
        loss.backward(inputs=[p for p in self._parameters if p.requires_grad])
        if self.combine is not None:
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            self.combine([loss.detach(), *gradients])
        if self.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.max_gradient_norm)
        self.optimizer.step()
        if self.after_step is not None:
            self.after_step()
        return loss.detach()

    def _make_capturable(self) -> None:
        """Keep learning rates and counts of steps on the GPU, where a graph can read them."""
        device = self._parameters[0].device
        for group in self.optimizer.param_groups:
            group["capturable"] = True
            rate = group["lr"]
            group["lr"] = torch.tensor(float(rate), device=device)
            self._rates.append(group["lr"])
        for state in self.optimizer.state.values():
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(device)

    def _fill_rates(self) -> None:
        """Copy learning rates that have been replaced to the tensors that the graph reads."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate


class _Graph:
    """A captured step and the tensors that it reads."""

    def __init__(
        self, step: Callable[[dict[str, Tensor]], Tensor], batch: Batch, pool: GraphPool
    ) -> None:
        self._inputs = {name: tensor.detach().clone() for name, tensor in batch.items()}
        losses: list[Tensor] = []

        def run() -> Tensor:
            losses.append(step(self._inputs))
            return losses[-1]

        try:
            with warnings.catch_warnings():
                # TorchMD-NET's, about batches of other sizes; those get graphs of their own.
                warnings.filterwarnings("ignore", "CUDA graph capture will lock the batch")
                self._graph, self._loss = record(run, pool)
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                "the step waits for the GPU, so it cannot be captured: use capture=False, or "
                f"change the model or the loss ({reason})"
            ) from error
        self.first_loss = losses[0]

    def replay(self, batch: Batch) -> Tensor:
        """Take a step with a batch of the same shapes."""
        names = list(self._inputs)
        torch._foreach_copy_([self._inputs[n] for n in names], [batch[n].detach() for n in names])
        self._graph.replay()
        return self._loss.clone()


def _check_model(model: nn.Module) -> None:
    """Raise if shapes in a model of TorchMD-NET depend on the number of pairs found."""
    for module in model.modules():
        if getattr(module, "resize_to_fit", False):
            raise InputError(
                "the neighbor lists of the model have variable sizes, so steps cannot be captured: "
                "create it with static_shapes=True, or use capture=False"
            )


def _check_optimizer(optimizer: Any) -> None:
    """Check that PyTorch can capture an optimizer."""
    if not all("capturable" in group for group in optimizer.param_groups):
        raise InputError(
            f"{type(optimizer).__name__} cannot be captured: use AdamW or another optimizer with "
            "the option capturable, or capture=False"
        )
