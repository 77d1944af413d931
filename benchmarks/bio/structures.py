"""Parts of the workloads that predict structures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.bio.comparison import half_square
from mlff_triton.testing.tf32 import tf32

ATOMS = (7, 6, 6, 8, 6, 6, 6, 8)
"""Atomic numbers of a residue of average size, that begins with N, C-alpha, C and O."""
PER_TOKEN = len(ATOMS)
CHECKED = 1024
"""Largest number of tokens whose results are compared with those in float32."""
PASSES, FEW_STEPS = 2, 20
"""Most passes through the trunk and steps of the sampler in predictions that are compared."""

Self = TypeVar("Self", bound="Prediction")


def shorter(length: int) -> int:
    """Return another length, with which kernels have the same sizes but graphs do not."""
    return max(1, length - 16)


@dataclass(frozen=True)
class Prediction:
    """Prediction of one protein, with numbers of trunk cycles and sampler steps.

    Defaults of a package are those of its class; names of other workloads say how many there are.
    ``changes`` are other options of the model than those of the default prediction.
    """

    length: int
    cycles: int = 1
    steps: int = 200
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    package: ClassVar[str]
    limit = 1e-2
    runs_in_graphs = compiles = False
    has_half = True
    has_kernels = True

    @property
    def is_checked(self) -> bool:
        """True if the cheaper call takes seconds in float32."""
        return self.length <= CHECKED

    @property
    def cheaper(self: Self) -> Self:
        """Prediction of the same protein in fewer steps, with recycling if there is any."""
        return replace(self, cycles=min(self.cycles, PASSES), steps=min(self.steps, FEW_STEPS))

    @property
    def short(self: Self) -> Self:
        """One cycle, and as many steps as it takes to capture one."""
        return replace(self, cycles=1, steps=4)

    @property
    def other(self: Self) -> Self:
        """Short prediction of a shorter protein."""
        return replace(self.short, length=shorter(self.length))

    @property
    def name(self) -> str:
        """Name in the results."""
        is_default = (self.cycles, self.steps) == (type(self).cycles, type(self).steps)
        suffix = "" if is_default else f"-{self.cycles}-cycles-{self.steps}-steps"
        return f"{self.package}-forward-{self.length}{suffix}"

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.length

    def half(self, model: nn.Module) -> nn.Module:
        """Run the model under autocast."""
        return Predicting(model)

    def error(self, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        """Compare distances."""
        return distance_error(actual["positions"], expected["positions"])


class Predicting(nn.Module):
    """Module that runs another one under autocast to bfloat16, with TF32 products in float32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        device = next(self.inner.parameters()).device.type
        with tf32(allowed=True), torch.autocast(device, torch.bfloat16):
            return self.inner(*args, **kwargs)


def outermost(model: nn.Module, kind: str) -> nn.Module:
    """Return the outermost module of a class."""
    return next(module for module in model.modules() if type(module).__name__ == kind)


def distance_error(actual: Tensor, expected: Tensor) -> float:
    """Return half the squared relative error of the distances between residues.

    Positions are [..., S, A, 3], of S samples of A atoms.
    """
    return half_square(*(_distances(positions.cpu().double()) for positions in (actual, expected)))


def _distances(positions: Tensor) -> Tensor:
    centers = positions.flatten(0, -3)[:, 1::PER_TOKEN]
    return torch.cdist(centers, centers).flatten()
