"""Checks of a dispersion correction against what is known of a model's training data."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from mlff_triton._common.text import printable
from mlff_triton.checkpoints import ALIASES, hub, model_card, resolve_path, shipped_models
from mlff_triton.checkpoints.facts import FACTS
from mlff_triton.errors import DispersionWarning

WORDS = re.compile(
    r"(?<!no )(?<!without )"
    r"\b(DFT-?D[234]|D[34](\(BJ\)|BJ|\b)|VV10|MBD|XDM|GFN[12]|[wω]?B97(X|M)?-(D|V|rV)|[wω]B97M)",
    re.IGNORECASE,
)
"""Names of dispersion, and of methods that include it, in model cards."""
CARD = "README.md"


def warn_of_dispersion(model: object, method: str) -> None:
    """Warn if a dispersion correction does not fit what a model was trained on.

    Parameters
    ----------
    model : str, path or object
        The model, as a user names it. Nothing is known about the data of a loaded model.
    method : str
        Name of the correction, such as "d3bj:pbe".

    Warns
    -----
    DispersionWarning
        If the reference of the model has dispersion or calls for another correction, or if its card
        names dispersion.
    """
    doubt = _doubt(model, method) if isinstance(model, str | Path) else ""
    if doubt:
        warnings.warn(doubt, DispersionWarning, stacklevel=2)


def _doubt(model: str | Path, method: str) -> str:
    facts, shown = FACTS.get(_name_of(model)), printable(model)
    if facts is None:
        word = dispersion_in_card(resolve_path(model))
        if not word:
            return ""
        return (
            f"the card of {shown} names {word}: if its training data have dispersion, leave "
            f"{method} out, as it would count twice"
        )
    if not facts.lacks_dispersion:
        return (
            f"the training data of {shown} have dispersion ({facts.dispersion}): leave {method} "
            "out, as it would count twice"
        )
    if facts.dispersion != method:
        return f"the training data of {shown} call for {facts.dispersion}, not for {method}"
    return ""


def _name_of(model: str | Path) -> str:
    """Return the name of a model that may be given by its address or its file."""
    if str(model) in ALIASES:
        return ALIASES[str(model)]
    on_hub = hub.find(str(model))
    for name, known in hub.NAMED.items():
        if known == on_hub:
            return name
    names = {file: name for name, file in shipped_models().items()}
    return names.get(Path(model), str(model))


def dispersion_in_card(path: Path) -> str:
    """Return the dispersion, or a method with dispersion, that a model card names, or nothing."""
    found = WORDS.search(_card(path))
    return found[0] if found else ""


def _card(path: Path) -> str:
    """Return the description of a model from its file, from beside it, or from its folder."""
    if path.is_dir() or path.name == "model.json":
        text, beside = "", (path if path.is_dir() else path.parent) / CARD
    else:
        text, beside = model_card(path), path.with_suffix(".md")
    if beside.is_file():
        with beside.open(encoding="utf-8", errors="replace") as file:
            text += "\n" + file.read(hub.MAX_CARD_CHARACTERS)
    return text
