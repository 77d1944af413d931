"""In-place, reversible acceleration of live TorchMD-NET models.

`accelerate` turns a ``TensorNet`` or ``TensorNet2`` inside a model of TorchMD-NET 3 into a
`PatchedTensorNet` or `PatchedTensorNet2` by assigning another class to that one instance, and a
head with a Coulomb energy into a `PatchedCoulomb`.
Parameters, buffers and submodules are not modified, and neither are the classes and modules that
other models share.
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
_KINDS = {
    "torchmdnet.models.tensornet": "TensorNet",
    "torchmdnet.models.tensornet2": "TensorNet2",
}

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, backend: str = "auto") -> Model:
    """Run a TorchMD-NET 3 model on the operators of this package, until `restore`.

    Energies, forces, and the gradients of any loss on them equal those of TorchMD-NET's plain
    PyTorch operations up to rounding. Parameters, ``state_dict``, ``to``, ``deepcopy``, optimizers
    and the calling convention are not affected.

    Parameters
    ----------
    model : torch.nn.Module
        A ``TensorNet``, a ``TensorNet2``, or any module that contains one or several, such as a
        ``TorchMD_Net``, an ensemble, or a model of your own. Modified in place.
    backend : {"auto", "triton", "torch"}
        "triton" uses kernels. "auto" also uses kernels, but PyTorch if the model is later moved to
        a CPU. "torch" evaluates the same equations in PyTorch on any device.

    Returns
    -------
    torch.nn.Module
        The model itself. Calling this again on it only changes the backend.

    Raises
    ------
    UnsupportedModelError
        If the model contains neither network, or a network that was modified or is neither float32
        nor float64. The model is left unchanged.
    BackendError
        If the backend is not "torch", and the model is not on a GPU or Triton is missing.
    InputError
        If the backend is unknown.

    Notes
    -----
    Forward hooks of the submodules of a network are not called. TorchScript cannot compile an
    accelerated model: `restore` it first. For SO(3), TorchMD-NET's Warp kernels and its PyTorch
    operations implement two different models. The results here are those of the PyTorch operations.

    Examples
    --------
    >>> from torchmdnet.models.tensornet import TensorNet
    >>> network = accelerate(TensorNet(hidden_channels=8), backend="torch")
    >>> type(restore(network)).__name__
    'TensorNet'
    """
    if backend not in BACKENDS:
        raise InputError(f"backend={backend!r} is unknown: use one of {', '.join(BACKENDS)}")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"accelerate takes a model of TorchMD-NET that is loaded, not a {type(model).__name__}"
        )
    networks = _networks(model)
    for network in networks:
        _check(network)
        if backend != "torch":
            check_triton(next(network.parameters()).device)
    # This import needs TorchMD-NET, which the model has already loaded.
    from mlff_triton.torchmd_net.patched_coulomb import PatchedCoulomb
    from mlff_triton.torchmd_net.patched_tensornet import PatchedTensorNet
    from mlff_triton.torchmd_net.patched_tensornet2 import PatchedTensorNet2

    for network in networks:
        charged = hasattr(network, "charge_predicts")
        network.__class__ = PatchedTensorNet2 if charged else PatchedTensorNet
        network.mlff_triton_backend = backend
    for head in _coulomb_heads(model):
        head.__class__ = PatchedCoulomb
        head.mlff_triton_backend = backend
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate` exactly. Other models are left unchanged.

    Parameters
    ----------
    model : torch.nn.Module
        A module passed to `accelerate`. Modified in place.

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
    """Accelerate a model within a ``with`` statement, and restore its previous state afterwards.

    Parameters
    ----------
    model : torch.nn.Module
        As for `accelerate`.
    backend : {"auto", "triton", "torch"}
        As for `accelerate`.

    Yields
    ------
    torch.nn.Module
        The model itself.

    Raises
    ------
    UnsupportedModelError, BackendError, InputError
        Under the same conditions as `accelerate`.

    Examples
    --------
    >>> from torchmdnet.models.tensornet import TensorNet
    >>> with accelerated(TensorNet(hidden_channels=8), backend="torch") as network:
    ...     type(network).__name__
    'PatchedTensorNet'
    """
    patched = [*_networks(model), *_coulomb_heads(model)]
    before = [(module, type(module), _backend_of(module)) for module in patched]
    try:
        yield accelerate(model, backend)
    finally:
        restore(model)
        for module, kind, backend_before in before:
            if backend_before is not None:
                module.__class__ = kind
                module.mlff_triton_backend = backend_before


def _backend_of(network: nn.Module) -> str | None:
    """Return the backend of an accelerated network, None for any other module."""
    return getattr(network, "mlff_triton_backend", None)


def _networks(model: nn.Module) -> list[Any]:
    """List the networks in a model. If there are any, their packages are already imported."""
    kinds = tuple(
        getattr(sys.modules[home], name) for home, name in _KINDS.items() if home in sys.modules
    )
    found = [module for module in model.modules() if isinstance(module, kinds)]
    if not found:
        inner = type(getattr(model, "representation_model", model)).__name__
        raise UnsupportedModelError(
            f"{inner} is not TorchMD-NET's TensorNet or TensorNet2, the only networks that can be "
            "accelerated: use the model as it is"
        )
    return found


def _coulomb_heads(model: nn.Module) -> list[Any]:
    """List the heads with a Coulomb energy that can be replaced; others stay unchanged."""
    if "torchmdnet.models.output_modules" not in sys.modules:
        return []
    from torchmdnet.models.output_modules import ScalarPlusWeightedCoulomb

    from mlff_triton.torchmd_net.patched_coulomb import is_known

    heads = [m for m in model.modules() if isinstance(m, ScalarPlusWeightedCoulomb)]
    return [head for head in heads if is_known(head)]


def _check(network: Any) -> None:
    """Check that a network's forward pass is TorchMD-NET's own, in a supported dtype."""
    from torchmdnet.models.utils import act_class_mapping

    kind = type(network)
    if _KINDS.get(kind.__module__) != kind.__name__ and _backend_of(network) is None:
        raise UnsupportedModelError(
            f"{kind.__name__} overrides TensorNet, so its forward pass is unknown: "
            "use the model as it is"
        )
    known = act_class_mapping[network.activation]
    acts = [m.act for m in (network, network.tensor_embedding, *network.layers)]
    if hasattr(network, "charge_predicts"):
        for predictor in (network.charge_predict_0, *network.charge_predicts):
            acts += [m for m in predictor.q_mlp.layers if not isinstance(m, nn.Linear)]
    for act in acts:
        if type(act) is not known or getattr(act, "beta", 1.0) != 1.0:
            raise UnsupportedModelError(
                f"an activation was replaced by {act}: use the model as it is"
            )
    dtypes = {parameter.dtype for parameter in network.parameters()}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS):
        names = ", ".join(sorted(map(str, dtypes)))
        raise UnsupportedModelError(f"the weights are {names}: use model.float() or model.double()")
