"""The command ``mlff-triton convert``: any supported checkpoint to safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlff_triton._common.files import check_new
from mlff_triton.cli._shared import CoulombOption, OverwriteOption, plain_console
from mlff_triton.errors import InputError


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Checkpoint in a supported format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .safetensors file to write.")],
    energy_unit: Annotated[
        str | None,
        typer.Option(
            help="Energy unit that a TorchMD-NET model was trained in: eV, Hartree, kcal/mol or "
            "kJ/mol; by default that which IN records, or eV."
        ),
    ] = None,
    coulomb_cutoff: Annotated[
        float | None,
        typer.Option(
            help="Cutoff of the Coulomb energy of a TensorNet2 in Å, which periodic boxes require; "
            "by default that of IN."
        ),
    ] = None,
    coulomb: CoulombOption = None,
    pme_error: Annotated[
        float | None,
        typer.Option(
            help="Error of the Coulomb forces by pme, relative to them; by default that of IN, or "
            "1e-4."
        ),
    ] = None,
    add_references: Annotated[
        bool,
        typer.Option(
            "--add-references",
            help="Add the energies of atoms that a TorchMD-NET model was trained without.",
        ),
    ] = False,
    card: Annotated[
        Path | None, typer.Option(help="Text file to store in OUT as the model card.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Convert a checkpoint to mlff_triton's safetensors format, with energies in eV."""
    from mlff_triton.checkpoints import load_model, model_card, resolve_path, save_model

    check_new(target, overwrite)
    loaded = load_model(
        source,
        energy_unit,
        coulomb_cutoff,
        coulomb=coulomb,
        pme_error=pme_error,
        add_references=add_references,
    )
    save_model(loaded, target, _text(card) if card else model_card(resolve_path(source)))
    plain_console().print(f"wrote {target}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} as text: {error}") from error
