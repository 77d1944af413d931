"""Adapter for Enformer of enformer-pytorch: tracks of gene expression and chromatin from DNA."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.models.enformer.runner import EnformerRunner, Request
from mlff_triton.bio.models.enformer.structure import function_of, is_known, shrinkage

HALVES = (torch.float16, torch.bfloat16)


class EnformerForward(FastForward[EnformerRunner]):
    """Tracks of all heads, or embeddings, for DNA sequences."""

    supported = "Enformer"
    watches = ("eps", "kernel_size", "heads", "scale", "use_tf_gamma", "target_length")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for an Enformer that computes what its package does."""
        return is_known(module)

    def read(self) -> EnformerRunner:
        """Read the present weights."""
        return EnformerRunner(self.module, self.backend, self.dtype, self.options)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse arguments that only the original supports, or for which it raises an error."""
        given = Arguments(**arguments)
        if self.backend == "triton" and self.dtype not in HALVES:
            return "it computes in float32; use precision='fp16' or 'bf16' of bio.accelerate"
        return self._sequence_refusal(given.x) or self._request_refusal(given)

    def _sequence_refusal(self, x: object) -> str | None:
        first = self.parameter
        if isinstance(x, list):
            if not x or len({len(each) if isinstance(each, str) else None for each in x}) != 1:
                return "the sequences are not strings of one length"
            length, dtype = len(x[0]), torch.float32
        elif isinstance(x, Tensor) and x.dtype == torch.int64 and x.dim() in (1, 2):
            length, dtype = x.shape[-1], torch.float32
        elif isinstance(x, Tensor) and x.dim() in (2, 3) and x.shape[-1] == 4:
            length, dtype = x.shape[-2], x.dtype
        else:
            return "the input is neither strings, nor indices, nor four channels per base"
        if isinstance(x, Tensor) and (x.device != first.device or not x.numel()):
            return "the input is empty or on another device"
        if dtype != first.dtype:
            return f"the input becomes {dtype}, but the parameters are {first.dtype}"
        if length % shrinkage(self.module):
            return f"the length is not a multiple of {shrinkage(self.module)}"
        if self._gamma_length() not in (None, length // shrinkage(self.module)):
            return f"the positional features exist for {self._gamma_length()} bins only"
        return None

    def _gamma_length(self) -> int | None:
        """Return the only number of bins that stored positional features allow, or None."""
        attention = [part.fn[1] for part, _ in self.module.transformer]
        if not any(each.use_tf_gamma for each in attention):
            return None
        return (len(function_of(attention[0], "TF_GAMMAS")) + 1) // 2

    def _request_refusal(self, given: Arguments) -> str | None:
        if given.head is not None and given.head not in self.module.heads:
            return f"the model has no head {given.head!r}"
        if given.target is not None and given.head is None:
            return "a loss needs the name of a head"
        n_bins, target = self._n_bins(given), self._target_length(given)
        if type(target) is not int or not -1 <= target <= n_bins:
            return f"the target length is not -1 or at most the number of bins, {n_bins}"
        if 2 * _dropped(n_bins, target) >= n_bins:
            return "no bins are left"
        return None

    def _target_length(self, given: Arguments) -> Any:
        own = self.module.crop_final.target_length
        return own if given.target_length is None else given.target_length

    def begin(self, arguments: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
        """Replay the graph for one-hot bases, if there is one."""
        given = Arguments(**arguments)
        x, target = given.x, self._target_length(given)
        if not isinstance(x, Tensor) or not x.is_cuda or x.dim() not in (2, 3):
            return None
        if (
            x.dtype == torch.int64
            or type(target) is not int
            or type(given.head) not in (str, NoneType)
        ):
            return None
        sequence = x if x.dim() == 3 else x[None]
        return self.weights.replay(sequence, self._request(given))

    def compute(self, arguments: Mapping[str, Any], begun: tuple[Tensor, ...] | None) -> Any:
        """Return a dictionary of tracks [B, L, N], the tracks of one head, a loss or embeddings."""
        given = Arguments(**arguments)
        request = self._request(given)
        if given.target_length is not None:
            self.module.set_target_length(given.target_length)  # as the original does
        sequence = given.x
        if begun is None:
            sequence = self._one_hot(given.x)
            batch = sequence if sequence.dim() == 3 else sequence[None]
            begun = self.weights(batch.contiguous(), request)
        outputs = begun if sequence.dim() == 3 else tuple(output[0] for output in begun)
        if given.return_only_embeddings:
            return outputs[0]
        tracks = outputs[request.embeddings :]
        named = dict(zip(request.heads, tracks, strict=True))
        result: Any = named if given.head is None else tracks[0]
        if given.target is not None:
            loss = "pearson_corr_coef" if given.return_corr_coef else "poisson_loss"
            return function_of(self.module, loss)(result, given.target)
        return (result, outputs[0]) if given.return_embeddings else result

    def _request(self, given: Arguments) -> Request:
        names = tuple(self.module.heads) if given.head is None else (given.head,)
        only = bool(given.return_only_embeddings)
        return Request(
            dropped=_dropped(self._n_bins(given), self._target_length(given)),
            heads=() if only else names,
            embeddings=only or bool(given.return_embeddings),
        )

    def _n_bins(self, given: Arguments) -> int:
        return _length_of(given.x) // shrinkage(self.module)

    def _one_hot(self, x: Any) -> Tensor:
        """Return the sequences as the model converts them, on its device."""
        if isinstance(x, list):
            x = function_of(self.module, "str_to_one_hot")(x)
        elif x.dtype == torch.int64:
            x = function_of(self.module, "seq_indices_to_one_hot")(x)
        sequence: Tensor = x.to(self.parameter.device)
        return sequence


class Arguments(NamedTuple):
    """Arguments of ``Enformer.forward``."""

    x: Any
    target: Tensor | None = None
    return_corr_coef: bool = False
    return_embeddings: bool = False
    return_only_embeddings: bool = False
    head: str | None = None
    target_length: int | None = None


def _length_of(x: Any) -> int:
    """Return the number of bases in strings, indices [..., S] or one-hot bases [..., S, 4]."""
    if isinstance(x, list):
        return len(x[0])
    return int(x.shape[-1] if x.dtype == torch.int64 else x.shape[-2])


def _dropped(n_bins: int, target: int) -> int:
    """Return the number of bins that are dropped at each end; -1 keeps all."""
    return 0 if target == -1 else (n_bins - target + 1) // 2
