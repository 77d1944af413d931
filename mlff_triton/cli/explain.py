"""The command ``mlff-triton explain``: the backend that would be chosen, and the reasons."""

from __future__ import annotations

from typing import Annotated

import typer

from mlff_triton.cli._shared import (
    CoulombOption,
    DeviceOption,
    DispersionOption,
    DtypeOption,
    plain_console,
)


def explain(
    model: Annotated[str, typer.Argument(help="Shipped model or checkpoint.")] = "default",
    coulomb: CoulombOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    atoms: Annotated[
        int | None, typer.Option(min=1, help="Number of atoms to predict times for.")
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(min=1, help="Number of evaluations to expect; many by default."),
    ] = None,
    dispersion: DispersionOption = None,
) -> None:
    """Explain which backend would run a model on this machine, and why."""
    from mlff_triton._common.devices import find_device, find_dtype
    from mlff_triton.checkpoints import load_model
    from mlff_triton.checkpoints.dispersion import warn_of_dispersion
    from mlff_triton.dispersion.correction import IN_SIMULATIONS, Dispersion
    from mlff_triton.engine import dispatch

    found = find_device(device)
    correction = None
    if dispersion is not None:
        correction = Dispersion(dispersion, found, find_dtype(dtype))
        warn_of_dispersion(model, correction.method)
    n_atoms = dispatch.TYPICAL_ATOMS if atoms is None else atoms
    loaded = load_model(model, coulomb=coulomb)
    reasons = dispatch.explain(loaded, found, find_dtype(dtype), n_atoms, calls)
    energy = "" if coulomb is None else f" with coulomb={coulomb}"
    plain_console().print(f"{model}{energy} in {dtype} on {found}:\n{reasons}")
    if correction is not None:
        plain_console().print(f"{correction}\nin simulations, {IN_SIMULATIONS}")
