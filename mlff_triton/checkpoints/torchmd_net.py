"""Reader of TorchMD-NET checkpoints (Lightning ``.ckpt`` files) of TensorNet and TensorNet2.

Follows `torchmdnet.models.model.load_model` of TorchMD-NET 3.1.
"""

from __future__ import annotations

import re
import warnings
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
from mlff_triton.errors import CheckpointWarning, InputError, UnsupportedModelError
from mlff_triton.model.config import (
    ACTIVATIONS,
    MAX_ATOMIC_NUMBER,
    TensorNet2Config,
    TensorNetConfig,
    ZBLConfig,
)
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.units import ENERGY_UNITS

COULOMB_J_M = 2.30707755e-28  # e^2 / (4 pi eps0) in TorchMD-NET's ZBL prior
ANGSTROM_PER_METER = 1e10
JOULE_PER_EV = 1.602176634e-19
NO_REFERENCES = "{} has no energies of atoms besides those that its model already adds"
SAME_UNIT = 1e-3
"""Largest relative difference of a recorded unit from the one it is taken for."""

TENSORNET2 = ("tensornet2", "tensornetv2_alt", "tensornet-nqe")
"""Names of TensorNet2: the present one, and two of development versions."""
COULOMB_HEAD = "ScalarPlusWeightedCoulomb"

LAYER_NAMES = {  # our names and theirs, which follow "representation_model."
    "embedding.element": "tensor_embedding.emb",
    "embedding.pair": "tensor_embedding.emb2",
    "embedding.norm": "tensor_embedding.init_norm",
    "embedding.scalar.0": "tensor_embedding.linears_scalar.0",
    "embedding.scalar.1": "tensor_embedding.linears_scalar.1",
    "readout.norm": "out_norm",
    "readout.linear": "linear",
}

# Weights read elsewhere, and tables rebuilt from the hyper-parameters.
BESIDES_NETWORK = (
    r"std|mean|(output_model\.)?distance\.box|prior_model\.\d+\."
    r"(initial_atomref|atomref\.weight|atomic_number|distance\.box)"
)


def is_torchmd_net(content: Any) -> bool:
    """Return True if an unpickled file has the layout of a TorchMD-NET Lightning checkpoint."""
    return isinstance(content, dict) and {"hyper_parameters", "state_dict"} <= content.keys()


def from_checkpoint(
    content: Mapping[str, Any],
    name: str,
    energy_unit: str | None = None,
    *,
    add_references: bool = False,
) -> TensorNet:
    """Build a `TensorNet` from an unpickled TorchMD-NET checkpoint.

    Parameters
    ----------
    content : mapping
        Content of the file, with ``hyper_parameters`` and ``state_dict``.
    name : str
        Name of the file in error messages.
    energy_unit : str, optional
        Energy unit that the model was trained in, a key of `ENERGY_UNITS`. By default, the unit
        recorded by a ZBL prior, or eV.
    add_references : bool
        If True, the energies of atoms that the model was trained without are added.

    Returns
    -------
    TensorNet
        The model, in evaluation mode, with energies in eV.

    Raises
    ------
    UnsupportedModelError
        If the model is not a TensorNet with a summed ``Scalar`` head, or a TensorNet2 with that
        head or ``ScalarPlusWeightedCoulomb``, and Atomref or ZBL priors, or if there are no
        energies of atoms to add.
    CheckpointError
        If weights are superfluous or of the wrong shape.
    KeyError
        If hyper-parameters or weights are missing; `interpreting` turns it into a
        `CheckpointError`.

    Warns
    -----
    CheckpointWarning
        If the file has a box of its own, priors without arguments, or a recorded unit of energy
        other than the given one.
    """
    args = content["hyper_parameters"]
    weights = ForeignWeights(_without_wrappers(content["state_dict"]), name)
    priors = _prior_arguments(args, weights, name)
    _check_supported(args, priors, name)
    # Checkpoints with this key date from versions that stored tensors as [N, F, 3, 3]. Only
    # the hyper-parameters in the file may decide this, never an option of the caller.
    interleaved = "check_errors" in args
    unit = ENERGY_UNITS[energy_unit or _recorded_unit(priors, name) or "eV"]
    if add_references:
        _enable_references(priors, name)
    elements = _elements(args, priors, weights)
    config = _config(args, priors, elements, unit)
    state = _translate(weights, config, interleaved)
    weights.check_all_read(BESIDES_NETWORK, name)
    _warn_of_box(args, weights, name)
    _warn_of_unit(priors, unit, name)
    scale = {
        "std": weights["std"],
        "mean": weights["mean"],
        "references": _references(weights, priors, len(config.elements)),
    }
    scale = {key: value.double() * unit for key, value in scale.items()}
    return build_model(config, state, scale, name)


def _check_supported(args: Mapping[str, Any], priors: list[dict[str, Any]], name: str) -> None:
    supported = (
        "supported are TensorNet models with output_model=Scalar, and TensorNet2 models with it or "
        f"{COULOMB_HEAD}, with reduce_op=sum and the priors Atomref and ZBL"
    )
    heads = ("Scalar", COULOMB_HEAD) if _is_tensornet2(args) else ("Scalar",)
    for key, accepted in (
        ("model", ("tensornet", *TENSORNET2)),
        ("output_model", heads),
        ("reduce_op", ("sum", "add")),
        ("activation", tuple(ACTIVATIONS)),
        ("atom_filter", (-1, None)),
    ):
        value = args.get(key, accepted[0])
        if value not in accepted:
            raise UnsupportedModelError(f"{name} has {key}={short_repr(value)}; {supported}")
    for prior in priors:
        if prior["name"] not in ("Atomref", "LearnableAtomref", "ZBL"):
            shown = short_repr(prior["name"])
            raise UnsupportedModelError(f"{name} has the prior {shown}; {supported}")


def _is_tensornet2(args: Mapping[str, Any]) -> bool:
    return args.get("model") in TENSORNET2


def _prior_arguments(
    args: Mapping[str, Any], weights: Mapping[str, Tensor], name: str
) -> list[dict[str, Any]]:
    """List the priors in order, each as a dict of its arguments and its ``name``.

    TorchMD-NET stores a name, a list of names, or a list of ``{name: arguments}``. The arguments
    may also be in ``prior_args``. Priors without an entry are left out.
    """
    listed = args.get("prior_model") or []
    priors: list[dict[str, Any]] = []
    for entry in listed if isinstance(listed, list) else [listed]:
        items = entry.items() if isinstance(entry, dict) else [(entry, None)]
        priors += [{**(arguments or {}), "name": prior} for prior, arguments in items]
    overrides = args.get("prior_args")
    if overrides is not None:
        overrides = overrides if isinstance(overrides, list) else [overrides]
        _check_arguments(priors, overrides, weights, name)
        priors = [
            {**(arguments or {}), "name": prior["name"]}
            for prior, arguments in zip(priors, overrides, strict=False)
        ]
    return priors


def _check_arguments(
    priors: list[dict[str, Any]], arguments: list[Any], weights: Mapping[str, Tensor], name: str
) -> None:
    """Warn about priors without arguments; raise `UnsupportedModelError` if they have weights."""
    counts = f"{name} lists {len(priors)} priors and the arguments (prior_args) of {len(arguments)}"
    if len(arguments) > len(priors):
        raise UnsupportedModelError(f"{counts}: correct them in the file")
    left_out = [prior["name"] for prior in priors[len(arguments) :]]
    if not left_out:
        return
    missing = ", ".join(map(short_repr, left_out))
    for position in range(len(arguments), len(priors)):
        if any(key.startswith(f"prior_model.{position}.") for key in weights):
            raise UnsupportedModelError(
                f"{counts}, and has weights of {missing}, which TorchMD-NET does not load either: "
                "add the missing arguments to the file"
            )
    warnings.warn(
        f"{counts}: {missing} is left out, as by TorchMD-NET", CheckpointWarning, stacklevel=2
    )


def _elements(
    args: Mapping[str, Any], priors: list[dict[str, Any]], weights: Mapping[str, Tensor]
) -> tuple[int, ...]:
    """Return the atomic numbers that the network and the tables of all priors know."""
    sizes = [args["max_z"], MAX_ATOMIC_NUMBER + 1]
    sizes += [len(_table(weights, position)) for position in _references_in_use(priors)]
    sizes += [len(prior["atomic_number"]) for prior in priors if prior["name"] == "ZBL"]
    return tuple(range(min(sizes)))


def _references_in_use(priors: list[dict[str, Any]]) -> list[int]:
    """Return the positions of priors whose energies of atoms are part of the energy."""
    return [
        position
        for position, prior in enumerate(priors)
        if prior["name"] != "ZBL" and prior.get("enable", True)
    ]


def _table(weights: Mapping[str, Tensor], position: int) -> Tensor:
    """Return the energy of each element, [n], of an Atomref prior."""
    return weights[f"prior_model.{position}.atomref.weight"][:, 0]


def _enable_references(priors: list[dict[str, Any]], name: str) -> None:
    """Enable the Atomref that a model was trained without (``--remove-ref-energy``)."""
    disabled = [
        prior for prior in priors if prior["name"] != "ZBL" and not prior.get("enable", True)
    ]
    if not disabled:
        raise UnsupportedModelError(NO_REFERENCES.format(name))
    disabled[-1]["enable"] = True


def _recorded_unit(priors: list[dict[str, Any]], name: str) -> str | None:
    """Return the unit of energy that ZBL priors record, and check that lengths are in Å."""
    units = set()
    for prior in priors:
        if prior["name"] != "ZBL":
            continue
        if abs(prior["distance_scale"] * ANGSTROM_PER_METER - 1) > SAME_UNIT:
            raise UnsupportedModelError(
                f"{name} was trained on lengths of {prior['distance_scale']:g} m, as its ZBL prior "
                "records; supported are models in Å, 1e-10 m"
            )
        units.add(_unit_of(prior))
    return units.pop() if len(units) == 1 else None


def _unit_of(prior: Mapping[str, Any]) -> str | None:
    """Return the unit of energy that a ZBL prior records, or None if it is not a known one."""
    recorded = prior["energy_scale"] / JOULE_PER_EV
    known = (unit for unit, value in ENERGY_UNITS.items() if abs(recorded / value - 1) < SAME_UNIT)
    return next(known, None)


def _warn_of_unit(priors: list[dict[str, Any]], unit: float, name: str) -> None:
    for prior in priors:
        if prior["name"] != "ZBL":
            continue
        if abs(prior["energy_scale"] / JOULE_PER_EV / unit - 1) > SAME_UNIT:
            own = _unit_of(prior) or f"{prior['energy_scale']:g} J"
            used = next(key for key, value in ENERGY_UNITS.items() if value == unit)
            warnings.warn(
                f"the ZBL prior in {name} records energies in {own}, but {used} is used: check "
                "energy_unit",
                CheckpointWarning,
                stacklevel=2,
            )


def _warn_of_box(args: Mapping[str, Any], weights: Mapping[str, Tensor], name: str) -> None:
    """Warn about a box in the file, which TorchMD-NET applies to structures without a box."""
    box = args.get("box_vecs")
    stored = weights.get("distance.box")
    if box is None and stored is not None and stored.any():
        box = stored.tolist()
    if box is not None:
        lengths = torch.linalg.vector_norm(torch.as_tensor(box, dtype=torch.float64), dim=-1)
        shown = " x ".join(f"{length:g}" for length in lengths.tolist())
        warnings.warn(
            f"{name} has a box of its own ({shown} Å), in which TorchMD-NET computes structures "
            "without one; here, only the cell of a structure counts: set it to that box",
            CheckpointWarning,
            stacklevel=2,
        )


def _config(
    args: Mapping[str, Any],
    priors: list[dict[str, Any]],
    elements: tuple[int, ...],
    energy_unit: float,
) -> TensorNetConfig:
    zbl = [_zbl_config(prior, elements, energy_unit) for prior in priors if prior["name"] == "ZBL"]
    common: dict[str, Any] = {
        "elements": elements,
        "hidden_channels": args["embedding_dimension"],
        "num_layers": args["num_layers"],
        "num_rbf": args["num_rbf"],
        "rbf_type": args["rbf_type"],
        "trainable_rbf": args["trainable_rbf"],
        "activation": args["activation"],
        "cutoff_lower": float(args["cutoff_lower"]),
        "cutoff_upper": float(args["cutoff_upper"]),
        "group": args.get("equivariance_invariance_group", "O(3)"),
        "zbl": tuple(zbl) if len(zbl) > 1 else next(iter(zbl), None),
    }
    if not _is_tensornet2(args):
        return TensorNetConfig(**common)
    has_coulomb = args.get("output_model") == COULOMB_HEAD
    return TensorNet2Config(
        **common,
        charge_channels=args["q_dim"],
        # TorchMD-NET ignores it for the ``Scalar`` head.
        head_layers=args.get("output_mlp_num_layers", 0) if has_coulomb else 0,
        coulomb=has_coulomb,
        coulomb_cutoff=args.get("coulomb_cutoff") if has_coulomb else None,
        repulsion=args.get("repulsion", False),
    )


def _zbl_config(
    prior: Mapping[str, Any], elements: tuple[int, ...], energy_unit: float
) -> ZBLConfig:
    charges = [float(z) for z in prior["atomic_number"][: len(elements)]]
    return ZBLConfig(
        cutoff=float(prior["cutoff_distance"]),
        prefactor=COULOMB_J_M / prior["energy_scale"] / prior["distance_scale"] * energy_unit,
        length_scale=prior["distance_scale"] * ANGSTROM_PER_METER,
        charges=tuple(charges),
    )


def _without_wrappers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights as in TorchMD-NET 3, without the prefixes of their wrapping modules."""
    current = {}
    for key, value in weights.items():
        name = re.sub(r"^model\.", "", key)
        name = re.sub(r"^representation_model\.", "", name)
        name = re.sub(r"^output_model\.output_network\.(?=\d)", "head.", name)
        name = re.sub(r"^output_model\.output_network\.layers\.", "head.", name)
        current[name] = value
    return current


def _translate(
    theirs: Mapping[str, Tensor], config: TensorNetConfig, interleaved: bool
) -> dict[str, Tensor]:
    """Rename the weights of TorchMD-NET, and reorder those of its old layout."""
    ours: dict[str, Tensor] = {}
    names = LAYER_NAMES | _head_names(config) | charge_names(config)
    for k in range(config.num_layers):
        names |= {f"layers.{k}.radial.{m}": f"layers.{k}.linears_scalar.{m}" for m in range(3)}
    for our_name, their_name in names.items():
        for kind in ("weight", "bias"):
            if f"{their_name}.{kind}" in theirs:
                ours[f"{our_name}.{kind}"] = theirs[f"{their_name}.{kind}"]
    # A large max_z adds rows that belong to no element.
    ours["embedding.element.weight"] = ours["embedding.element.weight"][: len(config.elements)]
    for key in _interleaved(config) if interleaved else ():
        for kind in ("weight", "bias"):
            ours[f"{key}.{kind}"] = interleaved_to_blocks(ours[f"{key}.{kind}"])

    for kind in ("weight", "bias"):
        projections = [theirs[f"tensor_embedding.distance_proj{m}.{kind}"] for m in (1, 2, 3)]
        ours[f"embedding.radial.{kind}"] = torch.cat(projections)
    ours["embedding.tensor.weight"] = stack_linears(theirs, "tensor_embedding", (0, 1, 2))
    for k in range(config.num_layers):
        ours[f"layers.{k}.tensor_in.weight"] = stack_linears(theirs, f"layers.{k}", (0, 1, 2))
        ours[f"layers.{k}.tensor_out.weight"] = stack_linears(theirs, f"layers.{k}", (3, 4, 5))
    prefix = "distance_expansion."
    ours |= {f"basis.{k[len(prefix) :]}": theirs[k] for k in theirs if k.startswith(prefix)}
    if isinstance(config, TensorNet2Config):
        ours |= _charge_tables(theirs, config)
    return ours


def _interleaved(config: TensorNetConfig) -> list[str]:
    """List our linear maps whose outputs are in another order in the old layout."""
    names = ["embedding.scalar.1"]
    if not isinstance(config, TensorNet2Config):  # whose layers have the present one
        names += [f"layers.{k}.radial.2" for k in range(config.num_layers)]
    return names


def _head_names(config: TensorNetConfig) -> dict[str, str]:
    """Map our names of the linear maps of the head to theirs."""
    n_hidden = config.head_layers if isinstance(config, TensorNet2Config) else 0
    ours = ["linear1", *(f"hidden.{m}" for m in range(n_hidden)), "linear2"]
    return {f"readout.head.{name}": f"head.{2 * m}" for m, name in enumerate(ours)}


def charge_names(config: TensorNetConfig) -> dict[str, str]:
    """Map our names of the networks that predict charges to theirs, as `LAYER_NAMES` does."""
    if not isinstance(config, TensorNet2Config):
        return {}
    theirs = ["charge_predict_0", *(f"charge_predicts.{k}" for k in range(config.num_layers))]
    names = {f"charges.{k}.norm": f"{block}.q_norm" for k, block in enumerate(theirs)}
    for k, block in enumerate(theirs):
        names |= {f"charges.{k}.linears.{m}": f"{block}.q_mlp.layers.{2 * m}" for m in range(3)}
    return names


def _charge_tables(theirs: Mapping[str, Tensor], config: TensorNet2Config) -> dict[str, Tensor]:
    """Return the tables of a TensorNet2 that are not trained."""
    ours = {}
    if config.coulomb:
        weights = theirs["output_model.qweights"]
        ours["charge_weights"] = weights.reshape(-1, config.charge_channels)
    if config.repulsion:
        products = theirs["repulsion.z_outer"]
        charge = products.diagonal().sqrt()
        if not torch.equal(products, torch.outer(charge, charge)):
            raise InputError("repulsion.z_outer does not contain products of nuclear charges")
        ours["repulsion.charge"] = charge
        ours["repulsion.power"] = theirs["repulsion.z_pow"]
        ours["repulsion.radii"] = theirs["repulsion.cutoff_ab"]
    return ours


def _references(
    weights: Mapping[str, Tensor], priors: list[dict[str, Any]], n_elements: int
) -> Tensor:
    """Add up the Atomref priors, float64 [n_elements], in the energy unit of the model."""
    total = torch.zeros(n_elements, dtype=torch.float64)
    for position in _references_in_use(priors):
        total += _table(weights, position).double()[:n_elements]
    return total
