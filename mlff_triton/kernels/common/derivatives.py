"""Derivatives of backward operators from their references, and parts of other derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef  # type: ignore[attr-defined] # public, not in __all__

from mlff_triton.kernels.common.checks import FLOATS


def differentiate_by_reference(
    backward: CustomOpDef,
    reference: Callable[..., Any],
    outputs: int = 1,
    wrt: Sequence[int] | None = None,
) -> None:
    """Register the derivative of a backward operator, by differentiating its reference twice.

    Parameters
    ----------
    backward : CustomOpDef
        ``backward(*grads, *inputs)`` returns gradients of ``reference(*inputs)``, given the
        gradients ``grads`` of its outputs.
    reference : callable
        Differentiable PyTorch function of the same ``inputs``.
    outputs : int
        Number of tensors that the reference returns; several are returned as a tuple.
    wrt : sequence of int, optional
        Indices of the ``inputs`` that ``backward`` returns gradients for. Default: all
        floating-point tensors.
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


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    """Save all inputs, which are tensors or None; a ``setup_context`` of `register_autograd`."""
    del output
    ctx.save_for_backward(*inputs)


def remember_tensors(ctx: Any, inputs: Sequence[Any]) -> None:
    """Note which inputs are tensors, for `needed_gradients`; called where inputs are saved."""
    ctx.tensors = [k for k, argument in enumerate(inputs) if isinstance(argument, Tensor)]


def needed_gradients(ctx: Any) -> list[bool]:
    """Return which inputs get a gradient in the backward pass that is running.

    PyTorch's ``ctx.needs_input_grad`` is also true for inputs that only another pass differentiates
    by, such as the weights while forces are computed.
    """
    needed = list(ctx.needs_input_grad)
    for k, (node, _) in zip(ctx.tensors, ctx.next_functions, strict=True):
        needed[k] = needed[k] and _will_run(node)
    return needed


def _will_run(node: Any) -> bool:
    """Return False if the running backward pass does not reach a node."""
    try:
        return node is not None and bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # which PyTorch raises for leaves that `torch.autograd.grad` is asked for
        return True
