"""One model on one device, evaluated again and again: what every front end shares."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from mlff_triton.checkpoints import load_model
from mlff_triton.errors import BackendError, InputError
from mlff_triton.graph import concatenate
from mlff_triton.neighbors import Box, VerletList, check_positions, neighbor_list
from mlff_triton.prediction import Ensemble, Prediction, predict
from mlff_triton.tensornet import TensorNet

DTYPES = {"float32": torch.float32, "float64": torch.float64}
BACKENDS = ("auto", "torch")


class Session:
    """A model prepared for inference, with its neighbor list kept from step to step.

    Parameters
    ----------
    model : TensorNet, Ensemble, path or str
        A loaded model (a private copy is made), a checkpoint, or a shipped name.
    device : str
        ``"auto"`` (a GPU where there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``...
    dtype : {"float32", "float64"}
        Precision of the network.
    backend : {"auto", "torch"}
        What computes; ``"auto"`` takes the fastest that serves the model.
    skin : float
        Verlet skin of the neighbor list in Å.
    """

    def __init__(
        self,
        model: TensorNet | Ensemble | str | Path,
        device: str = "auto",
        dtype: str = "float32",
        backend: str = "auto",
        skin: float = 0.5,
    ) -> None:
        if dtype not in DTYPES:
            raise InputError(f"dtype={dtype!r} is unknown: use one of {', '.join(DTYPES)}")
        if backend not in BACKENDS:
            raise BackendError(f"backend={backend!r} is unknown: use one of {', '.join(BACKENDS)}")
        loaded = load_model(model) if isinstance(model, (str, Path)) else copy.deepcopy(model)
        self.device = _device(device)
        self.model = loaded.eval().requires_grad_(False).to(self.device, DTYPES[dtype])
        self.neighbors = VerletList(self.model.cutoff, skin)

    def evaluate(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None,
        pbc: ArrayLike,
        charge: float = 0,
    ) -> Prediction:
        """Energy, forces and virial of one system; the last call's list is reused if it can be.

        Parameters
        ----------
        numbers : int [N]
            Atomic numbers.
        positions : float [N, 3]
            Positions in Å.
        cell : float [3, 3] or None
            Lattice vectors (rows) in Å.
        pbc : bool or bool [3]
            Periodic directions.
        charge : int
            Total charge in elementary charges.

        Returns
        -------
        Prediction
            With one system.

        Raises
        ------
        InputError
            If a number is not finite, shapes disagree, the charge is not an integer, an element is
            unknown or two atoms coincide.
        """
        points = check_positions(positions)
        graph = self.neighbors.update(points, cell, pbc)
        return predict(
            self.model,
            self._numbers(numbers, len(points)),
            self._tensor(points),
            graph.to(self.device),
            cell=self._tensor(Box.of(cell, pbc).cell[None]),
            charge=self._charges([charge]),
        )

    def evaluate_many(
        self, systems: list[tuple[ArrayLike, ArrayLike, ArrayLike | None, ArrayLike, float]]
    ) -> Prediction:
        """Several systems, each as the arguments of `evaluate`, in one batch."""
        points = [check_positions(positions) for _, positions, *_ in systems]
        graphs = [
            neighbor_list(p, self.model.cutoff, cell, pbc)
            for p, (_, _, cell, pbc, _) in zip(points, systems, strict=True)
        ]
        numbers = [self._numbers(z, len(p)) for p, (z, *_) in zip(points, systems, strict=True)]
        counts = torch.tensor([len(p) for p in points], device=self.device)
        return predict(
            self.model,
            torch.cat(numbers),
            self._tensor(np.concatenate(points)),
            concatenate(graphs).to(self.device),
            cell=self._tensor(np.stack([Box.of(cell, pbc).cell for _, _, cell, pbc, _ in systems])),
            batch=torch.arange(len(systems), device=self.device).repeat_interleave(counts),
            charge=self._charges([charge for *_, charge in systems]),
        )

    def _numbers(self, numbers: ArrayLike, n_atoms: int) -> torch.Tensor:
        values = np.asarray(numbers, dtype=np.int64)
        if values.shape != (n_atoms,):
            raise InputError(f"{n_atoms} atoms need {n_atoms} numbers, not {list(values.shape)}")
        return torch.as_tensor(values, device=self.device)

    def _charges(self, charges: list[float]) -> torch.Tensor | None:
        values = [check_charge(charge) for charge in charges]
        return torch.tensor(values, device=self.device) if any(values) else None

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)


def check_charge(charge: float) -> float:
    """The total charge, or an `InputError` if it is not an integer."""
    try:
        value = float(charge)
    except (TypeError, ValueError):
        value = np.nan
    if not value.is_integer():
        raise InputError(f"the total charge must be an integer, not {charge!r}")
    return value


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device={name!r} is unknown: use 'auto', 'cpu' or 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendError("there is no usable GPU here: use device='cpu' or 'auto'")
    return device
