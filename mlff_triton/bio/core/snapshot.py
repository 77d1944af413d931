"""Snapshots of modules, to detect changes after weights were read from them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, contains, eq, is_, itemgetter
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.bio.core.settings import plain_attributes

# Transformers 5 leaves these hooks on a model. They record outputs only when asked to.
INERT_HOOKS = "transformers.utils.output_capturing"

# Classes that compute the same in training mode.
INDIFFERENT = (
    *(nn.Linear, nn.LayerNorm, nn.Embedding),
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterDict),
)
REARRANGE = "einops.layers.torch", "Rearrange"  # one more, whose copies are in training mode

N_SAMPLES = 4  # of each tensor, see `Samples`
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size


class Snapshot:
    """Parameters, buffers, submodules and settings of a module at one point in time.

    The comparison runs in every forward pass, so the constructor does all lookups that it can. The
    snapshot keeps the memory of the tensors alive, so that no later tensor can get the same
    address.

    Changes in place are noticed by the counters that PyTorch keeps. Changes of ``parameter.data``
    in place, and of tensors made in inference mode, are not counted. `Samples` notice most of them
    on a CPU, and on a GPU once PEFT is imported, which merges adapters into ``parameter.data``, or
    FSDP, which gathers weights uncounted. Freezing or unfreezing a parameter counts as a change,
    too.

    Submodules in TorchScript count as a whole: they are compiled, without mode, settings or hooks
    that could be set in Python.

    Parameters
    ----------
    module : torch.nn.Module
        Module in its present state.
    watches : collection of str
        Names of private attributes that count, as all others do.
    """

    def __init__(self, module: nn.Module, watches: Collection[str] = ()) -> None:
        self._modules = [m for m in module.modules() if not isinstance(m, torch.jit.ScriptModule)]
        self._types = list(map(type, self._modules))
        inner = self._modules[1:]
        self._hooks = _hooks(inner)
        checkpointed = [m for m in inner if is_checkpointed(m)]
        self._watched = [m for m in inner if m not in checkpointed]
        self._inner = list(map(vars, self._watched))
        self._modal = [vars(m) for m in inner if _is_modal(m)]
        plain = [(vars(m), found) for m in self._modules if (found := plain_attributes(m, watches))]
        plain += [(vars(m), {"forward": vars(m)["forward"]}) for m in checkpointed]
        self._settings = [(itemgetter(*found), own) for own, found in plain]
        self._kept_settings = [
            get(found) for (get, _), (_, found) in zip(self._settings, plain, strict=True)
        ]
        members = [m for each in self._modules for m in _members(each)]
        self._empty = [each for each in members if not each]
        self._views = [each.values() for each in members if each]
        self._members = list(self._current_members())
        tensors = (*module.parameters(), *module.buffers())
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
        self._memory = [tensor.detach() for tensor in tensors]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        self._version = self._total_version()
        self._n_trainable = self._count_trainable()
        self._samples = Samples(self._memory)

    @property
    def obstacle(self) -> str | None:
        """Reason why the submodules must be called one by one, or None."""
        if any(self._hooks) and _any_active(self._hooks):
            return "a submodule has hooks, which the fast forward would not call"
        is_set = any(map(contains, self._inner, repeat("forward")))
        if is_set and any(map(has_other_forward, self._watched)):
            return "a submodule has a forward of its own, which the fast forward would not call"
        if any(map(itemgetter("training"), self._modal)):
            return "a submodule is in training mode; call model.eval()"
        return None

    def is_current(self) -> bool:
        """Return True if there is no `obstacle`, and nothing was changed or replaced since."""
        return (
            self.obstacle is None
            and list(map(type, self._modules)) == self._types
            and not any(self._empty)
            and sum(map(len, self._views)) == len(self._members)
            and all(map(is_, self._current_members(), self._members))
            and self._has_same_settings()
            and self._total_version() == self._version
            and self._count_trainable() == self._n_trainable
            and all(map(eq, map(Tensor.data_ptr, self._tensors), self._addresses))
            and self._samples.are_current()
        )

    def _current_members(self) -> Iterator[object]:
        return chain.from_iterable(self._views)

    def _has_same_settings(self) -> bool:
        try:
            return [get(own) for get, own in self._settings] == self._kept_settings
        except (KeyError, RuntimeError):  # deleted, or replaced by a tensor
            return False

    def _total_version(self) -> int:
        """Sum the counters of changes in place, which only grow."""
        return sum(map(attrgetter("_version"), self._tensors))

    def _count_trainable(self) -> int:
        return sum(map(attrgetter("requires_grad"), self._tensors))


class Samples:
    """A few values of each tensor, to detect changes that PyTorch does not count.

    On a GPU, the host waits for the values, so they are compared only if `hides_changes` is True.

    Parameters
    ----------
    tensors : sequence of Tensor
        Detached tensors. Tensors on a device other than the first one's, and complex tensors, are
        skipped.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        kept = [x for x in tensors if x.device == tensors[0].device and not x.is_complex()]
        self._views = [_sample(x) for x in kept if x.numel()]
        self._on_gpu = bool(self._views) and self._views[0].is_cuda
        self._arrays = [] if self._on_gpu else [view.numpy() for view in self._views]
        self._kept = self._current()

    def are_current(self) -> bool:
        """Return True unless a value has changed, as far as is known."""
        if self._kept is None or (self._on_gpu and not hides_changes()):
            return True
        return self._current() in (self._kept, None)

    def _current(self) -> bytes | None:
        """Return the values; None while a CUDA graph is captured."""
        if self._on_gpu:
            if is_capturing(self._views[0]):
                return None
            values: bytes = torch.cat(self._views).cpu().numpy().tobytes()
            return values
        return b"".join(map(np.ndarray.tobytes, self._arrays))


def hides_changes() -> bool:
    """Return True if a package is in use that changes weights without counting it."""
    has_fsdp = "torch.distributed.fsdp" in sys.modules and torch.distributed.is_initialized()
    return has_fsdp or "peft" in sys.modules


def _sample(tensor: Tensor) -> Tensor:
    """Return a view of the bits of a few elements."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    count = min(N_SAMPLES, extent)
    chosen = tensor.as_strided((count,), (extent // count,))
    return chosen.view(INTEGERS[tensor.element_size()])


def is_checkpointed(module: nn.Module) -> bool:
    """Return True if fairscale checkpoints the activations of a module.

    Its ``forward`` then does nothing else unless gradients are required.
    """
    own: Any = vars(module).get("forward")
    is_wrapped = isinstance(own, partial) and own.func.__module__.startswith("fairscale.")
    return is_wrapped and own.args[0] is type(module).forward


def has_other_forward(module: nn.Module) -> bool:
    """Return True if a module has a ``forward`` other than that of its class.

    Transformers 5.0 leaves the method of the class on modules whose outputs it has recorded.
    """
    own: Any = vars(module).get("forward")
    return own is not None and own != MethodType(type(module).forward, module)


def are_hooked(modules: Iterable[nn.Module]) -> bool:
    """Return True if any of the modules, not counting submodules, has hooks."""
    return _any_active(_hooks(modules))


def _members(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module._modules, module._parameters, module._buffers


def _is_modal(module: nn.Module) -> bool:
    kind = type(module)
    return kind not in INDIFFERENT and (kind.__module__, kind.__qualname__) != REARRANGE


def _hooks(modules: Iterable[nn.Module]) -> list[dict[int, Any]]:
    return [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]


def _any_active(hooks: list[dict[int, Any]]) -> bool:
    return any(hook.__module__ != INERT_HOOKS for each in hooks for hook in each.values())
