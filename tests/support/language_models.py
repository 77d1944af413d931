"""Helpers for tests of tiny protein language models: weights, padded batches, comparisons."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.testing import assert_within

SEQUENCES, LENGTH = 3, 17
AMINO_ACIDS = range(5, 24)  # as tokens, in all vocabularies here
MASK_TOKEN = 32  # of ESM
NAMES = ["EsmForMaskedLM", "BertForMaskedLM"]  # classes of transformers with a language head

KEPT: dict[str, list[slice] | None] = {
    "no mask": None,
    "all ones": [slice(None), slice(None), slice(None)],
    "padding right": [slice(None), slice(11), slice(8)],
    "padding left": [slice(None), slice(6, None), slice(9, None)],
    "one token": [slice(None), slice(1), slice(8)],
}
"""Tokens of each sequence that are not padding."""

COSINE = {"fp16": 0.99999, "bf16": 0.999}
MARGIN = 1e-3  # of the best logit over the second best, from which the best token must agree


def randomize(model: nn.Module, device: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Give a model random weights that keep activations near 1, and set it to evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data = noise / parameter.shape[-1] ** 0.5
        else:
            parameter.data += 0.1 * noise
    return model.to(device, dtype).eval().requires_grad_(False)


def mask_of(kind: str, device: str) -> Tensor | None:
    """Make an attention mask, int64 [B, L]: 1 for tokens, 0 for padding."""
    kept = KEPT[kind]
    if kept is None:
        return None
    mask = torch.zeros(SEQUENCES, LENGTH, dtype=torch.int64)
    for row, tokens in zip(mask, kept, strict=True):
        row[tokens] = 1
    return mask.to(device)


def tokens_of(kind: str, device: str, padding: int, masked: bool = False) -> Tensor:
    """Make random amino acids, int64 [B, L], optionally with masked ones in every sequence."""
    generator = torch.Generator().manual_seed(1)
    first, last = AMINO_ACIDS[0], AMINO_ACIDS[-1] + 1
    ids = torch.randint(first, last, (SEQUENCES, LENGTH), generator=generator)
    if masked:
        ids[0, 3] = ids[1, 7] = ids[2, 1] = ids[2, 10] = MASK_TOKEN
    mask = mask_of(kind, "cpu")
    return (ids if mask is None else ids.masked_fill(mask == 0, padding)).to(device)


def valid(values: Tensor, mask: Tensor | None) -> Tensor:
    """Select the values [T, ...] of tokens from [B, L, ...]."""
    return values.flatten(0, 1) if mask is None else values[mask != 0]


def assert_same(found: Tensor, expected: Tensor, precision: str) -> None:
    """Assert that rows [T, N] agree to within the tolerance of a precision."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    found, expected = found.double().cpu(), expected.double().cpu()
    if precision == "fp64":
        assert_within(found, expected, 1e-6)  # ESM computes some factors in float32
    elif precision == "fp32":
        assert (found - expected).abs().max() <= 1e-5
    else:
        assert torch.equal(found.any(-1), expected.any(-1))  # masked tokens may be zero
        cosine = nn.functional.cosine_similarity(found, expected, dim=-1)
        assert cosine[expected.any(-1)].min() >= COSINE[precision]


def assert_same_first(found: Tensor, expected: Tensor, in_half: Tensor | None = None) -> None:
    """Assert that logits [T, V] agree on the best token wherever it leads by a clear margin.

    In half precision (``in_half``), the original model's logits have errors above `MARGIN`. The
    errors of ours must then be smaller, and a margin is clear if no error can change the token.
    """
    margin = MARGIN
    if in_half is not None:
        error = in_half.to(expected.dtype) - expected
        assert (found - expected).square().mean() <= error.square().mean()
        margin = max(margin, 2 * float(error.abs().max()))
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > margin
    assert clear.double().mean() > 0.5
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


def attributes(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the attributes of each module, with shallow copies of containers."""
    copied = (dict, list, set)
    return {
        path: {n: v.copy() if isinstance(v, copied) else v for n, v in vars(module).items()}
        for path, module in model.named_modules()
    }
