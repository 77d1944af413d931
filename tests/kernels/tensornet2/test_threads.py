"""Operators for CPUs give the same bits with any number of threads."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.tensornet2.cpu import operators
from tests.kernels.tensornet2 import (
    test_charge_prediction,
    test_coulomb,
    test_edge_messages,
    test_equilibration,
)
from tests.kernels.tensornet2.conftest import PLAIN
from tests.support.random_inputs import as_tuple, moved, numbers, random_edges

N, F = 260, 16
"""Threads share these atoms, and their edges are several blocks."""
BATCH = 9, 150, 101


def normalized(n_atoms: int = N) -> tuple[object, ...]:
    """Return normalized tensors, their factors, and a network."""
    x = test_charge_prediction.normalized(numbers(9, n_atoms, F))
    return (*x, test_charge_prediction.weights(F, 16))


CASES = {
    "messages": lambda: (
        test_edge_messages.messages(operators, **PLAIN),
        test_edge_messages.forward_inputs(N, F, 20),
    ),
    "gradients of messages": lambda: (
        test_edge_messages.gradients(operators, **PLAIN),
        test_edge_messages.backward_inputs(N, F, 20, True),
    ),
    "charges": lambda: (test_charge_prediction.predictions(operators), normalized()),
    "charges of few atoms": lambda: (test_charge_prediction.predictions(operators), normalized(9)),
    "gradients of charges": lambda: (
        test_charge_prediction.gradients(operators),
        (numbers(N, 32), *normalized(), *numbers(2, N, F)),
    ),
    "gradients of tensors": lambda: (
        test_charge_prediction.tensor_gradients(operators),
        (*numbers(2, 9, N, F), *normalized()[:2], numbers(N, 3, F), numbers(9, N, F)),
    ),
    "gradients of scales": lambda: (
        test_charge_prediction.scale_gradients(operators),
        (*numbers(2, 9, N, F), numbers(N, 3, F), "silu"),
    ),
    "products": lambda: (operators.normalized_product, (*numbers(2, 9, N, F), "O(3)")),
    "equilibration": lambda: (
        test_equilibration.charges(operators),
        test_equilibration.inputs(BATCH, 16),
    ),
    "gradients of equilibration": lambda: (
        test_equilibration.gradients(operators),
        (numbers(N, 16), *test_equilibration.inputs(BATCH, 16)),
    ),
    "Coulomb pairs": lambda: (
        test_coulomb.pairs(operators),
        test_coulomb.pair_inputs(BATCH, 16),
    ),
    "Coulomb edges": lambda: (
        test_coulomb.truncated(operators),
        (numbers(N, 16), test_coulomb.positive(16), random_edges(N, "csr", 20)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_threads(name, dtype):
    function, inputs = CASES[name]()
    before, results = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            results.append(as_tuple(function(*moved(inputs, "cpu", dtype))))
            assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for expected, found in zip(results[0], other, strict=True):
            assert torch.equal(expected, found)
            assert expected.isfinite().all()
