"""Launch of kernels that take tensors x[9, N, F] in tiles of atoms and channels."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mlff_triton.kernels.common.early_launch import early_launch
from mlff_triton.kernels.tensornet.launch_sizes import tensor_blocks


def launch_tiles(kernel, x: Tensor, *tensors: Tensor | None, **constants: object) -> None:
    """Launch one program per M atoms and N channels of x[9, N, F]."""
    n_atoms, channels = x.shape[1:]
    blocks = tensor_blocks(x)
    grid = (triton.cdiv(n_atoms, blocks.atoms), channels // blocks.channels)
    with torch.cuda.device_of(x):
        kernel[grid](
            x,
            *tensors,
            n_atoms,
            F=channels,
            **constants,
            M=blocks.atoms,
            N=blocks.channels,
            num_warps=blocks.warps,
            **early_launch(x),
        )
