"""Small random TensorNet2 models, with charges and tensors large enough to matter."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from ase import Atoms

from mlff_triton import TensorNet2, TensorNet2Config

CUTOFF = 4.0  # Å, of the network
SCALE = 10.0  # eV; gives random models forces of about 1 eV/Å


def charged_model(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> TensorNet2:
    """Make a small model without any weight of 0 or 1."""
    torch.manual_seed(seed)
    options = {"hidden_channels": 6, "num_layers": 1, "num_rbf": 6, "cutoff_upper": CUTOFF}
    options |= {"charge_channels": 3, **changes}
    model = TensorNet2(TensorNet2Config((1, 6, 7, 8), **options))
    noise = 0.2 * (6 / model.config.hidden_channels) ** 0.5
    for name, parameter in model.named_parameters():
        if not name.startswith("basis"):
            parameter.data += noise * torch.randn_like(parameter)
        if "tensor" in name or "radial" in name:
            parameter.data *= 2.0
    for network in model.charges:  # all atoms take some of the total charge
        network.linears[2].bias.data[model.config.charge_channels :] += 3.0
    if model.has_charges:
        model.charge_weights = torch.rand_like(model.charge_weights)
    model.std, model.mean = torch.tensor(SCALE).double(), torch.tensor(-0.7).double()
    model.references = torch.tensor([-1.0, -5.0, -7.0, -9.0]).double()
    return model.to(dtype)


@cache
def crystal() -> Atoms:
    """Return atoms at a distorted lattice's points, in a cell at least 8 Å high."""
    grid = np.indices((4, 3, 2)).reshape(3, -1).T * [2.0, 2.75, 4.1]
    shifts = np.random.default_rng(2).uniform(-0.3, 0.3, grid.shape)
    return Atoms("CHONHH" * 4, grid + shifts, cell=[8.1, 8.3, 8.2], pbc=True)
