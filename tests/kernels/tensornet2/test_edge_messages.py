from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.reference.tensors import compose, decompose
from mlff_triton.kernels.tensornet2 import (
    edge_messages,
    edge_messages_backward,
    edge_rows,
    row_products,
)
from mlff_triton.kernels.tensornet2 import operators as operator
from mlff_triton.kernels.tensornet2.launch_sizes import GatherBlocks, ProductBlocks
from mlff_triton.kernels.tensornet2.reference import operators as reference
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.testing import assert_close
from tests.kernels.tensornet2.conftest import PLAIN
from tests.support.random_inputs import (
    KNOTS,
    LARGE,
    assert_matches,
    assert_repeats,
    at_origins,
    moved,
    numbers,
    random_edges,
)
from tests.support.torchmd_net import import_tensornet2

Q = 5  # not a power of two
CUTOFFS = 0.0, 1.8  # Å; some of the edges are longer
CASES = [
    # atoms, channels, neighbors, accumulate
    (1, 32, 5, False),
    (5, 64, 5, True),
    (63, 32, 5, True),
    (3, 128, 5, True),
    (2, 256, 5, False),
    (70, 16, 5, True),
    pytest.param(3000, 128, 60, True, marks=pytest.mark.gpu),
    pytest.param(700, 256, 60, False, marks=pytest.mark.gpu),
    pytest.param(700, 64, 60, False, marks=pytest.mark.gpu),
]
PRODUCTS = [
    # rows, columns, inner, warps, stages
    ProductBlocks(16, 16, 32, 4, 1),
    ProductBlocks(128, 32, 32, 8, 2),
]
LANES = [1, 4]


def weights(channels: int, n_charges: int = Q) -> list[object]:
    """Return the parts of a network that preserves the scale of its input."""
    f = channels
    scaled = [numbers(2 * f, f) / f**0.5, numbers(3 * f, 2 * f) / (2 * f) ** 0.5]
    second, third = [[w.float().double(), numbers(len(w))] for w in scaled]
    return [numbers(KNOTS + 1, 3, f), numbers(f), numbers(n_charges, 2, f), second, third]


def network(parts, activation="silu", cutoffs=CUTOFFS, **options) -> InteractionNetwork:
    return InteractionNetwork.of(*parts, cutoffs, activation, **options)


def forward_inputs(n_atoms, channels, neighbors, layout="rows") -> tuple[object, ...]:
    y, terms = numbers(9, n_atoms, channels), numbers(2, n_atoms, channels)
    return y, terms, weights(channels), random_edges(n_atoms, layout, neighbors)


def backward_inputs(n_atoms, channels, neighbors, add) -> tuple[object, ...]:
    y, terms, parts, edges = forward_inputs(n_atoms, channels, neighbors)
    grad, direct = numbers(2, *y.shape)
    return grad, y, direct, terms, parts, edges, numbers(len(edges.senders)), add


def messages(module, **options):
    def of_edges(y, terms, parts, edges):
        rows = module.edge_rows(edges)
        return module.edge_messages(y, terms, network(parts, **options), edges, rows)[0]

    return of_edges


def gradients(module, **options):
    """Return the backward pass without side effects; results of edges in the edges' order.

    Gradients of receivers' charges are sums over edges, which operators compute in two steps.
    """

    def of_edges(grad, y, direct, terms, parts, edges, slope, add):
        slope, given = slope.clone(), (terms, network(parts, **options), edges)
        _, rows = module.edge_messages(y, *given, module.edge_rows(edges))
        inputs = grad, y, direct, *given, rows, slope, add
        grad_y, *by_charge = module.edge_messages_backward(*inputs)
        plain = network(parts, **options | PLAIN)
        grad_charges = module.charge_gradients(*by_charge, plain, edges, None)
        return grad_y, by_charge[0], grad_charges, at_origins(slope, edges)

    return of_edges


def check(n_atoms, channels, neighbors, add, family, dtype, **given):
    (operator, device), plain = family, given | PLAIN
    options = family.options(**given)
    inputs = forward_inputs(n_atoms, channels, neighbors)
    functions = messages(operator, **options), messages(reference, **plain)
    assert_matches(*functions, inputs, device, dtype, 0)
    inputs = backward_inputs(n_atoms, channels, neighbors, add)
    functions = gradients(operator, **options), gradients(reference, **plain)
    assert_matches(*functions, inputs, device, dtype, 1)


@pytest.mark.parametrize(("n_atoms", "channels", "neighbors", "add"), CASES)
def test_agrees_with_the_reference(n_atoms, channels, neighbors, add, family, dtype):
    check(n_atoms, channels, neighbors, add, family, dtype)


def test_more_neighbors_than_lanes(family):
    """Loops over neighbors do not depend on the dtype; large cases on a GPU have both."""
    check(40, 16, 70, False, family, torch.float32)


@pytest.mark.parametrize(
    "options", [{"halves": False}, {"activation": "ssp"}, {"activation": "tanh"}]
)
def test_precisions_and_activations(options, family, dtype):
    check(5, 32, 5, True, family, dtype, **options)


@pytest.mark.parametrize("cutoffs", [(0.5, 1.7), (0.0, 5.0)])
def test_cutoffs(cutoffs, family, dtype):
    check(5, 32, 5, False, family, dtype, cutoffs=cutoffs)


@pytest.mark.parametrize("blocks", PRODUCTS)
def test_agrees_however_products_are_launched(blocks, fused, dtype, monkeypatch):
    monkeypatch.setattr(row_products, "product_blocks", lambda *_: blocks)
    check(11, 32, 5, True, fused, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [32, 64])
def test_products_have_the_same_bits_in_narrow_tiles(columns, device, monkeypatch):
    """Systems of a few atoms get narrow tiles alone, and wide ones in a batch."""
    y, terms, parts, edges = moved(forward_inputs(500, 128, 20), device, torch.float32)
    found = []
    for width, stages in ((columns, 6), (128, 3)):
        blocks = ProductBlocks(64, width, 32, 4, stages)
        monkeypatch.setattr(row_products, "product_blocks", lambda *_, blocks=blocks: blocks)
        found.append(messages(operator)(y, terms, parts, edges))
    assert torch.equal(*found)


@pytest.mark.parametrize("lanes", LANES)
def test_agrees_however_sums_are_launched(lanes, fused, monkeypatch):
    blocks = GatherBlocks(lanes, 32, 2)
    for module, name in [
        (edge_rows, "gather_blocks"),
        (edge_messages, "sum_blocks"),
        (edge_messages_backward, "gradient_blocks"),
    ]:
        monkeypatch.setattr(module, name, lambda _: blocks)
    check(11, 32, 5, True, fused, torch.float32)


def test_chunks_of_atoms(fused, dtype, monkeypatch):
    monkeypatch.setattr(edge_rows, "KEPT_BYTES", 0)
    monkeypatch.setattr(edge_rows, "ROWS", 1)  # 16 atoms, the fewest
    check(37, 16, 5, True, fused, dtype)


def test_kept_rows_have_the_same_bits_as_chunks(device, dtype, monkeypatch):
    n_atoms = 150 if device == "cuda" else 11
    inputs = moved(backward_inputs(n_atoms, 32, 5, True), device, dtype)
    forward = inputs[1], *inputs[3:6]
    results = []
    for size in (edge_rows.KEPT_BYTES, 0):
        monkeypatch.setattr(edge_rows, "KEPT_BYTES", size)
        results.append((messages(operator)(*forward), *gradients(operator)(*inputs)))
    for kept, computed in zip(*results, strict=True):
        if device == "cuda":
            assert torch.equal(kept, computed)
        else:  # in NumPy's products, the bits of a row depend on its place
            assert_close(kept, computed, 0, dtype)


@pytest.mark.parametrize("capacity", [0, 60, 10**4])
def test_chunks_have_few_rows_and_cover_all_atoms(capacity):
    n_atoms = 9_001
    nothing = torch.zeros(n_atoms).int()
    slots = torch.zeros(n_atoms * capacity)
    chunks = list(edge_rows.chunks(Edges(nothing, nothing, *[slots] * 8), nothing))
    assert (chunks[0].first, chunks[-1].last) == (0, n_atoms)
    assert [c.last for c in chunks[:-1]] == [c.first for c in chunks[1:]]
    for chunk in chunks:
        assert chunk.n_rows >= chunk.n_atoms * (capacity + 1)
        assert chunk.n_rows <= edge_rows.ROWS or chunk.n_atoms <= 16


def test_tf32_is_close(device):
    y, terms, parts, edges = moved(forward_inputs(5, 32, 5), device, torch.float32)
    exact = messages(reference, halves=False)(y, terms, parts, edges)
    found = messages(operator, tf32=True)(y, terms, parts, edges)
    assert (found - exact).abs().max() < 1e-2 * exact.abs().max()


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_gradients_of_any_size_are_exact(factor, family):
    operator, device = family
    grad, y, direct, *others = backward_inputs(5, 32, 5, False)
    inputs = grad * factor, y, 0 * direct, *others
    functions = gradients(operator, **family.options()), gradients(reference, **PLAIN)
    assert_matches(*functions, inputs, device, torch.float32, 1)


def test_gives_the_same_bits_again(family):
    (operator, device), options = family, family.options()
    n_atoms = LARGE[device == "cuda"]
    inputs = forward_inputs(n_atoms, 32, 5)
    assert_repeats(messages(operator, **options), inputs, device, torch.float32)
    inputs = backward_inputs(n_atoms, 32, 5, True)
    assert_repeats(gradients(operator, **options), inputs, device, torch.float32)


def test_isolated_atoms_hear_of_themselves_alone(family):
    (operator, device), options = family, family.options()
    y, terms, parts, edges = forward_inputs(5, 32, 5)
    found = messages(operator, **options)(*moved((y, terms, parts, edges), device, torch.float64))
    nothing = torch.zeros(1).int()
    alone = Edges(nothing, nothing, *(field[..., :0] for field in edges[2:]))
    expected = messages(reference)(y[:, -1:], terms[:, -1:], parts, alone)
    assert_close(found[:, -1:], expected, 0)


def test_missing_opposites_lead_nowhere(device, monkeypatch):
    """Edges that exceed the slots of an atom are dropped, but not their opposites."""
    y, terms, parts, edges = moved(forward_inputs(11, 32, 5), device, torch.float32)
    expected = messages(operator)(y, terms, parts, edges)
    edges = edges._replace(reverse=torch.zeros_like(edges.reverse))
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, 2**30))
    found = messages(operator)(y, terms, parts, edges)
    assert torch.equal(found[:, -1], expected[:, -1])  # which has no neighbors


def of_part(module, n_own, **options):
    """Return both passes for the first atoms, which also send to others that hear elsewhere."""

    def of_edges(grad, y, direct, terms, parts, edges, slope, add):
        slope, own = slope.clone(), edges.of_first(n_own)
        given = terms, network(parts, **options), own
        message, rows = module.edge_messages(y, *given, module.edge_rows(own))
        inputs = grad, y, direct[:, :n_own].contiguous(), *given, rows, slope, add
        grad_y, *by_charge = module.edge_messages_backward(*inputs)
        plain = network(parts, **options | PLAIN)
        grad_charges = module.charge_gradients(*by_charge, plain, edges, None)
        return message, grad_y, by_charge[0], grad_charges, at_origins(slope, own)

    return of_edges


@pytest.mark.parametrize(("n_own", "channels"), [(3, 32), (20, 64)])
def test_messages_of_some_atoms(n_own, channels, fused, dtype):
    operator, device = fused
    inputs = backward_inputs(31, channels, 5, add=True)
    functions = of_part(operator, n_own), of_part(reference, n_own, **PLAIN)
    assert_matches(*functions, inputs, device, dtype, 1)
    _, grad_y, grad_sent, *_ = functions[1](*inputs)
    whole_y, whole_sent, *_ = gradients(reference, **PLAIN)(*inputs)
    assert_close(grad_y, whole_y[:, :n_own], 1)
    assert_close(grad_sent, whole_sent[:n_own], 1)


@pytest.mark.parametrize("size", [1, 63])
def test_charges(size, family, dtype):
    operator, device = family
    inputs = numbers(size, 2 * Q)[:, Q:], weights(32)

    def terms(module):
        return lambda charges, parts: module.charge_terms(charges, network(parts, halves=False))

    assert_matches(terms(operator), terms(reference), inputs, device, dtype, 0)


@pytest.mark.parametrize("size", [1, 63])
def test_gradients_of_charges(size, fused, dtype):
    edges = random_edges(size, "rows", 40)

    def of_charges(module):
        def charge_gradients(grad_sent, by_edge, by_atom, parts, edges, others):
            plain = network(parts, halves=False)
            return module.charge_gradients(grad_sent, by_edge, by_atom, plain, edges, others)

        return charge_gradients

    by_edge, others = numbers(len(edges.senders), Q), numbers(size, 2 * Q)[:, Q:]
    inputs = numbers(size, 32), by_edge, numbers(size, Q), weights(32), edges
    functions = of_charges(fused.module), of_charges(reference)
    assert_matches(*functions, (*inputs, None), fused.device, dtype, 1)
    assert_matches(*functions, (*inputs, others), fused.device, dtype, 1)


@pytest.mark.parametrize("layout", ["csr", "rows"])
@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_reference_has_the_right_gradients(layout, activation):
    y, _, parts, edges = forward_inputs(7, 16, 5, layout)
    plain = network(parts, activation, (0.0, 5.0), halves=False)
    charges = numbers(7, Q).requires_grad_()
    y.requires_grad_()
    growth = torch.zeros_like(edges.distance, requires_grad=True)
    longer = edges._replace(
        fraction=edges.fraction + growth / edges.width, distance=edges.distance + growth
    )
    terms = reference.charge_terms(charges, plain)
    message, _ = reference.edge_messages(y, terms, plain, longer, reference.edge_rows(longer))
    grad, direct = numbers(2, *y.shape)
    total = (message * grad + y * direct).sum()
    grad_y, grad_charges, slope = torch.autograd.grad(total, (y, charges, growth))

    earlier = numbers(len(slope))
    rows = reference.edge_rows(edges)
    inputs = grad, y.detach(), direct, terms.detach(), plain, edges, rows
    found_slope, added_slope = earlier.clone(), earlier.clone()
    found = reference.edge_messages_backward(*inputs, found_slope, False)
    reference.edge_messages_backward(*inputs, added_slope, True)
    slots, _ = edges.live()
    origin = edges.origin[slots].long()
    slope = torch.zeros_like(slope).index_add(0, origin, slope[slots])
    assert_close(found[0], grad_y, 1)
    found_charges = reference.charge_gradients(*found[1:], plain, edges, None)
    assert_close(found_charges, grad_charges, 1)
    assert_close(found_slope[origin], slope[edges.reverse[origin].long()], 1)
    assert_close(added_slope[origin], (earlier + found_slope)[origin], 1)


@pytest.mark.parametrize("cutoff_lower", [0.0, 0.6])
def test_reference_follows_torchmd_net(cutoff_lower):
    tensornet2 = import_tensornet2()
    n_atoms, f, n_rbf = 6, 16, 8
    layer = tensornet2.Interaction(n_rbf, f, Q, "silu", cutoff_lower, 1.8, "O(3)", torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(numbers(*parameter.shape) / parameter.shape[-1] ** 0.5)
    basis = tensornet2.rbf_class_mapping["expnorm"](cutoff_lower, 1.8, n_rbf, False).double()
    edges, charges, y = random_edges(n_atoms), numbers(n_atoms, Q), numbers(9, n_atoms, f)
    slots, receivers = edges.live()
    everyone = torch.arange(n_atoms)
    index = torch.stack(
        [torch.cat([receivers, everyone]), torch.cat([edges.senders.long(), everyone])]
    )
    distance = torch.cat([edges.distance, torch.zeros(n_atoms).double()])
    with torch.no_grad():
        rbf = basis(distance)
        x = torch.cat([rbf, charges[index[0]], charges[index[1]]], dim=1)
        for linear in layer.linears_scalar:
            x = layer.act(linear(x))
        factors = (x * layer.cutoff(distance)[:, None]).unflatten(1, (3, f))
        parts = tensornet2._decompose_tensor(compose(y).permute(2, 0, 1, 3))
        sums = tensornet2.tensornet_interaction_message_passing(*parts, factors, index, n_atoms)
        expected = tensornet2._compose_tensor(*sums)
        first, second, third = layer.linears_scalar
        values = rbf @ first.weight[:, :n_rbf].T + first.bias  # [E + N, F]
        table = torch.stack([values, torch.zeros_like(values), torch.zeros_like(values)], dim=1)
        of_charges = first.weight[:, n_rbf:].unflatten(1, (2, Q)).permute(2, 1, 0)
        maps = (second.weight, second.bias), (third.weight, third.bias)
        parts = table, values[-1], of_charges, *maps
    at_knots = edges._replace(
        interval=torch.arange(len(slots)).int(), fraction=torch.zeros_like(edges.fraction)
    )
    plain = network(parts, cutoffs=(cutoff_lower, 1.8), halves=False)
    terms = reference.charge_terms(charges, plain)
    found, _ = reference.edge_messages(y, terms, plain, at_knots, reference.edge_rows(at_knots))
    assert_close(found, decompose(expected.permute(1, 2, 0, 3)), 0)


def test_large_weights_are_refused():
    table, own, charges, (second, bias), third = weights(16)
    parts = table.float(), own.float(), charges.float(), (second.float() * 1e4, bias.float())
    with pytest.raises(InputError, match="too large to be split"):
        network((*parts, tuple(t.float() for t in third)))
