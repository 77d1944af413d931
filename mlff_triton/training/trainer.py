"""Epochs of training, which can be interrupted after any step and resumed to the bit."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.averaging import WeightAverage
from mlff_triton.training.batches import Batch, GraphData, Size, shuffled, units_of
from mlff_triton.training.evaluation import evaluate
from mlff_triton.training.log import LogRow
from mlff_triton.training.ranks import ALONE, Ranks
from mlff_triton.training.schedule import learning_rate
from mlff_triton.training.settings import Settings
from mlff_triton.training.step import TrainingStep

SECONDS_BETWEEN_SAVES = 300.0


class Trainer:
    """A model, its averaged weights and its optimizer.

    Parameters
    ----------
    model : TensorNet
        The model, on its device.
    data : GraphData
        All structures, on that device.
    train, valid : int64 [n]
        Indices of the structures to train on, and to validate with.
    settings : Settings
        The options.
    ranks : Ranks, optional
        Processes that take the same steps, each with its share of every batch.

    Raises
    ------
    InputError
        If a batch has fewer structures than there are processes.

    Attributes
    ----------
    step : int
        Number of steps taken.
    log : list of LogRow
        Rows of the epochs so far; the first one is that of the model before training.
    """

    def __init__(
        self,
        model: TensorNet,
        data: GraphData,
        train: Tensor,
        valid: Tensor,
        settings: Settings,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.data = data
        self.train, self.valid = train, valid
        self.settings = settings
        self.ranks = ranks
        self.step = 0
        self.log: list[LogRow] = []
        self._batch = min(settings.batch, len(train))
        if self._batch < ranks.count:
            raise InputError(
                f"{ranks.count} devices cannot share a batch of {self._batch}: use a larger --batch"
            )
        self.steps_per_epoch = len(train) // self._batch
        self.steps = settings.epochs * self.steps_per_epoch
        self._units, self._largest = self._series()
        self._average = WeightAverage(model, settings.decay)
        self._best = self._averaged_weights()
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=model.std.device)
        self._optimizer = torch.optim.Adam(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=settings.lr,
            fused=model.std.is_cuda,
        )

    @property
    def best_row(self) -> LogRow:
        """Row of the epoch with the smallest loss of the validation set."""
        return min(self.log, key=lambda row: row.valid_loss)

    @property
    def best_model(self) -> TensorNet:
        """The averaged model of that epoch, on the device."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(self._best)
        return model.eval()

    @property
    def is_stopped_early(self) -> bool:
        """True if the loss of the validation set has not become smaller for too long."""
        patience = self.settings.patience
        return bool(patience and self.log and self._epoch - self.best_row.epoch >= patience)

    @property
    def is_done(self) -> bool:
        """True if no step remains to be taken."""
        return self.step >= self.steps or self.is_stopped_early

    @property
    def _epoch(self) -> int:
        return self.log[-1].epoch

    def run(
        self,
        show: Callable[[Trainer], None],
        stop: Callable[[], bool],
        save: Callable[[Trainer], None],
    ) -> None:
        """Train until all is done or a stop is requested.

        Parameters
        ----------
        show : callable
            Called after each step.
        stop : callable
            Returns True to stop after the current step.
        save : callable
            Saves the state: after each epoch, every five minutes, and when training stops.

        Raises
        ------
        InputError
            If the loss is not finite. The last state that was saved remains.
        """
        if not self.log:
            self._close_epoch(math.nan)
            save(self)
        settings = self.settings
        take_step = TrainingStep(
            self.model,
            partial(settings.loss, add=self.ranks.add),
            self._optimizer,
            max_gradient_norm=settings.max_gradient,
            after_step=self._average.update,
            combine=self.ranks.add,
        )
        count = -(-self._batch // self.ranks.count)
        if self.ranks.count > 1:
            count += self._largest - 1  # of a series that begins with the last of a share
        size = self.data.size(count) if take_step.captures else None
        saved_at, is_saved = time.monotonic(), True
        units = None if self._units is None else self._units[self.train]
        for chosen in shuffled(self.train, settings.batch, settings.seed, self.step, units):
            if self.ranks.agreed(self.is_done or stop()):
                break
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(self.step)
            self._average.prepare(self.step)
            self._loss_sum += take_step(self._share(chosen, size))
            self.step += 1
            is_saved = self.step % self.steps_per_epoch == 0
            if is_saved:
                self._close_epoch(float(self._loss_sum) / self.steps_per_epoch)
            elif time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES:
                is_saved = True
            if is_saved:
                self._save(save)
                saved_at = time.monotonic()
            show(self)
        if not is_saved:
            self._save(save)

    def _save(self, save: Callable[[Trainer], None]) -> None:
        self.ranks.settle(self.model.std.device)
        save(self)

    @property
    def state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        return {
            "step": self.step,
            "loss_sum": self._loss_sum,
            "log": [dataclasses.asdict(row) for row in self.log],
            "model": self.model.state_dict(),
            "average": self._average.model.state_dict(),
            "best": self._best,
            "optimizer": self._optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from the state of a trainer with the same arguments."""
        self.step = state["step"]
        self._loss_sum.copy_(state["loss_sum"])
        self.log = [LogRow(**row) for row in state["log"]]
        self.model.load_state_dict(state["model"])
        self._average.model.load_state_dict(state["average"])
        self._best = state["best"]
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:  # of a GPU, if it was saved there
            group["capturable"], group["fused"] = False, self.model.std.is_cuda

    def _series(self) -> tuple[Tensor | None, int]:
        """Return the number of the series of each structure [C], and the size of the largest.

        There are no numbers if every structure is alone. Each process gets some of every batch, as
        long as no series is larger than a share of what a batch has at least.
        """
        count = self.ranks.count
        most = self._batch if count == 1 else max(1, (self._batch + 1) // (count + 1))
        units = units_of(self.data.frames, self.train, most)
        largest = int(torch.bincount(units).max())
        if largest == 1 or not self.settings.loss.relative:
            return None, 1
        of_all = torch.full((len(self.data.frames),), -1)
        of_all[self.train] = units
        return of_all, largest

    def _share(self, chosen: Tensor, size: Size | None) -> Batch:
        """Return what this process takes of a batch."""
        if self._units is None:
            return self.data.batch(self.ranks.share(chosen), size)
        own = self.ranks.share(chosen, self._units[chosen])
        return self.data.batch(own, size, self._units[own])

    def _rate(self, step: int) -> float:
        warm_up = self.settings.warm_up_of(self.steps)
        return learning_rate(step, self.steps, self.settings.lr, warm_up)

    def _close_epoch(self, train_loss: float) -> None:
        """Validate, and keep the averaged weights if they are the best."""
        epoch = self.step // self.steps_per_epoch
        model, settings = self._average.model, self.settings
        errors = evaluate(model, self.data, self.valid, settings.loss)
        self.ranks.settle(model.std.device)
        if not math.isfinite(errors.loss) or (epoch and not math.isfinite(train_loss)):
            raise InputError(
                f"the training has diverged in epoch {epoch}: begin anew with a lower --lr, and "
                "--overwrite or another --out"
            )
        rate = self._rate(max(self.step - 1, 0))
        self.log.append(LogRow.of(epoch, self.step, rate, train_loss, errors))
        if self.best_row.epoch == epoch:
            self._best = self._averaged_weights()
        self._loss_sum.zero_()

    def _averaged_weights(self) -> dict[str, Tensor]:
        state = self._average.model.state_dict()
        return {name: tensor.detach().clone() for name, tensor in state.items()}
