"""Joint registration of a custom operator's launcher, output shapes and derivative.

    @operator("irrep_norms", outputs=_empty_norms, gradients=_irrep_norms_backward)
    def _irrep_norms(x: Tensor) -> Tensor: ...

An operator that is differentiated by another operator names it, so the last derivative comes first
in a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import CustomOpDef  # type: ignore[attr-defined] # public, not in __all__

from mlff_triton.errors import InputError


class Operator(CustomOpDef):
    """Custom operator that refuses tangents, which PyTorch would drop without a word."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator.

        Raises
        ------
        InputError
            If an input has a tangent of forward-mode differentiation.
        """
        if forward_ad._current_level >= 0:
            _refuse_tangents([*args, *kwargs.values()])
        return super().__call__(*args, **kwargs)


def operator(
    name: str,
    *,
    outputs: Callable[..., Any] | str | tuple[str, ...],
    gradients: Callable[..., Any] | None = None,
    differentiate: Callable[..., Any] | None = None,
    saves: Callable[..., None] | tuple[str, ...] | None = None,
) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Register the decorated launcher as the custom operator ``mlff_triton::<name>``.

    Parameters
    ----------
    name : str
        Name of the operator. Its schema follows from the launcher's annotations.
    outputs : callable, str or tuple of str
        Function of the inputs that returns uninitialized outputs; or the name of the input that has
        the shape and dtype of the only output, or one name for each output.
    gradients : callable, optional
        ``gradients(*grads, *saved)`` returns the gradients of the first inputs, given those of the
        outputs and the saved inputs. The other inputs get none, and a backward pass that needs one
        raises `InputError`.
    differentiate : callable, optional
        ``differentiate(ctx, *grads)``, in place of ``gradients``, for derivatives that depend on
        `needed_gradients`, or on other values than inputs.
    saves : tuple of str or callable, optional
        Names of the inputs that the derivative needs, or ``saves(ctx, inputs, output)``, which
        stores what it needs in the context. By default, all inputs are saved.
    """

    def register(launch: Callable[..., Any]) -> CustomOpDef:
        inputs = inspect.signature(launch).parameters
        registered = torch.library.custom_op(f"mlff_triton::{name}", mutates_args=())(launch)
        if type(registered) is CustomOpDef:  # unlike in processes without PyTorch, which compile
            registered.__class__ = Operator
        registered.register_fake(outputs if callable(outputs) else _like(outputs, inputs))
        save = saves if callable(saves) else _save(saves, inputs)
        if gradients is not None:
            derivative = _padded(_from_saved(gradients), list(inputs))
            registered.register_autograd(derivative, setup_context=save)
        elif differentiate is not None:
            derivative = _padded(differentiate, list(inputs))
            registered.register_autograd(derivative, setup_context=_noting_tensors(save))
        return registered

    return register


def saved_inputs(ctx: Any) -> list[Any]:
    """Return the inputs that were saved, tensors and others, in their order."""
    inputs = list(ctx.saved_tensors)
    for position, value in ctx.others:
        inputs.insert(position, value)
    return inputs


def needed_gradients(ctx: Any) -> list[bool]:
    """Return which inputs get a gradient in the backward pass that is running.

    PyTorch's ``ctx.needs_input_grad`` is also true for inputs that need gradients only in another
    backward pass, such as the weights while forces are computed.
    """
    needed = list(ctx.needs_input_grad)
    for k, (node, _) in zip(ctx.tensors, ctx.next_functions, strict=True):
        needed[k] = needed[k] and _will_run(node)
    return needed


def by_chosen(gradients: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Make the derivative of an operator from another one, which computes chosen gradients.

    Parameters
    ----------
    gradients : callable
        ``gradients(grad, *inputs, wanted)`` returns the gradients of the first inputs, given that
        of the only output. Only those of the inputs with the ``wanted`` indices are computed. The
        others are empty: see `chosen_like`.
    count : int
        Number of these inputs.

    Returns
    -------
    callable
        Argument ``differentiate`` of `operator`.
    """

    def differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [k for k, needed in enumerate(needed_gradients(ctx)[:count]) if needed]
        found = gradients(grad, *saved_inputs(ctx), wanted)
        return tuple(x if k in wanted else None for k, x in enumerate(found))

    return differentiate


def chosen_like(count: int) -> Callable[..., tuple[Tensor, ...]]:
    """Make the function that returns uninitialized outputs of an operator for `by_chosen`.

    They have the shapes and dtypes of the inputs, or are empty if they are not wanted.
    """

    def empty(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        del grad
        *others, wanted = inputs
        return tuple(
            x.new_empty(x.shape if k in wanted else 0) for k, x in enumerate(others[:count])
        )

    return empty


def by_reference(
    reference: Callable[..., Any],
    outputs: int = 1,
    wrt: Sequence[int] | None = None,
    *,
    chosen: bool = False,
) -> Callable[..., Any]:
    """Make the derivative of a backward operator, by differentiating its reference twice.

    Parameters
    ----------
    reference : callable
        Differentiable PyTorch function. The operator takes the gradients of its outputs, followed
        by its inputs, and returns the gradients of the inputs.
    outputs : int
        Number of tensors that the reference returns; several are returned as a tuple.
    wrt : sequence of int, optional
        Indices of the inputs whose gradients the operator returns. Default: all floating-point
        tensors.
    chosen : bool
        True if the operator takes the indices of inputs as a last argument, and computes their
        gradients only: see `by_chosen`. It returns one output for each of the first inputs.

    Returns
    -------
    callable
        Argument ``differentiate`` of `operator`.
    """

    def differentiate(ctx: Any, *grad_gradients: Tensor) -> tuple[Tensor | None, ...]:
        arguments = saved_inputs(ctx)
        by = arguments.pop() if chosen else wrt
        grads, inputs = tuple(arguments[:outputs]), arguments[outputs:]
        active = [
            k for k, a in enumerate(inputs) if isinstance(a, Tensor) and a.is_floating_point()
        ]
        by = active if by is None else by
        wanted = [active.index(k) for k in by]
        if chosen:
            grad_gradients = tuple(grad_gradients[k] for k in by)

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

    return differentiate


def _refuse_tangents(arguments: Iterable[Any]) -> None:
    """Raise `InputError` if a tensor, also one in a list, has a tangent."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            _refuse_tangents(argument)
        elif isinstance(argument, Tensor) and forward_ad.unpack_dual(argument).tangent is not None:
            raise InputError(
                "kernels have no forward-mode derivatives: use torch.autograd.grad, or the "
                "reference in plain PyTorch"
            )


def _like(names: str | tuple[str, ...], inputs: Iterable[str]) -> Callable[..., Any]:
    """Make the function that returns uninitialized tensors like the inputs of the given names."""
    known = list(inputs)
    indices = [known.index(name) for name in ([names] if isinstance(names, str) else names)]

    def empty(*arguments: Any) -> Any:
        tensors = tuple(arguments[k].new_empty(arguments[k].shape) for k in indices)
        return tensors[0] if isinstance(names, str) else tensors

    return empty


def _from_saved(gradients: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, *grads: gradients(*grads, *saved_inputs(ctx))


def _padded(differentiate: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """Make a derivative return None for the last inputs, which have no gradients.

    It raises `InputError` if one of them needs a gradient.
    """

    def padded(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found = differentiate(ctx, *grads)
        found = found if isinstance(found, tuple) else (found,)
        rest = names[len(found) :]
        for name, is_needed in zip(rest, ctx.needs_input_grad[len(found) :], strict=True):
            if is_needed:
                raise InputError(f"{name} gets no gradient: detach it")
        return (*found, *(None,) * len(rest))

    return padded


def _save(
    names: tuple[str, ...] | None, inputs: Mapping[str, inspect.Parameter]
) -> Callable[..., None]:
    """Make the ``setup_context`` that saves inputs, for `saved_inputs`."""
    wanted = [k for k, name in enumerate(inputs) if names is None or name in names]
    is_tensor = ["Tensor" in str(parameter.annotation) for parameter in inputs.values()]
    tensors = [k for k in wanted if is_tensor[k]]
    others = [(position, k) for position, k in enumerate(wanted) if not is_tensor[k]]

    def save(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        del output
        ctx.save_for_backward(*[inputs[k] for k in tensors])
        ctx.others = [(position, inputs[k]) for position, k in others]

    return save


def _noting_tensors(save: Callable[..., None]) -> Callable[..., None]:
    """Make a ``setup_context`` that also notes which inputs are tensors, for `needed_gradients`."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.tensors = [k for k, argument in enumerate(inputs) if isinstance(argument, Tensor)]
        save(ctx, inputs, output)

    return setup_context


def _will_run(node: Any) -> bool:
    """Return False if the running backward pass does not reach a node."""
    try:
        return node is not None and bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # raised by PyTorch for leaves passed to `torch.autograd.grad`
        return True
