"""Adapter for DualBind: binding affinities of protein-ligand complexes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.core.operators import binding_operators
from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.models.dualbind.molecules import Molecules, embed_atoms
from mlff_triton.bio.models.dualbind.network import Complexes, energies
from mlff_triton.bio.models.dualbind.weights import DualBindWeights
from mlff_triton.kernels.binding.protocol import BindingOperators

SOURCES = ("DualBind.model.", "model.")
"""Python modules of the repository, as a package or from its folder."""

CLASSES = {
    "": "DualBind",
    "mpn": "MPNEncoder",
    "mpn.act_func": "ReLU",
    "encoder": "FANN",
    "encoder.encoder": "TransformerEncoderLayer",
    "encoder.encoder.activation": "ReLU",
    "encoder.encoder.multihead_attention": "MultiHeadAttention",
    "binder_output.1": "SiLU",
    "target_output.1": "SiLU",
}
"""Classes of the modules that the fast forward stands for, other than maps and normalizations."""

LOSS = "mtl_loss.log_sigma"
"""Parameter of the loss; the energy does not depend on it."""

CHANNELS = (16, 32, 64, 128, 256)
HEAD_CHANNELS = (16, 32, 64, 128)

NAMES = ("bind_X", "mol_batch", "bind_A", "tgt_X", "tgt_S", "tgt_A")
"""Arguments: parts of ``binder`` and of ``target``, by the names that the model gives them."""


class DualBind(NamedTuple):
    """The model for a backend."""

    weights: DualBindWeights
    operators: BindingOperators


class DualBindForward(FastForward[DualBind]):
    """Energies of protein-ligand complexes.

    Memory does not limit the size of a batch, because a few dozen complexes are computed at a time.
    Kinds of atoms that the model does not know give NaN, and complexes without contacts zero.
    Kernels multiply halves of activations in float16: those larger than 65504 become infinite, and
    the energy is not finite. Weights of this size need the original ``forward``.
    """

    supported = "DualBind"
    watches = ("eps", "depth", "num_heads", "threshold")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a DualBind with its own classes and parameters of the known shapes."""
        return (
            type(module).__name__ == "DualBind"
            and is_unmodified(module, *SOURCES)
            and _has_structure(module)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's original ``forward`` would return."""
        given = dict(zip(self._names, args, strict=False)) | kwargs
        groups = given.get("binder"), given.get("target")
        if not all(isinstance(group, tuple | list) and len(group) == 3 for group in groups):
            return self.original(*args, **kwargs)
        flat = tuple(part for group in groups for part in group or ())
        return self.serve(self.compute, lambda *_: self.original(*args, **kwargs), flat, {}, NAMES)

    def read(self) -> DualBind:
        """Read the present weights."""
        weights = DualBindWeights.of(self.module, self.dtype)
        if self.backend == "triton":
            weights = weights.split()
        return DualBind(weights, binding_operators(self.backend))

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse precisions other than the model's own float32, and arguments of other shapes."""
        weight = self.parameter
        if weight.dtype != self.dtype:
            return "other precisions than that of the parameters are not supported"
        if self.backend == "triton" and weight.dtype != torch.float32:
            return "its parameters are not float32"
        tensors = [arguments[name] for name in NAMES if name != "mol_batch"]
        if not all(isinstance(x, Tensor) for x in tensors):
            return "an argument is not a tensor"
        if {x.device for x in tensors} != {weight.device}:
            return "arguments are on other devices than the parameters"
        if any(arguments[name].dtype != weight.dtype for name in ("bind_X", "tgt_X", "tgt_S")):
            return "arguments are not of the dtype of the parameters"
        if any(arguments[name].dtype != torch.int64 for name in ("bind_A", "tgt_A")):
            return "kinds of atoms are not int64"
        if not isinstance(self.module.threshold, int | float):
            return "the threshold of the model is not a Python number"
        if not hasattr(arguments["mol_batch"], "get_components"):
            return "ligands are not a BatchMolGraph of chemprop 1"
        return self._misfit(arguments, _molecules(arguments))

    def _misfit(self, arguments: Mapping[str, Any], molecules: Molecules) -> str | None:
        """Return which shapes do not fit together, if any."""
        slots, n_types = self.module.max_residue_atoms, self.module.encoder.W_tgt.in_features
        n_complexes, n_residues = arguments["tgt_S"].shape[:2]
        ligand = len(molecules.scopes), molecules.n_atoms, slots
        target = n_complexes, n_residues, slots
        expected = {
            "bind_X": (*ligand, 3),
            "bind_A": ligand,
            "tgt_X": (*target, 3),
            "tgt_S": (n_complexes, n_residues, n_types),
            "tgt_A": target,
        }
        wrong = [name for name, shape in expected.items() if arguments[name].shape != shape]
        if wrong or ligand[0] != n_complexes:
            return f"shapes do not fit together: {', '.join(wrong or ['mol_batch'])}"
        if not n_complexes:
            return "there are no complexes"
        return None

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Tensor:
        """Return energies [B]."""
        del begun
        weights, operators = self.weights
        atoms = embed_atoms(_molecules(arguments), weights.molecule)
        names = ("bind_A", "tgt_X", "tgt_S", "tgt_A")
        given = Complexes(arguments["bind_X"], atoms, *(arguments[name] for name in names))
        return energies(operators, weights, given, self.module.threshold)


def _molecules(arguments: Mapping[str, Any]) -> Molecules:
    return Molecules(*arguments["mol_batch"].get_components()[:6])


def _has_structure(model: Any) -> bool:
    """Return True if all parts of a model are of the known classes and shapes."""
    modules = dict(model.named_modules())
    if any(type(modules.get(path)).__name__ != name for path, name in CLASSES.items()):
        return False
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name != LOSS}
    if shapes.get("encoder.linear.bias") is None:
        return False
    (channels,) = shapes["encoder.linear.bias"]
    n_heads = model.encoder.encoder.multihead_attention.num_heads
    return (
        shapes == _expected_shapes(shapes, channels)
        and channels in CHANNELS
        and channels % n_heads == 0
        and channels // n_heads in HEAD_CHANNELS
        and shapes["encoder.encoder.linear1.bias"][0] % min(channels, 32) == 0
    )


def _expected_shapes(found: Mapping[str, tuple[int, ...]], c: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters, with free sizes as found."""

    def free(name: str, axis: int) -> int:
        shape = found.get(name, ())
        return shape[axis] if len(shape) > axis else -1

    layer, attention = "encoder.encoder", "encoder.encoder.multihead_attention"
    hidden = free(f"{layer}.linear1.weight", 0)
    maps = {
        "mpn.W_o": (c, max(free("mpn.W_o.weight", 1), c + 1)),
        "encoder.W_bind": (c, c),
        "encoder.W_tgt": (c, free("encoder.W_tgt.weight", 1)),
        "encoder.linear": (c, 2 * c + 3),
        **{f"{attention}.{name}": (c, c) for name in ("wq", "wk", "wv", "dense")},
        f"{layer}.linear1": (hidden, c),
        f"{layer}.linear2": (c, hidden),
        "binder_output.0": (c, c),
        "binder_output.2": (c, c),
        "target_output.0": (c, c),
    }
    n_kinds = free("encoder.A_bind.weight", 0)
    return {
        "mpn.W_i.weight": (c, free("mpn.W_i.weight", 1)),
        "mpn.W_h.weight": (c, c),
        "encoder.A_bind.weight": (n_kinds, c),
        "encoder.A_tgt.weight": (n_kinds, c),
        **{
            f"{layer}.{norm}.{name}": (c,)
            for norm in ("norm1", "norm2")
            for name in ("weight", "bias")
        },
        **{f"{name}.weight": shape for name, shape in maps.items()},
        **{f"{name}.bias": shape[:1] for name, shape in maps.items()},
    }
