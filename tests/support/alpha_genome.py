"""Small random models of AlphaGenome, made by swapping its parts, and sequences for them.

alphagenome-pytorch needs Python 3.12; on 3.11 it is enough to put it on the path:
``pip download --no-deps alphagenome-pytorch==0.3.1`` and ``PYTHONPATH=<the wheel>``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

source = pytest.importorskip(
    "alphagenome_pytorch.model",
    reason="alphagenome-pytorch 0.3.1 is missing: see tests/support/alpha_genome.py",
)
from alphagenome_pytorch import convolutions, embeddings, heads  # noqa: E402

LENGTH = 2048
FIRST, TRUNK = 16, 16 + 6 * 128  # channels of the first and the last resolution
BINS, BASES = 48, 40  # channels of embeddings
N_BLOCKS = 3


def make_model(**options: Any) -> nn.Module:
    """Make a model with few channels and blocks, whose outputs depend on all of its parts."""
    torch.manual_seed(3)
    with torch.device("meta"):
        model = source.AlphaGenome(**options)
    encoder, decoder = model.encoder, model.decoder
    encoder.dna_embedder.conv1 = nn.Conv1d(4, FIRST, 15, padding="same")
    encoder.dna_embedder.block = convolutions.ConvBlock(FIRST, FIRST, 5)
    channels = [FIRST + 128 * n for n in range(7)]
    encoder.down_blocks = nn.ModuleList(map(convolutions.DownResBlock, channels[:-1]))
    ups = zip([TRUNK, *channels[:0:-1]], channels[::-1], strict=True)
    decoder.up_blocks = nn.ModuleList(convolutions.UpResBlock(*pair) for pair in ups)
    model.organism_embed = nn.Embedding(2, TRUNK)
    model.tower = source.TransformerTower(TRUNK)
    model.tower.blocks = model.tower.blocks[:N_BLOCKS]
    model.embedder_128bp = embeddings.OutputEmbedder(TRUNK, BINS)
    model.embedder_1bp = embeddings.OutputEmbedder(FIRST, BASES)
    model.embedder_1bp.project_skip = nn.Conv1d(BINS, BASES, 1, bias=False)
    model.embedder_pair = embeddings.OutputPair(128)
    sizes = {1: BASES, 128: BINS}
    model.heads = nn.ModuleDict(
        {
            "atac": heads.GenomeTracksHead(sizes, 6),
            "rna_seq": heads.GenomeTracksHead(sizes, 130, apply_squashing=True),
            "chip_tf": heads.GenomeTracksHead(sizes, 7, (128,)),
        }
    )
    model.contact_maps_head = heads.ContactMapsHead(128, 5)
    model.splice_sites_classification_head = heads.SpliceSitesClassificationHead(BASES)
    model.splice_sites_usage_head = heads.SpliceSitesUsageHead(
        BASES, 8, num_tracks_per_organism=(8, 3)
    )
    model.splice_sites_junction_head = heads.SpliceSitesJunctionHead(
        BASES, 16, 5, num_tracks_per_organism=(5, 2)
    )
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            randomize(name, tensor)
    return model.eval()


def randomize(name: str, tensor: Tensor) -> None:
    """Move parameters away from zero and one, which hide mistakes."""
    if name.endswith(("running_var", "track_means", "residual_scale")):
        tensor.uniform_(0.5, 1.5)
    elif "norm" in name or name.endswith(("bias", ".scale", "residual_scales.1")):
        tensor.add_(0.1 * torch.randn_like(tensor))
    elif "rope_params" in name:
        tensor.normal_(0, 0.5)


def sequences(count: int = 1, length: int = LENGTH) -> dict[str, Tensor]:
    torch.manual_seed(length)
    bases = torch.randint(4, (count, length))
    return {
        "dna_sequence": nn.functional.one_hot(bases, 4).float(),
        "organism_index": torch.arange(count) % 2,
    }
