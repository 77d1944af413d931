"""Boltz-2 with random weights, in the sizes of the published model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from benchmarks.bio.random_weights import no_initialization, randomize

RECYCLES, STEPS = 3, 200
"""Defaults of ``boltz predict``."""

OUTPUTS = ("p_out", "linear_o", "fc3", "proj_o", "b_to_a", "proj_out")
"""Maps whose results are added to tokens, pairs or alignments."""

SIZES: dict[str, Any] = {
    "atom_s": 128,
    "atom_z": 16,
    "token_s": 384,
    "token_z": 128,
    "num_bins": 64,
    "atom_feature_dim": 388,
    "embedder_args": {
        "atom_encoder_depth": 3,
        "atom_encoder_heads": 4,
        "add_method_conditioning": True,
        "add_modified_flag": True,
        "add_cyclic_flag": True,
        "add_mol_type_feat": True,
    },
    "msa_args": {
        "msa_s": 64,
        "msa_blocks": 4,
        "msa_dropout": 0.0,
        "z_dropout": 0.0,
        "use_paired_feature": True,
    },
    "pairformer_args": {"num_blocks": 64, "num_heads": 16, "dropout": 0.0, "v2": True},
    "score_model_args": {
        "sigma_data": 16,
        "dim_fourier": 256,
        "atom_encoder_depth": 3,
        "atom_encoder_heads": 4,
        "token_transformer_depth": 24,
        "token_transformer_heads": 16,
        "atom_decoder_depth": 3,
        "atom_decoder_heads": 4,
        "conditioning_transition_layers": 2,
    },
    "diffusion_process_args": {
        "gamma_0": 0.8,
        "gamma_min": 1.0,
        "noise_scale": 1.003,
        "rho": 7,
        "step_scale": 1.5,
        "sigma_min": 0.0001,
        "sigma_max": 160.0,
        "sigma_data": 16.0,
        "coordinate_augmentation": True,
        "alignment_reverse_diff": True,
        "synchronize_sigmas": True,
    },
    "confidence_model_args": {
        "num_dist_bins": 64,
        "max_dist": 22,
        "add_s_to_z_prod": True,
        "add_s_input_to_s": True,
        "add_z_input_to_z": True,
        "pairformer_args": {"num_blocks": 8, "num_heads": 16, "dropout": 0.0},
        "confidence_args": {
            "num_plddt_bins": 50,
            "num_pde_bins": 64,
            "num_pae_bins": 64,
            "use_separate_heads": True,
        },
    },
    "template_args": {"template_dim": 64, "template_blocks": 2},
    "steering_args": {
        "fk_steering": False,
        "num_particles": 3,
        "fk_lambda": 4.0,
        "fk_resampling_interval": 3,
        "physical_guidance_update": False,
        "contact_guidance_update": True,
        "num_gd_steps": 20,
    },
}
"""Arguments of Boltz-2, of which ``boltz predict`` gives some."""


@lru_cache(maxsize=1)
def build_boltz2(device: torch.device | str) -> nn.Module:
    """Build Boltz-2 with random weights, none of which is zero, once per device.

    The updates of stacks are smaller the more blocks there are, so that their sums do not grow.
    """
    from boltz.model.layers import initialize
    from boltz.model.models.boltz2 import Boltz2

    torch.manual_seed(0)
    with torch.device(device), no_initialization((initialize, "trunc_normal_init_")):
        model: nn.Module = Boltz2(
            training_args={},
            validation_args={},
            diffusion_loss_args={},
            validate_structure=False,
            use_templates=True,
            use_templates_v2=True,
            bond_type_feature=True,
            **SIZES,
        )
    randomize(model.to(device), OUTPUTS)
    return model.eval()
