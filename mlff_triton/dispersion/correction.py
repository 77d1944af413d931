"""A dispersion correction to a model's results, by the library that suits the device."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor

from mlff_triton._common.remedies import install
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.dispersion.contribution import Contribution
from mlff_triton.dispersion.damping import damping_of
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import DeviceMemoryError, InputError
from mlff_triton.model.prediction import Prediction

ON_CPU, ON_GPU = "dftd3", "nvalchemi-toolkit-ops"
IN_SIMULATIONS = "dispersion is not in the engine's own steps: each passes through the host"
HEAVIEST = 103
"""Atomic number of lawrencium, the last element for which D3 has data."""


class Dispersion:
    """A D3(BJ) correction, which is added to the results of a model.

    It has no three-body term. Pairs count up to 40 Bohr (21.2 Å), and fade out over the last 5
    Bohr. For models in float32 on an NVIDIA GPU, nvalchemi-toolkit-ops computes it there.
    Everything else is computed by s-dftd3 on the CPU in float64, including structures with one of
    the twelve actinides that have more reference structures than the other library takes.

    Parameters
    ----------
    method : str
        "d3bj:" and the functional that the model was trained on, such as "d3bj:pbe".
    device : torch.device
        Device of the model.
    dtype : torch.dtype
        Precision of the model.

    Attributes
    ----------
    method : str
        Name of the correction in its usual spelling.
    library : str
        Library that computes it, "dftd3" or "nvalchemi-toolkit-ops".

    Raises
    ------
    InputError
        If the method is unknown, or the library is missing.
    """

    def __init__(self, method: str, device: torch.device, dtype: torch.dtype) -> None:
        self._damping = damping_of(method)
        self.method = self._damping.method
        self._device = device
        self.library = ON_CPU
        if device.type == "cuda" and torch.version.cuda is not None and dtype == torch.float32:
            self.library = ON_GPU
            if not _can_run_on_gpu():
                raise InputError(
                    f"dispersion on a GPU needs nvalchemi-toolkit-ops, on Linux with Python 3.11 "
                    f"or later: {install('dispersion')}, or take dtype='float64', for which the "
                    "CPU computes it"
                )

    def __str__(self) -> str:
        place = f"on {self._device}" if self.library == ON_GPU else "on the CPU in float64"
        return f"adds dispersion {self.method}, which {self.library} computes {place}"

    @with_own_settings
    def added(self, batch: Batch, prediction: Prediction, *, of_atoms: bool = True) -> Prediction:
        """Return a prediction with dispersion.

        Parameters
        ----------
        batch : Batch
            The systems.
        prediction : Prediction
            Results of the model, on any device. They do not change.
        of_atoms : bool
            If False, energies of atoms are NaN: s-dftd3 takes twice as long with them.

        Raises
        ------
        InputError
            If D3 has no data for an element, or there are too many pairs.
        DeviceMemoryError
            If the GPU has too little memory.
        """
        found = self.compute(batch, of_atoms=of_atoms)
        device = prediction.energy.device

        def sum_of(values: Tensor, more: object) -> Tensor:
            return values.double() + torch.as_tensor(more, device=device)

        atom_energies = torch.full_like(prediction.atom_energies, torch.nan)
        if found.atom_energies is not None:
            atom_energies = sum_of(prediction.atom_energies, found.atom_energies)
        return replace(
            prediction,
            energy=sum_of(prediction.energy, found.energy),
            forces=sum_of(prediction.forces, found.forces),
            virial=sum_of(prediction.virial, found.virial),
            atom_energies=atom_energies,
        )

    def compute(self, batch: Batch, *, of_atoms: bool = True) -> Contribution:
        """Compute the dispersion of a batch alone, with the errors of `added`."""
        heaviest = int(batch.numbers.max())
        if heaviest > HEAVIEST:
            raise InputError(f"dispersion {self.method} has no data of element {heaviest}")
        if self.library == ON_GPU:
            from mlff_triton.dispersion import on_gpu

            if on_gpu.elements().issuperset(batch.numbers.tolist()):
                try:
                    return on_gpu.compute(batch, self._damping, self._device, of_atoms=of_atoms)
                except torch.OutOfMemoryError as error:
                    raise DeviceMemoryError(
                        f"CUDA out of memory: {len(batch.numbers)} atoms have too many pairs for "
                        'dispersion: compute smaller batches, or take dtype="float64", for which '
                        "the CPU computes it"
                    ) from error
        from mlff_triton.dispersion import on_cpu

        return on_cpu.compute(batch, self._damping, of_atoms=of_atoms)


def _can_run_on_gpu() -> bool:
    """Return True if the libraries for GPUs are installed."""
    needed = ("nvalchemiops", "tad_dftd3", "tad_mctc", "warp")
    return platform.system() == "Linux" and all(find_spec(name) for name in needed)
