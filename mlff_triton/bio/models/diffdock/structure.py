"""Recognition of DiffDock's layers and models."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.models.diffdock.weights import ACTIVATIONS, read_irreps, read_product
from mlff_triton.kernels.convolution.types import MAX_DEGREE, MODES

SOURCES = ("models.", "utils.", "DiffDock.", "diffdock.", "e3nn.")
"""Packages of e3nn and of the repository, imported from its folder or as parts of a package."""

LAYERS = ("TensorProductConvLayer", "OldTensorProductConvLayer")
PRODUCTS = ("FullyConnectedTensorProduct", "TensorProduct", "FasterTensorProduct")
ARGUMENTS = (
    "node_attr",
    "edge_index",
    "edge_attr",
    "edge_sh",
    "out_nodes",
    "reduce",
    "edge_weight",
)
"""Arguments of a layer; the first release of DiffDock has no weights of edges."""


MAX_HIDDEN = 256
"""Hidden values per edge that the kernels support."""


def is_layer(module: Any) -> bool:
    """Return True for a convolution of DiffDock whose parts are of the known classes and shapes."""
    if type(module).__name__ not in LAYERS or not is_unmodified(
        module, *SOURCES, generates_code=True
    ):
        return False
    arguments = tuple(inspect.signature(type(module).forward).parameters)[1:]
    if arguments not in (ARGUMENTS, ARGUMENTS[:-1]) or not _is_product(module.tp):
        return False
    product = read_product(module.tp)
    fc = module.fc
    networks = list(fc) if isinstance(fc, nn.ModuleList) else [fc]
    return (
        getattr(module, "edge_groups", 1) == len(networks)
        and all(_is_network(network, product.n_weights) for network in networks)
        and (module.batch_norm is None or _is_normalization(module.batch_norm))
        and (not getattr(module, "depthwise", False) or _is_mix(getattr(module, "linear_2", None)))
    )


def _is_product(tp: Any) -> bool:
    if type(tp).__name__ not in PRODUCTS:
        return False
    if type(tp).__name__ == "FasterTensorProduct":
        return all(irrep.degree <= 1 for irrep in read_irreps(tp.in_irreps))
    instructions = tp.instructions
    irreps = [read_irreps(each) for each in (tp.irreps_in1, tp.irreps_in2, tp.irreps_out)]
    degrees = [
        part[at].degree for i in instructions for part, at in zip(irreps, i[:3], strict=True)
    ]
    modes = {i.connection_mode for i in instructions}
    return (
        not (tp.shared_weights or tp.internal_weights)
        and len(modes) == 1
        and modes <= set(MODES)
        and all(i.has_weight for i in instructions)
        and max(degrees) <= MAX_DEGREE
    )


def _is_network(network: Any, n_weights: int) -> bool:
    """Return True for linear maps with activations and dropout between them."""
    parts: list[Any] = list(network) if type(network) is nn.Sequential else []
    kinds = [type(part) for part in parts]
    if len(kinds) < 4 or len(kinds) % 3 != 1 or kinds[1] not in ACTIVATIONS:
        return False
    linear = parts[::3]
    return bool(
        kinds == [nn.Linear, kinds[1], nn.Dropout] * (len(kinds) // 3) + [nn.Linear]
        and all(part.bias is not None for part in linear)
        and linear[-1].out_features == n_weights
        and linear[-1].in_features <= MAX_HIDDEN
    )


def _is_normalization(norm: Any) -> bool:
    return bool(
        type(norm).__name__ == "BatchNorm"
        and not norm.instance
        and norm.affine
        and norm.include_bias
    )


def _is_mix(linear: Any) -> bool:
    """Return True for e3nn's linear map of irreps, with weights of its own and without biases."""
    return bool(
        type(linear).__name__ == "Linear"
        and linear.internal_weights
        and linear.shared_weights
        and not linear.bias.numel()
        and all(i.i_in >= 0 for i in linear.instructions)
    )


EMBEDDINGS = frozenset(
    {
        *("lig_node_embedding", "lig_edge_embedding", "lig_distance_expansion"),
        *("rec_node_embedding", "rec_edge_embedding", "rec_distance_expansion"),
        *("cross_edge_embedding", "cross_distance_expansion"),
    }
)
SHARED = frozenset({"rec_sigma_embedding", "rec_emb_layers", "lig_emb_layers", "conv_layers"})
SEPARATE = frozenset(f"{name}_conv_layers" for name in ("lig", "rec", "lig_to_rec", "rec_to_lig"))
RIGID = frozenset(
    {
        *("center_distance_expansion", "center_edge_embedding"),
        *("final_conv", "tr_final_layer", "rot_final_layer"),
    }
)
TORSION = frozenset({"final_edge_embedding", "final_tp_tor", "tor_bond_conv", "tor_final_layer"})
"""Submodules of all models, of an architecture, and for scores of poses and torsions."""

HARMONICS = "1x0e", "1x1o", "1x2e"
"""Irreps of the harmonics of edges; a model has the first ones."""


def is_shared_model(module: Any) -> bool:
    """Return True for a model of DiffDock-L whose parts and settings are known."""
    return (
        type(module).__name__ == "CGModel"
        and _is_model(module, SHARED)
        and bool(module.embed_also_ligand)
        and _has_known_groups(module)
    )


def is_separate_model(module: Any) -> bool:
    """Return True for a coarse-grained model of the first release with known parts and settings."""
    return type(module).__name__ in ("CGOldModel", "TensorProductScoreModel") and _is_model(
        module, SEPARATE
    )


def _has_known_groups(module: Any) -> bool:
    """Return True if layers have four groups of edges, the last has two, or all have one."""
    found = [layer.edge_groups for layer in module.conv_layers]
    if module.differentiate_convolutions:
        return found == [4] * (len(found) - 1) + [2]
    return len(found) > 0 and set(found) == {1}


def _is_model(module: Any, layers: frozenset[str]) -> bool:
    if not is_unmodified(module, *SOURCES, generates_code=True):
        return False
    return (
        tuple(inspect.signature(type(module).forward).parameters) == ("self", "data")
        and _has_parts(module, layers)
        and _has_known_settings(module)
        and all(is_layer(part) for part in module.modules() if type(part).__name__ in LAYERS)
    )


def _has_parts(module: Any, layers: frozenset[str]) -> bool:
    """Return True if a model has exactly the submodules of its kind."""
    needed = EMBEDDINGS | layers
    if module.confidence_mode:
        needed = needed | {"confidence_predictor"}
        if getattr(module, "atom_confidence", False):
            needed = needed | {"atom_confidence_predictor"}
    else:
        needed = needed | RIGID | (frozenset() if module.no_torsion else TORSION)
    if getattr(module, "sidechain_pred", False):
        needed = needed | {"sidechain_predictor"}
    found = {name for name, _ in module.named_children()}
    return found - {"timestep_emb_func"} == needed


def _has_known_settings(module: Any) -> bool:
    known = type(module).forward.__globals__
    irreps = tuple(map(str, read_irreps(module.sh_irreps)))
    return (
        irreps == HARMONICS[: len(irreps)]
        and {"radius", "radius_graph", "so3", "torus"} <= known.keys()
        and not getattr(module, "include_miscellaneous_atoms", False)
        and getattr(module, "lm_embedding_type", None) in (None, "precomputed", "esm")
        and callable(module.timestep_emb_func)
        and all(
            type(getattr(module, f"{name}_node_embedding")).__name__
            in ("AtomEncoder", "OldAtomEncoder")
            for name in ("lig", "rec")
        )
    )
