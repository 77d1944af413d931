"""Snapshots of modules, to detect changes after weights were read from them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, contains, eq, is_, itemgetter
from types import MethodType
from typing import Any

from torch import Tensor, nn

# Transformers 5 leaves these hooks on a model. They record outputs only when asked to.
INERT_HOOKS = "transformers.utils.output_capturing"

# Classes that compute the same in training mode.
INDIFFERENT = (
    *(nn.Linear, nn.LayerNorm, nn.Embedding),
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterDict),
)
REARRANGE = "einops.layers.torch", "Rearrange"  # one more, whose copies are in training mode

# Attributes of modules that adapters expect to be those of a new module.
SETTINGS = (
    *("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode", "pad_mode"),
    *("method", "pool_size", "pattern", "heads", "head_dim", "num_rel_pos_features"),
    *("rms_norm", "channels_last", "elementwise_affine", "max_norm"),
)

# Attributes of modules, other than tensors, that are read together with the weights.
CONSTANTS = (
    *SETTINGS,
    *("eps", "approximate", "intermediate_act_fn", "transform_act_fn"),
    *("embed_scale", "padding_idx", "token_dropout", "mask_token_id", "mask_idx"),
    *("attention_heads", "num_attention_heads", "num_heads", "depth", "top_k", "scale"),
    *("beta", "threshold", "resolutions", "apply_squashing", "starting", "precision"),
    *("_outgoing", "c_hidden", "no_heads", "n_heads", "has_s", "cross_attention_mode", "dim"),
    *("no_update_s", "initial_norm", "opm_first", "skip_msa_update", "is_last_block", "c_s"),
    *("disable_times", "sigma_data", "n_query", "n_key", "n_queries", "n_keys"),
    *("attn_window_queries", "attn_window_keys"),
)


class Snapshot:
    """Parameters, buffers, submodules and settings of a module at one point in time.

    The comparison runs in every forward pass, so the constructor does all lookups that it can. The
    snapshot keeps the memory of the tensors alive, so that no later tensor can get the same
    address.

    Changes in place are noticed by the counters that PyTorch keeps. Changes of ``parameter.data``
    in place, and those of tensors that were made in inference mode, are not counted. Freezing or
    unfreezing a parameter counts as a change, because PEFT freezes a model before it merges
    adapters into ``parameter.data``.

    Parameters
    ----------
    module : torch.nn.Module
        Module in its present state.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._types = list(map(type, self._modules))
        inner = self._modules[1:]
        self._hooks = _hooks(inner)
        checkpointed = [m for m in inner if is_checkpointed(m)]
        self._watched = [m for m in inner if m not in checkpointed]
        self._inner = list(map(vars, self._watched))
        self._modal = [vars(m) for m in inner if _is_modal(m)]
        self._read = [(own, n) for own in map(vars, self._modules) for n in CONSTANTS if n in own]
        self._read += [(vars(m), "forward") for m in checkpointed]
        self._constants = [
            copy.copy(v) if type(v) is list else v for v in self._current_constants()
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
            and self._current_constants() == self._constants
            and self._total_version() == self._version
            and self._count_trainable() == self._n_trainable
            and all(map(eq, map(Tensor.data_ptr, self._tensors), self._addresses))
        )

    def _current_members(self) -> Iterator[object]:
        return chain.from_iterable(self._views)

    def _current_constants(self) -> list[Any]:
        return [own.get(name) for own, name in self._read]

    def _total_version(self) -> int:
        """Sum the counters of changes in place, which only grow."""
        return sum(map(attrgetter("_version"), self._tensors))

    def _count_trainable(self) -> int:
        return sum(map(attrgetter("requires_grad"), self._tensors))


def is_checkpointed(module: nn.Module) -> bool:
    """Return True if fairscale checkpoints the activations of a module.

    Its ``forward`` then does nothing else unless gradients are required.
    """
    own: Any = vars(module).get("forward")
    is_wrapped = isinstance(own, partial) and own.func.__module__.startswith("fairscale.")
    return is_wrapped and own.args[0] is type(module).forward


def has_other_forward(module: nn.Module) -> bool:
    """Return True if somebody has set another ``forward`` on a module than that of its class.

    Transformers 5.0 leaves the method of the class on modules whose outputs it has recorded.
    """
    own: Any = vars(module).get("forward")
    return own is not None and own != MethodType(type(module).forward, module)


def are_hooked(modules: Iterable[nn.Module]) -> bool:
    """Return True if any of the modules, not counting submodules, has hooks."""
    return _any_active(_hooks(modules))


def settings(module: nn.Module) -> tuple[Any, ...]:
    """Return the `SETTINGS` of a module, each None if it has none of that name."""
    return tuple(map(vars(module).get, SETTINGS))


def _members(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module._modules, module._parameters, module._buffers


def _is_modal(module: nn.Module) -> bool:
    kind = type(module)
    return kind not in INDIFFERENT and (kind.__module__, kind.__qualname__) != REARRANGE


def _hooks(modules: Iterable[nn.Module]) -> list[dict[int, Any]]:
    return [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]


def _any_active(hooks: list[dict[int, Any]]) -> bool:
    return any(hook.__module__ != INERT_HOOKS for each in hooks for hook in each.values())
