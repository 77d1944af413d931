"""Loading of checkpoints: recognize the format, read it safely, build a `TensorNet`."""

from __future__ import annotations

import io
import os
import zipfile
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from mlff_triton._common.text import short_repr, shortened
from mlff_triton._common.torch_settings import (
    check_not_transformed,
    kept_random_state,
    with_own_settings,
)
from mlff_triton.checkpoints import hub, matgl, torchmd_net
from mlff_triton.checkpoints._pickles import unpickle
from mlff_triton.checkpoints._reading import (
    SUPPORTED,
    interpreting,
    read_file,
    read_json,
    read_zip,
)
from mlff_triton.checkpoints.native import model_card, read_native, save_model
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import with_coulomb
from mlff_triton.units import ENERGY_UNITS

__all__ = [
    "lasting_name",
    "load_model",
    "loaded",
    "model_card",
    "resolve_path",
    "save_model",
    "shipped_models",
]

DEFAULT_MODEL, CHARGED_MODEL = "tensornet-wb97m", "tensornet2-wb97m"
ALIASES = {"default": DEFAULT_MODEL, "default-charged": CHARGED_MODEL}
"""Names whose models may be others in another version of the package."""
MAX_MEMBERS = 64  # of an ensemble


@with_own_settings
def load_model(
    model: str | Path,
    energy_unit: str | None = None,
    coulomb_cutoff: float | None = None,
    *,
    coulomb: str | None = None,
    pme_error: float | None = None,
    add_references: bool = False,
) -> TensorNet | Ensemble:
    """Load a model from a file or a folder, or by name.

    The format is recognized by content, not by file name. No code in a checkpoint is ever executed.
    Checksums are verified, and files, weights and architectures have limits: see
    ``docs/checkpoints.md``.

    Parameters
    ----------
    model : str or path
        ``"default"``, ``"default-charged"``, another name in `shipped_models`, or the path of a
        checkpoint: an mlff_triton ``.safetensors`` file; a TorchMD-NET ``.ckpt`` file, or a
        ``.zip`` of several, which becomes an `Ensemble`; a MatGL folder or its ``model.json``.
        ``"aceff-2.0"``, another name that ``mlff-triton models`` lists, or
        ``"hf:owner/repository/file"`` is fetched once from the Hugging Face Hub, with
        huggingface_hub.
    energy_unit : {"eV", "Hartree", "kcal/mol", "kJ/mol"}, optional
        Energy unit in which a TorchMD-NET model was trained. Only files with a ZBL prior record it;
        by default, it is the recorded unit, or eV. The loaded model always returns eV.
    coulomb_cutoff : float, optional
        Cutoff in Å of the Coulomb energy of a TensorNet2, with a reaction field beyond it, as
        periodic boxes require, or of the sum over pairs of particle-mesh Ewald. By default, the
        cutoff of the file; if it has none, all pairs of atoms interact.
    coulomb : {"all-pairs", "reaction-field", "pme"}, optional
        Coulomb energy of a TensorNet2: of all pairs of atoms, within the cutoff with a reaction
        field, or of all periodic images by particle-mesh Ewald (PME). By default, as in the file,
        or the reaction field if a cutoff is given. See ``docs/charges.md``.
    pme_error : float, optional
        Relative error of the Coulomb forces by PME; 1e-4 by default.
    add_references : bool
        If True, a TorchMD-NET model that was trained without the energies of atoms
        (``--remove-ref-energy``) returns total energies, with those of its file.

    Returns
    -------
    TensorNet or Ensemble
        On the CPU, in evaluation mode, in float64 if the file is in float64, otherwise in float32.
        A TensorNet may be a `TensorNet2`.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated or damaged, too large for a model, or would run code when
        loaded, or if it cannot be fetched.
    UnsupportedModelError
        If the file is valid, but contains a model that is not implemented, or no energies of atoms
        to add.
    InputError
        If the energy unit or the kind of Coulomb energy is unknown, ``model`` is neither a name nor
        a path, or the model has no Coulomb energy to change.

    Warns
    -----
    CheckpointWarning
        If the file has a box of its own, a list of priors without their arguments, or a recorded
        unit of energy other than the given one.

    Examples
    --------
    >>> load_model("default").config.num_layers
    2
    """
    check_not_transformed()
    if energy_unit is not None and energy_unit not in ENERGY_UNITS:
        raise InputError(
            f"energy_unit={energy_unit!r} is unknown: use one of {', '.join(ENERGY_UNITS)}"
        )
    path = resolve_path(model)
    # Modules draw initial weights, which the weights of the file replace.
    with interpreting(str(path)), kept_random_state():
        found = _load(path, energy_unit, add_references=add_references)
    if coulomb is None and coulomb_cutoff is None and pme_error is None:
        return found
    return with_coulomb(found, coulomb, coulomb_cutoff, pme_error)


def loaded(model: str | Path | TensorNet | Ensemble) -> TensorNet | Ensemble:
    """Return a loaded model unchanged, or load it by `load_model`."""
    return model if isinstance(model, (TensorNet, Ensemble)) else load_model(model)


def shipped_models() -> dict[str, Path]:
    """Return the names and files of the models included in the package, `ALIASES` first."""
    folder = Path(str(resources.files("mlff_triton"))) / "weights"
    found = {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
    return {name: found[name] for name in ALIASES.values()} | found


def resolve_path(model: str | Path) -> Path:
    """Return the file or folder of a name or path. Models on the Hub are fetched into its cache.

    Raises
    ------
    CheckpointError
        If there is no such file or folder, or it cannot be fetched.
    InputError
        If ``model`` is neither a name nor a path.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise InputError(f"a model is given by its name or path, not by a {type(model).__name__}")
    shipped = shipped_models()
    name = ALIASES.get(str(model), str(model))
    if name in shipped:
        return shipped[name]
    on_hub = hub.find(name)
    if on_hub is not None:
        return hub.fetch(on_hub, name)
    try:
        path = Path(model).expanduser()
        if path.exists():
            return path
        reason = ""
    except (OSError, RuntimeError) as error:  # name too long, or unknown home
        reason = f" ({getattr(error, 'strerror', None) or error})"
    known = [*ALIASES, *shipped, *hub.NAMED]
    near = " or ".join(get_close_matches(shortened(name).lower(), known))
    raise CheckpointError(
        f"there is no model {shortened(name)!r}{reason}: "
        f"{near and f'did you mean {near}? Otherwise '}give a path, {hub.ADDRESS}, or one of "
        f"{', '.join(known)}"
    )


def lasting_name(model: str | Path) -> str:
    """Return a name that means the same anywhere.

    It is the name of a shipped model, the address of a model on the Hub with its commit, or an
    absolute path. A relative path, or one of `ALIASES`, may be another model in another directory
    or version. Errors are those of `resolve_path`.
    """
    path = resolve_path(model)
    on_hub = hub.find(str(model))
    if on_hub is not None:
        return on_hub.address_of(path)
    names = {file: name for name, file in shipped_models().items()}
    return names.get(path) or str(path.absolute())


def _load(path: Path, energy_unit: str | None, *, add_references: bool) -> TensorNet | Ensemble:
    """Load a file or a folder by its content."""
    is_matgl = path.is_dir() or path.name == "model.json"
    content = b"" if is_matgl else read_file(path)
    is_native = content[8:9] == b"{"  # the length of a JSON header, then the header
    if add_references and (is_matgl or is_native):
        raise UnsupportedModelError(torchmd_net.NO_REFERENCES.format(path))
    if is_matgl:
        return _load_matgl(path if path.is_dir() else path.parent)
    if is_native:
        return read_native(content, str(path))
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise CheckpointError(
            f"{path} is truncated, not a checkpoint, or one of PyTorch before 1.6; {SUPPORTED}"
        )
    members = read_zip(content, str(path))
    names = sorted(name for name in members if name.endswith(".ckpt"))
    if not names:
        return _from_members(members, str(path), energy_unit, add_references)
    if len(names) > MAX_MEMBERS:
        raise CheckpointError(
            f"{path} contains {len(names)} checkpoints: an ensemble has at most {MAX_MEMBERS}"
        )
    models = []
    for name in names:
        title = f"{path}:{short_repr(name)}"
        with interpreting(title):
            parts = read_zip(members[name], title)
            models.append(_from_members(parts, title, energy_unit, add_references))
    return Ensemble(models)


def _load_matgl(folder: Path) -> TensorNet:
    for required in ("model.json", "state.pt"):
        if not (folder / required).exists():
            raise CheckpointError(f"{folder} has no {required}; {SUPPORTED}")
    description = read_json(read_file(folder / "model.json"), str(folder / "model.json"))
    title = str(folder / "state.pt")
    with interpreting(title):
        weights = unpickle(read_zip(read_file(folder / "state.pt"), title), title)
    if not isinstance(description, dict) or not isinstance(weights, dict):
        raise CheckpointError(f"{folder} does not contain a MatGL model; {SUPPORTED}")
    return matgl.from_files(description, weights, str(folder))


def _from_members(
    members: dict[str, bytes], name: str, energy_unit: str | None, add_references: bool
) -> TensorNet:
    content = unpickle(members, name)
    if not torchmd_net.is_torchmd_net(content):
        raise UnsupportedModelError(f"{name} is not a supported model; {SUPPORTED}")
    return torchmd_net.from_checkpoint(content, name, energy_unit, add_references=add_references)
