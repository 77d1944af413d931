"""A step of TensorNet2 in plain PyTorch against TorchMD-NET, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.engine.charged_parameters import ChargedParameters
from mlff_triton.engine.charged_step import (
    ChargedSystems,
    charged_energies_and_gradients,
)
from mlff_triton.engine.parameters import (
    ReadoutWeights,
    ScalarHeadWeights,
    ScalarNetworkWeights,
    TensorMaps,
)
from mlff_triton.kernels.tensornet.reference import operators as ops
from mlff_triton.kernels.tensornet2.reference import operators as charged
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import AtomOrder, ReactionField
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.kernels.types.split_weight import SplitWeight
from mlff_triton.testing import assert_close
from tests.support.torchmd_net import import_tensornet2, import_torchmdnet, use_plain_operations

F, Q, LAYERS, RBF, CUTOFF = 32, 16, 2, 8, 3.2
TOTALS = torch.tensor([1.0, -2.0]).double()
SIZES = 9, 5


@pytest.fixture
def oracle(monkeypatch):
    """Return TorchMD-NET's modules, without Warp."""
    torchmdnet, tensornet2 = import_torchmdnet(), import_tensornet2()
    use_plain_operations(torchmdnet, monkeypatch)
    monkeypatch.setattr(tensornet2, "OPT", False)
    for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
        monkeypatch.setattr(tensornet2, name, getattr(tensornet2, f"_{name}"))
    return tensornet2, torchmdnet.models.output_modules


def random_models(oracle, group: str, coulomb_cutoff: float | None):
    """Return a representation model and its head, with random weights."""
    tensornet2, output_modules = oracle
    model = tensornet2.TensorNet2(
        hidden_channels=F,
        q_dim=Q,
        num_layers=LAYERS,
        num_rbf=RBF,
        cutoff_upper=CUTOFF,
        max_z=10,
        equivariance_invariance_group=group,
        static_shapes=False,
        output_charges=True,
    ).double()
    head = output_modules.ScalarPlusWeightedCoulomb(
        F,
        dtype=torch.float64,
        q_dim=Q,
        num_layers=LAYERS,
        q_weights=[[0.2] * Q, [0.5] * Q, [1.0] * Q],
        coulomb_cutoff=coulomb_cutoff,
    )
    for module in (model, head):
        for parameter in module.parameters():
            scale = parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 2.0
            parameter.data = torch.randn_like(parameter) / scale
            parameter.requires_grad_(False)
    return model, head


def numbers_and_positions() -> tuple[Tensor, Tensor]:
    """Return elements and positions of two molecules, on a distorted lattice."""
    lattice = torch.stack(torch.meshgrid(*[torch.arange(3.0)] * 3, indexing="ij")).flatten(1).T
    places = torch.cat([lattice[torch.randperm(27)[:n]] for n in SIZES])
    return torch.randint(1, 9, (sum(SIZES),)), (1.4 * places + 0.3 * torch.rand(14, 3)).double()


def edges_within(cutoff: float, positions: Tensor, batch: Tensor) -> Edges:
    """Return all edges, each with its own interval of the tables."""
    vectors = positions[:, None] - positions
    linked = (vectors.norm(dim=2) < cutoff) & (batch[:, None] == batch)
    receivers, senders = linked.fill_diagonal_(False).nonzero(as_tuple=True)
    count, index = linked.sum(1), torch.arange(len(senders))
    number = torch.zeros_like(linked, dtype=torch.int64)
    number[receivers, senders] = index
    r = vectors[receivers, senders]
    return Edges(
        slot_begin=(count.cumsum(0) - count).int(),
        slot_end=count.cumsum(0).int(),
        senders=senders.int(),
        origin=index.int(),
        reverse=number[senders, receivers].int(),
        interval=index.int(),
        fraction=torch.zeros(len(r)).double(),
        width=torch.ones(len(r)).double(),
        direction=(r / r.norm(dim=1, keepdim=True)).T.contiguous(),
        distance=r.norm(dim=1),
    )


def tabulated(function, distance: Tensor) -> Tensor:
    """Return values, slopes and zeros at distances [n] and once more: [n + 1, 3, ...]."""
    values = function(distance)
    copies = distance[:, None].repeat(1, values[0].numel()).requires_grad_()
    columns = function(copies.T.reshape(-1)).flatten(1).unflatten(0, (-1, len(distance)))
    own = columns.diagonal(dim1=0, dim2=2).sum()
    slopes = torch.autograd.grad(own, copies)[0].view_as(values)
    rows = torch.stack([values, slopes, torch.zeros_like(values)], dim=1)
    return torch.cat([rows, rows[-1:]]).detach()


def both(weight: Tensor) -> tuple[SplitWeight, SplitWeight]:
    split = SplitWeight.of(weight)
    return split, split.transposed


def stacked(linears) -> TensorMaps:
    return TensorMaps(*both(torch.stack([linear.weight for linear in linears])))


def pair(linear) -> tuple[Tensor, Tensor]:
    return linear.weight, linear.bias


def parameters(model, head, distance: Tensor) -> ChargedParameters:
    """Convert TorchMD-NET's weights, with tables for these distances."""
    embedding, zero = model.tensor_embedding, torch.zeros(1).double()
    projections = [getattr(embedding, f"distance_proj{k}") for k in (1, 2, 3)]

    def radial(d: Tensor) -> Tensor:
        basis = model.distance_expansion(d)
        return torch.stack([p(basis) for p in projections], 1) * embedding.cutoff(d)[:, None, None]

    def interaction(layer) -> InteractionNetwork:
        first, *maps = layer.linears_scalar
        of_basis, of_charges = first.weight.split((RBF, 2 * Q), dim=1)

        def part(d: Tensor) -> Tensor:
            return model.distance_expansion(d) @ of_basis.T + first.bias

        roles = of_charges.unflatten(1, (2, Q)).permute(2, 1, 0)
        table, cutoffs = tabulated(part, distance), (0.0, CUTOFF)
        return InteractionNetwork.of(table, part(zero)[0], roles, *map(pair, maps), cutoffs, "silu")

    def charge_network(module) -> ChargeNetwork:
        linears = [layer for layer in module.q_mlp.layers if hasattr(layer, "weight")]
        return ChargeNetwork.of(pair(module.q_norm), *map(pair, linears), "silu")

    elements, emb2 = embedding.emb.weight, embedding.emb2
    scalar1, scalar2 = embedding.linears_scalar
    out1, out2 = (layer for layer in head.output_network.layers if hasattr(layer, "weight"))
    weight1, adjoint1 = both(scalar1.weight)
    weight2, adjoint2 = both(scalar2.weight)
    weight, adjoint = both(model.linear.weight)
    head1, head_adjoint = both(out1.weight)
    return ChargedParameters(
        activation="silu",
        group=model.equivariance_invariance_group,
        receiver=elements @ emb2.weight[:, :F].T,
        sender=elements @ emb2.weight[:, F:].T + emb2.bias,
        table=tabulated(radial, distance),
        own=radial(zero)[0, 0],
        scalar=ScalarNetworkWeights(
            *pair(embedding.init_norm),
            *(weight1, scalar1.bias, weight2, scalar2.bias, adjoint1, adjoint2),
        ),
        embedding=stacked(embedding.linears_tensor),
        layers=[
            (stacked(layer.linears_tensor[:3]), stacked(layer.linears_tensor[3:]))
            for layer in model.layers
        ],
        interactions=[interaction(layer) for layer in model.layers],
        charges=[charge_network(m) for m in (model.charge_predict_0, *model.charge_predicts)],
        readout=ReadoutWeights(*pair(model.out_norm), weight, model.linear.bias, adjoint),
        head=ScalarHeadWeights(head1, out1.bias, head_adjoint, out2.weight[0], out2.bias),
        charge_weights=head._factor * head.qweights / head.qweights.sum(),
        field=None if head.cutoff is None else ReactionField.of(head.cutoff),
    )


@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
@pytest.mark.parametrize("coulomb_cutoff", [None, 4.5])
def test_follows_torchmd_net(group, coulomb_cutoff, oracle):
    model, head = random_models(oracle, group, coulomb_cutoff)
    numbers, positions = numbers_and_positions()
    batch = torch.arange(2).repeat_interleave(torch.tensor(SIZES))
    positions.requires_grad_()
    x, _, z, moved, _ = model(numbers, positions, batch, None, TOTALS)
    expected = head.pre_reduce(x, None, z, moved, batch)[:, 0]
    gradient = torch.autograd.grad(expected.sum(), positions)[0]
    positions = positions.detach()

    rank = torch.cat([torch.randperm(9), 9 + torch.randperm(5)])
    row_of = rank.argsort()  # user's atom in each row
    edges = edges_within(CUTOFF, positions[row_of], batch)
    wide = edges_within(coulomb_cutoff or CUTOFF, positions[row_of], batch)
    order = AtomOrder(rank.int(), torch.tensor([0, 9, 14]).int(), 9)
    systems = ChargedSystems(numbers[row_of].int(), batch.int(), TOTALS, order)
    p = parameters(model, head, edges.distance)
    found = charged_energies_and_gradients(ops, charged, p, systems, edges, positions, wide)
    assert_close(found.charges[rank], x[:, F:], 0)
    assert_close(found.energies[rank], expected, 0)

    totals = _by_atom(found.edge_grad, edges)[rank]
    of_coulomb = found.coulomb_grad
    totals += of_coulomb if coulomb_cutoff is None else _by_atom(of_coulomb, wide)[rank]
    assert_close(totals, gradient, 1)


def _by_atom(edge_grad: Tensor, edges: Edges) -> Tensor:
    """Return the gradients of atoms by row, [N, 3], from those along the edges."""
    slots, receivers = edges.live()
    zeros = edge_grad.new_zeros(len(edges.slot_begin), 3)
    along = edge_grad[:, slots].T
    return zeros.index_add(0, receivers, along).index_add(0, edges.senders.long(), -along)
