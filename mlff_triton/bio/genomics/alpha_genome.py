"""Adapter for AlphaGenome: tracks, contact maps and splice junctions from DNA sequences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.encoders.torch_modules import is_unmodified
from mlff_triton.bio.fast_forward import PRECISIONS, FastForward
from mlff_triton.bio.genomics.alpha_genome_heads import Request
from mlff_triton.bio.genomics.alpha_genome_runner import BASES, Network
from mlff_triton.bio.genomics.alpha_genome_tower import BIN

PACKAGE = "alphagenome_pytorch"
SOURCES = tuple(
    f"{PACKAGE}.{name}"
    for name in ("model", "attention", "convolutions", "embeddings", "heads", "layers")
)
"""Python modules of version 0.3. The model of 0.2 is of another module and has other parts."""

BLOCK = 128
"""Positions of the sequence that become one of the transformer."""


class AlphaGenomeForward(FastForward[Network]):
    """Predictions of all heads for one-hot sequences."""

    supported = "AlphaGenome of alphagenome-pytorch 0.3"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for an AlphaGenome with its own classes throughout."""
        if type(module).__name__ != "AlphaGenome" or not is_unmodified(module, *SOURCES):
            return False
        model: Any = module
        return all(map(partial(_reads, model), model.heads.values())) and (
            model.tower.blocks[0]["pair_update"] is not None
        )

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the computation, by default that of the model's policy."""
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
        home = next(self.module.parameters()).device
        if any(isinstance(x, Tensor) and x.device != home for x in arguments.values()):
            return f"its parameters are on {home}, but an input is not"
        length = sequence.shape[1]
        if not sequence.shape[0] or not length or length % (BLOCK * BIN):
            return f"a length of {length} is not a multiple of {BLOCK * BIN}"
        if arguments.get("encoder_only", False):
            return None
        if not isinstance(organism, Tensor) or organism.shape != sequence.shape[:1]:
            return "organism_index is not a tensor [B]"
        return self._refused_heads(arguments)

    def _refused_heads(self, arguments: Mapping[str, Any]) -> str | None:
        model, heads = self.module, arguments.get("heads")
        others = {
            "contact_maps": model.contact_maps_head,
            "splice_sites": model.splice_sites_classification_head,
            "splice_site_usage": model.splice_sites_usage_head,
            "splice_junctions": model.splice_sites_junction_head,
        }
        known = {*model.heads} | {name for name, head in others.items() if head is not None}
        if heads is not None and set(heads) - known:
            return f"unknown heads {sorted(set(heads) - known)}"
        asked = heads is None or "splice_junctions" in heads
        no_sites = model.splice_sites_classification_head is None
        if asked and no_sites and arguments.get("splice_site_positions") is None:
            return "splice junctions need the head of splice sites or splice_site_positions"
        return None

    def begin(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Replay the graph for the sequence, if there is one."""
        sequence, organism = arguments.get("dna_sequence"), arguments.get("organism_index")
        heads = arguments.get("heads") or ()
        if not isinstance(sequence, Tensor) or not isinstance(organism, Tensor):
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
            return {"encoder_output": self.weights.encode(arguments["dna_sequence"]).mT}
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
        """Allow autocast to the dtype of the model's policy, under which ``predict`` calls it."""
        policy = self.module.dtype_policy.compute_dtype
        device = next(self.module.parameters()).device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == policy:
            with torch.autocast(device, enabled=False):
                return super()._unsupported_mode(arguments)
        return super()._unsupported_mode(arguments)


def _inputs(arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return bases, organisms and positions of splice sites."""
    organism: Tensor = arguments["organism_index"].long()
    return arguments["dna_sequence"], organism, arguments.get("splice_site_positions")


def _reads(model: Any, head: Any) -> bool:
    """Return True if a head makes tracks from the embeddings of a model, for all its organisms."""
    embedders = {"1": model.embedder_1bp, "128": model.embedder_128bp}
    if type(head).__name__ != "GenomeTracksHead" or not head.convs.keys() <= embedders.keys():
        return False
    return all(
        conv.in_channels == embedders[resolution].out_channels
        and conv.num_organisms == model.num_organisms
        for resolution, conv in head.convs.items()
    )
