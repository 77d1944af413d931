"""Train a TensorNet on energies and forces, with the exact module of the package.

Usage: ``python train.py --data data --out run --steps 60000 --minutes 9``

The data are the shards written by `make_data.py`. Training stops after ``--minutes`` or at Ctrl-C,
and the same command resumes it until ``--steps`` are done. Then the averaged weights are evaluated
on all data and written to ``model.safetensors``, and the errors are written to ``errors.csv``. The
script uses a GPU if there is one. It then pads batches to one size, so that all steps replay one
CUDA graph.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from dataset import TRAIN, VALIDATION, Batch, Dataset, load
from evaluation import error_table, errors, mean_absolute_errors, on_device_of, write_table
from torch import Tensor

from mlff_triton import TensorNet, TensorNetConfig, save_model
from mlff_triton._common.interrupt import StopRequest
from mlff_triton.training.batches import ragged_range
from mlff_triton.training.step import TrainingStep

WARM_UP = 1000  # steps
EMA_DECAY = 0.999
ENERGY_WEIGHT, FORCE_WEIGHT = 4.0, 1.0  # 1 / (eV per atom), 1 / (eV/Å)
HUBER = 0.002  # eV per atom, below which the energy loss is quadratic
MAX_GRADIENT = 10.0  # norm
EXIT_INTERRUPTED = 130  # the exit code of shells after Ctrl-C


def build(data: Dataset, args: argparse.Namespace) -> TensorNet:
    """Build a new model with the energy scale of the data, on a GPU if there is one."""
    torch.manual_seed(args.seed)
    elements = tuple(sorted(set(data.numbers.tolist())))
    model = TensorNet(
        TensorNetConfig(
            elements=elements,
            hidden_channels=args.channels,
            num_layers=args.layers,
            num_rbf=args.rbf,
            cutoff_upper=args.cutoff,
            uses_charge=False,
        )
    )
    model.references, model.std = fit_scale(data, elements)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def fit_scale(data: Dataset, elements: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Fit the element references and the scale of the network to the training set.

    Returns
    -------
    references : float64 [elements]
        Energy of each element in eV, by least squares.
    std : float64 []
        Root mean square of the forces in eV/Å, used as an energy in eV.
    """
    chosen = data.select(TRAIN)
    atoms, owner = ragged_range(data.atom_start, chosen)
    counts = torch.stack(
        [torch.bincount(owner[data.numbers[atoms] == z], minlength=len(chosen)) for z in elements],
        dim=1,
    ).double()
    # The tiny ridge keeps the energies of absent elements at zero.
    normal = counts.T @ counts + 1e-6 * torch.eye(len(elements))
    references = torch.linalg.solve(normal, counts.T @ data.energy[chosen])
    return references, data.forces[atoms].square().mean().sqrt().double()


def loss_of(model: TensorNet, batch: Batch) -> Tensor:
    """Return the weighted sum of the energy loss per atom and the mean length of force errors."""
    energy_error, force_error = errors(model, batch, create_graph=True)
    energy_losses = torch.nn.functional.smooth_l1_loss(
        energy_error, torch.zeros_like(energy_error), beta=HUBER, reduction="none"
    )
    force_losses = (force_error.square().sum(1) + 1e-8).sqrt()
    energy_loss = mean_of(energy_losses, batch["molecule_mask"])
    return ENERGY_WEIGHT * energy_loss + FORCE_WEIGHT * mean_of(force_losses, batch["atom_mask"])


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """Average the values where a mask is True: those that are not filler."""
    return (values * mask).sum() / mask.sum()


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warm up linearly, then follow half a cosine down to a thousandth of the peak."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return peak * (1e-3 + (1 - 1e-3) * 0.5 * (1 + math.cos(math.pi * progress)))


def batches(chosen: Tensor, size: int, seed: int, start: int) -> Iterator[Tensor]:
    """Yield shuffled batches without end; batch ``k`` does not depend on where training resumed."""
    per_epoch = max(1, len(chosen) // size)
    for epoch in itertools.count(start // per_epoch):
        generator = torch.Generator().manual_seed(seed + epoch)
        order = chosen[torch.randperm(len(chosen), generator=generator)]
        first = start % per_epoch if epoch == start // per_epoch else 0
        for k in range(first, per_epoch):
            yield order[k * size : (k + 1) * size]


class Trainer:
    """A model, its averaged copy and its optimizer, which can be saved and resumed.

    Parameters
    ----------
    model : TensorNet
        A new model; a checkpoint at ``path`` replaces its weights.
    path : path
        File of the checkpoint.
    steps : int
        Number of steps of the whole training.
    peak : float
        Highest learning rate.

    Attributes
    ----------
    averaged_model : TensorNet
        The model with averaged weights, which has smaller errors.
    """

    def __init__(self, model: TensorNet, path: Path, steps: int, peak: float) -> None:
        self.model = model
        self.path = path
        self.steps = steps
        self.peak = peak
        self.step = 0
        self.averaged_model = copy.deepcopy(model)
        fused = model.std.is_cuda
        self.optimizer = torch.optim.Adam(model.parameters(), lr=peak, fused=fused)
        if path.exists():
            self._resume()
        self._take_step = TrainingStep(
            model,
            loss_of,
            self.optimizer,
            max_gradient_norm=MAX_GRADIENT,
            after_step=self._average_weights,
        )

    @property
    def pads(self) -> bool:
        """True if steps are captured, and batches should be padded to one size."""
        return self._take_step.captures

    @property
    def is_done(self) -> bool:
        """True once all steps are done."""
        return self.step >= self.steps

    def train_step(self, batch: Batch) -> Tensor:
        """Take one step of the optimizer and return the loss before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps, self.peak)
        loss = self._take_step(on_device_of(self.model, batch))
        if self.step == 0:  # the average begins with the first weights that were trained
            self.averaged_model.load_state_dict(self.model.state_dict())
        self.step += 1
        return loss

    def _average_weights(self) -> None:
        """Move the averaged weights toward those of the model."""
        averaged = [parameter.detach() for parameter in self.averaged_model.parameters()]
        weights = [parameter.detach() for parameter in self.model.parameters()]
        torch._foreach_lerp_(averaged, weights, 1 - EMA_DECAY)

    def save(self) -> None:
        """Write everything that is needed to resume training."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.averaged_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        partial = self.path.with_suffix(".part")
        torch.save(state, partial)
        partial.replace(self.path)

    def _resume(self) -> None:
        state = torch.load(self.path, map_location=self.model.std.device, weights_only=True)
        try:
            self.model.load_state_dict(state["model"])
            self.averaged_model.load_state_dict(state["average"])
        except RuntimeError:
            sys.exit(f"{self.path} is of another model: repeat its options or use another --out")
        self.step = state["step"]
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # of a GPU, if it was saved there
            group["capturable"], group["fused"] = False, self.model.std.is_cuda


def train(trainer: Trainer, data: Dataset, args: argparse.Namespace, begin: float) -> bool:
    """Train until the steps or the minutes run out, and save.

    Parameters
    ----------
    trainer : Trainer
        Trainer of the model.
    data : Dataset
        Training data, and validation data for the reports.
    args : Namespace
        Options of the command line.
    begin : float
        Value of `time.monotonic` at which the minutes begin.

    Returns
    -------
    bool
        True if training ended by Ctrl-C.
    """
    recent: list[Tensor] = []
    chosen = data.select(TRAIN)
    room = data.room(chosen, args.batch) if trainer.pads else None
    with StopRequest() as stop:
        for configs in batches(chosen, args.batch, args.seed, trainer.step):
            if trainer.is_done or stop() or time.monotonic() - begin > 60 * args.minutes:
                break
            recent.append(trainer.train_step(data.batch(configs, room)))
            if trainer.step % args.report == 0:
                subset = data.select(VALIDATION)[:512]
                maes = mean_absolute_errors(trainer.averaged_model, data, subset, args.batch)
                print(
                    f"{time.monotonic() - begin:6.0f} s  step {trainer.step:6d}  "
                    f"loss {float(torch.stack(recent).mean()):.4f}  "
                    f"validation {maes[0]:.4f} kcal/mol per atom, {maes[1]:.3f} kcal/mol/Å",
                    flush=True,
                )
                trainer.save()
                recent = []
        trainer.save()
        return stop()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with data_*.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint and model")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--batch", type=int, default=128, help="configurations per step")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rbf", type=int, default=32, help="radial basis functions")
    parser.add_argument("--cutoff", type=float, default=5.0, help="Å")
    parser.add_argument("--report", type=int, default=500, help="steps between reports")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train; once all steps are done, evaluate and write the model."""
    args = parse_arguments()
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    data = load(args.data, args.cutoff)
    n_train = len(data.select(TRAIN))
    print(f"{n_train} of {len(data.energy)} configurations to train on", flush=True)
    if not n_train:
        sys.exit("there are no training data: make more with make_data.py")
    trainer = Trainer(build(data, args), args.out / "checkpoint.pt", args.steps, args.lr)
    interrupted = train(trainer, data, args, begin)
    if trainer.is_done:
        rows = error_table(trainer.averaged_model, data, args.batch)
        for row in rows:
            print(*row)
        write_table(rows, args.out / "errors.csv")
        save_model(trainer.averaged_model, args.out / "model.safetensors")
    else:
        print(f"stopped at step {trainer.step} of {args.steps}; the same command resumes")
    if interrupted:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
