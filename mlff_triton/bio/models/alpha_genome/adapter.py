"""Adapter for AlphaGenome: tracks, contact maps and splice junctions from DNA sequences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import PRECISIONS, FastForward, Options
from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.core.settings import settings
from mlff_triton.bio.core.value_check import IndexCheck
from mlff_triton.bio.models.alpha_genome.head_weights import has_all_organisms, heads_of
from mlff_triton.bio.models.alpha_genome.heads import Request
from mlff_triton.bio.models.alpha_genome.runner import BASES, Network
from mlff_triton.bio.models.alpha_genome.tower import BIN

PACKAGE = "alphagenome_pytorch"
NORMS = ("torch.nn.utils.parametrize", "torch.nn.utils.parametrizations")
"""Modules of weights that PyTorch normalizes; their present values are read."""
SOURCES = tuple(
    f"{PACKAGE}.{name}"
    for name in ("model", "attention", "convolutions", "embeddings", "heads", "layers")
)
"""Python modules of version 0.3. Version 0.2 has its model in another module, with other parts."""

BLOCK = 128
"""Number of positions of the sequence per position of the transformer."""

INTEGERS = torch.int32, torch.int64


class AlphaGenomeForward(FastForward[Network]):
    """Predictions of all heads for one-hot sequences."""

    supported = "AlphaGenome of alphagenome-pytorch 0.3"
    watches = ("eps", "resolutions", "apply_squashing", "in_channels", "kernel_size")

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._check = IndexCheck("organism_index", len(self.module.organism_embed.weight))

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for an AlphaGenome with its own classes throughout."""
        if type(module).__name__ != "AlphaGenome" or not is_unmodified(module, *SOURCES, *NORMS):
            return False
        model: Any = module
        return (
            _has_usual_settings(model)
            and all(map(partial(_reads, model), model.heads.values()))
            and (model.tower.blocks[0]["pair_update"] is not None)
        )

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the computation; by default, the dtype of the model's policy."""
        chosen = None if self.backend is None else self.options.precision
        policy: torch.dtype = self.module.dtype_policy.compute_dtype
        return policy if chosen is None else PRECISIONS[chosen]

    def read(self) -> Network:
        """Read the present weights."""
        return Network(self.module, self.backend, self.dtype, self.options)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse float32 on a GPU, and arguments that the model does not accept."""
        if self.backend == "triton" and self.dtype not in (torch.float16, torch.bfloat16):
            return "kernels compute in half precision; use precision='fp16' with bio.accelerate"
        sequence, organism = arguments.get("dna_sequence"), arguments.get("organism_index")
        if not isinstance(sequence, Tensor) or sequence.dim() != 3 or sequence.shape[2] != BASES:
            return "dna_sequence is not a tensor [B, S, 4]"
        home = self.parameter.device
        if any(isinstance(x, Tensor) and x.device != home for x in arguments.values()):
            return f"its parameters are on {home}, but an input is not"
        length = sequence.shape[1]
        if not sequence.shape[0] or not length or length % (BLOCK * BIN):
            return f"a length of {length} is not a multiple of {BLOCK * BIN}"
        if arguments.get("encoder_only", False):
            return None
        if not _are_integers(organism) or organism.shape != sequence.shape[:1]:
            return "organism_index is not an integer tensor [B]"
        return self._check.refusal(organism) or self._refused_heads(arguments)

    def _refused_heads(self, arguments: Mapping[str, Any]) -> str | None:
        names, sites = arguments.get("heads"), arguments.get("splice_site_positions")
        if sites is not None and not _are_sites(sites, len(arguments["dna_sequence"])):
            return "splice_site_positions is not an integer tensor [B, 4, K]"
        heads = heads_of(self.module)
        if names is not None and set(names) - {*heads}:
            return f"unknown heads {sorted(set(names) - {*heads})}"
        request = self._request(arguments)
        needed = {name for name in heads if request.predictions and request.wants(name)}
        if request.needs_sites and "splice_junctions" in heads and sites is None:
            if "splice_sites" not in heads:
                return "splice junctions need the head of splice sites or splice_site_positions"
            needed.add("splice_sites")
        for name, head in heads.items():
            if name in needed and not has_all_organisms(self.module, head):
                return f"the head {name!r} does not have weights for all organisms"
        return None

    def begin(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Replay the graph for the sequence, if there is one."""
        sequence, organism = arguments.get("dna_sequence"), arguments.get("organism_index")
        heads, sites = arguments.get("heads") or (), arguments.get("splice_site_positions")
        if not isinstance(sequence, Tensor) or not _are_integers(organism):
            return None
        self._check.queue(organism)
        if sites is not None and not isinstance(sites, Tensor):
            return None
        if not isinstance(heads, tuple | list) or not all(isinstance(h, str) for h in heads):
            return None
        if not sequence.is_cuda or arguments.get("encoder_only", False):
            return None
        return self.weights.replay(_inputs(arguments), self._request(arguments))

    def compute(self, arguments: Mapping[str, Any], begun: dict[str, Any] | None) -> dict[str, Any]:
        """Return the results of all heads, by name."""
        with torch.autocast(arguments["dna_sequence"].device.type, enabled=False):
            found = self._outputs(arguments) if begun is None else begun
            outputs: dict[str, Any] = self.module._cast_outputs(found)
        return outputs

    def _outputs(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments.get("encoder_only", False):
            rows = self.weights.encode(arguments["dna_sequence"])
            return {"encoder_output": rows.mT.contiguous()}
        return self.weights(_inputs(arguments), self._request(arguments))

    def _request(self, arguments: Mapping[str, Any]) -> Request:
        heads, resolutions = arguments.get("heads"), arguments.get("resolutions")
        alone = bool(arguments.get("embeddings_only", False))
        return Request(
            heads=None if heads is None else frozenset(heads),
            predictions=not alone,
            embeddings=alone or bool(arguments.get("return_embeddings", False)),
            bases=resolutions is None or 1 in resolutions,
            scaled=bool(arguments.get("return_scaled_predictions", False)),
            channels_last=bool(arguments.get("channels_last", True)),
            dtype=self.module.dtype_policy.output_dtype,
        )

    def _unsupported_mode(self, arguments: Mapping[str, Any]) -> str | None:
        """Allow autocast to the dtype of the model's policy, because ``predict`` uses it."""
        policy = self.module.dtype_policy.compute_dtype
        device = self.parameter.device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == policy:
            with torch.autocast(device, enabled=False):
                return super()._unsupported_mode(arguments)
        return super()._unsupported_mode(arguments)


def _inputs(arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return bases, organisms and positions of splice sites."""
    organism: Tensor = arguments["organism_index"].long().contiguous()
    return arguments["dna_sequence"], organism, arguments.get("splice_site_positions")


def _are_integers(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dtype in INTEGERS


def _are_sites(value: object, n_sequences: int) -> bool:
    """Return True for positions [B, 4, K], or [1, 4, K] for all sequences."""
    if not _are_integers(value) or value.dim() != 3:
        return False
    return len(value) in (1, n_sequences) and value.shape[1] == 4


def _has_usual_settings(model: Any) -> bool:
    """Return True if the modules of a model have the classes and settings of a new one."""
    kind: Any = type(model)  # mypy does not consider it hashable
    usual = _usual_settings(kind)
    found = ((module, usual[name]) for name, module in model.named_modules() if name in usual)
    return all(
        isinstance(module, kind) and settings(module) == own for module, (kind, own) in found
    )


@cache
def _usual_settings(kind: type[nn.Module]) -> dict[str, tuple[type[nn.Module], tuple[Any, ...]]]:
    """Return the classes and settings of the modules of a new model by their names."""
    with torch.device("meta"):
        fresh = kind()
    return {name: (type(module), settings(module)) for name, module in fresh.named_modules()}


def _reads(model: Any, head: Any) -> bool:
    """Return True if a head computes tracks from the embeddings of a model."""
    embedders = {"1": model.embedder_1bp, "128": model.embedder_128bp}
    if type(head).__name__ != "GenomeTracksHead" or not head.convs.keys() <= embedders.keys():
        return False
    return all(
        conv.in_channels == embedders[resolution].out_channels
        for resolution, conv in head.convs.items()
    )
