"""AntiBERTy, a BERT of antibodies (J. A. Ruffolo et al., https://arxiv.org/abs/2112.07782).

Its weights come with the package antiberty. Real weights tell what random ones cannot: whether what
the model predicts stays the same.
"""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.support.language_models import assert_same

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

FOLDER = "MLFF_TRITON_ANTIBERTY"  # an environment variable: where config.json and the weights are
TOKENS = {acid: number for number, acid in enumerate("ACDEFGHIKLMNPQRSTVWY", 5)}
BEGIN, END, MASK = 2, 3, 4

HEAVY_CHAINS = {
    "trastuzumab": "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNT"
    "AYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "adalimumab": "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNS"
    "LYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
}
N_MASKED = 12


def weights_folder() -> Path:
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    spec = find_spec("antiberty")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"antiberty is not installed, nor does {FOLDER} say where its weights are")
    return Path(spec.submodule_search_locations[0], "trained_models", "AntiBERTy_md_smooth")


@cache
def state() -> tuple[dict[str, object], dict[str, Tensor]]:
    folder = weights_folder()
    config = json.loads((folder / "config.json").read_text())
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    return config, weights


@pytest.fixture
def model(device: str) -> nn.Module:
    config, weights = state()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    names += ("intermediate_size", "layer_norm_eps", "max_position_embeddings", "pad_token_id")
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(**{name: config[name] for name in names})
    )
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model.to(device).eval().requires_grad_(False)


@pytest.fixture(params=HEAVY_CHAINS)
def chain(request: pytest.FixtureRequest) -> str:
    return HEAVY_CHAINS[request.param]


def one_masked(chain: str, device: str) -> tuple[Tensor, Tensor]:
    """Tokens [M, L] of a chain with one residue masked in each row, and the residues' places."""
    ids = torch.tensor([BEGIN, *(TOKENS[acid] for acid in chain), END]).repeat(N_MASKED, 1)
    places = torch.linspace(1, len(chain), N_MASKED).long()
    ids[torch.arange(N_MASKED), places] = MASK
    return ids.to(device), places.to(device)


@torch.inference_mode()
def predicted(model: nn.Module, ids: Tensor, places: Tensor, **inputs: Tensor) -> Tensor:
    """Logits [M, V] of the masked residues."""
    logits = model(ids, **inputs).logits
    return logits[torch.arange(len(ids), device=ids.device), places].float()


def assert_float32(found: Tensor, expected: Tensor) -> None:
    """Assert that logits agree, those as large as 10 to their own rounding errors."""
    scale = max(1.0, float(expected.abs().max()))
    assert_same(found / scale, expected / scale, "fp32")
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_the_model_knows_antibodies(model, chain, device):
    """If weights were not loaded rightly, all that follows would test nothing."""
    ids, places = one_masked(chain, device)
    true = torch.tensor([TOKENS[acid] for acid in chain], device=device)[places - 1]
    assert (predicted(model, ids, places).argmax(-1) == true).sum() >= N_MASKED // 2


def test_float32_is_float32(model, chain, device):
    ids, places = one_masked(chain, device)
    expected = predicted(model, ids, places)
    bio.accelerate(model, backend="auto" if device == "cuda" else "torch")
    found = predicted(model, ids, places)
    assert_float32(found, expected)


@pytest.mark.parametrize("cast", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_float16_predicts_the_same(model, cast, device):
    """One chain: CPUs take their time with float16. Cast, it is the float32 model that counts."""
    ids, places = one_masked(HEAVY_CHAINS["trastuzumab"], device)
    expected = predicted(model, ids, places)
    model = model.half() if cast else model
    precision = None if cast else "fp16"
    bio.accelerate(model, precision=precision, backend="auto" if device == "cuda" else "torch")
    found = predicted(model, ids, places)
    assert_same(found, expected, "fp16")
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_padding_changes_nothing(model, device):
    """Both chains in one batch, at whose end there are 20 places for nothing."""
    batches = [one_masked(chain, device) for chain in HEAVY_CHAINS.values()]
    length = 20 + max(ids.shape[1] for ids, _ in batches)
    padded = torch.cat([nn.functional.pad(x, (0, length - x.shape[1])) for x, _ in batches])
    places = torch.cat([places for _, places in batches])
    expected = torch.cat([predicted(model, *batch) for batch in batches])
    bio.accelerate(model, backend="auto" if device == "cuda" else "torch")
    found = predicted(model, padded, places, attention_mask=(padded != 0).long())
    assert_float32(found, expected)
