"""Reader of MatGL checkpoints, folders with ``model.json`` and ``state.pt``.

Follows `matgl.models.TensorNet` and `matgl.apps.pes.Potential` of MatGL 4.1. ``model.pt`` is not
needed and never opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mlff_triton._common.text import short_repr
from mlff_triton.checkpoints._weights import (
    ForeignWeights,
    build_model,
    interleaved_to_blocks,
    stack_linears,
)
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.model.config import SYMBOLS, TensorNetConfig
from mlff_triton.model.tensornet import TensorNet

# Weights read elsewhere, and tables rebuilt from the description.
BESIDES_NETWORK = (
    r"data_std|data_mean|element_refs\.(property_offset|onehot)|bond_expansion\.rbf\.cutoff"
)
ACTIVATION_OF = {"swish": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "softplus2": "ssp"}


def from_files(
    description: Mapping[str, Any], weights: Mapping[str, Tensor], name: str
) -> TensorNet:
    """Build a `TensorNet` from a MatGL ``Potential``.

    Parameters
    ----------
    description : mapping
        Content of ``model.json``.
    weights : mapping of str to Tensor
        Content of ``state.pt``.
    name : str
        Name of the files in error messages.

    Returns
    -------
    TensorNet
        The model, in evaluation mode, with energies in eV.

    Raises
    ------
    UnsupportedModelError
        If the model is not an extensive TensorNet, or has terms that are not implemented.
    CheckpointError
        If the files do not match each other.
    """
    potential = description.get("kwargs", {})
    network = potential.get("model", {})
    args = network.get("init_args", {})
    _check_supported(description, potential, args, name)
    if any(".emb3." in f".{key}" for key in weights):
        raise UnsupportedModelError(
            f"{name} was saved by MatGL with DGL, its backend until version 2.2, with another "
            "embedding (emb3): train it again with PyTorch Geometric, MatGL's backend today"
        )
    config = _config(args)
    short = {re.sub(r"^model\.", "", key): value for key, value in weights.items()}
    theirs = ForeignWeights(short, name)
    state = _translate(theirs, config, args, network["@model_version"])
    theirs.check_all_read(BESIDES_NETWORK, name)
    scale = {"std": theirs["data_std"], "mean": theirs["data_mean"]}
    key = "element_refs.property_offset"
    needed = key in weights or potential.get("element_refs") is not None
    scale["references"] = theirs[key] if needed else torch.zeros(len(config.elements))
    return build_model(config, state, scale, name)


def _check_supported(
    description: Mapping[str, Any],
    potential: Mapping[str, Any],
    args: Mapping[str, Any],
    name: str,
) -> None:
    supported = "supported are MatGL Potentials of an extensive TensorNet without ZBL or states"
    found = {
        "class": (description.get("@class"), ("Potential",)),
        "model": (potential.get("model", {}).get("@class"), ("TensorNet",)),
        "@model_version": (potential.get("model", {}).get("@model_version"), (1, 2)),
        "calc_repuls": (potential.get("calc_repuls", False), (False,)),
        "include_state": (args.get("include_state", False), (False,)),
        "is_intensive": (args.get("is_intensive", True), (False,)),
        "ntargets": (args.get("ntargets", 1), (1,)),
        "activation_type": (args.get("activation_type", "swish"), tuple(ACTIVATION_OF)),
        "rbf_type": (args.get("rbf_type", "Gaussian"), ("Gaussian", "SphericalBessel")),
    }
    for key, (value, accepted) in found.items():
        if value not in accepted:
            raise UnsupportedModelError(f"{name} has {key}={short_repr(value)}; {supported}")


def _config(args: Mapping[str, Any]) -> TensorNetConfig:
    num_rbf, rbf_type, orders = args["num_rbf"], "gauss", 1
    if args.get("rbf_type", "Gaussian") == "SphericalBessel":
        smooth = args.get("use_smooth", False)
        orders = 1 if smooth else args["max_l"]
        num_rbf, rbf_type = args["max_n"] * orders, "bessel-smooth" if smooth else "bessel"
    return TensorNetConfig(
        elements=tuple(SYMBOLS.index(symbol) for symbol in args["element_types"]),
        hidden_channels=args["units"],
        num_layers=args["nblocks"],
        num_rbf=num_rbf,
        rbf_type=rbf_type,
        bessel_orders=orders,
        activation=ACTIVATION_OF[args.get("activation_type", "swish")],
        cutoff_upper=float(args["cutoff"]),
        group=args.get("equivariance_invariance_group", "O(3)"),
        self_loops=False,
        readout_activation=False,
        head="gated",
        uses_charge=False,
    )


def _distance_projections(theirs: Mapping[str, Tensor], kind: str) -> tuple[Tensor, ...]:
    """Return the weights or biases of the three projections of distances.

    MatGL 4.1.2 stores them as one map if it finds NVIDIA Warp.
    """
    fused = f"tensor_embedding.distance_proj.{kind}"
    if fused in theirs:
        return theirs[fused].chunk(3)
    return tuple(theirs[f"tensor_embedding.distance_proj{m}.{kind}"] for m in (1, 2, 3))


def _translate(
    theirs: Mapping[str, Tensor], config: TensorNetConfig, args: Mapping[str, Any], version: int
) -> dict[str, Tensor]:
    """Rename the weights of MatGL, and convert them to the conventions of this package.

    The rows of MatGL's last scalar layers are in the order [F, 3]. Its edges also differ: in
    version 1 of its TensorNet, up to MatGL 2, the pair embedding takes the neighbor first. In
    version 2, since MatGL 3, edge vectors point from receiver to sender, which reverses the sign of
    every skew part.
    """
    half = config.hidden_channels
    ours: dict[str, Tensor] = {"embedding.element.weight": theirs["tensor_embedding.emb.weight"]}
    pair = theirs["tensor_embedding.emb2.weight"]
    neighbor_first = torch.cat([pair[:, half:], pair[:, :half]], dim=1)
    ours["embedding.pair.weight"] = neighbor_first if version == 1 else pair
    ours["embedding.pair.bias"] = theirs["tensor_embedding.emb2.bias"]

    last_scalars = {"embedding.scalar.1"} | {
        f"layers.{k}.radial.2" for k in range(config.num_layers)
    }
    names = {
        "embedding.norm": "tensor_embedding.init_norm",
        "embedding.scalar.0": "tensor_embedding.linears_scalar.0",
        "embedding.scalar.1": "tensor_embedding.linears_scalar.1",
        "readout.norm": "out_norm",
        "readout.linear": "linear",
    }
    for k in range(config.num_layers):
        names |= {f"layers.{k}.radial.{m}": f"layers.{k}.linears_scalar.{m}" for m in range(3)}
    for m in range(4):
        names[f"readout.head.values.{m}"] = f"final_layer.gated.layers.{2 * m}"
        names[f"readout.head.gates.{m}"] = f"final_layer.gated.gates.{2 * m}"
    for our_name, their_name in names.items():
        for kind in ("weight", "bias"):
            value = theirs[f"{their_name}.{kind}"]
            in_blocks = our_name in last_scalars
            ours[f"{our_name}.{kind}"] = interleaved_to_blocks(value) if in_blocks else value

    for kind in ("weight", "bias"):
        p1, p2, p3 = _distance_projections(theirs, kind)
        ours[f"embedding.radial.{kind}"] = torch.cat([p1, p2 if version == 1 else -p2, p3])
    ours["embedding.tensor.weight"] = stack_linears(theirs, "tensor_embedding", (0, 1, 2))
    for k in range(config.num_layers):
        ours[f"layers.{k}.tensor_in.weight"] = stack_linears(theirs, f"layers.{k}", (0, 1, 2))
        ours[f"layers.{k}.tensor_out.weight"] = stack_linears(theirs, f"layers.{k}", (3, 4, 5))
    if config.rbf_type == "gauss":
        ours["basis.offset"] = theirs["bond_expansion.rbf.centers"]
        ours["basis.coeff"] = torch.tensor(-float(args.get("width", 0.5)), dtype=torch.float64)
    return ours
