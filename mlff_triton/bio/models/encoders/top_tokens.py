"""Most likely token at every position, from accelerated language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.core.labels import LabelGuard
from mlff_triton.bio.core.snapshot import are_hooked
from mlff_triton.bio.models.encoders.fair_esm import ESM2Forward
from mlff_triton.bio.models.encoders.huggingface import EncoderForward, LanguageHeadForward
from mlff_triton.errors import InputError
from mlff_triton.kernels.transformer.types import largest


class TopTokens(NamedTuple):
    """Most likely token at every position.

    Attributes
    ----------
    ids : int64 [B, L]
        Tokens. Of several equally likely tokens, the first.
    logits : [B, L]
        Logits of these tokens, in the dtype of the model's logits.
    """

    ids: Tensor
    logits: Tensor


def top_tokens(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> TopTokens:
    """Return what ``model(...).logits.max(-1)`` gives, without writing all logits.

    As after `mlff_triton.bio.accelerate`, the model runs its original forward where the fast one
    does not apply. All logits are written if modules around the head have hooks or a ``forward``
    that is not the library's.

    Parameters
    ----------
    model : torch.nn.Module
        Accelerated `EsmForMaskedLM` or `BertForMaskedLM` of transformers, or `ESM2` of fair-esm.
    input_ids : int64 [B, L]
        Tokens.
    attention_mask : [B, L], optional
        Nonzero for tokens, zero for padding. Not for fair-esm, which identifies padding by its
        token.
    token_type_ids : int64 [B, L], optional
        Types of the tokens, for `BertForMaskedLM`.
    position_ids : int64 [B, L], optional
        Positions of the tokens, for models of transformers, which then run their original forward.

    Returns
    -------
    TopTokens
        Values at padding are undefined.

    Raises
    ------
    InputError
        If the model is not accelerated or has no supported language head, or if it does not take
        one of the arguments.

    Examples
    --------
    >>> model = EsmForMaskedLM.from_pretrained("facebook/esm2_t33_650M_UR50D").eval().cuda()
    >>> bio.accelerate(model, precision="fp16")
    >>> with torch.inference_mode():
    ...     ids, logits = bio.top_tokens(model, **tokens)
    """
    optional = {
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "position_ids": position_ids,
    }
    given = {name: value for name, value in optional.items() if value is not None}
    forward = _forward(model)
    if isinstance(forward, ESM2Forward):
        if given:
            raise InputError(
                f"ESM2 of fair-esm takes input_ids alone and identifies padding by its token: "
                f"omit {', '.join(given)}"
            )
        if not are_hooked([model]):
            return TopTokens(*forward.top(input_ids))
        return _from_all_logits(model, input_ids, given)
    encoder, head, between = _encoder_and_head(model)
    if are_hooked([*between, head.module]) or not all(_is_of_library(m, encoder) for m in between):
        return _from_all_logits(model, input_ids, given)
    return TopTokens(*head.top(encoder(input_ids, **given)[0]))


def _encoder_and_head(
    model: nn.Module,
) -> tuple[nn.Module, LanguageHeadForward, list[nn.Module]]:
    """Find the encoder, the language head, and the modules that contain the head."""
    encoders = [m for m in model.children() if isinstance(_forward(m), EncoderForward)]
    rest = [m for child in model.children() if child not in encoders for m in child.modules()]
    heads = [found for found in map(_forward, rest) if isinstance(found, LanguageHeadForward)]
    if len(encoders) == len(heads) == 1:
        head = heads[0]
        around = [m for m in rest if m is not head.module and head.module in m.modules()]
        return encoders[0], head, [model, *around]
    name = type(model).__name__
    if not any(isinstance(_forward(m), FastForward) for m in model.modules()):
        raise InputError(f"{name} is not accelerated: call bio.accelerate(model) first")
    raise InputError(
        f"{name} has no supported language head: use EsmForMaskedLM or BertForMaskedLM of "
        "transformers, or ESM2 of fair-esm"
    )


def _forward(module: nn.Module) -> Any:
    return vars(module).get("forward")


def _is_of_library(module: nn.Module, encoder: nn.Module) -> bool:
    """Return True if the module's ``forward`` is defined where that of the encoder's class is."""
    own = type(module).forward.__module__ == type(encoder).forward.__module__
    forward = _forward(module)
    return own and (forward.before if isinstance(forward, LabelGuard) else forward) is None


def _from_all_logits(
    model: nn.Module, input_ids: Tensor, arguments: Mapping[str, Tensor]
) -> TopTokens:
    found = model(input_ids, **arguments)
    index, logit = largest(found["logits"] if isinstance(found, Mapping) else found[0])
    return TopTokens(index, logit)
