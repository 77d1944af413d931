"""Recognition of norms, activations and MLPs, by their class or by tracing their ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from mlff_triton.bio.core.recognition import has_foreign_forward, is_plain

ACTIVATIONS: dict[Any, str] = {
    functional.gelu: "gelu",
    functional.relu: "relu",
    functional.silu: "silu",
    functional.mish: "mish",
    torch.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    nn.GELU: "gelu",
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.Mish: "mish",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
}


_BOOKKEEPING = vars(nn.Module()).keys() - {"training"}
_MOST_VALUES = 100  # of a container that is compared


def is_norm(module: Any) -> bool:
    """Return True for a layer normalization over the last axis, with weight and bias."""
    return (
        is_plain(module, nn.LayerNorm)
        and len(module.normalized_shape) == 1
        and module.weight is not None
        and module.bias is not None
    )


def activation_of(called: Any, options: Mapping[str, Any] | None = None) -> str | None:
    """Return the name of an activation, given as a module or function; None if it is unknown."""
    if isinstance(called, nn.Module):
        name = ACTIVATIONS.get(type(called)) if is_plain(called, type(called)) else None
        options = vars(called)
    else:
        name = ACTIVATIONS.get(called)
    tanh = (options or {}).get("approximate") == "tanh"
    return "gelu_tanh" if tanh and name == "gelu" else name


class _Tracer(fx.Tracer):
    """Tracer that refuses operations under a module's own autocast, which no node records."""

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        """Trace a module outside of the caller's autocast."""
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return super().trace(*args, **kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Record an operation."""
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise ValueError("the module enables autocast")
        return super().create_node(*args, **kwargs)


def trace_mlp(module: nn.Module) -> list[tuple[nn.Module, str]] | None:
    """Trace a module that consists of two linear maps with activations and normalizations.

    Parameters
    ----------
    module : torch.nn.Module
        Module of any class, with submodules of any name.

    Returns
    -------
    list of (torch.nn.Module, str), or None
        Linear maps and normalizations in order, each with the activation that follows it. None if
        the module has other parameters or does not pass its input through these in a chain.
    """
    owners = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    if (
        sum(is_plain(m, nn.Linear) for m in owners) != 2
        or not all(is_plain(m, nn.Linear) or is_norm(m) for m in owners)
        or len(inspect.signature(type(module).forward).parameters) != 2  # self and x
        or has_foreign_forward(module)
    ):
        return None
    try:
        nodes = list(_Tracer().trace(module).nodes)
    except Exception:  # noqa: BLE001 - a forward that is traced without tensors may raise anything
        return None
    steps: list[tuple[nn.Module, str]] = []
    for before, node in pairwise(nodes):
        if node.args[:1] != (before,) or node.all_input_nodes != [before]:
            return None
        called = module.get_submodule(node.target) if node.op == "call_module" else node.target
        activation = activation_of(called, node.kwargs)
        if is_plain(called, nn.Linear) or is_norm(called):
            steps.append((called, "none"))
        elif activation is not None and steps and steps[-1][1] == "none":
            steps[-1] = steps[-1][0], activation
        elif node.op != "output" and not is_plain(called, nn.Dropout, nn.Identity):
            return None
    return steps


def python_state(module: nn.Module) -> list[Any]:
    """Return values, other than tensors and modules, that a traced ``forward`` may depend on.

    A trace follows one branch of the code. These values decide on branches: attributes of modules
    that are not PyTorch's and of their classes, and global names that methods use.
    """
    found: list[Any] = []
    for part in module.modules():
        kinds = [
            k for k in type(part).__mro__ if not k.__module__.startswith(("torch.", "builtins"))
        ]
        methods = [f for kind in kinds for f in vars(kind).values() if inspect.isfunction(f)]
        if methods:
            found += [_plain(x) for name, x in vars(part).items() if name not in _BOOKKEEPING]
            found += [_plain(x) for kind in kinds for x in vars(kind).values()]
        for method in methods:
            names = method.__code__.co_names
            found += [_plain(method.__globals__.get(name)) for name in names]
    return found


def _plain(value: Any, depth: int = 3) -> Any:
    """Return what can be compared later: copies of small containers, and objects' attributes."""
    if isinstance(value, bool | int | float | str | None):
        return value
    is_opaque = callable(value) or inspect.ismodule(value) or isinstance(value, Tensor)
    inside = () if is_opaque else value
    if not is_opaque and not isinstance(value, Mapping | list | tuple):
        inside = getattr(value, "__dict__", ())
    if not depth or len(inside) > _MOST_VALUES:
        return id(value)
    parts = inside.items() if isinstance(inside, Mapping) else enumerate(inside)
    return id(value), [(name, _plain(x, depth - 1)) for name, x in parts]
