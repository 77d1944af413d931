"""The command ``mlff-triton train``: a model from labeled structures, new or fine-tuned."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from mlff_triton._common.text import duration
from mlff_triton.cli import _train_options as options
from mlff_triton.cli._exits import EXIT_INCOMPLETE, EXIT_INTERRUPTED, complain
from mlff_triton.cli._shared import given_options, plain_console
from mlff_triton.errors import InputError

if TYPE_CHECKING:
    from mlff_triton._common.progress import ProgressBar
    from mlff_triton.training.run import Base, Result
    from mlff_triton.training.settings import Architecture, Data, Settings
    from mlff_triton.training.trainer import Trainer

SIZES = (
    "channels",
    "layers",
    "rbf",
    "cutoff",
    "zbl",
    "charges",
    "coulomb_cutoff",
)  # options of a new model
FINE_TUNING = ("references", "replay", "replay_weight")
LR, LR_OF_FINE_TUNING = 1e-3, 3e-4


def train(
    context: typer.Context,
    files: options.Files,
    out: options.Out = Path("train"),
    base: options.From = None,
    references: options.References = "fit",
    replay: options.Replay = None,
    replay_weight: options.ReplayWeight = 1.0,
    channels: options.Channels = 64,
    layers: options.Layers = 2,
    rbf: options.Rbf = 32,
    cutoff: options.Cutoff = 5.0,
    zbl: options.Zbl = None,
    charges: options.Charges = False,
    coulomb_cutoff: options.CoulombCutoff = None,
    key: options.Key = [],  # noqa: B006
    energy_unit: options.EnergyUnit = "eV",
    length_unit: options.LengthUnit = "A",
    force_unit: options.ForceUnit = None,
    stress_unit: options.StressUnit = "eV/A^3",
    dipole_unit: options.DipoleUnit = "e*A",
    split: options.Split = "random",
    valid: options.Valid = 0.1,
    test: options.Test = 0.0,
    valid_file: options.ValidFile = None,
    test_file: options.TestFile = None,
    skip_bad: options.SkipBad = False,
    loss: options.LossOption = "huber",
    energy_weight: options.EnergyWeight = 4.0,
    force_weight: options.ForceWeight = 1.0,
    stress_weight: options.StressWeight = 1.0,
    charge_weight: options.ChargeWeight = 1.0,
    dipole_weight: options.DipoleWeight = 1.0,
    relative_weight: options.RelativeWeight = 1.0,
    epochs: options.Epochs = 200,
    batch: options.BatchOption = 8,
    lr: options.Lr = None,
    warm_up: options.WarmUp = None,
    decay: options.Decay = 0.99,
    max_gradient: options.MaxGradient = 10.0,
    patience: options.Patience = 0,
    minutes: options.Minutes = None,
    seed: options.Seed = 0,
    device: options.Devices = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Train a TensorNet or TensorNet2 on energies, forces and others, or fine-tune one.

    OUT gets model.safetensors, which md and other commands take, log.csv, and a
    report with errors by element and group.

    After Ctrl-C, --minutes, or any other end, the same command continues. Exit code 1 means that
    the model contradicts energies or forces, so that labels are probably wrong.
    """
    _check_used(given_options(context), fine_tunes=base is not None)
    from mlff_triton.training.labels import Labels, parse_keys
    from mlff_triton.training.loss import Loss
    from mlff_triton.training.run import Base
    from mlff_triton.training.settings import Architecture, Data, Settings

    labels = Labels(parse_keys(key), energy_unit, length_unit, force_unit, stress_unit, dipole_unit)
    data = Data(
        files=tuple(files),
        labels=labels,
        split=split,
        valid=valid,
        test=test,
        valid_file=valid_file,
        test_file=test_file,
        replay=replay,
        replay_weight=replay_weight,
        skip_bad=skip_bad,
    )
    settings = Settings(
        epochs=epochs,
        batch=batch,
        lr=lr if lr is not None else LR if base is None else LR_OF_FINE_TUNING,
        warm_up=warm_up,
        decay=decay,
        loss=Loss(
            loss,
            energy_weight,
            force_weight,
            stress_weight,
            charge_weight,
            dipole_weight,
            relative_weight,
        ),
        max_gradient=max_gradient,
        patience=patience,
        seed=seed,
    )
    if minutes is not None and not minutes > 0:
        raise InputError(f"--minutes must be above 0, not {minutes:g}")
    begin: Architecture | Base = Architecture(
        channels, layers, rbf, cutoff, zbl, charges, coulomb_cutoff
    )
    if base is not None:
        begin = Base(base, references)
    _run(data, out, begin, settings, minutes, device=device, overwrite=overwrite)


def _check_used(given: dict[str, Any], *, fine_tunes: bool) -> None:
    """Raise `InputError` if an option has no effect."""
    for name in SIZES if fine_tunes else FINE_TUNING:
        if name in given:
            option = f"--{name.replace('_', '-')}"
            if fine_tunes:
                raise InputError(f"{option} is that of the model: leave it out with --from")
            raise InputError(f"{option} needs --from MODEL")
    if "replay_weight" in given and "replay" not in given:
        raise InputError("--replay-weight needs --replay FILE")
    for name in ("valid", "test"):
        if name in given and f"{name}_file" in given:
            raise InputError(f"--{name} has no effect with --{name}-file: leave one of them out")


def _run(
    data: Data,
    out: Path,
    begin: Architecture | Base,
    settings: Settings,
    minutes: float | None,
    **how: Any,
) -> None:
    """Train with a progress bar, print a table, and exit with the right code."""
    from mlff_triton._common.interrupt import StopRequest
    from mlff_triton.training.outputs import OUTPUTS
    from mlff_triton.training.run import train_files

    console, plain = Console(), plain_console()
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with StopRequest() as is_interrupted, _Progress(console) as progress:

        def stop() -> bool:
            return is_interrupted() or time.monotonic() > deadline

        result = train_files(
            data, out, begin, settings, say=plain.print, show=progress, stop=stop, **how
        )
    trainer = result.trainer
    if not result.errors:
        complain(
            f"stopped at step {trainer.step} of {trainer.steps}, {progress.remaining(trainer)}: "
            "the same command continues"
        )
        raise typer.Exit(EXIT_INTERRUPTED)
    if trainer.is_stopped_early:
        plain.print(
            f"stopped after {trainer.log[-1].epoch} epochs, as epoch {trainer.best_row.epoch} "
            "validates best"
        )
    console.print(_table(result))
    plain.print(f"files in {out}: {', '.join(OUTPUTS)}")
    if result.doubts:
        complain(f"warning: {result.doubts}")
        raise typer.Exit(EXIT_INCOMPLETE)


class _Progress:
    """A progress bar that begins with the first step, as the number of steps is then known."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: ProgressBar | None = None
        self._first, self._began = 0, math.inf

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()

    def __call__(self, trainer: Trainer) -> None:
        from mlff_triton._common.progress import ProgressBar

        if self._bar is None:
            self._bar = ProgressBar(self._console, "training", trainer.steps, trainer.step)
            self._bar.__enter__()
            self._first, self._began = trainer.step, time.monotonic()
        epochs = f"epoch {trainer.step // trainer.steps_per_epoch} of {trainer.settings.epochs}"
        state = f"{epochs}, {trainer.log[-1].text()}"
        self._bar.show(trainer.step, state, f"{state}, {self.remaining(trainer)}")

    def remaining(self, trainer: Trainer) -> str:
        """Return the remaining time in words, by the speed so far."""
        steps = trainer.step - self._first
        if self._bar is None or not steps:
            return "speed unknown"
        seconds = (time.monotonic() - self._began) / steps * (trainer.steps - trainer.step)
        return f"about {duration(seconds)} left"


def _table(result: Result) -> Table:
    from mlff_triton.training.report import SPLITS, split_rows

    columns = [SPLITS, *split_rows(result.errors)]
    kept = [k for k, title in enumerate(SPLITS) if "RMSE" not in title]
    first, *others = ([row[k] for row in columns] for k in kept)
    shown = [column for column in others if any(column[1:])]  # a stress may be unknown
    table = Table(first[0], *(Column(column[0], justify="right") for column in shown))
    for row in zip(first[1:], *(column[1:] for column in shown), strict=True):
        table.add_row(*row)
    return table
