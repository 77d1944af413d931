"""Exponential moving average of weights; it has smaller errors than the weights themselves."""

from __future__ import annotations

import copy

import torch

from mlff_triton.model.tensornet import TensorNet


class WeightAverage:
    """A copy of a model whose weights follow those of the model.

    Parameters
    ----------
    model : TensorNet
        The model.
    decay : float
        Share of the average that remains after a step. It begins lower, so that the first weights
        are forgotten: after ``k`` steps, it is at most ``(1 + k) / (10 + k)``.

    Attributes
    ----------
    model : TensorNet
        The averaged model.
    """

    def __init__(self, model: TensorNet, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self._decay = decay
        self._rate = torch.zeros((), device=model.std.device)  # read by a captured step
        self._weights = [parameter.detach() for parameter in model.parameters()]
        self._averages = [parameter.detach() for parameter in self.model.parameters()]

    def prepare(self, step: int) -> None:
        """Set the rate of the update after a step, before it is taken."""
        self._rate.fill_(1 - min(self._decay, (1 + step) / (10 + step)))

    def update(self) -> None:
        """Move the average toward the weights; a CUDA graph may hold this."""
        differences = list(torch._foreach_sub(self._weights, self._averages))
        torch._foreach_mul_(differences, self._rate)
        torch._foreach_add_(self._averages, differences)
