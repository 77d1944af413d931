"""The package's own checkpoints: safetensors files with the architecture as JSON metadata."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from mlff_triton._common.files import replace_file
from mlff_triton.checkpoints._weights import interpreting, load_weights, set_energy_scale
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet

FORMAT = "mlff_triton.tensornet.1"
SCALE = ("std", "mean", "references")


def save_model(model: TensorNet | Ensemble, path: str | Path, card: str = "") -> None:
    """Write a model to a safetensors file, completely or not at all.

    Parameters
    ----------
    model : TensorNet
        The model. The members of an `Ensemble` must be saved one by one.
    path : path
        File to write, usually with the suffix ``.safetensors``. An existing file is replaced.
    card : str
        Model card to store in the file, a description of data, errors and limits.

    Raises
    ------
    InputError
        If the model is an ensemble.
    OutputError
        If the file cannot be written.

    Examples
    --------
    >>> from mlff_triton import load_model, save_model
    >>> save_model(load_model("default"), "copy.safetensors")  # doctest: +SKIP
    """
    if not isinstance(model, TensorNet):
        raise InputError("only a single TensorNet can be saved: save the members one by one")
    metadata = {
        "format": FORMAT,
        "config": json.dumps(dataclasses.asdict(model.config)),
        "card": card,
    }
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    replace_file(Path(path), safetensors.torch.save(tensors, metadata))


def read_native(path: Path) -> TensorNet:
    """Read a file written by `save_model`.

    Raises
    ------
    CheckpointError
        If the file is truncated or corrupt.
    UnsupportedModelError
        If the file has another format.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a valid safetensors file ({error})") from error
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
    """Return the model card stored in a file by `save_model`, or an empty string."""
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
