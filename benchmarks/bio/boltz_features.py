"""Features of a random protein for Boltz-2, in the shapes and dtypes that its featurizer gives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

WINDOW = 32
"""Atoms are padded to a multiple of this number."""


def protein_features(length: int, sequences: int, device: torch.device | str) -> dict[str, Tensor]:
    """Make the features of a chain of ``length`` residues, with an alignment of ``sequences``.

    Residues have the heavy atoms of their amino acids, about eight each, at random positions.
    There are no templates, contacts or bonds between tokens.
    """
    from boltz.data import const

    rng = torch.Generator().manual_seed(length)
    kinds = torch.randint(20, (length,), generator=rng) + const.token_ids["ALA"]
    atoms = [const.ref_atoms[const.tokens[kind]] for kind in kinds.tolist()]
    token = torch.arange(length).repeat_interleave(torch.tensor(list(map(len, atoms))))
    centers = [token.tolist().index(i) + names.index("CA") for i, names in enumerate(atoms)]
    features = {
        **_tokens(const, kinds),
        **_atoms([name for names in atoms for name in names], token, rng),
        **_alignment(const, kinds, sequences, rng),
        **_template(const, length),
    }
    count = features["ref_pos"].shape[0]
    features["token_to_rep_atom"] = one_hot(torch.tensor(centers), count)
    first = torch.tensor(centers)[:, None] + torch.tensor([-1, 0, 1])  # N, CA and C
    features["frames_idx"] = first
    no_pairs = {
        "contact_pair_index": torch.zeros(2, 0, dtype=torch.long),
        "contact_union_index": torch.zeros(0, dtype=torch.long),
        "contact_negation_mask": torch.zeros(0, dtype=torch.bool),
        "contact_thresholds": torch.zeros(0),
    }
    return {name: x[None].to(device) for name, x in {**features, **no_pairs}.items()}


def _tokens(const: object, kinds: Tensor) -> dict[str, Tensor]:
    n = len(kinds)
    index, zeros = torch.arange(n), torch.zeros(n, dtype=torch.long)
    unspecified = one_hot(torch.zeros(n, n, dtype=torch.long), len(const.contact_conditioning_info))
    return {
        "token_index": index,
        "residue_index": index,
        **dict.fromkeys(("asym_id", "entity_id", "sym_id", "mol_type", "modified"), zeros),
        "res_type": one_hot(kinds, const.num_tokens),
        "cyclic_period": torch.zeros(n),
        "method_feature": zeros,
        "token_pad_mask": torch.ones(n),
        "token_bonds": torch.zeros(n, n, 1),
        "type_bonds": torch.zeros(n, n, dtype=torch.long),
        "contact_conditioning": unspecified,
        "contact_threshold": torch.zeros(n, n),
    }


def _atoms(names: list[str], token: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    numbers = {"C": 6, "N": 7, "O": 8, "S": 16}
    characters = [[ord(c) - 32 for c in name.ljust(4)] for name in names]
    made = {
        "ref_pos": 2 * torch.randn(len(names), 3, generator=rng),
        "ref_charge": torch.zeros(len(names)),
        "ref_element": one_hot(torch.tensor([numbers[name[0]] for name in names]), 128),
        "ref_atom_name_chars": one_hot(torch.tensor(characters), 64),
        "ref_space_uid": token,
        "atom_to_token": one_hot(token),
        "atom_pad_mask": torch.ones(len(names)),
    }
    missing = -len(names) % WINDOW
    return {name: pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) for name, x in made.items()}


def _alignment(
    const: object, kinds: Tensor, sequences: int, rng: torch.Generator
) -> dict[str, Tensor]:
    msa = torch.randint(20, (sequences, len(kinds)), generator=rng) + const.token_ids["ALA"]
    msa[0] = kinds
    empty = torch.zeros(msa.shape)
    return {
        "msa": msa,
        "msa_mask": torch.ones_like(msa),
        **dict.fromkeys(("has_deletion", "deletion_value", "msa_paired"), empty),
        "profile": one_hot(msa, const.num_tokens).float().mean(0),
        "deletion_mean": torch.zeros(len(kinds)),
    }


def _template(const: object, n: int) -> dict[str, Tensor]:
    """Return one empty template, as the featurizer does where there are none."""
    one, vectors = torch.zeros(1, n), torch.zeros(1, n, 3)
    return {
        "template_restype": one_hot(one.long(), const.num_tokens),
        "template_frame_rot": torch.zeros(1, n, 3, 3),
        **{f"template_{name}": vectors for name in ("frame_t", "cb", "ca")},
        **{f"template_{name}": one for name in ("mask_cb", "mask_frame", "mask")},
        "visibility_ids": one,
    }
