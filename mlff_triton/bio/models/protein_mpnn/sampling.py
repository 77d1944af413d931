"""Sampling of sequences by ProteinMPNN: arguments of its methods, for the decoding operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.protein_mpnn.network import Encoded, ranks_of
from mlff_triton.bio.models.protein_mpnn.weights import MPNNWeights
from mlff_triton.kernels.residues.reference.project import project
from mlff_triton.kernels.residues.types import Choices, DecoderWeights, Graph, Schedule

BANNED = 1e8  # subtracted from the logits of amino acids that are left out
RARE = 0.001  # factor of probabilities that the profile rules out


class Plan(NamedTuple):
    """Order of decoding, the same for all proteins if residues are tied.

    Attributes
    ----------
    order : int64 [B, L]
        Residues, group by group.
    groups : list of list of int, or None
        Residues of each group; None if each is a group of its own.
    """

    order: Tensor
    groups: list[list[int]] | None = None

    @property
    def bounds(self) -> list[int]:
        """First position of each group in the order, and the length."""
        sizes = [1] * self.order.shape[1] if self.groups is None else map(len, self.groups)
        return [0, *accumulate(sizes)]

    @classmethod
    def tied(cls, order: Tensor, ties: Sequence[Sequence[int]]) -> Plan:
        """Group tied residues, each group at its first residue in the first protein's order."""
        group_of = {int(residue): list(tie) for tie in reversed(ties) for residue in tie}
        groups: list[list[int]] = []
        seen: set[int] = set()
        for residue in order[0].tolist():
            if residue not in seen:
                groups.append(group_of.get(residue, [residue]))
                seen.update(groups[-1])
        flat = [residue for group in groups for residue in group]
        return cls(torch.tensor(flat, device=order.device).expand(len(order), -1), groups)

    def schedule(self) -> Schedule:
        """Return the rows of residues in order."""
        n_proteins, length = self.order.shape
        first = torch.arange(0, n_proteins * length, length, device=self.order.device)
        groups = torch.tensor(self.bounds, dtype=torch.int32, device=self.order.device)
        return Schedule((self.order + first[:, None]).int().contiguous(), groups)


class Draws(NamedTuple):
    """Residues that are drawn, and those that are given.

    Attributes
    ----------
    designed : [B, L]
        1 for residues that take what is drawn for their group.
    given : int64 [B, L]
        Amino acids of the others.
    computed : [L]
        0 for residues that the decoder leaves out.
    drawn : [B, L]
        Factor of probabilities, 0 where none are reported.
    """

    designed: Tensor
    given: Tensor
    computed: Tensor
    drawn: Tensor

    @classmethod
    def of(cls, residues: Tensor, mask: Tensor, designed: Tensor, plan: Plan) -> Draws:
        """Decide which groups of residues [B, L] are drawn; the mask marks known residues.

        The model draws nothing for tied residues if one of them is unknown in all proteins. All of
        them get the amino acids given for that residue. In the group, that residue and those after
        it are not computed.
        """
        computed = torch.ones_like(mask[0])
        if plan.groups is None:
            return cls(designed, residues, computed, designed)
        designed, given, drawn = designed.clone(), residues.clone(), torch.ones_like(mask)
        known = mask.any(0).tolist()
        for group in plan.groups:
            unknown = next((residue for residue in group if not known[residue]), None)
            if unknown is not None:
                computed[group[group.index(unknown) :]] = drawn[:, group] = 0
                designed[:, group[-1]] = 0
                given[:, group[-1]] = residues[:, unknown]
        return cls(designed, given, computed, drawn)


def decoder_weights(w: MPNNWeights) -> DecoderWeights:
    """Stack the weights of the decoder's layers."""
    stacked = [
        torch.stack(tensors)
        for tensors in zip(
            *(
                (
                    *layer.message.second,
                    *layer.message.third,
                    *layer.residues.norm[:2],
                    *layer.residues.up,
                    *layer.residues.down,
                    *layer.residues.last_norm[:2],
                    layer.projections.weight[0],
                    layer.projections.bias[0, 0],
                    layer.projections.weight[1],
                )
                for layer in w.decoder
            ),
            strict=True,
        )
    ]
    eps = w.decoder[0].residues.norm[2]
    sequences = w.sequences.transpose(0, 1).contiguous()
    return DecoderWeights._make([*stacked, sequences, *w.out, eps])


def graph_of(w: MPNNWeights, encoded: Encoded, order: Tensor) -> Graph:
    """Compute all parts of messages that do not depend on decoded residues."""
    x, edges, sources, mask = encoded
    rank = ranks_of(order).flatten()
    rows = sources.long()
    is_decoded = rank[:, None] > rank[rows]
    receivers, senders = project(x, w.decoder[0].projections)
    messages = []
    for layer, as_encoded in zip(w.decoder, project(x, w.encoded), strict=True):
        message = edges @ layer.message.first
        message += as_encoded[rows].masked_fill_(is_decoded[..., None], 0.0)
        messages.append(message)
    messages[0] += receivers[:, None]
    return Graph(torch.stack(messages), senders, x, sources, is_decoded, mask)


def choices_of(given: Mapping[str, Any], draws: Draws, plan: Plan) -> Choices:
    """Convert the arguments of ``sample`` or ``tied_sample``, and draw random numbers.

    The numbers are those that `torch.multinomial` would draw for each group in turn, and compare
    with the probabilities in the same way.
    """
    temperature, device = given["temperature"], draws.given.device
    omitted, bias = (
        torch.as_tensor(given[n], device=device) for n in ("omit_AAs_np", "bias_AAs_np")
    )
    shift = given["bias_by_res"] / temperature - omitted * BANNED + bias / temperature
    shift = shift.to(torch.promote_types(torch.float32, shift.dtype))
    keep = addend = factor = None
    if given.get("pssm_bias_flag"):
        weight = given["pssm_multi"] * given["pssm_coef"]
        keep, addend = 1 - weight, weight[..., None] * given["pssm_bias"]
    if given.get("pssm_log_odds_flag"):
        factor = given["pssm_log_odds_mask"] + RARE
    if given.get("omit_AA_mask") is not None:
        allowed = 1 - given["omit_AA_mask"]
        factor = allowed if factor is None else factor * allowed
    keep, addend, factor = (
        None if x is None else x.flatten(0, 1).contiguous() for x in (keep, addend, factor)
    )
    return Choices(
        shift.flatten(0, 1).contiguous(),
        keep,
        addend,
        factor,
        _shares(given, plan),
        _noise(shift, given["mask"], draws, plan),
        draws.designed.flatten().contiguous(),
        draws.given.flatten().contiguous(),
        float(temperature),
    )


def _shares(given: Mapping[str, Any], plan: Plan) -> Tensor:
    """Return the weight of each residue's logits in its group [R]."""
    shares = torch.ones_like(given["mask"], memory_format=torch.contiguous_format)
    if plan.groups is not None:
        factors = torch.as_tensor(given["tied_beta"], device=shares.device).to(shares)
        for group in plan.groups:
            shares[:, group] = factors[group] / len(group)
    return shares.flatten()


def _noise(like: Tensor, mask: Tensor, draws: Draws, plan: Plan) -> Tensor:
    """Draw exponentially distributed numbers [B, G, V] for the groups for which the model draws."""
    is_drawn = mask if plan.groups is None else draws.drawn
    needed = is_drawn.gather(1, plan.order)[:, plan.bounds[:-1]].any(0).tolist()
    n_proteins, n_letters = len(like), like.shape[-1]
    noise = like.new_ones(n_proteins, len(needed), n_letters)
    for group, is_needed in enumerate(needed):
        if is_needed:
            noise[:, group] = like.new_empty(n_proteins, n_letters).exponential_()
    return noise
