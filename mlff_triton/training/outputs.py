"""Files of a training: the model, the log, and the checkpoint to resume from."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mlff_triton._common.files import replace_file, reported
from mlff_triton._common.lock import FileLock
from mlff_triton._common.text import first_line
from mlff_triton.checkpoints import save_model
from mlff_triton.errors import CheckpointError, InputError, OutputError
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.log import table
from mlff_triton.training.ranks import ALONE, Ranks
from mlff_triton.training.trainer import Trainer

MODEL, LOG, CHECKPOINT = "model.safetensors", "log.csv", "checkpoint"
REPORT, PARITY = "report.md", "parity.png"
OUTPUTS = (MODEL, LOG, CHECKPOINT, REPORT, PARITY)
FORMAT = "mlff_triton.training.1"

Recipe = Mapping[str, Any]
"""Options and data of a training in JSON's types; they stay the same when it is resumed."""


class Outputs:
    """The directory of a training. Each file is complete at any time.

    Parameters
    ----------
    directory : Path
        The directory.
    recipe : Recipe
        Options and data of the training.
    card : str
        Model card.
    ranks : Ranks
        The processes that train together; the first one writes.
    """

    def __init__(self, directory: Path, recipe: Recipe, card: str, ranks: Ranks = ALONE) -> None:
        self.directory = directory
        self._recipe = json.dumps(recipe, sort_keys=True)
        self._card = card
        self._written_epoch = -1
        self._ranks = ranks

    @contextmanager
    def opened(self, *, overwrite: bool) -> Iterator[None]:
        """Keep other trainings out of the directory; all processes come here.

        Parameters
        ----------
        overwrite : bool
            If True, remove the files of an earlier training.

        Raises
        ------
        OutputError
            If the directory cannot be used, or another training uses it.
        """
        if not self._ranks.leads:
            self._ranks.agreed(True)
            yield
            return
        with reported(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with self.lock():
            if overwrite:
                self._clear()
            self._ranks.agreed(True)  # that the others may read
            yield

    def _clear(self) -> None:
        with reported(self.directory):
            for name in OUTPUTS:
                (self.directory / name).unlink(missing_ok=True)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the state to resume from, or None at the beginning.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged.
        InputError
            If it belongs to other options or data.
        """
        path = self.directory / CHECKPOINT
        if not path.exists():
            return None
        try:
            content = io.BytesIO(path.read_bytes())
            found = torch.load(content, map_location=device, weights_only=True)
            recipe, state = json.loads(found["recipe"]), dict(found["state"])
            if found["format"] != FORMAT:
                raise ValueError("it has another format")
        except Exception as error:
            raise CheckpointError(
                f"{path} cannot be resumed ({first_line(error)}): restore it, or begin anew with "
                "--overwrite"
            ) from error
        own = json.loads(self._recipe)
        other = [name for name in own if own[name] != recipe.get(name)]
        if other:
            raise InputError(
                f"{path} is of another training, as {other[0]} shows: repeat its command to "
                "continue, use another --out, or begin anew with --overwrite"
            )
        return state

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint and the log, and the model if it has become better.

        Processes that only help write nothing.

        Raises
        ------
        OutputError
            If a file cannot be written; it then has its earlier content.
        """
        if not self._ranks.leads:
            return
        content = io.BytesIO()
        torch.save({"format": FORMAT, "recipe": self._recipe, "state": trainer.state}, content)
        replace_file(self.directory / CHECKPOINT, content.getvalue())
        replace_file(self.directory / LOG, table(trainer.log).encode())
        best = trainer.best_row
        if best.epoch != self._written_epoch:
            self.save_best(trainer, trainer.best_model)

    def save_best(self, trainer: Trainer, model: TensorNet, doubt: str | None = None) -> None:
        """Write the best model of a trainer; it may have learned its uncertainty since.

        A doubt about its labels is the first line of its card.
        """
        best = trainer.best_row
        warning = f"Warning: {doubt}.\n" if doubt else ""
        card = f"{warning}{self._card}\n\nValidation, epoch {best.epoch}: {best.text()}.\n"
        save_model(model, self.directory / MODEL, card)
        self._written_epoch = best.epoch

    def lock(self) -> FileLock:
        """Return the lock of the directory."""
        refusal = (
            f"is training in {self.directory}: wait for its end, stop it, or choose another --out"
        )
        return FileLock(self.directory / ".lock", refusal)


def check_directory(directory: Path, *, overwrite: bool) -> None:
    """Raise `OutputError` unless a training may begin or continue in a directory."""
    with reported(directory):
        if directory.exists() and not directory.is_dir():
            raise OutputError(f"{directory} is a file: choose another --out")
        is_ours = overwrite or (directory / CHECKPOINT).exists()
        for name in () if is_ours else OUTPUTS:
            if (directory / name).exists():
                raise OutputError(
                    f"{directory / name} exists: choose another --out, or use --overwrite"
                )
