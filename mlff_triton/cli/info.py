"""The command ``mlff-triton info``: the architecture and the card of a model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mlff_triton.cli._shared import CoulombOption

if TYPE_CHECKING:
    from mlff_triton.model.config import TensorNetConfig
    from mlff_triton.model.prediction import Ensemble
    from mlff_triton.model.tensornet import TensorNet

MAX_CARD_CHARACTERS = 100_000
MAX_SHOWN_CHARACTERS = 2_000


def info(
    model: Annotated[str, typer.Argument(help="Shipped model or checkpoint.")],
    coulomb: CoulombOption = None,
) -> None:
    """Describe a model."""
    from mlff_triton._common.text import printable
    from mlff_triton.checkpoints import load_model, resolve_path

    path = resolve_path(model)
    loaded = load_model(model, coulomb=coulomb)
    console = Console()
    title = Text(printable(path.name))
    table = Table(Column(style="bold"), "", title=title, show_header=False)
    for key, value in [*_description(path, loaded), *_facts(model, path)]:
        table.add_row(key, Text(printable(value)))
    console.print(table)
    card = _card_paragraph(path)
    if card:
        console.print(printable(card), markup=False, highlight=False, emoji=False)


def _description(path: Path, model: TensorNet | Ensemble) -> list[tuple[str, str]]:
    """Return the rows of the table; an ensemble is described by its first member."""
    from mlff_triton.model.config import SYMBOLS
    from mlff_triton.model.prediction import Ensemble, members_of

    members = members_of(model)
    first = members[0]
    config = first.config
    symbols = [SYMBOLS[number] for number in config.elements]
    references = zip(symbols, first.references.tolist(), strict=True)
    zbl = " and ".join(f"ZBL within {zbl.cutoff:g} Å" for zbl in config.repulsions) or "none"
    folder = path if path.is_dir() else path.parent
    is_matgl = path.is_dir() or path.name == "model.json"
    files = [folder / "model.json", folder / "state.pt"] if is_matgl else [path]
    rows = [
        ("file", str(path)),
        ("size", f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"),
        ("variant", _variant(config)),
        ("elements", " ".join(symbols)),
        ("cutoff", f"{config.cutoff_lower:g} to {config.cutoff_upper:g} Å"),
        ("channels F", str(config.hidden_channels)),
        ("layers", str(config.num_layers)),
        ("radial basis", f"{config.num_rbf} {config.rbf_type}"),
        ("activation", config.activation),
        ("group", config.group),
        ("head", config.head),
        ("priors", zbl),
        *_charge_rows(config),
        ("uncertainty", _uncertainty(model)),
        ("parameters", f"{sum(p.numel() for p in first.parameters()):,} ({first.dtype})"),
        ("std", f"{first.std.item():.6g} eV"),
        ("mean", f"{first.mean.item():.6g} eV"),
        ("references", _in_ev(dict(references))),
        *_left_out_rows(path, first),
    ]
    if isinstance(model, Ensemble):
        rows.insert(2, ("ensemble", f"{len(members)} members; the rows below describe the first"))
    return rows


def _facts(model: str, path: Path) -> list[tuple[str, str]]:
    """Return what is known of the training of a model; the elements are described already."""
    from mlff_triton.checkpoints import ALIASES
    from mlff_triton.checkpoints.dispersion import dispersion_in_card
    from mlff_triton.checkpoints.facts import FACTS

    facts = FACTS.get(ALIASES.get(model, model))
    if facts is not None:
        return [row for row in facts.rows() if row[0] != "elements"]
    word = dispersion_in_card(path)
    known = f"its card names {word}" if word else "not known"
    return [("dispersion", f"{known}; --dispersion adds what the training data lack")]


def _left_out_rows(path: Path, model: TensorNet) -> list[tuple[str, str]]:
    """Return the row of energies of atoms that are in a file, but not in the model's energy."""
    from mlff_triton.checkpoints import load_model
    from mlff_triton.errors import UnsupportedModelError
    from mlff_triton.model.config import SYMBOLS
    from mlff_triton.model.prediction import members_of

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown for the model
            total = members_of(load_model(path, add_references=True))[0]
    except UnsupportedModelError:
        return []
    left_out = (total.references[: len(model.references)] - model.references).tolist()
    symbols = [SYMBOLS[number] for number in model.config.elements]
    energies = _in_ev(dict(zip(symbols, left_out, strict=False)))
    return [("left out", f"{energies}: the model was trained without them; convert adds them")]


def _in_ev(references: dict[str, float]) -> str:
    """List the reference of each element, of those that have one."""
    found = [f"{symbol} {value:.4f}" for symbol, value in references.items() if value]
    return f"{', '.join(found)} eV" if found else "none"


def _variant(config: TensorNetConfig) -> str:
    from mlff_triton.model.config import TensorNet2Config

    name = "TensorNet2" if isinstance(config, TensorNet2Config) else "TensorNet"
    return f"{'TorchMD-NET' if config.self_loops else 'MatGL'} {name}"


def _uncertainty(model: TensorNet | Ensemble) -> str:
    """Say whether a model knows the error of the force on each atom."""
    if not model.has_uncertainty:
        return "not known; mlff-triton train makes models that know it"
    limit = model.uncertainty_limit
    above = "" if limit is None else f", unusual above {limit:.3g} eV/Å"
    return f"expected force error of each atom{above}"


def _charge_rows(config: TensorNetConfig) -> list[tuple[str, str]]:
    """Return the rows that only a TensorNet2 has."""
    from mlff_triton.model.config import TensorNet2Config

    if not isinstance(config, TensorNet2Config):
        return []
    coulomb = {
        None: "none",
        "all-pairs": "all pairs, not for periodic boxes",
        "reaction-field": f"within {config.coulomb_cutoff} Å, with a reaction field",
        "pme": f"particle-mesh Ewald, error {config.pme_error}, pairs to {config.coulomb_cutoff} Å",
    }
    floor = f", least weight {config.softness_floor:g}" if config.softness_floor else ""
    return [
        ("charges", f"{config.charge_channels} per atom and layer{floor}"),
        ("Coulomb energy", coulomb[config.coulomb_method]),
        ("repulsion", "within bonds" if config.repulsion else "none"),
    ]


def _card_paragraph(path: Path) -> str:
    """Return the first paragraph of a model's card, stored in the file or beside it as Markdown."""
    from mlff_triton.checkpoints import model_card

    beside = path.resolve().with_suffix(".md")
    text = model_card(path)
    if not text and beside.is_file():
        with beside.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CARD_CHARACTERS)
    prose = [part.strip() for part in text.split("\n\n") if not part.lstrip().startswith("#")]
    return " ".join(next((part for part in prose if part), "").split())[:MAX_SHOWN_CHARACTERS]
