"""Workloads of bench ``models``: whole predictions of Protenix, with random weights.

In half precision they run as the package predicts by default: the trunk under bfloat16 autocast,
the sampler and the confidence head in float32 with TF32 products. There are ten cycles of the trunk
and 200 steps of five samples; names of shorter workloads say how many. The error is half the
squared relative one of the distances between predicted tokens, to which the whole model
contributes.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import Any

import numpy as np
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

NAME = "protenix_base_default_v1.0.0"
"""Configuration that the package predicts with by default."""
SEQUENCES = 256
OUTPUTS = ("linear_z", "linear_o", "linear_no_bias", "linear_nobias_b", "linear_no_bias_out")
"""Maps whose results are added to tokens, pairs or alignments."""


@dataclass(frozen=True)
class Forward(Prediction):
    """Whole prediction of the package."""

    cycles: int = 10
    package = "protenix"

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with random weights."""
        return copy.deepcopy(build_protenix(device, **self.changes))

    def enable_kernels(self, model: nn.Module) -> None:
        """Let the model call the triangle kernels of cuEquivariance, as it does by default."""
        options: Any = outermost(model, "Protenix").configs
        options.triangle_multiplicative = options.triangle_attention = "cuequivariance"

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the features of a protein with an alignment of 256 sequences and no templates."""
        made = protein_features(self.length, SEQUENCES)
        return {name: x.to(device) for name, x in made.items()}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Predict the coordinates of five samples, always from the same random numbers."""
        own: Any = outermost(model, "Protenix")
        own.N_cycle, own.configs.sample_diffusion.N_step = self.cycles, self.steps
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - rotations of samples are drawn from it
        random.seed(0)
        result, *_ = model(
            input_feature_dict=dict(inputs),  # which the model changes
            label_full_dict=None,
            label_dict=None,
            mode="inference",
        )
        return {"positions": result["coordinate"]}


@lru_cache(maxsize=1)
def build_protenix(device: torch.device, **changes: Any) -> nn.Module:
    """Build the model of the default prediction with random weights, with some other options."""
    os.environ.setdefault("LAYERNORM_TYPE", "torch")  # else the package compiles a CUDA extension
    from configs.configs_base import configs
    from configs.configs_data import data_configs
    from configs.configs_inference import inference_configs
    from configs.configs_model_type import model_configs
    from protenix.config.config import parse_configs
    from protenix.model.modules import primitives
    from protenix.model.protenix import Protenix
    from protenix.model.triangular import layers

    torch_alone = dict.fromkeys(("triangle_multiplicative", "triangle_attention"), "torch")
    predicting = {"skip_amp.confidence_head": True}  # of up to 2560 tokens
    options = {**dict(_flat(model_configs[NAME])), **torch_alone, **predicting, **changes}
    words = " ".join(f"--{name} {value}" for name, value in options.items())
    merged = {**configs, "data": data_configs, **inference_configs}
    slow = (layers, "trunc_normal_init_"), (primitives, "trunc_normal_init_")
    with no_initialization(*slow), redirect_stdout(StringIO()):
        before = torch.backends.cuda.matmul.allow_tf32
        model: nn.Module = Protenix(parse_configs(merged, words, fill_required_with_null=True))
        torch.backends.cuda.matmul.allow_tf32 = before  # which the model changes for all
    randomize(model.to(device), OUTPUTS)
    return model.eval()


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested options with dots in their names."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def protein_features(length: int, sequences: int) -> dict[str, Tensor]:
    """Make the features of a chain of residues, in the shapes and dtypes of the featurizer."""
    rng = torch.Generator().manual_seed(length)
    index, zeros = torch.arange(length), torch.zeros(length, dtype=torch.long)
    token = index.repeat_interleave(PER_TOKEN)
    atoms = len(token)
    central = torch.zeros(length, PER_TOKEN, dtype=torch.long)
    central[:, 1] = 1  # C-alpha
    msa = torch.randint(20, (sequences, length), generator=rng)
    names = torch.randint(64, (PER_TOKEN, 4), generator=rng).repeat(length, 1)
    return {
        **dict.fromkeys(("residue_index", "token_index"), index),
        **dict.fromkeys(("asym_id", "entity_id", "sym_id"), zeros),
        "restype": one_hot(msa[0], 32).float(),
        "profile": one_hot(msa, 32).float().mean(0),
        "deletion_mean": torch.zeros(length),
        "token_bonds": torch.zeros(length, length),
        "msa": msa,
        **dict.fromkeys(("has_deletion", "deletion_value"), torch.zeros(sequences, length)),
        "ref_pos": 2 * torch.randn(atoms, 3, generator=rng),
        "ref_mask": torch.ones(atoms),
        "ref_charge": torch.zeros(atoms),
        "ref_element": one_hot(torch.tensor(ATOMS).repeat(length), 128).float(),
        "ref_atom_name_chars": one_hot(names, 64).float(),
        **dict.fromkeys(("ref_space_uid", "atom_to_token_idx"), token),
        "atom_to_tokatom_idx": torch.arange(PER_TOKEN).repeat(length),
        "distogram_rep_atom_mask": central.flatten(),
        "has_frame": torch.ones(length, dtype=torch.bool),
        "frame_atom_index": index[:, None] * PER_TOKEN + torch.arange(3),
        "is_ligand": torch.zeros(atoms, dtype=torch.long),
    }


LENGTHS = (256, 512, 1024)
WORKLOADS = (
    *(Forward(length) for length in LENGTHS),
    *(Forward(length, 1, 20) for length in LENGTHS),
)
