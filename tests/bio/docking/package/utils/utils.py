"""Models, as structural doubles."""

from __future__ import annotations

from typing import Any

from tests.bio.docking.complexes import kept_model


def get_model(
    args: Any, device: Any, t_to_sigma: Any, no_parallel: bool, confidence_mode: bool, old: bool
) -> Any:
    """Return a model without weights."""
    assert no_parallel
    model = kept_model("CGOldModel" if old else "CGModel", confidence_mode)
    model.t_to_sigma, model.device = t_to_sigma, str(device)
    assert model.ns == args.ns
    return model
