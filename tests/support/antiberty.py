"""Configuration and weights of AntiBERTy, which come with the package antiberty."""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

# Environment variable that names the folder of config.json and the weights
FOLDER = "MLFF_TRITON_ANTIBERTY"
TOKENS = {acid: number for number, acid in enumerate("ACDEFGHIKLMNPQRSTVWY", 5)}


def weights_folder() -> Path:
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    spec = find_spec("antiberty")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(
            f"antiberty is not installed, and {FOLDER} does not name the folder of its weights"
        )
    return Path(spec.submodule_search_locations[0], "trained_models", "AntiBERTy_md_smooth")


@cache
def state() -> tuple[dict[str, object], dict[str, Tensor]]:
    folder = weights_folder()
    config = json.loads((folder / "config.json").read_text())
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    return config, weights
