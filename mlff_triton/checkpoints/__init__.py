"""Loading of checkpoints: recognize the format, read it safely, build a `TensorNet`."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

from mlff_triton.checkpoints import matgl, torchmd_net
from mlff_triton.checkpoints._weights import read_pickle
from mlff_triton.checkpoints.native import model_card, read_native, save_model
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.units import ENERGY_UNITS

__all__ = ["load_model", "model_card", "resolve_path", "save_model", "shipped_models"]

DEFAULT_MODEL = "tensornet-gfn2"
SUPPORTED = (
    "supported are mlff_triton .safetensors, TorchMD-NET .ckpt (or a .zip of them), and MatGL "
    "folders with model.json and state.pt"
)
MAX_MEMBER_BYTES = 4 << 30


def load_model(model: str | Path, energy_unit: str = "eV") -> TensorNet | Ensemble:
    """Load a model from a file or a folder, or by the name of a shipped model.

    The format is recognized by content, not by file name. No code in a checkpoint is ever executed.

    Parameters
    ----------
    model : str or path
        ``"default"``, another name in `shipped_models`, or the path of a checkpoint: an mlff_triton
        ``.safetensors`` file; a TorchMD-NET ``.ckpt`` file, or a ``.zip`` of several, which becomes
        an `Ensemble`; a MatGL folder or its ``model.json``.
    energy_unit : {"eV", "Hartree", "kcal/mol", "kJ/mol"}
        Energy unit in which a TorchMD-NET model was trained, which its file does not state. The
        loaded model always returns eV.

    Returns
    -------
    TensorNet or Ensemble
        On the CPU, in the dtype of the file, in evaluation mode.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated or corrupt, or would run code when loaded.
    UnsupportedModelError
        If the file is valid, but contains a model that is not implemented.
    InputError
        If the energy unit is unknown.

    Examples
    --------
    >>> load_model("default").config.num_layers
    2
    """
    if energy_unit not in ENERGY_UNITS:
        raise InputError(
            f"energy_unit={energy_unit!r} is unknown: use one of {', '.join(ENERGY_UNITS)}"
        )
    path = resolve_path(model)
    if path.is_dir() or path.name == "model.json":
        return _load_matgl(path if path.is_dir() else path.parent)
    with path.open("rb") as file:
        head = file.read(9)
    if head[8:9] == b"{":  # safetensors: the length of a JSON header, then the header
        return read_native(path)
    if _checkpoint_names(path):
        return _load_ensemble(path, ENERGY_UNITS[energy_unit])
    return _from_pickle(read_pickle(path, str(path)), str(path), ENERGY_UNITS[energy_unit])


def shipped_models() -> dict[str, Path]:
    """Return the names and files of the models included in the package."""
    folder = Path(str(resources.files("mlff_triton"))) / "weights"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def resolve_path(model: str | Path) -> Path:
    """Return the file or folder of a shipped model or path, or raise `CheckpointError`."""
    shipped = shipped_models()
    name = DEFAULT_MODEL if model == "default" else str(model)
    if name in shipped:
        return shipped[name]
    path = Path(model).expanduser()
    if not path.exists():
        raise CheckpointError(
            f"there is no model {str(model)!r}: give a path, or one of "
            f"{', '.join(['default', *shipped])}"
        )
    return path


def _load_matgl(folder: Path) -> TensorNet:
    for required in ("model.json", "state.pt"):
        if not (folder / required).is_file():
            raise CheckpointError(f"{folder} has no {required}; {SUPPORTED}")
    try:
        description = json.loads((folder / "model.json").read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / 'model.json'} is not JSON ({error})") from error
    weights = read_pickle(folder / "state.pt", str(folder / "state.pt"))
    if not isinstance(description, dict) or not isinstance(weights, dict):
        raise CheckpointError(f"{folder} does not contain a MatGL model; {SUPPORTED}")
    return matgl.from_files(description, weights, str(folder))


def _checkpoint_names(path: Path) -> list[str]:
    """List the Lightning checkpoints in a zip. A PyTorch file is also a zip, but contains none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sorted(name for name in archive.namelist() if name.endswith(".ckpt"))
    except (zipfile.BadZipFile, OSError):
        return []


def _load_ensemble(path: Path, energy_unit: float) -> Ensemble:
    """Load an ensemble in memory: without unpacking, no name in the archive can escape a folder."""
    members = []
    with zipfile.ZipFile(path) as archive:
        for name in _checkpoint_names(path):
            if archive.getinfo(name).file_size > MAX_MEMBER_BYTES:
                raise CheckpointError(f"{path}: {name} has more than 4 GB, too much for a model")
            try:
                blob = io.BytesIO(archive.read(name))
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
                raise CheckpointError(f"{path}: {name} is corrupt: copy it again") from error
            title = f"{path}:{name}"
            members.append(_from_pickle(read_pickle(blob, title), title, energy_unit))
    return Ensemble(members)


def _from_pickle(content: Any, name: str, energy_unit: float) -> TensorNet:
    if not torchmd_net.is_torchmd_net(content):
        raise UnsupportedModelError(f"{name} is not a supported model; {SUPPORTED}")
    return torchmd_net.from_checkpoint(content, name, energy_unit)
