"""Small random models of Enformer, and bases for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

package = pytest.importorskip(
    "enformer_pytorch",
    reason="install enformer-pytorch==0.8.12 with --no-deps, and einops, polars and pyfaidx",
)
BASES_PER_BIN = 8


def make_model(dtype: torch.dtype = torch.float32, **options: Any) -> nn.Module:
    """Make a small model whose weights and statistics are all random."""
    sizes: dict[str, Any] = {"dim": 48, "depth": 2, "heads": 2, "attn_dim_key": 8}
    sizes |= {"num_downsamples": 3, "dim_divisible_by": 8, "target_length": 5}
    sizes |= {"output_heads": {"human": 7, "mouse": 3}} | options
    torch.manual_seed(1)
    model = package.Enformer.from_hparams(**sizes).eval().requires_grad_(requires_grad=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_()
        if isinstance(module, nn.Conv1d | nn.Linear):
            module.weight.normal_(std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                module.bias.normal_(std=0.3)
        if isinstance(module, nn.Conv2d):
            module.weight.add_(torch.randn(module.weight.shape) / 8)
    return model.to(dtype)


def bases(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return one-hot bases with a few soft and unknown ones."""
    torch.manual_seed(sum(shape))
    x = nn.functional.one_hot(torch.randint(4, shape), 4).to(dtype)
    x[..., 3:6, :] = 0.25
    x[..., 8, :] = 0
    return x
