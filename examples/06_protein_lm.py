"""Embed proteins with an ESM-2 model, before and after its acceleration.

On a CPU nothing is accelerated, and compared, unless ``--backend torch`` is given.

Usage: ``python 06_protein_lm.py``, or on a GPU
``python 06_protein_lm.py --model facebook/esm2_t33_650M_UR50D --precision fp16 --batch 8``

Writes ``embeddings.npz``, with the mean embedding of each protein, and ``timing.png`` into
``--out``. Needs ``pip install 'mlff-triton[bio]'``. Nothing is downloaded unless ``--model`` names
a model on the hub. The default is an untrained model of the size of the smallest ESM-2: its
embeddings are meaningless, but take as long to compute.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from transformers import EsmConfig, EsmModel

from mlff_triton import bio
from mlff_triton._common.timing import device_name, measure

FASTA = Path(__file__).parent / "sequences" / "proteins.fasta"
ALPHABET = (
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
)
TOKENS = {token: number for number, token in enumerate(ALPHABET.split())}


class Protein(NamedTuple):
    """Name of a protein and the one-letter codes of its residues."""

    name: str
    sequence: str


class Batch(NamedTuple):
    """Tokens and mask [B, L]; each row holds a start token, residues, an end token and padding."""

    ids: Tensor
    mask: Tensor

    @classmethod
    def of(cls, proteins: list[Protein], device: torch.device) -> Batch:
        """Tokenize proteins and pad them to the length of the longest."""
        pad, unknown = TOKENS["<pad>"], TOKENS["<unk>"]
        rows = (["<cls>", *protein.sequence, "<eos>"] for protein in proteins)
        tokens = [torch.tensor([TOKENS.get(token, unknown) for token in row]) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=pad)
        return cls(ids.to(device), (ids != pad).long().to(device))

    def embed(self, model: EsmModel) -> Tensor:
        """Compute the model's last hidden states, [B, L, C]."""
        with torch.inference_mode():
            return model(input_ids=self.ids, attention_mask=self.mask).last_hidden_state

    def residues(self, model: EsmModel) -> list[Tensor]:
        """Compute the embeddings of each protein's residues, without start and end tokens."""
        lengths = self.mask.sum(1).tolist()
        hidden = self.embed(model).double().cpu()
        return [row[1 : length - 1] for row, length in zip(hidden, lengths, strict=True)]


def read_fasta(path: Path) -> list[Protein]:
    """Read proteins from a file, shortest first, so that batches need little padding."""
    entries = (entry.splitlines() for entry in path.read_text().split(">")[1:])
    proteins = [Protein(header.split()[0], "".join(lines).upper()) for header, *lines in entries]
    return sorted(proteins, key=lambda protein: len(protein.sequence))


def load_model(name: str | None) -> EsmModel:
    """Load a checkpoint's encoder, or make an untrained one of the size of esm2_t6_8M_UR50D."""
    if name is not None:
        return EsmModel.from_pretrained(name, add_pooling_layer=False)
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=len(TOKENS),
        pad_token_id=TOKENS["<pad>"],
        mask_token_id=TOKENS["<mask>"],
        hidden_size=320,
        num_hidden_layers=6,
        num_attention_heads=20,
        intermediate_size=1280,
        max_position_embeddings=1026,
        position_embedding_type="rotary",
        token_dropout=True,
    )
    return EsmModel(config, add_pooling_layer=False)


def milliseconds(model: EsmModel, batches: list[Batch], repeats: int) -> np.ndarray:
    """Measure the median wall-clock time of each batch, including the wait for its result."""
    count = (repeats, repeats)
    timings = [
        measure(partial(batch.embed, model), batch.ids.device, repeats=count, wall=True)
        for batch in batches
    ]
    return np.array([timing.p50 for timing in timings])


def plot(path: Path, title: str, batches: list[Batch], times: dict[str, np.ndarray]) -> None:
    """Plot times and tokens per second over the sequence length of the batches."""
    mpl.use("Agg")
    lengths = [batch.ids.shape[1] for batch in batches]
    tokens = np.array([int(batch.mask.sum()) for batch in batches])
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for label, time in times.items():
        left.plot(lengths, time, marker=".", label=label)
        right.plot(lengths, tokens / time * 1e3, marker=".", label=label)
    left.set(ylabel="ms per batch", ylim=(0, None))
    right.set(ylabel="tokens per second, without padding", ylim=(0, None))
    for axes in (left, right):
        axes.set(xlabel="tokens of the longest protein in the batch")
    left.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Embed, accelerate, embed again, compare and plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fasta", type=Path, default=FASTA, help="proteins to embed")
    parser.add_argument("--sequences", type=int, help="only this many of them, the shortest")
    parser.add_argument("--model", help="ESM-2 of transformers: a folder or a name on the hub")
    parser.add_argument("--precision", help="fp16, bf16 or fp32; the model's own by default")
    parser.add_argument("--backend", default="auto", help="'torch' accelerates on a CPU too")
    parser.add_argument("--batch", type=int, default=4, help="proteins per batch")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of every timing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    device = torch.device(args.device)
    model = load_model(args.model).eval().to(device)
    proteins = read_fasta(args.fasta)[: args.sequences]
    batches = [
        Batch.of(proteins[start : start + args.batch], device)
        for start in range(0, len(proteins), args.batch)
    ]
    print(f"{len(proteins)} proteins in {len(batches)} batches on {device_name(device)}")

    before = [rows for batch in batches for rows in batch.residues(model)]
    times = {"original": milliseconds(model, batches, args.repeats)}

    bio.accelerate(model, precision=args.precision, backend=args.backend)
    print(bio.report(model))
    after = before
    if device.type == "cpu" and args.backend == "auto":
        print("On a CPU the model runs its original forward: use --backend torch to accelerate it")
    else:
        after = [rows for batch in batches for rows in batch.residues(model)]
        times["accelerated"] = milliseconds(model, batches, args.repeats)
        cosines = torch.cat(
            [torch.cosine_similarity(a, b, dim=1) for a, b in zip(before, after, strict=True)]
        )
        print(f"smallest cosine similarity of {len(cosines)} residues: {cosines.min():.7f}")
    for label, time in times.items():
        print(f"{label:12s} {time.sum():10.2f} ms for all batches")

    args.out.mkdir(parents=True, exist_ok=True)
    np.savez(
        args.out / "embeddings.npz",
        names=np.array([protein.name for protein in proteins]),
        embeddings=np.stack([rows.mean(0).numpy() for rows in after]).astype(np.float32),
    )
    plot(args.out / "timing.png", f"ESM-2 on {device_name(device)}", batches, times)


if __name__ == "__main__":
    main()
