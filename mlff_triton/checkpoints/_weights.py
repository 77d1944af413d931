"""Shared by the readers of checkpoints: safe unpickling, tensor order, strict loading."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.model.tensornet import TensorNet


def read_pickle(file: Path | IO[bytes], name: str) -> Any:
    """Unpickle tensors and plain containers, and refuse anything that would run code.

    Parameters
    ----------
    file : path or binary file
        File that `torch.load` can read.
    name : str
        Name of the file in error messages.

    Returns
    -------
    object
        Tensors, numbers and strings in dicts and lists.

    Raises
    ------
    CheckpointError
        If the file is truncated, is not a checkpoint, or contains anything but tensors and plain
        data.
    """
    try:
        # PyTorch infers the format of a path from its suffix, but that of a file from its content.
        if isinstance(file, Path):
            file = io.BytesIO(file.read_bytes())
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{name} is not a plain checkpoint of tensors and numbers, so it was not loaded: "
            f"{_first_line(error)}"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error
    except Exception as error:  # damaged files make the reader raise errors of any type
        raise CheckpointError(
            f"{name} is truncated or corrupt ({_first_line(error)}): copy it again"
        ) from error


@contextmanager
def interpreting(name: str) -> Iterator[None]:
    """Turn any error in the interpretation of a file's content into one that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except InputError as error:
        raise UnsupportedModelError(
            f"{name} does not describe a supported model: {error}"
        ) from error
    except KeyError as error:
        raise CheckpointError(f"{name} lacks {error}: the file may be incomplete") from error
    except (
        ArithmeticError,
        AttributeError,
        IndexError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(
            f"{name} does not have the content of such a checkpoint ({_first_line(error)}): "
            "copy it again"
        ) from error


class ForeignWeights(dict[str, Tensor]):
    """Weights by their original names, which keep track of those never read."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self.unread = set(weights)

    def __getitem__(self, key: str) -> Tensor:
        self.unread.discard(key)
        return super().__getitem__(key)

    def check_all_read(self, ignored: str, name: str) -> None:
        """Raise `CheckpointError` if a weight was not read and does not match ``ignored``."""
        extra = sorted(key for key in self.unread if not re.fullmatch(ignored, key))
        if extra:
            raise CheckpointError(f"{name} contains weights that its model does not have: {extra}")


def interleaved_to_blocks(weight: Tensor) -> Tensor:
    """Reorder the rows of a weight [3 F, K] or a bias [3 F] from [F, 3] to [3, F]."""
    return weight.reshape(-1, 3, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape)


def stack_linears(theirs: Mapping[str, Tensor], block: str, indices: tuple[int, ...]) -> Tensor:
    """Stack the weights of three ``linears_tensor`` into one `IrrepLinear` weight [3, F, F]."""
    return torch.stack([theirs[f"{block}.linears_tensor.{m}.weight"] for m in indices])


def load_weights(model: TensorNet, state: Mapping[str, Tensor], name: str) -> None:
    """Copy weights by name, or raise `CheckpointError` unless names and shapes match exactly."""
    own = {k: v for k, v in model.state_dict().items() if k not in ("std", "mean", "references")}
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        raise CheckpointError(
            f"{name} does not match its own description: missing {missing or 'nothing'}, "
            f"unexpected {extra or 'nothing'}"
        )
    for key, value in own.items():
        if value.shape != state[key].shape:
            raise CheckpointError(
                f"{name}: {key} has shape {list(state[key].shape)}, expected {list(value.shape)}"
            )
        if not torch.isfinite(state[key]).all():
            raise CheckpointError(f"{name}: {key} contains NaN or infinity")
    model.load_state_dict(dict(state), strict=False)


def set_energy_scale(
    model: TensorNet, std: Tensor, mean: Tensor, references: Tensor, name: str
) -> None:
    """Set the energy scale, float64 in eV, or raise `CheckpointError` if it is invalid."""
    for key, value in (("std", std), ("mean", mean), ("references", references)):
        shape = getattr(model, key).shape
        if value.numel() != shape.numel() or not torch.isfinite(value).all():
            raise CheckpointError(
                f"{name}: {key} must be {shape.numel()} finite numbers, not {value.tolist()}"
            )
        setattr(model, key, value.double().reshape(shape))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
