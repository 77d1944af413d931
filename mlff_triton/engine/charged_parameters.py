"""Parameters of a TensorNet2 in the layout of the engine's operators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mlff_triton.engine.parameters import (
    Parameters,
    ReadoutWeights,
    ScalarHeadWeights,
    ScalarNetworkWeights,
    TensorMaps,
)
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import ReactionField
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.model import charges as networks
from mlff_triton.model.coulomb import COULOMB, DIELECTRIC
from mlff_triton.model.tensornet import Interaction
from mlff_triton.model.tensornet2 import TensorNet2

LARGEST_HALF = 255.0
"""Weights from here on cannot be split into halves, and are multiplied as they are."""


@dataclass(frozen=True)
class ChargedParameters:
    """Parameters of a TensorNet2 that a step needs.

    Attributes
    ----------
    activation, group : str
        Of `mlff_triton.model.config.TensorNetConfig`.
    receiver, sender, scalar, embedding, layers, readout, head
        As in `mlff_triton.engine.parameters.Parameters`.
    table, own : [K + 1, 3, 3, F], [F]
        Radial functions of the embedding, and their values at distance 0.
    interactions : list of InteractionNetwork
        Networks of the edges in each layer.
    charges : list of ChargeNetwork
        Networks of the charges after the embedding and after each layer.
    charge_weights : [(layers + 1) Q]
        Weights of the products of charges, with half the Coulomb constant and the model's energy
        scale, eV Å.
    field : ReactionField, optional
        Truncation of the Coulomb energy; None for all pairs.
    """

    activation: str
    group: str
    receiver: Tensor
    sender: Tensor
    table: Tensor
    own: Tensor
    scalar: ScalarNetworkWeights
    embedding: TensorMaps
    layers: list[tuple[TensorMaps, TensorMaps]]
    interactions: list[InteractionNetwork]
    charges: list[ChargeNetwork]
    readout: ReadoutWeights
    head: ScalarHeadWeights
    charge_weights: Tensor
    field: ReactionField | None

    @classmethod
    def of(
        cls, model: TensorNet2, device: torch.device, dtype: torch.dtype, tf32: bool = False
    ) -> ChargedParameters:
        """Convert the parameters of a model, in float64 until the end.

        Energies contain neither the energies of elements nor any repulsion of nuclei.

        Raises
        ------
        UnsupportedModelError
            If the model has no layer, no Coulomb energy, no self-loops, or another head than one of
            two linear maps; or if its radial functions cannot be tabulated.
        """
        _check(model)
        base = Parameters.of_any(model, device, dtype, tf32)
        assert isinstance(base.head, ScalarHeadWeights)
        exact = copy.deepcopy(model).double().requires_grad_(False)
        config = exact.config

        def converted(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype).contiguous()

        def pair(module: nn.Module) -> tuple[Tensor, Tensor]:
            assert isinstance(module, nn.Linear | nn.LayerNorm)
            return converted(module.weight), converted(module.bias)

        def interaction(layer: Interaction, table: Tensor, own: Tensor) -> InteractionNetwork:
            first, second, third = layer.radial
            assert isinstance(first, nn.Linear)
            of_charges = first.weight[:, config.num_rbf :].unflatten(1, (2, -1))  # [F, 2, Q]
            maps = pair(second), pair(third)
            return InteractionNetwork.of(
                table[:, :, 0],
                own[0],
                converted(of_charges.permute(2, 1, 0)),
                *maps,
                (config.cutoff_lower, config.cutoff_upper),
                config.activation,
                halves=max(float(weight.abs().max()) for weight, _ in maps) < LARGEST_HALF,
                tf32=tf32,
            )

        radial = zip(exact.interactions, base.tables.layers, base.tables.layer_self, strict=True)
        weights = exact.charge_weights.flatten() * (exact.std * COULOMB / 2)
        cutoff = config.coulomb_cutoff
        return cls(
            activation=config.activation,
            group=config.group,
            receiver=base.receiver,
            sender=base.sender,
            table=base.tables.embedding,
            own=base.tables.embedding_self,
            scalar=base.scalar,
            embedding=base.embedding,
            layers=base.layers,
            interactions=[interaction(*each) for each in radial],
            charges=[_charge_network(module, pair, config.activation) for module in exact.charges],
            readout=base.readout,
            head=base.head,
            charge_weights=converted(weights / exact.charge_weights.sum()),
            field=None if cutoff is None else ReactionField.of(cutoff, DIELECTRIC, device),
        )


def _check(model: TensorNet2) -> None:
    """Raise `UnsupportedModelError` if a step cannot compute the network of a model."""
    config = model.config
    lacks = {
        "no Coulomb energy": not config.coulomb,
        "no self-loops": not config.self_loops,
        "a gated head": config.head != "scalar",
        "hidden layers in its head": config.head_layers > 0,
        "no activation in its readout": not config.readout_activation,
    }
    for reason, is_so in lacks.items():
        if is_so:
            raise UnsupportedModelError(f"the model has {reason}: use backend='exact'")


def _charge_network(
    module: nn.Module, pair: Callable[[nn.Module], tuple[Tensor, Tensor]], activation: str
) -> ChargeNetwork:
    """Convert a network of charges."""
    assert isinstance(module, networks.ChargeNetwork)
    first, second, third = (pair(linear) for linear in module.linears)
    return ChargeNetwork.of(pair(module.norm), first, second, third, activation)
