"""Tensors with unusual strides, and a check that none of them reach kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def reverse_strides(module: nn.Module) -> None:
    """Store all tensors of a module column by column, with gaps; their values stay."""
    for tensor in (*module.parameters(), *module.buffers()):
        reverse = tuple(reversed(range(tensor.dim())))
        spread = tensor.data.permute(reverse)[..., None].repeat_interleave(2, -1)[..., 0]
        tensor.data = spread.permute(reverse)


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested tuples, lists and dictionaries, with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    if hasattr(value, "_asdict"):
        value = value._asdict()
    items = value.items() if isinstance(value, Mapping) else ()
    for name, part in enumerate(value) if isinstance(value, tuple | list) else items:
        yield from tensors_in(part, f"{path}.{name}")


@torch.no_grad()
def assert_strides_do_not_matter(read: Callable[[nn.Module], Any], model: nn.Module) -> None:
    """Check that weights are contiguous and the same for parameters with unusual strides."""
    other = copy.deepcopy(model)
    reverse_strides(other)
    found, expected = (dict(tensors_in(read(each))) for each in (other, model))
    assert found
    assert found.keys() == expected.keys()
    for path, tensor in found.items():
        assert tensor.is_contiguous(), path
        assert tensor.dtype == expected[path].dtype, path
        torch.testing.assert_close(tensor, expected[path], rtol=0, atol=0, equal_nan=True, msg=path)
