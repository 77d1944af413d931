"""Models to measure, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch

from mlff_triton.checkpoints import DEFAULT_MODEL, load_model
from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import TensorNet2

CHECKOUT = Path(__file__).resolve().parents[2]
COULOMB_CUTOFF = 10.0  # Å
PME_ERROR = 1e-5  # of Coulomb forces
MATPES = "matgl-tensornet-matpes-pbe"
SHIPPED = "tensornet-gfn2"  # the former default; peers take no nuclear repulsion
DATA_FOLDERS = (CHECKOUT / "shared" / "data", CHECKOUT.parent / "shared" / "data")


def random_model(channels: int = 128) -> TensorNet:
    """Return random weights in TorchMD-NET's usual architecture; times do not depend on weights."""
    config = TensorNetConfig(elements=tuple(range(100)), hidden_channels=channels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TensorNet(config).eval()


def uncertain_model(channels: int = 128) -> TensorNet:
    """Return the same weights with a map to uncertainties of as many rows as hidden values."""
    model = random_model(channels)
    n_hidden = model.readout.head.last_channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.readout.uncertainty = torch.randn(n_hidden, n_hidden)
    return model


def charged_model(
    channels: int = 128,
    *,
    repulsion: bool = False,
    coulomb_cutoff: float | None = COULOMB_CUTOFF,
    pme_error: float | None = None,
) -> TensorNet2:
    """Return random weights in AceFF-2's architecture, with a Coulomb cutoff for boxes.

    Charges of fresh networks are nearly zero, so their last maps are made larger.

    Parameters
    ----------
    channels : int
        Number of channels F.
    repulsion : bool
        If True, nuclear repulsion keeps atoms apart, so that they can move. Charges are then
        smaller: at their full size, they pull hydrogen atoms together to 0.36 Å, where the engine's
        tables are less exact than beyond 0.5 Å.
    coulomb_cutoff : float, optional
        Å; None for molecules in vacuum.
    pme_error : float, optional
        Error of particle-mesh Ewald; by default, a reaction field follows the cutoff.
    """
    config = TensorNet2Config(
        elements=tuple(range(100)),
        hidden_channels=channels,
        coulomb_cutoff=coulomb_cutoff,
        repulsion=repulsion,
        pme_error=pme_error,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TensorNet2(config).eval()
        for network in model.charges:
            network.linears[-1].bias.data.normal_(std=0.1 if repulsion else 1.0)
        model.charge_weights = torch.rand_like(model.charge_weights)
    return model


def shipped_model() -> TensorNet:
    """Return a model that ships with the package."""
    return _single(SHIPPED)


def matpes_model(folders: Sequence[Path] = DATA_FOLDERS) -> TensorNet:
    """Return MatGL's universal potential; raise an `InputError` if it is in none of the folders."""
    return _single(matpes_folder(folders))


def matpes_folder(folders: Sequence[Path] = DATA_FOLDERS) -> Path:
    """Return the folder of MatGL's universal potential, which is not part of the repository.

    Raises
    ------
    InputError
        If it is in none of the folders.
    """
    for folder in folders:
        if (folder / MATPES).is_dir():
            return folder / MATPES
    raise InputError(f"{MATPES} is in none of {', '.join(map(str, folders))}")


def _single(model: str | Path) -> TensorNet:
    loaded = load_model(model)
    if not isinstance(loaded, TensorNet):
        raise InputError(f"{model} is an ensemble: use a single model")
    return loaded.float()


MODELS: dict[str, Callable[[], TensorNet]] = {
    "random": random_model,
    "uncertain": uncertain_model,
    "charged": charged_model,
    "charged-pme": partial(charged_model, pme_error=PME_ERROR),
    "charged-vacuum": partial(charged_model, coulomb_cutoff=None),
    "repulsive": partial(charged_model, repulsion=True),
    "shipped": shipped_model,
    "default": partial(_single, DEFAULT_MODEL),
    "matpes": matpes_model,
}


@cache
def model(name: str) -> TensorNet:
    """Return a model by name, float32 on the CPU. It is shared: do not modify it."""
    return MODELS[name]()
