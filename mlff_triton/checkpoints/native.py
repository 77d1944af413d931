"""The package's own checkpoints: safetensors files with the architecture as JSON metadata.

The metadata also holds a digest of everything else in the file, because the format has no
checksums.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch

from mlff_triton._common.files import path_of, replace_file
from mlff_triton._common.text import short_repr
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.checkpoints._reading import read_file, read_json
from mlff_triton.checkpoints._weights import SCALE, build_model
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig, ZBLConfig
from mlff_triton.model.known_domain import KnownDomain
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet

FORMATS: dict[str, type[TensorNetConfig]] = {
    "mlff_triton.tensornet.1": TensorNetConfig,
    "mlff_triton.tensornet2.1": TensorNet2Config,
}
MAX_HEADER_BYTES = 16 << 20
MAX_CARD_CHARACTERS = 1 << 20


@with_own_settings
def save_model(model: TensorNet | Ensemble, path: str | Path, card: str = "") -> None:
    """Write a model to a safetensors file, completely or not at all.

    Parameters
    ----------
    model : TensorNet
        The model, which may be a `TensorNet2`. The members of an `Ensemble` must be saved one by
        one.
    path : path
        File to write, usually with the suffix ``.safetensors``. An existing file is replaced.
    card : str
        Model card to store in the file: a description of data, errors and limits.

    Raises
    ------
    InputError
        If the model is an ensemble, ``path`` is not a path, or the card has more than a million
        characters.
    OutputError
        If the file cannot be written.

    Examples
    --------
    >>> from mlff_triton import load_model, save_model
    >>> save_model(load_model("default"), "copy.safetensors")  # doctest: +SKIP
    """
    if isinstance(model, Ensemble):
        raise InputError("only a single TensorNet can be saved: save the members one by one")
    if not isinstance(model, TensorNet):
        raise InputError(
            f"a {type(model).__name__} of {type(model).__module__.partition('.')[0]} is not a "
            "TensorNet of mlff_triton: load its checkpoint with load_model, and save the result"
        )
    file = path_of(path)
    if len(card) > MAX_CARD_CHARACTERS:
        raise InputError(f"the card has {len(card)} characters: use at most {MAX_CARD_CHARACTERS}")
    metadata = {
        "format": next(name for name, kind in FORMATS.items() if type(model.config) is kind),
        "config": json.dumps(dataclasses.asdict(model.config)),
        "card": card,
    }
    if model.learned is not None:
        metadata["learned"] = json.dumps(model.learned.as_facts())
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    metadata["digest"] = _digest(*_split(safetensors.torch.save(tensors, metadata), "the model"))
    replace_file(file, safetensors.torch.save(tensors, metadata))


def read_native(content: bytes, name: str) -> TensorNet:
    """Read a file written by `save_model`.

    Parameters
    ----------
    content : bytes
        Content of the file.
    name : str
        Name of the file in error messages.

    Raises
    ------
    CheckpointError
        If the file is truncated or damaged. Older files lack the digest that reveals damage.
    UnsupportedModelError
        If the file has another format.
    """
    header, data = _split(content, name)
    metadata = header.get("__metadata__", {})
    if metadata.get("format") not in tuple(FORMATS):
        raise UnsupportedModelError(
            f"{name} has format {short_repr(metadata.get('format'))}, expected one of "
            f"{', '.join(FORMATS)}: write it with mlff_triton.save_model"
        )
    if "digest" in metadata and metadata["digest"] != _digest(header, data):
        raise CheckpointError(f"{name} is damaged, as its digest shows: copy it again")
    state = safetensors.torch.load(content)
    network = {key: value for key, value in state.items() if key not in SCALE}
    scale = {key: state[key] for key in SCALE}
    model = build_model(_config(metadata, name), network, scale, name)
    if "learned" in metadata:
        facts = read_json(metadata["learned"], f"the training in {name}")
        model.learned = KnownDomain.from_facts(facts)
    return model


def model_card(path: Path) -> str:
    """Return the model card stored in a file by `save_model`, or an empty string."""
    try:
        header, _ = _split(read_file(path), str(path))
        return str(header["__metadata__"]["card"])
    except (CheckpointError, OSError, AttributeError, LookupError, TypeError):
        return ""


def _split(content: bytes, name: str) -> tuple[dict[str, Any], memoryview]:
    """Split a safetensors file into its header and the bytes of its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    if end > min(len(content), MAX_HEADER_BYTES):
        raise CheckpointError(f"{name} is truncated, or its header is too large: copy it again")
    return read_json(content[8:end], name), memoryview(content)[end:]


def _digest(header: dict[str, Any], data: memoryview) -> str:
    """Compute the SHA-256 of names, shapes, metadata and tensors, without the digest itself."""
    metadata = {key: value for key, value in header["__metadata__"].items() if key != "digest"}
    facts = json.dumps({**header, "__metadata__": metadata}, sort_keys=True)
    digest = hashlib.sha256(facts.encode())
    digest.update(data)
    return digest.hexdigest()


def _zbl(fields: dict[str, Any]) -> ZBLConfig:
    charges = fields["charges"]
    return ZBLConfig(**{**fields, "charges": None if charges is None else tuple(charges)})


def _config(metadata: dict[str, str], name: str) -> TensorNetConfig:
    fields: dict[str, Any] = read_json(metadata["config"], f"the description in {name}")
    fields["elements"] = tuple(fields["elements"])
    zbl = fields.get("zbl")
    if zbl:
        fields["zbl"] = tuple(map(_zbl, zbl)) if isinstance(zbl, list) else _zbl(zbl)
    return FORMATS[metadata["format"]](**fields)
