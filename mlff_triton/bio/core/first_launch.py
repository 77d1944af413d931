"""Compilation of a model's kernels side by side, before their first launch.

A block or a score network launches dozens of kernels, and an encoder ten. One after another, they
take a second each, or more, to compile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing

_MOST_KEYS = 256

_KEYS: OrderedDict[Hashable, None] = OrderedDict()
_LOCK = Lock()


def before_first_launch(
    backend: str | None, key: Hashable, x: Tensor, launch: Callable[[], object]
) -> None:
    """Compile the kernels that a function launches, the first time that a key occurs.

    Triton compiles a kernel anew for some sizes, so these belong to the key.

    Parameters
    ----------
    backend : {"triton", "torch", None}
        Nothing is done unless it is "triton".
    key : hashable
        Everything that the kernels depend on, except for the device.
    x : Tensor
        One of the inputs, on any device; kernels run on GPUs.
    launch : callable
        Launches them, see `mlff_triton.kernels.common.compilation.compile_ahead`.
    """
    if backend != "triton" or not x.is_cuda or is_capturing(x):
        return
    known = x.device, key
    with _LOCK:
        is_new = known not in _KEYS
        _KEYS[known] = None
        _KEYS.move_to_end(known)
        while len(_KEYS) > _MOST_KEYS:
            _KEYS.popitem(last=False)
    if is_new:
        from mlff_triton.kernels.common.compilation import compile_ahead  # imports Triton

        compile_ahead(launch)
