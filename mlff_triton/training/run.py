"""Training from files to files: the work of ``mlff-triton train``."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mlff_triton._common.devices import find_devices
from mlff_triton._common.files import replace_file
from mlff_triton._common.torch_settings import kept_random_state, with_own_settings
from mlff_triton.checkpoints import lasting_name, load_model
from mlff_triton.errors import InputError, UnknownElementError
from mlff_triton.model.config import symbols_of, unknown_elements
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import model_of
from mlff_triton.training.batches import GraphData
from mlff_triton.training.charged import charged_data, check_charged, check_dipoles
from mlff_triton.training.consistency import check_consistent
from mlff_triton.training.domain import learned_domain
from mlff_triton.training.evaluation import Errors, evaluate
from mlff_triton.training.explained import doubts
from mlff_triton.training.frames import Array, Frames, check_trained
from mlff_triton.training.labels import Labels
from mlff_triton.training.outputs import PARITY, REPORT, Outputs, check_directory
from mlff_triton.training.ranks import Ranks, together
from mlff_triton.training.references import fit_references, fit_scale
from mlff_triton.training.report import parity_figure, report
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames, with_dipoles_about_origin
from mlff_triton.training.splits import count_repeated, split_frames
from mlff_triton.training.trainer import Trainer
from mlff_triton.training.uncertainty import forget_uncertainty, learn_and_judge

REFERENCES = ("fit", "keep")
OF_DIVISION = ("group", "split", "series", "weight")
"""Labels that files of one part need not have, although an option names them."""


@dataclass(frozen=True)
class Base:
    """A model to start from.

    Attributes
    ----------
    model : str
        Name or path of a TensorNet or TensorNet2.
    references : {"fit", "keep"}
        Energies of the elements: fitted to the training set, or taken from the model.
    """

    model: str
    references: str = "fit"

    def __post_init__(self) -> None:
        if self.references not in REFERENCES:
            raise InputError(
                f"--references {self.references!r} is unknown: use {' or '.join(REFERENCES)}"
            )


@dataclass(frozen=True)
class Result:
    """The outcome of a training.

    Attributes
    ----------
    trainer : Trainer
        The trainer in its last state.
    errors : dict of Errors
        Errors of the best model by the names of parts; empty if training was stopped.
    doubts : str, optional
        A sentence about energies or forces that the model should explain but does not, because
        their labels are probably wrong.
    """

    trainer: Trainer
    errors: dict[str, Errors]
    doubts: str | None = None


class _Parts(NamedTuple):
    """Indices of the structures of each part, among all structures that were read."""

    train: Array
    valid: Array
    test: Array
    replay: Array

    @property
    def trained(self) -> Array:
        """Indices of all structures that are trained on, those to replay last."""
        return np.concatenate([self.train, self.replay])


def train_files(
    data: Data,
    out: Path,
    begin: Architecture | Base,
    settings: Settings,
    *,
    device: str = "auto",
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
    show: Callable[[Trainer], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train a model on the structures of files, or continue a training that was interrupted.

    Parameters
    ----------
    data : Data
        Files, labels and division.
    out : Path
        Directory of the results. If it has a checkpoint of the same training, that training is
        continued; on a CPU, with the same bits as without the interruption.
    begin : Architecture or Base
        Sizes of a new model, or a model to fine-tune.
    settings : Settings
        Options of the optimization.
    device : str
        "auto", "cpu", "cuda" or "cuda:1"; or several, as in "cuda:0,cuda:1", which share every
        batch. Steps then equal those of a single device up to rounding. A process is started for
        each device but the first.
    overwrite : bool
        If True, begin anew and replace earlier results.
    say, show, stop : callable
        ``say`` is called with lines of text, ``show`` with the trainer after each step; ``stop``
        returns True to stop after the current step.

    Returns
    -------
    Result

    Raises
    ------
    InputError
        If structures, labels or options are invalid, elements of a part lack samples to train on,
        a model to fine-tune does not know an element, or the training diverges.
    CheckpointError
        If the model or the checkpoint cannot be read.
    BackendError
        If a device does not exist, or the process of one of several devices has ended early.
    OutputError
        If results cannot be written, or another process trains in the directory.
    """
    check_directory(out, overwrite=overwrite)
    devices = find_devices(device)
    task = data, out, begin, settings, overwrite
    with together(devices, _train, task) as ranks:
        return _train(ranks, devices[0], *task, Watch(say, show, stop))


class Watch(NamedTuple):
    """Functions that a training calls; see `train_files`."""

    say: Callable[[str], None] = lambda _: None
    show: Callable[[Trainer], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False


@with_own_settings
def _train(
    ranks: Ranks,
    device: torch.device,
    data: Data,
    out: Path,
    begin: Architecture | Base,
    settings: Settings,
    overwrite: bool,
    watch: Watch = Watch(),  # noqa: B008
) -> Result:
    """Do the part of one process; only the leading process reports and writes files."""
    base = _load_base(begin.model) if isinstance(begin, Base) else None
    has_charges = (
        begin.charges if isinstance(begin, Architecture) else bool(base and base.has_charges)
    )
    data = charged_data(data, settings.loss, has_charges=has_charges)
    frames, parts = _read(data, settings.seed, watch.say)
    model = base or _new_model(begin, frames.select(parts.train), settings.seed)
    model.learned = learned_domain(frames.select(parts.trained), base)
    _check_known(model, frames)
    check_charged(model, frames, watch.say)
    recipe = _recipe(data, begin, settings, frames, parts, model)
    repeated = _repeated(frames, parts)
    for line in repeated:
        watch.say(line)
    facts = [*_facts(data, begin, parts, model), *repeated]
    graphs = GraphData(_weighted(frames, parts, data), model.cutoff, device)
    model = model.to(device).train()
    outputs = Outputs(out, recipe, "\n".join(facts), ranks)
    with outputs.opened(overwrite=overwrite):
        state = outputs.load(device)
        if state is None or len(parts.replay):
            _fit(model, graphs, parts, begin)
        ranks.copy_first([*model.parameters(), *model.buffers()])
        everything = torch.from_numpy(parts.trained)
        trainer = Trainer(model, graphs, everything, torch.from_numpy(parts.valid), settings, ranks)
        if state is not None:
            trainer.load(state)
            watch.say(f"continues after step {trainer.step} of {trainer.steps}")
        trainer.run(watch.show, watch.stop, outputs.save)
        if not (trainer.is_done and ranks.leads):
            return Result(trainer, {})
        outputs.save(trainer)
        best_model = trainer.best_model
        errors = _errors(best_model, graphs, parts)
        others = (torch.from_numpy(parts.valid), torch.from_numpy(parts.test))
        trust = learn_and_judge(best_model, graphs, (everything, *others), errors)
        doubt = doubts(errors, trainer.step)
        outputs.save_best(trainer, best_model, doubt)
        best = trainer.best_row.epoch
        facts.append(f"Epoch {best} of {settings.epochs} validates best, and is the model.")
        replace_file(out / REPORT, report(errors, facts, trust, doubt).encode())
        replace_file(out / PARITY, parity_figure(errors))
    return Result(trainer, errors, doubt)


def _load_base(name: str) -> TensorNet:
    model = load_model(name)
    if isinstance(model, Ensemble):
        raise InputError(f"{name} is an ensemble: fine-tune one of its members")
    forget_uncertainty(model)
    return model


def _read(data: Data, seed: int, say: Callable[[str], None]) -> tuple[Frames, _Parts]:
    """Read all files, and divide their structures."""

    def read(files: Sequence[str], labels: Labels, may_lack: Sequence[str] = ()) -> Frames:
        found = read_frames(files, labels, skip_bad=data.skip_bad, may_lack=may_lack, say=say)
        can_change = labels is data.labels
        check_consistent(found, labels, can_change=can_change)
        check_dipoles(found, labels, can_change=can_change)
        return found

    whole = read(data.files, data.labels)
    given = (
        ("valid", data.valid_file, data.labels),
        ("test", data.test_file, data.labels),
        ("replay", data.replay, Labels(with_charges=data.labels.with_charges)),
    )
    others = {
        name: read([file], labels, OF_DIVISION) for name, file, labels in given if file is not None
    }
    if "replay" in others:
        others["replay"] = with_dipoles_about_origin(others["replay"])
    sizes = {"valid": data.valid, "test": data.test}
    valid, test = (0.0 if name in others else size for name, size in sizes.items())
    split = split_frames(whole, data.split, valid, test, seed)._asdict()
    first = len(whole)
    for name, frames in others.items():
        split[name] = np.arange(first, first + len(frames))
        first += len(frames)
    parts = _Parts(**{"replay": np.arange(0), **split})
    for name, indices in (("train on", parts.train), ("validate with", parts.valid)):
        if not len(indices):
            raise InputError(
                f"no structures of {len(whole)} remain to {name}: change --valid, --test or --split"
            )
    frames = Frames.join([whole, *others.values()])
    trained = frames.select(parts.train)
    for name in ("valid", "test"):
        check_trained(frames.select(getattr(parts, name)), trained, name)
    words = ("train on", "validate with", "test with", "replay")
    counts = zip(words, map(len, parts), strict=True)
    say("structures: " + ", ".join(f"{count} to {word}" for word, count in counts if count))
    return frames, parts


def _new_model(begin: Architecture | Base, trained: Frames, seed: int) -> TensorNet:
    assert isinstance(begin, Architecture)
    config = begin.config(trained.elements, uses_charge=bool(trained.charge.any()))
    with kept_random_state():
        torch.manual_seed(seed)
        return model_of(config)


def _check_known(model: TensorNet, frames: Frames) -> None:
    """Raise an error if a model cannot compute a structure; the line names the first one."""
    strange = ~np.isin(frames.numbers, model.config.elements)
    if strange.any():
        name = frames.name[frames.owner[strange][0]]
        error = unknown_elements(np.unique(frames.numbers[strange]).tolist(), model.config.elements)
        raise UnknownElementError(f"{name}: {error}. Train a new model without --from")
    if frames.charge.any() and not model.uses_charge:
        name = frames.name[np.flatnonzero(frames.charge)[0]]
        raise InputError(f"{name} is charged, and the model was made for neutral structures")


def _recipe(
    data: Data,
    begin: Architecture | Base,
    settings: Settings,
    frames: Frames,
    parts: _Parts,
    model: TensorNet,
) -> dict[str, Any]:
    """Return everything that determines the result, by the names that users know."""
    options = dataclasses.asdict(settings)
    loss = options.pop("loss")
    if isinstance(begin, Base):
        options |= {"from": model.weights_hash, "references": begin.references}
    else:
        options |= {"from": "", **dataclasses.asdict(begin)}
    options |= {"loss": loss.pop("penalty")}
    options |= {f"{name}-weight": weight for name, weight in loss.items()}
    options |= {"replay-weight": data.replay_weight}
    digest = hashlib.sha256(b"".join(indices.tobytes() for indices in parts)).hexdigest()
    return {
        "the content of its files": frames.fingerprint,
        "the split": digest,
        **{f"--{name.replace('_', '-')}": value for name, value in options.items()},
    }


def _weighted(frames: Frames, parts: _Parts, data: Data) -> Frames:
    """Return the structures, with the weight of those to replay."""
    weight = frames.weight.copy()
    weight[parts.replay] *= data.replay_weight
    return dataclasses.replace(frames, weight=weight)


def _fit(model: TensorNet, graphs: GraphData, parts: _Parts, begin: Architecture | Base) -> None:
    """Fit the energies of the elements, and the scale of a new model, to the training set."""
    train = torch.from_numpy(parts.train)
    if not isinstance(begin, Base):
        fit_scale(model, graphs, train)
    elif begin.references == "fit":
        change = fit_references(model, graphs, train)
        graphs.shift_energies(parts.replay, model.config.elements, change)


def _errors(model: TensorNet, graphs: GraphData, parts: _Parts) -> dict[str, Errors]:
    """Return the errors of each part; the part that was never looked at comes last."""
    order = ("train", "replay", "valid", "test")
    found = {name: torch.from_numpy(getattr(parts, name)) for name in order}
    return {name: evaluate(model, graphs, k) for name, k in found.items() if len(k)}


def _repeated(frames: Frames, parts: _Parts) -> list[str]:
    """Return a line for each part that contains structures of the training set."""
    lines = []
    for part, word in (("valid", "validate"), ("test", "test")):
        chosen = getattr(parts, part)
        count = count_repeated(frames, chosen, parts.trained)
        if count:
            lines.append(
                f"Of {len(chosen)} structures to {word} with, {count} are also among those to "
                "train on, so that their errors are too small."
            )
    return lines


def _facts(data: Data, begin: Architecture | Base, parts: _Parts, model: TensorNet) -> list[str]:
    """Return lines about the model and its data."""
    config = model.config
    origin = f"Fine-tuned from {lasting_name(begin.model)}" if isinstance(begin, Base) else "New"
    replayed = f", {len(parts.replay)} to replay from {data.replay}" if data.replay else ""
    sizes = f"{config.hidden_channels} channels, {config.num_layers} interaction layers"
    kind = f"{type(model).__name__} of {symbols_of(config.elements)}, {sizes}"
    counts = f"{len(parts.train)} to train on, {len(parts.valid)} to validate with"
    facts = [
        f"{origin}: {kind}, cutoff {config.cutoff_upper:g} Å.",
        f"Data: {', '.join(data.files)}; {counts}, {len(parts.test)} to test with{replayed}.",
    ]
    if model.learned is not None and model.learned.is_in_vacuum:
        facts.append("All are molecules and clusters in vacuum, from which no density follows.")
    return facts
