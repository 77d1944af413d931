"""What all operators share: checks of their inputs, and derivatives of their backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef  # type: ignore[attr-defined] # public, not in __all__

from mlff_triton._common.availability import check_triton
from mlff_triton.errors import InputError

FLOATS = (torch.float32, torch.float64)


def check_device(*tensors: Tensor) -> None:
    """Raise unless all tensors lie on one device that Triton can launch on.

    Under Triton's interpreter (``TRITON_INTERPRET=1``) every device will do.

    Raises
    ------
    InputError
        If the tensors lie on several devices.
    BackendError
        If their device is no GPU.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise InputError(f"the tensors lie on {names}: move them to one device")
    check_triton(tensors[0].device, "move the tensors to 'cuda', or use backend='torch'")


def check_floats(**tensors: Tensor) -> None:
    """Raise unless the named tensors share a device, as for `check_device`, and float32 or float64.

    Raises
    ------
    InputError
        If they lie on several devices, or have another dtype or several.
    BackendError
        If their device is no GPU.
    """
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS):
        found = ", ".join(f"{name} is {t.dtype}" for name, t in tensors.items())
        raise InputError(f"{found}: use float32 or float64, one for all")
    check_device(*tensors.values())


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | str]) -> None:
    """Raise unless a tensor has this shape; a dimension given by a letter may have any size.

    Raises
    ------
    InputError
        If the shape is another.
    """
    fits = len(tensor.shape) == len(shape) and all(
        isinstance(wanted, str) or wanted == size
        for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(map(str, shape))
        raise InputError(f"{name} has the shape {list(tensor.shape)} instead of [{wanted}]")


def check_pointers(row_ptr: Tensor) -> None:
    """Raise `InputError` unless a tensor may say where consecutive segments begin and end."""
    check_shape("row_ptr", row_ptr, ("B + 1",))
    if row_ptr.dtype not in (torch.int64, torch.int32) or not len(row_ptr):
        raise InputError("row_ptr must be int64 or int32, with at least one element")


def expanded(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor spread over a shape, without copies.

    Raises
    ------
    InputError
        If it does not broadcast to that shape.
    """
    try:
        return tensor.expand(*shape)
    except RuntimeError:
        raise InputError(
            f"{name} has the shape {list(tensor.shape)}, which does not broadcast to {list(shape)}"
        ) from None


def check_graph(
    x: Tensor, n_atoms: int, n_edges: int, row_ptr: Tensor, senders: Tensor, reverse: Tensor
) -> None:
    """Raise, as those above, unless a neighbor list is one of so many atoms and edges."""
    graph = row_ptr, senders, reverse
    check_device(x, *graph)
    if any(index.dtype not in (torch.int64, torch.int32) for index in graph):
        raise InputError("row_ptr, senders and reverse must be int64 or int32")
    check_shape("row_ptr", row_ptr, (n_atoms + 1,))
    check_shape("senders", senders, (n_edges,))
    check_shape("reverse", reverse, (n_edges,))


def differentiate_by_reference(
    backward: CustomOpDef,
    reference: Callable[..., Any],
    outputs: int = 1,
    wrt: Sequence[int] | None = None,
) -> None:
    """Register the derivative of a backward operator: that of its reference's own backward pass.

    Parameters
    ----------
    backward : CustomOpDef
        ``backward(*grads, *inputs)`` returns gradients of ``reference(*inputs)``, where ``grads``
        belong to the outputs of the reference.
    reference : callable
        Differentiable PyTorch; takes the very ``inputs`` that ``backward`` takes.
    outputs : int
        Number of tensors that the reference returns, as a tuple if there are several.
    wrt : sequence of int, optional
        Positions of the ``inputs`` that ``backward`` returns gradients for; by default those of
        all floating-point tensors.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
        ctx.save_for_backward(*(a if isinstance(a, Tensor) else None for a in inputs))
        ctx.others = [None if isinstance(a, Tensor) else a for a in inputs]

    def differentiate(ctx: Any, *grad_gradients: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        arguments = [other if saved is None else saved for saved, other in pairs]
        grads, inputs = tuple(arguments[:outputs]), arguments[outputs:]
        active = [k for k, a in enumerate(inputs) if isinstance(a, Tensor) and a.dtype in FLOATS]
        wanted = [active.index(k) for k in (active if wrt is None else wrt)]

        def forward(*floats: Tensor) -> Any:
            by_position = dict(zip(active, floats, strict=True))
            return reference(*(by_position.get(k, a) for k, a in enumerate(inputs)))

        def gradients(grads: tuple[Tensor, ...], *floats: Tensor) -> tuple[Tensor, ...]:
            pull_back = torch.func.vjp(forward, *floats)[1]
            found = pull_back(grads if outputs > 1 else grads[0])
            return tuple(found[k] for k in wanted)

        pull_back = torch.func.vjp(gradients, grads, *(inputs[k] for k in active))[1]
        of_grads, *of_floats = pull_back(grad_gradients)
        by_position = dict(zip(active, of_floats, strict=True))
        return (*of_grads, *(by_position.get(k) for k in range(len(inputs))))

    backward.register_autograd(differentiate, setup_context=setup_context)
