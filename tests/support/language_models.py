"""Tiny language models of proteins, padded batches for them, and how their outputs must agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.testing import assert_within

SEQUENCES, LENGTH = 3, 17
AMINO_ACIDS = range(5, 24)  # their tokens, in all vocabularies here
MASK_TOKEN = 32  # of ESM

KEPT: dict[str, list[slice] | None] = {
    "no mask": None,
    "all ones": [slice(None), slice(None), slice(None)],
    "padding right": [slice(None), slice(11), slice(8)],
    "padding left": [slice(None), slice(6, None), slice(9, None)],
    "one token": [slice(None), slice(1), slice(8)],
}
"""Which tokens of each sequence there are."""

COSINE = {"fp16": 0.99999, "bf16": 0.999}
MARGIN = 1e-3  # that the first token must have over the second one, to stay the first


def randomize(model: nn.Module, device: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Weights that keep numbers near 1, none of them 0 or 1; to evaluate."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data = noise / parameter.shape[-1] ** 0.5
        else:
            parameter.data += 0.1 * noise
    return model.to(device, dtype).eval().requires_grad_(False)


def mask_of(kind: str, device: str) -> Tensor | None:
    """int64 [B, L]: 1 where there is a token."""
    kept = KEPT[kind]
    if kept is None:
        return None
    mask = torch.zeros(SEQUENCES, LENGTH, dtype=torch.int64)
    for row, tokens in zip(mask, kept, strict=True):
        row[tokens] = 1
    return mask.to(device)


def tokens_of(kind: str, device: str, padding: int, masked: bool = False) -> Tensor:
    """int64 [B, L]: random amino acids, some of them masked; every sequence of more than one is."""
    generator = torch.Generator().manual_seed(1)
    first, last = AMINO_ACIDS[0], AMINO_ACIDS[-1] + 1
    ids = torch.randint(first, last, (SEQUENCES, LENGTH), generator=generator)
    if masked:
        ids[0, 3] = ids[1, 7] = ids[2, 1] = ids[2, 10] = MASK_TOKEN
    mask = mask_of(kind, "cpu")
    return (ids if mask is None else ids.masked_fill(mask == 0, padding)).to(device)


def valid(values: Tensor, mask: Tensor | None) -> Tensor:
    """What values [B, L, ...] are where there is a token, [T, ...]."""
    return values.flatten(0, 1) if mask is None else values[mask != 0]


def assert_same(found: Tensor, expected: Tensor, precision: str) -> None:
    """Assert that rows [T, N] agree as far as the precision allows."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    found, expected = found.double().cpu(), expected.double().cpu()
    if precision == "fp64":
        assert_within(found, expected, 1e-6)  # ESM has factors that are float32 whatever happens
    elif precision == "fp32":
        assert (found - expected).abs().max() <= 1e-5
    else:
        assert torch.equal(found.any(-1), expected.any(-1))  # masked tokens may be zero
        cosine = nn.functional.cosine_similarity(found, expected, dim=-1)
        assert cosine[expected.any(-1)].min() >= COSINE[precision]


def assert_same_first(found: Tensor, expected: Tensor, in_half: Tensor | None = None) -> None:
    """Assert that logits [T, V] prefer the same tokens wherever those expected are clear.

    In half precision the model's own logits are off by more than `MARGIN`. Then ours must be off by
    less, and what counts as clear is what neither of them can change.
    """
    margin = MARGIN
    if in_half is not None:
        off = in_half.to(expected.dtype) - expected
        assert (found - expected).square().mean() <= off.square().mean()
        margin = max(margin, 2 * float(off.abs().max()))
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > margin
    assert clear.double().mean() > 0.5
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


def attributes(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What each module's ``__dict__`` holds, containers copied."""
    copied = (dict, list, set)
    return {
        path: {n: v.copy() if isinstance(v, copied) else v for n, v in vars(module).items()}
        for path, module in model.named_modules()
    }
