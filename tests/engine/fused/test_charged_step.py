"""A step of TensorNet2 with fused kernels against the same step in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

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
from mlff_triton.kernels.tensornet import operators as fused_ops
from mlff_triton.kernels.tensornet.reference import operators as ops
from mlff_triton.kernels.tensornet2 import operators as fused_charged
from mlff_triton.kernels.tensornet2.reference import operators as charged
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import AtomOrder, ReactionField
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.kernels.types.split_weight import SplitWeight
from mlff_triton.testing import assert_close
from tests.support.random_inputs import KNOTS, at_origins, moved, random_edges

F, Q, LAYERS, SPECIES, SIZES = 32, 16, 2, 3, (9, 1, 5)
KINDS = ["all pairs", "reaction field"]


def random_parameters(field: ReactionField | None, seed: int) -> Callable[..., ChargedParameters]:
    """Return a function that makes the same random parameters on any device, in any dtype."""

    def parameters(device: str, dtype: torch.dtype, halves: bool) -> ChargedParameters:
        torch.manual_seed(seed)

        def random(*shape: int) -> Tensor:
            scale = shape[-1] ** 0.5 if len(shape) > 1 else 2.0
            return (torch.randn(shape) / scale).to(device, dtype)

        def both(*shape: int) -> tuple[SplitWeight, SplitWeight]:
            split = SplitWeight.of(random(*shape))
            return split, split.transposed

        def linear(n_out: int, n_in: int) -> tuple[Tensor, Tensor]:
            return random(n_out, n_in), random(n_out)

        def interaction() -> InteractionNetwork:
            parts = random(KNOTS + 1, 3, F), random(F), random(Q, 2, F)
            maps = linear(2 * F, F), linear(3 * F, 2 * F)
            network = InteractionNetwork.of(*parts, *maps, (0.0, 2.5), "silu", halves=halves)
            return network._replace(cutoffs=network.cutoffs.to(device))

        def charges() -> ChargeNetwork:
            norm = random(3 * F), random(3 * F)
            return ChargeNetwork.of(norm, linear(F, 3 * F), linear(F, F), linear(2 * Q, F), "silu")

        weight1, adjoint1 = both(2 * F, F)
        weight2, adjoint2 = both(3 * F, 2 * F)
        weight, adjoint = both(F, 3 * F)
        head, head_adjoint = both(F // 2, F)
        scalar = random(F), random(F), weight1, random(2 * F), weight2, random(3 * F)
        maps = [TensorMaps(*both(3, F, F)) for _ in range(2 * LAYERS + 1)]
        return ChargedParameters(
            activation="silu",
            group="O(3)",
            receiver=random(SPECIES, F),
            sender=random(SPECIES, F),
            table=random(KNOTS + 1, 3, 3, F),
            own=random(F),
            scalar=ScalarNetworkWeights(*scalar, adjoint1, adjoint2),
            embedding=maps[0],
            layers=list(zip(maps[1::2], maps[2::2], strict=True)),
            interactions=[interaction() for _ in range(LAYERS)],
            charges=[charges() for _ in range(LAYERS + 1)],
            readout=ReadoutWeights(random(3 * F), random(3 * F), weight, random(F), adjoint),
            head=ScalarHeadWeights(head, random(F // 2), head_adjoint, random(F // 2), random(1)),
            charge_weights=random(Q * (LAYERS + 1)).abs(),
            field=None if field is None else ReactionField(field.constants.to(device)),
        )

    return parameters


def results(kind, operators, edges, device, dtype, halves):
    """Return energies, charges, and gradients along edges and by positions."""
    field = ReactionField.of(1.8) if kind == "reaction field" else None
    p = random_parameters(field, seed=3)(device, dtype, halves)
    torch.manual_seed(4)
    n_atoms = sum(SIZES)
    lengths = torch.tensor(SIZES)
    systems = torch.arange(3).repeat_interleave(lengths).int().to(device)
    rank = torch.arange(n_atoms).int().to(device)
    ptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int().to(device)
    species = torch.randint(SPECIES, (n_atoms,)).int().to(device)
    totals = torch.tensor([1.0, 0.0, -1.0]).double().to(device)
    places = torch.cartesian_prod(*[torch.arange(3.0)] * 3)[torch.randperm(27)[:n_atoms]]
    positions = (2 * places + 0.3 * torch.rand(n_atoms, 3)).double().to(device)
    atoms = ChargedSystems(species, systems, totals, AtomOrder(rank, ptr, max(SIZES)))
    own_edges = moved(edges, device, dtype)
    found = charged_energies_and_gradients(*operators, p, atoms, own_edges, positions, own_edges)
    by_coulomb = found.coulomb_grad
    if field is not None:
        by_coulomb = at_origins(by_coulomb, own_edges)
    return found.energies, found.charges, at_origins(found.edge_grad, own_edges), by_coulomb


@pytest.mark.parametrize("kind", KINDS)
def test_fused_kernels_agree_with_plain_pytorch(kind, device, dtype):
    edges = random_edges(sum(SIZES), "rows")
    plain, fused = (ops, charged), (fused_ops, fused_charged)
    expected = results(kind, plain, edges, "cpu", torch.float64, halves=False)
    found = results(kind, fused, edges, device, dtype, halves=True)
    single = results(kind, plain, edges, "cpu", torch.float32, halves=False)
    for value, truth, other in zip(found, expected, single, strict=True):
        if dtype == torch.float64:
            assert_close(value, truth, 1)
        else:  # the weights differ by their rounding, which plain PyTorch sees, too
            error = (value.cpu().double() - truth).abs().max()
            allowed = 3 * (other.double() - truth).abs().max() + 1e-6 * truth.abs().max()
            assert error <= allowed


def test_gives_the_same_bits_again(device):
    edges = random_edges(sum(SIZES), "rows")
    fused = fused_ops, fused_charged
    runs = [results("all pairs", fused, edges, device, torch.float32, True) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()
