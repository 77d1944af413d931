"""Options of a training, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig, ZBLConfig
from mlff_triton.training.labels import Labels
from mlff_triton.training.loss import Loss
from mlff_triton.units import BOHR, HARTREE

WARM_UP = 0.05  # of all steps
SOFTNESS_FLOOR = 0.01
"""Least weight of an atom in new models; weights of trained ones are about 0.1 to 1."""
MOST = dict.fromkeys(("epochs", "batch", "patience", "warm_up"), 2**31 - 1) | {"seed": 2**63 - 1}
"""Largest values of integers that PyTorch can hold."""


@dataclass(frozen=True)
class Data:
    """Files, their labels, and their division.

    Attributes
    ----------
    files : tuple of str
        Files of labeled structures; see `mlff_triton.training.sources.read_frames`.
    labels : Labels
        Names and units of labels in all files except ``replay``.
    split : {"random", "group", "given"}
        Division of the structures; see `mlff_triton.training.splits.split_frames`.
    valid, test : float
        Fractions below 1, or numbers of structures, for validation and for the test.
    valid_file, test_file : str, optional
        Files of structures that replace these parts.
    replay : str, optional
        File of structures with labels of the base model's own method, to train on as well; in eV
        and Å, with names that are recognized, as ``mlff-triton predict`` writes them.
    replay_weight : float
        Factor of the weights of these structures in the loss.
    skip_bad : bool
        If True, leave out structures that cannot be trained on.
    """

    files: tuple[str, ...]
    labels: Labels = field(default_factory=Labels)
    split: str = "random"
    valid: float = 0.1
    test: float = 0.0
    valid_file: str | None = None
    test_file: str | None = None
    replay: str | None = None
    replay_weight: float = 1.0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        _check_above_zero("replay-weight", self.replay_weight)


@dataclass(frozen=True)
class Architecture:
    """Sizes of a new model.

    Attributes
    ----------
    channels, layers, rbf : int
        Numbers of channels, of interaction layers, and of radial basis functions.
    cutoff : float
        Cutoff in Å.
    zbl : float, optional
        Cutoff in Å of a screened nuclear repulsion that is added to the network.
    charges : bool
        If True, the model is a TensorNet2: it predicts partial charges, and its energy contains
        their Coulomb energy.
    coulomb_cutoff : float, optional
        Cutoff in Å of the Coulomb energy, with a reaction field beyond it. Without it, all pairs of
        atoms interact, in vacuum.

    Raises
    ------
    InputError
        If there is a Coulomb cutoff, but no charges.
    """

    channels: int = 64
    layers: int = 2
    rbf: int = 32
    cutoff: float = 5.0
    zbl: float | None = None
    charges: bool = False
    coulomb_cutoff: float | None = None

    def __post_init__(self) -> None:
        if self.coulomb_cutoff is not None and not self.charges:
            raise InputError("--coulomb-cutoff needs --charges")

    def config(self, elements: tuple[int, ...], *, uses_charge: bool) -> TensorNetConfig:
        """Return the configuration of a model of some elements."""
        zbl = None if self.zbl is None else ZBLConfig(self.zbl, HARTREE * BOHR, is_smooth=True)
        config = TensorNetConfig(
            elements=elements,
            hidden_channels=self.channels,
            num_layers=self.layers,
            num_rbf=self.rbf,
            cutoff_upper=self.cutoff,
            uses_charge=uses_charge,
            zbl=zbl,
        )
        if not self.charges:
            return config
        return TensorNet2Config(
            **vars(config), coulomb_cutoff=self.coulomb_cutoff, softness_floor=SOFTNESS_FLOOR
        )


@dataclass(frozen=True)
class Settings:
    """Options of the optimization.

    Attributes
    ----------
    epochs, batch : int
        Number of epochs, and of structures per step.
    lr : float
        Highest learning rate.
    warm_up : int, optional
        Steps until the highest learning rate; a twentieth of all steps by default.
    decay : float
        Decay of the moving average of weights per step; 0 for no average.
    loss : Loss
        The loss.
    max_gradient : float
        Norm to which gradients are clipped.
    patience : int
        Epochs without a smaller loss of the validation set after which training stops; 0 for all
        epochs.
    seed : int
        Seed of the first weights, of the split, and of the order of structures.

    Raises
    ------
    InputError
        If a value is out of its range.
    """

    epochs: int = 200
    batch: int = 8
    lr: float = 1e-3
    warm_up: int | None = None
    decay: float = 0.99
    loss: Loss = field(default_factory=Loss)
    max_gradient: float = 10.0
    patience: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "lr", "max_gradient"):
            _check_above_zero(name.replace("_", "-"), getattr(self, name))
        for name in ("patience", "seed", "warm_up"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"--{name.replace('_', '-')} must not be negative")
        for name, most in MOST.items():
            if (getattr(self, name) or 0) > most:
                raise InputError(f"--{name.replace('_', '-')} must be at most {most}")
        if not 0 <= self.decay < 1:
            raise InputError(f"--decay must be at least 0 and below 1, not {self.decay:g}")

    def warm_up_of(self, steps: int) -> int:
        """Return the number of steps until the highest learning rate, of all steps."""
        return math.ceil(WARM_UP * steps) if self.warm_up is None else self.warm_up


def _check_above_zero(option: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"--{option} must be above 0, not {value:g}")
