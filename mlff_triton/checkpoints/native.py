"""Our own checkpoints: one safetensors file, its architecture as JSON in the metadata."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from mlff_triton.checkpoints._weights import interpreting, load_weights, set_energy_scale
from mlff_triton.errors import CheckpointError, InputError, OutputError, UnsupportedModelError
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet

FORMAT = "mlff_triton.tensornet.1"
SCALE = ("std", "mean", "references")


def save_model(model: TensorNet | Ensemble, path: str | Path, card: str = "") -> None:
    """Write a model as safetensors; the file appears whole or not at all.

    Parameters
    ----------
    model : TensorNet
        The model; an `Ensemble` must be saved member by member.
    path : path
        Where to write; the usual suffix is ``.safetensors``.
    card : str
        A description to keep in the file: data, errors, limits.

    Raises
    ------
    InputError
        If the model is an ensemble.
    OutputError
        If the file cannot be written.
    """
    if not isinstance(model, TensorNet):
        raise InputError("only a single TensorNet can be saved: save the members one by one")
    target = Path(path)
    metadata = {
        "format": FORMAT,
        "config": json.dumps(dataclasses.asdict(model.config)),
        "card": card,
    }
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    blob = safetensors.torch.save(tensors, metadata)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            partial = Path(folder) / target.name
            partial.write_bytes(blob)
            partial.replace(target)
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}") from error


def read_native(path: Path) -> TensorNet:
    """Read what `save_model` wrote.

    Raises
    ------
    CheckpointError
        If the file is truncated or was not written by `save_model`.
    UnsupportedModelError
        If it is of a later format.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is no sound safetensors file ({error})") from error
    if metadata.get("format") != FORMAT:
        raise UnsupportedModelError(
            f"{path} has format {metadata.get('format')!r}, expected {FORMAT!r}: "
            "write it with mlff_triton.save_model"
        )
    with interpreting(str(path)):
        model = TensorNet(_config(metadata)).to(state["embedding.pair.weight"].dtype)
        load_weights(model, {k: v for k, v in state.items() if k not in SCALE}, str(path))
        std, mean, references = (state[name] for name in SCALE)
        set_energy_scale(model, std, mean, references, str(path))
        return model.eval()


def model_card(path: Path) -> str:
    """The description kept in a native checkpoint; empty for other files."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("card", ""))
    except (safetensors.SafetensorError, OSError):
        return ""


def _config(metadata: dict[str, str]) -> TensorNetConfig:
    fields: dict[str, Any] = json.loads(metadata["config"])
    fields["elements"] = tuple(fields["elements"])
    if fields.get("zbl"):
        zbl = fields["zbl"]
        zbl["charges"] = None if zbl["charges"] is None else tuple(zbl["charges"])
        fields["zbl"] = ZBLConfig(**zbl)
    return TensorNetConfig(**fields)
