"""A field in which partial charges have a simple energy."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from mlff_triton.model.prediction import FieldSums

_LAYOUTS = itertools.count()


class CurvedField:
    """The energy ``sum_i (u_i q_i + k q_i^2 / 2)`` of charges, for each of N atoms.

    Attributes
    ----------
    u : float64 [N]
        Potentials on the host, which may be changed between steps.
    charges : list of [N]
        Charges on the host, of each time that results were taken over.
    n_prepared : int
        Number of launches, which is larger if steps are repeated, and smaller if they are replayed.
    """

    def __init__(self, n_atoms: int, device: str, *, is_static: bool = True, k: float = 0.7):
        self.layout = next(_LAYOUTS) if is_static else None
        self.u = torch.linspace(-40, 60, n_atoms, dtype=torch.float64).clone()
        self.k, self.n_prepared = k, 0
        self.charges: list[Tensor] = []
        self._found = torch.zeros(n_atoms, dtype=torch.float64)
        if device == "cuda":
            self.u, self._found = self.u.pin_memory(), self._found.pin_memory()
        self._u = self.u.to(device, copy=True)

    def prepare(self) -> None:
        self.n_prepared += 1
        self._u.copy_(self.u, non_blocking=True)

    def __call__(self, charges: Tensor) -> FieldSums:
        self._q = charges.double()
        slope = self._u + self.k * self._q
        return FieldSums(self._q * (slope + self._u) / 2, slope)

    def finish(self) -> None:
        self._found.copy_(self._q, non_blocking=True)

    def collect(self) -> None:
        self.charges.append(self._found.clone())
