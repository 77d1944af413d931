"""The decorator of operators: outputs, gradients of some inputs, and what is saved for them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.operators import (
    by_chosen,
    by_reference,
    chosen_like,
    needed_gradients,
    operator,
    saved_inputs,
)


def reference(a: Tensor, index: Tensor, b: Tensor, power: int) -> tuple[Tensor, Tensor]:
    return a[index] ** power * b, a.sin() * b.sum()


@operator("backward_of_tests", outputs=("a", "b"), differentiate=by_reference(reference, outputs=2))
def backward(
    grad0: Tensor, grad1: Tensor, a: Tensor, index: Tensor, b: Tensor, power: int
) -> tuple[Tensor, Tensor]:
    _, pull_back = torch.func.vjp(lambda a, b: reference(a, index, b, power), a, b)
    return tuple(gradient.clone() for gradient in pull_back((grad0, grad1)))


def test_second_derivatives_by_reference():
    index = torch.tensor([0, 2, 2, 1])
    sizes = 4, 3, 3, 4
    grad0, grad1, a, b = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in sizes)

    def gradients(grad0: Tensor, grad1: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return backward(grad0, grad1, a, index, b, 3)

    assert torch.autograd.gradcheck(gradients, (grad0, grad1, a, b))
    assert torch.autograd.gradgradcheck(gradients, (grad0, grad1, a, b))


@operator(
    "scaled_of_tests",
    outputs="x",
    gradients=lambda grad, power, scale: grad * scale**power,
    saves=("power", "scale"),
)
def scaled(x: Tensor, power: int, scale: Tensor | None) -> Tensor:
    return x.clone() if scale is None else x * scale**power


def test_inputs_that_are_not_saved_are_freed():
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    x, scale = 2 * leaf, torch.full((3,), 3.0, dtype=torch.float64)
    kept, y = weakref.ref(x), scaled(x, 2, scale)
    del x
    assert kept() is None
    assert torch.equal(torch.autograd.grad(y.sum(), leaf)[0], 2 * scale**2)
    torch.library.opcheck(scaled, (leaf, 2, scale), test_utils="test_faketensor")


def gradients_of_product(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, _, b = saved_inputs(ctx)
    needed = needed_gradients(ctx)
    asked.append(needed)
    return grad * b if needed[0] else None, None, grad * a if needed[2] else None


@operator("product_of_tests", outputs=("a",), differentiate=gradients_of_product)
def product(a: Tensor, name: str, b: Tensor) -> tuple[Tensor]:
    del name
    return (a * b,)


asked: list[list[bool]] = []


@pytest.mark.parametrize("derived", [torch.clone, lambda leaf: leaf])
def test_only_what_this_pass_needs_is_computed(derived):
    a, b = (torch.tensor([value], requires_grad=True) for value in (2.0, 5.0))
    (y,) = product(derived(a), "name", derived(b))
    asked.clear()
    assert torch.autograd.grad(y, b, retain_graph=True)[0].item() == 2
    assert torch.autograd.grad(y, a)[0].item() == 5
    assert asked == [[False, False, True], [True, False, False]]


def powers(a: Tensor, b: Tensor, exponent: int) -> Tensor:
    return a**exponent * b


@operator(
    "powers_gradient_of_tests",
    outputs=chosen_like(2),
    differentiate=by_reference(powers, chosen=True),
)
def powers_gradient(
    grad: Tensor, a: Tensor, b: Tensor, exponent: int, wanted: Sequence[int]
) -> tuple[Tensor, Tensor]:
    chosen.append(list(wanted))
    of_a = grad * exponent * a ** (exponent - 1) * b if 0 in wanted else a.new_empty(0)
    of_b = grad * a**exponent if 1 in wanted else b.new_empty(0)
    return of_a, of_b


@operator("powers_of_tests", outputs="a", differentiate=by_chosen(powers_gradient, 2))
def powers_operator(a: Tensor, b: Tensor, exponent: int) -> Tensor:
    return powers(a, b, exponent)


chosen: list[list[int]] = []


def test_chosen_gradients_have_second_derivatives():
    a, b = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def operate(a: Tensor, b: Tensor) -> Tensor:
        return powers_operator(a, b, 3)

    chosen.clear()
    for leaves in ((a, b), (a, b.detach()), (a.detach(), b)):
        assert torch.autograd.gradgradcheck(operate, leaves)
        found = torch.ops.mlff_triton.powers_gradient_of_tests
        wanted = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
        torch.library.opcheck(found, (torch.ones_like(a), a, b, 3, wanted))
    assert {tuple(each) for each in chosen} == {(0, 1), (0,), (1,)}


@operator("sum_of_tests", outputs=lambda parts: parts[0].new_empty(parts[0].shape))
def sum_of(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def along(x: Tensor) -> Tensor:
    """Return the derivative of an operator along ones, by a tensor with a tangent."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        return forward_ad.unpack_dual(scaled(dual, 2, None)).tangent


@pytest.mark.parametrize(
    "derivative",
    [
        along,
        torch.func.jacfwd(lambda x: scaled(x, 2, None)),
        lambda x: torch.func.jvp(lambda x: scaled(x, 2, scale=x), (x,), (x,)),
        lambda x: torch.func.jvp(lambda y: sum_of([x, y]), (x,), (x,)),
    ],
    ids=["dual", "jacfwd", "keyword", "list"],
)
def test_forward_mode_derivatives_are_refused(derivative):
    """PyTorch would return zeros."""
    with pytest.raises(InputError, match="have no forward-mode derivatives: use"):
        derivative(torch.ones(3))


def test_constants_may_be_used_in_forward_mode():
    factor = torch.full((3,), 2.0)
    found, tangent = torch.func.jvp(
        lambda x: x * scaled(factor, 2, None), (torch.ones(3),), (torch.ones(3),)
    )
    assert torch.equal(found, factor)
    assert torch.equal(tangent, factor)
