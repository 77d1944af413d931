"""Noise."""

from __future__ import annotations

from typing import Any


def t_to_sigma(t_tr: Any, t_rot: Any, t_tor: Any, args: Any) -> tuple[Any, ...]:
    """Return noise levels of times."""
    return tuple(
        getattr(args, f"{kind}_sigma_min") ** (1 - t) * getattr(args, f"{kind}_sigma_max") ** t
        for kind, t in (("tr", t_tr), ("rot", t_rot), ("tor", t_tor))
    )
