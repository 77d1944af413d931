"""AntiBERTy, a BERT of antibodies (J. A. Ruffolo et al., https://arxiv.org/abs/2112.07782).

Its weights come with the package antiberty. Unlike random weights, they show that the predictions
of a trained model stay the same.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.support.antiberty import TOKENS, state
from tests.support.language_models import assert_same

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

BEGIN, END, MASK = 2, 3, 4

HEAVY_CHAINS = {
    "trastuzumab": "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNT"
    "AYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "adalimumab": "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNS"
    "LYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
}
N_MASKED = 12


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
    """Return tokens [M, L] of a chain, each row with one masked residue, and its positions [M]."""
    ids = torch.tensor([BEGIN, *(TOKENS[acid] for acid in chain), END]).repeat(N_MASKED, 1)
    positions = torch.linspace(1, len(chain), N_MASKED).long()
    ids[torch.arange(N_MASKED), positions] = MASK
    return ids.to(device), positions.to(device)


@torch.inference_mode()
def predicted(model: nn.Module, ids: Tensor, positions: Tensor, **inputs: Tensor) -> Tensor:
    """Return the logits [M, V] of the masked residues."""
    logits = model(ids, **inputs).logits
    return logits[torch.arange(len(ids), device=ids.device), positions].float()


def assert_float32(found: Tensor, expected: Tensor) -> None:
    """Assert that logits, which are as large as 10, agree up to rounding."""
    scale = max(1.0, float(expected.abs().max()))
    assert_same(found / scale, expected / scale, "fp32")
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_the_model_knows_antibodies(model, chain, device):
    """If the weights were not loaded correctly, the other tests would be meaningless."""
    ids, positions = one_masked(chain, device)
    true = torch.tensor([TOKENS[acid] for acid in chain], device=device)[positions - 1]
    assert (predicted(model, ids, positions).argmax(-1) == true).sum() >= N_MASKED // 2


def test_float32_is_float32(model, chain, device):
    ids, positions = one_masked(chain, device)
    expected = predicted(model, ids, positions)
    bio.accelerate(model, backend="auto" if device == "cuda" else "torch")
    found = predicted(model, ids, positions)
    assert_float32(found, expected)


@pytest.mark.parametrize("cast", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_float16_predicts_the_same(model, cast, device):
    """Compare with the float32 model, for one chain, because float16 is slow on CPUs."""
    ids, positions = one_masked(HEAVY_CHAINS["trastuzumab"], device)
    expected = predicted(model, ids, positions)
    model = model.half() if cast else model
    precision = None if cast else "fp16"
    bio.accelerate(model, precision=precision, backend="auto" if device == "cuda" else "torch")
    found = predicted(model, ids, positions)
    assert_same(found, expected, "fp16")
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_padding_changes_nothing(model, device):
    """Both chains in one batch, padded by at least 20 tokens."""
    batches = [one_masked(chain, device) for chain in HEAVY_CHAINS.values()]
    length = 20 + max(ids.shape[1] for ids, _ in batches)
    padded = torch.cat([nn.functional.pad(x, (0, length - x.shape[1])) for x, _ in batches])
    positions = torch.cat([positions for _, positions in batches])
    expected = torch.cat([predicted(model, *batch) for batch in batches])
    bio.accelerate(model, backend="auto" if device == "cuda" else "torch")
    found = predicted(model, padded, positions, attention_mask=(padded != 0).long())
    assert_float32(found, expected)
