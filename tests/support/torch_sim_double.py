"""The parts of TorchSim that a model meets, for environments without TorchSim.

Names and signatures are those of torch-sim-atomistic 0.3 to 0.6.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from ase import Atoms
from torch import Tensor


class ModelInterface(torch.nn.Module, ABC):
    """Base class of models, whose flags can be read only, unless a model defines setters."""

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def compute_stress(self) -> bool:
        return self._compute_stress

    @property
    def compute_forces(self) -> bool:
        return self._compute_forces

    @property
    def memory_scales_with(self) -> str:
        return self._memory_scales_with

    @abstractmethod
    def forward(self, state: SimState) -> dict[str, Tensor]:
        """Compute energy, forces and stress."""


@dataclass
class SimState:
    """A state, with cells as column vectors."""

    positions: Tensor
    masses: Tensor
    cell: Tensor
    pbc: Tensor | bool
    atomic_numbers: Tensor
    system_idx: Tensor


@contextmanager
def doubled() -> Iterator[None]:
    """Let imports find these classes, and the metadata of packages a version of TorchSim.

    Our model, which imports them, is forgotten at the end.
    """
    names = ("torch_sim", "torch_sim.models", "torch_sim.models.interface", "torch_sim.state")
    package, models, interface, state = map(ModuleType, names)
    interface.ModelInterface = ModelInterface
    state.SimState = SimState
    modules = {module.__name__: module for module in (package, models, interface, state)}
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        with mock.patch("importlib.metadata.version", return_value="0.6.0"):
            yield
    finally:  # as `mock.patch.dict` would also remove what others have imported meanwhile
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)
        sys.modules.pop("mlff_triton.calculators.torch_sim_model", None)


def state_of(home: Any, model: Any, *systems: Atoms, dtype: torch.dtype | None = None) -> Any:
    """Make a state without TorchSim's conversion, which refuses systems of different pbc."""
    dtype = dtype or model.dtype

    def tensor(arrays: list[np.ndarray], kind: torch.dtype) -> torch.Tensor:
        return torch.tensor(np.concatenate(arrays), dtype=kind, device=model.device)

    counts = torch.tensor([len(a) for a in systems])
    return home.SimState(
        positions=tensor([a.positions for a in systems], dtype),
        masses=tensor([a.get_masses() for a in systems], dtype),
        cell=tensor([a.cell.array.T[None] for a in systems], dtype),
        pbc=tensor([systems[0].pbc], torch.bool),
        atomic_numbers=tensor([a.numbers for a in systems], torch.int32),
        system_idx=torch.arange(len(systems)).repeat_interleave(counts).to(model.device),
    )
