"""Workloads of bench ``models``: whole predictions of OpenFold3, with random weights.

In half precision they run as the package predicts by default: the trunk and the confidence heads
under bfloat16 autocast, the sampler in float32 with TF32 products. The trunk runs four times, and
200 steps draw five samples; names of shorter workloads say how many. The error is half the squared
relative one of the distances between predicted tokens, to which the whole model contributes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from benchmarks.bio.random_weights import no_initialization, randomize
from benchmarks.bio.structures import (
    ATOMS,
    PER_TOKEN,
    Prediction,
    outermost,
)

SEQUENCES = 1024
OUTPUTS = ("linear_o", "linear_out", "tri_mul_out.linear_z", "tri_mul_in.linear_z")
"""Maps whose results are added to tokens, pairs or alignments."""
INITIAL = ("lecun_normal", "he_normal", "glorot_uniform", "kaiming_normal", "final", "gating")
"""Functions that initialize maps."""


@dataclass(frozen=True)
class Forward(Prediction):
    """Whole prediction of the package."""

    cycles: int = 4
    package = "openfold3"

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with random weights."""
        return copy.deepcopy(build_openfold3(device, **self.changes))

    def enable_kernels(self, model: nn.Module) -> None:
        """Let the model call cuEquivariance's attention, or its own where that is missing."""
        from openfold3.core.kernels.cueq_utils import is_cuequivariance_available

        settings: Any = outermost(model, "OpenFold3").settings
        memory, has_cueq = settings.memory.eval, is_cuequivariance_available()
        memory.use_cueq_triangle_kernels = has_cueq
        memory.use_triton_triangle_kernels = not has_cueq

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the features of a protein with an alignment of 1,024 sequences and no templates."""
        made = protein_features(self.length, SEQUENCES)
        return {name: x[None].to(device) for name, x in made.items()}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Predict the coordinates of five samples, always from the same random numbers."""
        shared: Any = outermost(model, "OpenFold3").shared
        shared.num_recycles = self.cycles - 1
        shared.diffusion.no_full_rollout_steps = self.steps
        torch.manual_seed(0)
        _, result = model(batch=dict(inputs))
        return {"positions": result["atom_positions_predicted"]}


@lru_cache(maxsize=1)
def build_openfold3(device: torch.device, **changes: Any) -> nn.Module:
    """Build the model for predictions with random weights, with some other options."""
    from openfold3.core.model.primitives import linear
    from openfold3.projects.of3_all_atom.model import OpenFold3
    from openfold3.projects.of3_all_atom.project_entry import OF3ProjectEntry

    config = OF3ProjectEntry().get_model_config_with_presets(["predict"])
    options = {"settings.memory.eval.use_triton_triangle_kernels": False, **changes}
    config.update_from_flattened_dict(options)
    names = [f"{name}_init_" for name in INITIAL]
    with no_initialization(*((linear, name) for name in names)):
        model: nn.Module = OpenFold3(config)
    randomize(model.to(device), OUTPUTS)
    return model.eval()


def protein_features(length: int, sequences: int) -> dict[str, Tensor]:
    """Make the features of a chain of residues, in the shapes and dtypes of the featurizer."""
    rng = torch.Generator().manual_seed(length)
    index, ones = torch.arange(length, dtype=torch.int32), torch.ones(length)
    token = index.repeat_interleave(PER_TOKEN)
    atoms = len(token)
    msa = torch.randint(20, (sequences, length), generator=rng)
    names = torch.randint(64, (PER_TOKEN, 4), generator=rng).repeat(length, 1)
    unaligned = torch.zeros(sequences, length)
    return {
        **dict.fromkeys(("residue_index", "token_index"), index),
        **dict.fromkeys(("asym_id", "entity_id", "sym_id", "is_protein"), ones.int()),
        **dict.fromkeys(("is_dna", "is_rna", "is_ligand", "is_atomized"), torch.zeros_like(index)),
        "restype": one_hot(msa[0], 32).int(),
        "cyclic_mask": torch.zeros(length, dtype=torch.bool),
        "token_mask": ones,
        "token_bonds": torch.zeros(length, length, dtype=torch.int32),
        "msa": one_hot(msa, 32).int(),
        **dict.fromkeys(("has_deletion", "deletion_value"), unaligned),
        "msa_mask": torch.ones(sequences, length),
        "num_paired_seqs": torch.tensor(sequences // 4),
        "profile": one_hot(msa, 32).float().mean(0),
        "deletion_mean": torch.zeros(length),
        "template_restype": torch.zeros(1, length, 32, dtype=torch.int32),
        "template_pseudo_beta_mask": torch.zeros(1, length),
        "template_backbone_frame_mask": torch.zeros(1, length),
        "template_distogram": torch.zeros(1, length, length, 39),
        "template_unit_vector": torch.zeros(1, length, length, 3),
        "ref_pos": 2 * torch.randn(atoms, 3, generator=rng),
        "ref_mask": torch.ones(atoms, dtype=torch.int32),
        "ref_charge": torch.zeros(atoms),
        "ref_element": one_hot(torch.tensor(ATOMS).repeat(length), 119).int(),
        "ref_atom_name_chars": one_hot(names, 64).int(),
        **dict.fromkeys(("ref_space_uid", "atom_to_token_index"), token),
        "atom_mask": torch.ones(atoms),
        "num_atoms_per_token": torch.full((length,), PER_TOKEN, dtype=torch.int32),
        "start_atom_index": index * PER_TOKEN,
    }


LENGTHS = (256, 512, 1024)
WORKLOADS = (
    *(Forward(length) for length in LENGTHS),
    *(Forward(length, 1, 20) for length in LENGTHS),
)
