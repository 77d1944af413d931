from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mlff_triton.kernels.common.reference.tensors import scale_parts
from mlff_triton.kernels.tensornet import message_product as kernels
from mlff_triton.kernels.tensornet.launch_sizes import MessageBlocks
from mlff_triton.kernels.tensornet.reference import message_product as reference
from mlff_triton.testing import assert_close
from tests.support.random_inputs import (
    KNOTS,
    LARGE,
    assert_matches,
    assert_repeats,
    at_origins,
    charge_factors,
    moved,
    numbers,
    random_edges,
)

CASES = [
    # atoms, channels, layout, group, accumulate
    (1, 16, "csr", "O(3)", False),
    (5, 16, "rows", "none", True),
    (5, 128, "csr", "SO(3)", False),
    (37, 32, "rows", "O(3)", True),
    pytest.param(3000, 128, "rows", "O(3)", True, marks=pytest.mark.gpu),
]
BLOCKS = [
    # atoms, lanes, channels, unroll, warps
    MessageBlocks(1, 8, 16, 1, 4),
    MessageBlocks(2, 2, 32, 2, 4),
    MessageBlocks(4, 1, 16, 4, 4),
    MessageBlocks(8, 1, 32, 1, 4),
]


def forward_inputs(n_atoms: int, channels: int, layout: str, group: str) -> tuple[object, ...]:
    table, own = numbers(KNOTS + 1, 3, 3, channels), numbers(3, channels)
    edges = random_edges(n_atoms, layout)
    return numbers(9, n_atoms, channels), table, own, edges, charge_factors(n_atoms), group


def backward_inputs(n_atoms: int, channels: int, layout: str, add: bool) -> tuple[object, ...]:
    y, table, own, edges, *_ = forward_inputs(n_atoms, channels, layout, "none")
    grad, direct = numbers(2, 9, n_atoms, channels)
    return grad, y, direct, table, own, edges, numbers(len(edges.senders)), add


def gradients(module):
    """Return the backward pass as a function without side effects, which returns the slopes."""

    def message_backward(*inputs):
        *others, edges, slope, add = inputs
        slope = slope.clone()
        return module.message_backward(*others, edges, slope, add), at_origins(slope, edges)

    return message_backward


def check(operator, n_atoms, channels, layout, group, add, device, dtype):
    inputs = forward_inputs(n_atoms, channels, layout, group)
    assert_matches(operator.message_product, reference.message_product, inputs, device, dtype, 0)
    inputs = backward_inputs(n_atoms, channels, layout, add)
    assert_matches(gradients(operator), gradients(reference), inputs, device, dtype, 1)


@pytest.mark.parametrize(("n_atoms", "channels", "layout", "group", "add"), CASES)
def test_agrees_with_the_reference(n_atoms, channels, layout, group, add, operator, device, dtype):
    check(operator, n_atoms, channels, layout, group, add, device, dtype)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_agrees_however_it_is_launched(blocks, device, monkeypatch):
    for name in ("message_blocks", "message_backward_blocks"):
        monkeypatch.setattr(kernels, name, lambda _: blocks)
    check(kernels, 11, 32, "rows", "O(3)", True, device, torch.float32)


def test_gives_the_same_bits_again(operator, device):
    n_atoms = LARGE[device == "cuda"]
    inputs = forward_inputs(n_atoms, 32, "rows", "O(3)")
    assert_repeats(operator.message_product, inputs, device, torch.float32)
    inputs = backward_inputs(n_atoms, 32, "rows", True)
    assert_repeats(gradients(operator), inputs, device, torch.float32)


def test_isolated_atoms_hear_of_themselves_alone(operator, device):
    y, _, own, *_ = inputs = forward_inputs(5, 16, "rows", "none")
    message, _ = operator.message_product(*moved(inputs, device, torch.float64))
    assert_close(message[:, -1], scale_parts(own[:, None, :], y)[:, -1], 0)


@pytest.mark.parametrize("layout", ["csr", "rows"])
def test_reference_has_the_right_gradients(layout):
    y, table, own, edges, *others = forward_inputs(7, 16, layout, "none")
    y.requires_grad_()
    growth = torch.zeros_like(edges.distance, requires_grad=True)
    longer = edges._replace(fraction=edges.fraction + growth / edges.width)
    message, _ = reference.message_product(y, table, own, longer, *others)
    grad, direct = numbers(2, *y.shape)
    grad_y, slope = torch.autograd.grad((message * grad + y * direct).sum(), (y, growth))

    earlier = numbers(len(slope))
    inputs = grad, y.detach(), direct, table, own, edges
    found, found_slope = gradients(reference)(*inputs, earlier, False)
    _, added_slope = gradients(reference)(*inputs, earlier, True)
    slots, _ = edges.live()
    origin = edges.origin[slots].long()
    slope = torch.zeros_like(slope).index_add(0, origin, slope[slots])
    assert_close(found, grad_y, 1)
    assert_close(found_slope, slope[edges.reverse[origin].long()], 1)
    assert_close(added_slope, at_origins(earlier, edges) + found_slope, 1)


@pytest.mark.parametrize(("n_receivers", "n_senders"), [(4, 7), (7, 11), (3, 11)])
def test_messages_among_the_first_atoms(n_receivers, n_senders, operator, device, dtype):
    """Receivers are some of the atoms, and so are those whose gradients are needed."""
    y, table, own, edges, factors, group = forward_inputs(11, 32, "rows", "O(3)")
    few = y, table, own, edges.of_first(n_receivers), factors, group
    assert_matches(operator.message_product, reference.message_product, few, device, dtype, 0)
    found, expected = (
        reference.message_product(*few),
        reference.message_product(*few[:3], edges, factors, group),
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other[:, :n_receivers], 0)

    grad, direct = numbers(2, 9, n_receivers, 32)
    sent, slope = y[:, :n_senders].contiguous(), numbers(len(edges.senders))
    few = grad, sent, direct, table, own, edges.of_first(n_senders), 0 * slope, True
    assert_matches(gradients(operator), gradients(reference), few, device, dtype, 1)
    padded = (functional.pad(g, (0, 0, 0, 11 - n_receivers)) for g in (grad, direct))
    zeros = next(padded), y, next(padded), table, own, edges, 0 * slope, True
    grad_y, slopes = gradients(reference)(*few)
    expected_y, expected_slopes = gradients(reference)(*zeros)
    assert_close(grad_y, expected_y[:, :n_senders], 1)
    assert_close(slopes, expected_slopes[: len(slopes)], 1)


def test_gradients_of_senders_that_others_compute(operator, device, dtype):
    """Tensors and gradients of messages have rows after those of the atoms whose are needed."""
    n_own = 4
    grad, y, direct, table, own, edges, slope, _ = backward_inputs(11, 32, "rows", True)
    near, few = edges.of_first(n_own), direct[:, :n_own].contiguous()
    inputs = grad, y, few, table, own, near, 0 * slope, True
    assert_matches(gradients(operator), gradients(reference), inputs, device, dtype, 1)
    whole, _ = gradients(reference)(grad, y, direct, table, own, edges, 0 * slope, True)
    found, _ = gradients(reference)(*inputs)
    assert_close(found, whole[:, :n_own], 1)
