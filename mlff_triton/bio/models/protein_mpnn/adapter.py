"""Adapter for ProteinMPNN: scores of sequences for a backbone, and sampled sequences."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward, Options
from mlff_triton.bio.core.operators import residue_operators
from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.models.protein_mpnn.known_residues import KnownCheck
from mlff_triton.bio.models.protein_mpnn.network import Backbones
from mlff_triton.bio.models.protein_mpnn.runner import Runner, Scoring, decoding_order
from mlff_triton.bio.models.protein_mpnn.sampling import Plan
from mlff_triton.bio.models.protein_mpnn.weights import MPNNWeights
from mlff_triton.kernels.residues.types import MAX_LENGTH

SOURCES = ("proteinmpnn.protein_mpnn_utils", "protein_mpnn_utils")
"""Python modules of the package and of copies of the repository."""

CHANNELS = (16, 32, 64, 128)  # more channels do not fit in shared memory
NAMES = ("X", "mask", "residue_idx", "chain_encoding_all")
"""Arguments of all methods that are `Backbones`."""

INPUTS = (*NAMES, "S", "chain_M", "randn")
"""Tensors that the forward takes."""

INTEGERS = {"residue_idx", "chain_encoding_all", "S", "S_true", "decoding_order"}
RESIDUES = {*INPUTS, *INTEGERS, "chain_mask", "chain_M_pos", "pssm_coef"} - {"X"}
"""Arguments that are int64, and those of shape [B, L], where they are tensors."""

METHODS = ("sample", "tied_sample")


class ProteinMPNNForward(FastForward[Runner]):
    """Log-probabilities of all amino acids in a sequence that is decoded in a random order.

    The methods ``sample`` and ``tied_sample`` of the model are replaced as well.
    """

    supported = "ProteinMPNN"
    watches = ("eps", "scale", "top_k")

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._known = KnownCheck(0)

    @classmethod
    def fits(cls, module: Any) -> bool:
        """Return True for a ProteinMPNN of whole backbones, with its own classes throughout."""
        kind = type(module)
        if kind.__name__ != "ProteinMPNN" or not is_unmodified(module, *SOURCES):
            return False
        for name in METHODS:
            method, own = getattr(kind, name, None), vars(module).get(name)
            if getattr(method, "__module__", None) not in SOURCES:
                return False
            if own is not None and not isinstance(own, Sampler):
                return False
        return _is_standard(module)

    def install(self) -> None:
        """Replace ``forward`` and the methods that sample."""
        super().install()
        for name in METHODS:
            setattr(self.module, name, Sampler(self, name))

    def undo(self, module: nn.Module | None = None) -> None:
        """Restore the module's own methods."""
        super().undo(module)
        own = vars(self.module if module is None else module)
        for name in METHODS:
            if isinstance(own.get(name), Sampler):
                del own[name]

    def read(self) -> Runner:
        """Read the present weights."""
        return Runner(
            MPNNWeights.of(self.module, self.dtype),
            residue_operators(self.backend),
            self.module.features.top_k,
            splits=self.backend == "triton" and self.dtype == torch.float32,
            graphs=self.options.captures(self.backend, self.module),
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse dtypes other than float32, and proteins with too few known residues."""
        parameter = self.parameter
        if parameter.dtype != torch.float32:
            return "its parameters are not float32; use the precision option of bio.accelerate"
        tensors = {name: x for name, x in arguments.items() if isinstance(x, Tensor)}
        names = {"X", *RESIDUES} & {*tensors}
        if any(tensors[name].device != parameter.device for name in names):
            return "inputs and parameters are on different devices"
        atoms = tensors.get("X")
        if atoms is None or atoms.dtype != torch.float32 or atoms.dim() != 4:
            return "positions are not float32 of shape [B, L, 4, 3]"
        if "mask" not in tensors:
            return "the mask is not a tensor"
        if any(tensors[name].shape != atoms.shape[:2] for name in RESIDUES & names):
            return "an argument is not of shape [B, L]"
        if any(tensors[name].dtype != torch.int64 for name in INTEGERS & names):
            return "an argument of integers is not int64"
        if atoms.shape[1] > MAX_LENGTH:
            return f"proteins have more than {MAX_LENGTH} residues"
        mask = tensors["mask"]
        return self._check(mask).refusal(mask) or _refuse_samples(arguments)

    def _check(self, mask: Tensor) -> KnownCheck:
        """Return the check for the length of a mask and the present number of neighbors."""
        needed = KnownCheck.needed(mask.shape[1], self.module.features.top_k)
        if self._known.n_needed != needed:
            self._known = KnownCheck(needed)
        return self._known

    def begin(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Queue the check of the mask, and replay the graph for the proteins' shape, if any."""
        mask = arguments.get("mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            self._check(mask).queue(mask)
        is_score = all(isinstance(arguments.get(name), Tensor) for name in INPUTS)
        if not is_score or self.module.features.augment_eps > 0:
            return None
        return self.weights.begin(self._scoring(arguments))

    def compute(self, arguments: Mapping[str, Any], begun: Tensor | None) -> Tensor:
        """Return log-probabilities [B, L, V]."""
        return self.weights.score(self._scoring(arguments)) if begun is None else begun

    def _scoring(self, arguments: Mapping[str, Any]) -> Scoring:
        backbones = self.backbones(arguments)
        if arguments.get("use_input_decoding_order", False):
            order, designed, noise = arguments["decoding_order"], None, None
        else:
            order, designed, noise = None, arguments["chain_M"], arguments["randn"]
        return Scoring(*backbones, arguments["S"], order, designed, noise)

    def backbones(self, arguments: Mapping[str, Any]) -> Backbones:
        """Return the backbones, with noise if the model adds any."""
        atoms, mask, numbers, chains = (arguments[name] for name in NAMES)
        noise = self.module.features.augment_eps
        if noise > 0:
            atoms = atoms + noise * torch.randn_like(atoms)
        return Backbones(atoms[:, :, :4], mask.float(), numbers, chains)


def _is_standard(module: Any) -> bool:
    """Return True if a model is built as its class builds it, with one of the supported sizes."""
    size = len(module.W_e.weight)
    layers = len(module.encoder_layers), len(module.decoder_layers)
    is_whole = type(module.features).__name__ == "ProteinFeatures"
    if not is_whole or size not in CHANNELS or not all(layers):
        return False
    with torch.device("meta"):
        standard = type(module)(
            num_letters=len(module.W_out.weight),
            node_features=size,
            edge_features=size,
            hidden_dim=size,
            num_encoder_layers=layers[0],
            num_decoder_layers=layers[1],
            vocab=len(module.W_out.weight),
        )
    shapes = [[p.shape for p in model.parameters()] for model in (module, standard)]
    return _description(module) == _description(standard) and shapes[0] == shapes[1]


def _description(module: nn.Module) -> str:
    """Describe all layers except for dropout rates, which do not matter here."""
    return re.sub(r"Dropout\(p=[^)]*\)", "Dropout()", repr(module))


def _refuse_samples(arguments: Mapping[str, Any]) -> str | None:
    """Refuse temperatures that are not positive, and residues that are designed in part."""
    if "chain_mask" not in arguments:
        return None  # no sample
    temperature = arguments.get("temperature", 1.0)
    if (isinstance(temperature, Tensor) and temperature.numel() != 1) or not temperature > 0:
        return "the temperature is not a positive number"
    designed = arguments["chain_mask"] * arguments["chain_M_pos"]
    if not bool(((designed == 0) | (designed == 1)).all()):
        return "chain_mask has values other than 0 and 1"
    return None


class Sampler:
    """A method of the model that samples, ``sample`` or ``tied_sample``.

    Parameters
    ----------
    owner : ProteinMPNNForward
        Adapter of the model.
    name : str
        Name of the method.
    """

    def __init__(self, owner: ProteinMPNNForward, name: str) -> None:
        self._owner, self._name = owner, name
        parameters = inspect.signature(getattr(type(owner.module), name)).parameters
        self._defaults = {name: p.default for name, p in list(parameters.items())[1:]}

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return what the model's own method would return."""
        own = partial(getattr(type(self._owner.module), self._name), self._owner.module)
        return self._owner.serve(self._sample, own, args, kwargs, tuple(self._defaults))

    def _sample(self, arguments: Mapping[str, Any], begun: None) -> dict[str, Tensor]:
        del begun
        given = {**self._defaults, **arguments}
        mask = given["mask"]
        backbones = self._owner.backbones(given)
        designed = given["chain_mask"] * given["chain_M_pos"] * mask
        plan = Plan(decoding_order(designed, given["randn"]))
        if self._name == "tied_sample":
            plan = Plan.tied(plan.order, given["tied_pos"])
        sequence, p = self._owner.weights.sample(backbones, given, designed, plan)
        return {"S": sequence, "probs": p, "decoding_order": plan.order}
