"""Loops for CPUs: any number of channels, and the same bits with any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

from mlff_triton.kernels.common.cpu import compilation, rows
from mlff_triton.kernels.tensornet.cpu import operators as loops
from mlff_triton.kernels.tensornet.reference import operators as reference
from tests.kernels.tensornet import (
    test_interaction,
    test_message_product,
    test_readout,
    test_repulsion,
    test_scalar_network,
    test_tensor_embedding,
)
from tests.kernels.tensornet.test_forces import inputs as forces_inputs
from tests.support.random_inputs import as_tuple, assert_matches, moved, numbers, weights

SIZES = [(1, 1), (9, 7), (70, 48), (66, 64)]
"""Numbers of atoms and channels, for the shortest vectors and for the longest ones."""


def maps(*widths: int):
    """Return the linear maps of a network."""
    return [(numbers(a, b) / a**0.5, numbers(b)) for a, b in pairwise(widths)]


OF_ATOMS = {
    **test_interaction.OPERATORS,
    **{name: inputs for name, (inputs, _) in test_readout.CASES.items()},
    "scalar_network": test_scalar_network.forward_inputs,
    "scalar_network_backward": test_scalar_network.backward_inputs,
    "deep_head": lambda n, f: (numbers(n, f), maps(f, 5, 3, 1), "none", "tanh"),
    "gated_head": lambda n, f: (numbers(n, f), maps(f, 5, 1), maps(f, 4, 1), 1.5, "silu"),
    "deep_head, uncertain": lambda n, f: (
        *(numbers(n, f), maps(f, 5, 3, 1), "none", "tanh"),
        *(weights(7, 3), torch.randperm(n).int()),
    ),
    "gated_head, uncertain": lambda n, f: (
        *(numbers(n, f), maps(f, 5, 1), maps(f, 4, 1), 1.5, "silu"),
        *(weights(16, 5), torch.randperm(n).int()),
    ),
}
OF_EDGES = {
    "message_product": lambda n, f: test_message_product.forward_inputs(n, f, "rows", "O(3)"),
    "message_backward": lambda n, f: test_message_product.backward_inputs(n, f, "rows", True),
    "tensor_embedding": lambda n, f: test_tensor_embedding.forward_inputs(n, f, "rows"),
    "tensor_embedding_backward": lambda n, f: test_tensor_embedding.backward_inputs(
        n, f, "rows", True
    ),
}
WITHOUT_CHANNELS = {
    "forces": lambda n, _: forces_inputs(n, "csr"),
    "repulsion": lambda n, _: test_repulsion.inputs(n, "csr"),
}
CHANGING = {
    "message_backward": test_message_product,
    "tensor_embedding_backward": test_tensor_embedding,
}
"""Operators that write to an argument or leave slots unwritten, and the tests that know where."""


def operator(module, name):
    """Return an operator as a function of its inputs without side effects."""
    name = name.partition(",")[0]
    if name in CHANGING:
        return CHANGING[name].gradients(module)
    if name == "repulsion":
        return lambda *given: test_repulsion.outputs(module, given, "cpu", torch.float32)
    return getattr(module, name)


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("name", [*OF_ATOMS, *OF_EDGES])
def test_any_number_of_channels(name, n_atoms, channels, dtype):
    inputs = (OF_ATOMS | OF_EDGES)[name](n_atoms, channels)
    order = name not in ("linear", "embed", "update", "readout", "scalar_network")
    functions = (operator(module, name) for module in (loops, reference))
    assert_matches(*functions, inputs, "cpu", dtype, order)


@pytest.mark.parametrize("name", OF_ATOMS)
def test_no_atoms(name, dtype):
    inputs = OF_ATOMS[name](0, 16)
    found = as_tuple(operator(loops, name)(*moved(inputs, "cpu", dtype)))
    expected = as_tuple(operator(reference, name)(*inputs))
    assert [one.shape for one in found] == [other.shape for other in expected]


@pytest.mark.parametrize("name", ["message_product", "tensor_embedding"])
def test_no_receivers(name, dtype):
    inputs = [
        value.of_first(0) if hasattr(value, "of_first") else value
        for value in OF_EDGES[name](3, 16)
    ]
    first, second = getattr(loops, name)(*moved(tuple(inputs), "cpu", dtype))
    assert first.shape == (9, 0, 16)
    assert second.numel() == 0


@pytest.fixture
def small_pieces(monkeypatch):
    """Divide few atoms among many threads, and give back the number of threads."""
    monkeypatch.setattr(compilation, "FEWEST", 4)
    monkeypatch.setattr(rows, "ROWS", 8)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", [*OF_ATOMS, *OF_EDGES, *WITHOUT_CHANNELS])
def test_bits_do_not_depend_on_threads(name):
    """Neither on those of one call, nor on calls at the same time."""
    inputs = (OF_ATOMS | OF_EDGES | WITHOUT_CHANNELS)[name](67, 48)
    function, given = operator(loops, name), moved(inputs, "cpu", torch.float32)

    def results(n_threads):
        torch.set_num_threads(n_threads)
        return as_tuple(function(*given))

    expected = results(1)
    for n_threads in (2, 3, 16):
        assert_same(results(n_threads), expected)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(results, [1, 2, 3, 2] * 3):
            assert_same(found, expected)


@pytest.mark.usefixtures("small_pieces")
def test_totals_do_not_depend_on_threads():
    ptr = torch.arange(0, 68).int()
    inputs = numbers(7, 67), torch.arange(67).int(), ptr
    expected = reference.totals(*inputs)
    for n_threads in (1, 3, 16):
        torch.set_num_threads(n_threads)
        assert torch.equal(loops.totals(*inputs), expected)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_changed_parameters_are_seen():
    """Parameters are packed once, and again after a change in place."""
    x, weight = moved(test_interaction.mapped_inputs(3, 16), "cpu", torch.float32)
    before = loops.linear(x, weight)
    weight.weight.mul_(2)
    assert torch.equal(loops.linear(x, weight), 2 * before)
    inputs = moved(OF_EDGES["message_product"](5, 16), "cpu", torch.float32)
    loops.message_product(*inputs)
    inputs[1].zero_()
    inputs[2].zero_()
    assert not loops.message_product(*inputs)[0].any()
