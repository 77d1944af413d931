"""Fused operators for models that other packages have made, in place and undoable.

`accelerate` turns the ``TensorNet`` inside a model of TorchMD-NET 3 into `PatchedTensorNet`, by
giving that one instance another class. Its parameters, buffers and submodules are not touched, nor
is anything that other models share: no class, no module, no import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn

from mlff_triton._common.availability import check_triton
from mlff_triton.errors import InputError, UnsupportedModelError
from mlff_triton.kernels.common.checks import FLOATS

BACKENDS = ("auto", "triton", "torch")

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, backend: str = "auto") -> Model:
    """Let a model of TorchMD-NET 3 compute with the operators of this package, until `restore`.

    Energies, forces and gradients of any loss on them, forces included, stay what TorchMD-NET's
    plain PyTorch operations give, to rounding. Parameters, ``state_dict``, ``to``, ``deepcopy``,
    optimizers and the calling convention stay as they are.

    Parameters
    ----------
    model : torch.nn.Module
        A ``TensorNet``, or anything that holds some: a ``TorchMD_Net``, an ensemble, a model of
        your own. Changed in place.
    backend : {"auto", "triton", "torch"}
        "triton" for kernels; "auto" for kernels too, and PyTorch while the model has been moved to
        a CPU; "torch" for the same equations in PyTorch on any device.

    Returns
    -------
    torch.nn.Module
        The model itself. To call this again changes the back-end at most.

    Raises
    ------
    UnsupportedModelError
        If the model holds no ``TensorNet``, or one that was changed or is neither float32 nor
        float64. It is left as it was.
    BackendError
        If the model does not lie on a GPU, or Triton is missing, unless for "torch".
    InputError
        If the back-end is unknown.

    Notes
    -----
    Forward hooks of a ``TensorNet``'s submodules are not called. TorchScript does not take the
    model: `restore` it first. For SO(3), TorchMD-NET's Warp kernels and its PyTorch operations are
    two different models; the result here is that of the latter.

    Examples
    --------
    >>> from torchmdnet.models.tensornet import TensorNet
    >>> network = accelerate(TensorNet(hidden_channels=8), backend="torch")
    >>> type(restore(network)).__name__
    'TensorNet'
    """
    if backend not in BACKENDS:
        raise InputError(f"backend={backend!r} is unknown: use one of {', '.join(BACKENDS)}")
    networks = _networks(model)
    for network in networks:
        _check(network)
        if backend != "torch":
            check_triton(next(network.parameters()).device)
    from mlff_triton.torchmd_net.patched_tensornet import (
        PatchedTensorNet,  # TorchMD-NET is loaded by now
    )

    for network in networks:
        network.__class__ = PatchedTensorNet
        network.mlff_triton_backend = backend
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`, bit for bit; does nothing to other models.

    Parameters
    ----------
    model : torch.nn.Module
        As for `accelerate`. Changed in place.

    Returns
    -------
    torch.nn.Module
        The model itself.
    """
    for network in model.modules():
        if _backend_of(network) is not None:
            del network.mlff_triton_backend
            network.__class__ = type(network).__base__  # type: ignore[assignment]
    return model


@contextmanager
def accelerated(model: Model, backend: str = "auto") -> Iterator[Model]:
    """Accelerate a model within a ``with`` statement, and leave it as it was before.

    Parameters and errors are those of `accelerate`.

    Yields
    ------
    torch.nn.Module
        The model itself.

    Examples
    --------
    >>> from torchmdnet.models.tensornet import TensorNet
    >>> with accelerated(TensorNet(hidden_channels=8), backend="torch") as network:
    ...     type(network).__name__
    'PatchedTensorNet'
    """
    before = [(network, _backend_of(network)) for network in _networks(model)]
    try:
        yield accelerate(model, backend)
    finally:
        for network, backend_before in before:
            restore(network)
            if backend_before is not None:
                accelerate(network, backend_before)


def _backend_of(network: nn.Module) -> str | None:
    """Back-end of an accelerated network, None for any other module."""
    return getattr(network, "mlff_triton_backend", None)


def _networks(model: nn.Module) -> list[Any]:
    """All TensorNets in a model; their package is loaded if there are any."""
    home = sys.modules.get("torchmdnet.models.tensornet")
    found = [m for m in model.modules() if home is not None and isinstance(m, home.TensorNet)]
    if not found:
        inner = type(getattr(model, "representation_model", model)).__name__
        raise UnsupportedModelError(
            f"{inner} is not TorchMD-NET's TensorNet, and nothing else is accelerated: "
            "use the model as it is"
        )
    return found


def _check(network: Any) -> None:
    """Raise unless what the forward pass computes is known."""
    from torchmdnet.models.tensornet import TensorNet
    from torchmdnet.models.utils import act_class_mapping

    if type(network) is not TensorNet and _backend_of(network) is None:
        raise UnsupportedModelError(
            f"{type(network).__name__} overrides TensorNet, so what it computes is unknown: "
            "use the model as it is"
        )
    known = act_class_mapping[network.activation]
    for module in (network, network.tensor_embedding, *network.layers):
        if type(module.act) is not known or getattr(module.act, "beta", 1.0) != 1.0:
            raise UnsupportedModelError(
                f"an activation was replaced by {module.act}: use the model as it is"
            )
    dtypes = {parameter.dtype for parameter in network.parameters()}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS):
        names = ", ".join(sorted(map(str, dtypes)))
        raise UnsupportedModelError(f"the weights are {names}: use model.float() or model.double()")
