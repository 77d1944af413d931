"""Windows of atoms in Boltz-2, and an adapter for transformers that attend within them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.models.boltz.diffusion import is_transformer
from mlff_triton.bio.models.boltz.modules import SOURCES
from mlff_triton.bio.models.boltz.weights import DIFFUSION_WATCHED, diffusion_layers
from mlff_triton.bio.models.structure.autocast import AutocastForward
from mlff_triton.bio.models.structure.diffusion import (
    DiffusionWeights,
    layered_biases,
    update_samples,
)
from mlff_triton.bio.models.structure.mask_check import has_other_values
from mlff_triton.errors import InputError

WINDOWS = ("attn_window_queries", "attn_window_keys")
"""Attributes of a transformer of atoms that are read here."""

_SIDES = (16, 32, 64, 128)

Problems = dict[str, Tensor]
"""Reasons for refusals, and whether they apply."""


def windows(atoms: Tensor, queries: int, keys: int) -> Tensor:
    """Return the keys [B, W, T] of windows of atoms [B, M], with zeros beyond both ends."""
    beyond = (keys - queries) // 2
    found: Tensor = pad(atoms, (beyond, beyond)).unfold(1, keys, queries)
    return found


def window_problems(
    transformer: Any, to_keys: Callable[[Tensor], Tensor], mask: Tensor
) -> Problems:
    """Return problems with the windows that ``to_keys`` takes from atoms with a mask [B, M]."""
    dtype = next(transformer.parameters()).dtype
    queries, keys = transformer.attn_window_queries, transformer.attn_window_keys
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=dtype)
    places = places.expand(len(mask), -1)
    expected = windows(places, queries, keys)
    found = to_keys(places[..., None].contiguous()).squeeze(-1)
    are_same = found.shape == expected.shape and (found == expected).all()
    return {
        "a mask has values other than 0 and 1": has_other_values(mask),
        "a window of atoms is all padding": (windows(mask.float(), queries, keys) == 0)
        .all(-1)
        .any(),
        "the keys of windows are not those of Boltz-2": ~torch.as_tensor(
            are_same, device=mask.device
        ),
    }


def first_problem(problems: Problems) -> str | None:
    """Return the first reason that applies. The host waits for it."""
    flags = torch.stack(list(problems.values())).tolist()
    return next((reason for reason, applies in zip(problems, flags, strict=True) if applies), None)


def check_sides(transformer: Any) -> None:
    """Check that kernels support the windows of a transformer.

    Raises
    ------
    InputError
        If the windows have other numbers of queries or keys.
    """
    sides = transformer.attn_window_queries, transformer.attn_window_keys
    if any(side not in _SIDES for side in sides) or sides[0] > sides[1]:
        raise InputError("windows of atoms do not have 16, 32, 64 or 128 queries and keys")


def is_atom_transformer(module: Any) -> bool:
    """Return True for a transformer of atoms whose layers have the known structure."""
    names = [name for name, _ in module.named_children()]
    is_known = type(module).__name__ == "AtomTransformer" and names == ["diffusion_transformer"]
    return is_known and is_transformer(module.diffusion_transformer)


class BoltzAtomForward(AutocastForward[DiffusionWeights]):
    """Transformer of atoms within windows, as in the input embedder."""

    supported = "the transformer of atoms of Boltz-2"
    watches = (*DIFFUSION_WATCHED, *WINDOWS)
    announces = False

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a transformer of atoms of Boltz-2 with its own classes throughout."""
        is_known = is_unmodified(module, *SOURCES) and is_atom_transformer(module)
        return is_known and hasattr(module.diffusion_transformer, "pair_bias_attn")

    def read(self) -> DiffusionWeights:
        """Read the present weights."""
        check_sides(self.module)
        layers = diffusion_layers(self.module.diffusion_transformer)
        return DiffusionWeights.of(layers, self.dtype, self.backend)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs of unexpected shapes, dtypes or devices, and unusual masks and windows."""
        names, given = ("q", "c", "bias", "mask"), dict(arguments)
        if self.parameter.dtype != torch.float32:
            return "its parameters are not float32; use the precision option of bio.accelerate"
        if not all(isinstance(given.get(name), Tensor) for name in names):
            return "atoms, conditions, biases or the mask are not tensors"
        q, mask = given["q"], given["mask"]
        queries, keys = self.module.attn_window_queries, self.module.attn_window_keys
        samples, n = q.shape[:2]
        count = arguments.get("multiplicity", 1)
        if not q.numel() or n % queries or type(count) is not int or count < 1 or samples % count:
            return "there are no atoms, or the numbers of samples or windows are not whole"
        windows = (samples // count, n // queries, queries, keys)
        for name, shape in {"c": (samples, n), "mask": (samples, n), "bias": windows}.items():
            if given[name].shape[: len(shape)] != shape:
                return f"{name} does not have the size of the atoms"
        if any(given[name].device != self.parameter.device for name in names):
            return "inputs and parameters are on different devices"
        to_keys = arguments.get("to_keys")
        if not callable(to_keys):
            return "there is no function that finds keys"
        with self.without_autocast():
            return first_problem(window_problems(self.module, to_keys, mask))

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Tensor:
        """Return updated atoms [B R, M, A]."""
        del begun
        q, c, bias, mask = (arguments[name] for name in ("q", "c", "bias", "mask"))
        count, dtype, weights = arguments.get("multiplicity", 1), self.dtype, self.weights
        rows = torch.float32 if self.backend == "triton" else dtype
        with self.without_autocast():
            x = update_samples(
                pair_operators(self.backend),
                weights,
                q.to(rows, copy=True).contiguous().unflatten(0, (-1, count)),
                c.to(rows).unflatten(0, (-1, count)),
                layered_biases(bias, len(weights.layers), dtype),
                mask.to(rows).unflatten(0, (-1, count)),
            )
        return x.flatten(0, 1).to(q.dtype)
