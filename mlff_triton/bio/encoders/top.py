"""The most likely token of every place, as an accelerated language model has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mlff_triton.bio.encoders.fair_esm import ESM2Forward
from mlff_triton.bio.encoders.huggingface import EncoderForward, HeadForward
from mlff_triton.bio.forward import FastForward
from mlff_triton.bio.state import are_hooked
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.top_logit import largest


class TopTokens(NamedTuple):
    """The most likely token of every place.

    Attributes
    ----------
    ids : int64 [B, L]
        Tokens; of several that are equally likely the first.
    logits : [B, L]
        Theirs, of the dtype of the model's logits.
    """

    ids: Tensor
    logits: Tensor


def top_tokens(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
) -> TopTokens:
    """What ``model(...).logits.max(-1)`` gives; kernels write no other logits.

    What is not served the model computes itself, as after `mlff_triton.bio.accelerate`. Where there
    are hooks around the head, or a ``forward`` that is not the library's, logits are written.

    Parameters
    ----------
    model : torch.nn.Module
        An accelerated `EsmForMaskedLM` or `BertForMaskedLM` of transformers, or `ESM2` of fair-esm.
    input_ids : int64 [B, L]
        Tokens.
    attention_mask : [B, L], optional
        Not zero where there is a token; not for fair-esm, which knows padding by its token.
    **others
        For the encoder of the model, such as ``token_type_ids``.

    Returns
    -------
    TopTokens
        Those of padding mean nothing.

    Raises
    ------
    InputError
        If the model is not accelerated, or has no language head that is known.

    Examples
    --------
    >>> model = EsmForMaskedLM.from_pretrained("facebook/esm2_t33_650M_UR50D").eval().cuda()
    >>> bio.accelerate(model, precision="fp16")
    >>> with torch.inference_mode():
    ...     ids, logits = bio.top_tokens(model, **tokens)
    """
    given = others if attention_mask is None else {"attention_mask": attention_mask} | others
    forward = _forward(model)
    if isinstance(forward, ESM2Forward):
        if attention_mask is not None:
            raise InputError(
                "ESM2 of fair-esm knows padding by its token: leave attention_mask out"
            )
        if not are_hooked([model]):
            return TopTokens(*forward.top(input_ids, **given))
        return _of_logits(model, input_ids, given)
    encoder, head, between = _parts(model)
    if are_hooked([*between, head.module]) or not all(_is_of_library(m, encoder) for m in between):
        return _of_logits(model, input_ids, given)
    return TopTokens(*head.top(encoder(input_ids, **given)[0]))


def _parts(model: nn.Module) -> tuple[nn.Module, HeadForward, list[nn.Module]]:
    """The encoder, its head, and the model and what else the head is in."""
    encoders = [m for m in model.children() if isinstance(_forward(m), EncoderForward)]
    rest = [m for child in model.children() if child not in encoders for m in child.modules()]
    heads = [found for found in map(_forward, rest) if isinstance(found, HeadForward)]
    if len(encoders) == len(heads) == 1:
        head = heads[0]
        around = [m for m in rest if m is not head.module and head.module in m.modules()]
        return encoders[0], head, [model, *around]
    name = type(model).__name__
    if not any(isinstance(_forward(m), FastForward) for m in model.modules()):
        raise InputError(f"{name} is not accelerated: call bio.accelerate(model) first")
    raise InputError(
        f"{name} has no language head that is known: take an EsmForMaskedLM or a BertForMaskedLM "
        "of transformers, or an ESM2 of fair-esm"
    )


def _forward(module: nn.Module) -> Any:
    return vars(module).get("forward")


def _is_of_library(module: nn.Module, encoder: nn.Module) -> bool:
    """Whether it passes hidden states on as the library has it, whose encoder this is."""
    own = type(module).forward.__module__ == type(encoder).forward.__module__
    return own and _forward(module) is None


def _of_logits(model: nn.Module, input_ids: Tensor, given: Mapping[str, Any]) -> TopTokens:
    found = model(input_ids, **given)
    index, logit = largest(found["logits"] if isinstance(found, Mapping) else found[0])
    return TopTokens(index, logit)
