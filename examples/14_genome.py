"""Find the bases that matter in a genomic window: all mutations in its center, by Enformer.

Each mutant is compared with the reference, before and after `bio.accelerate`. With ``--model
alphagenome``, AlphaGenome predicts.

Usage: ``python 14_genome.py window.fasta --weights EleutherAI/enformer-official-rough``, on a GPU.
Without a file, the window is random, as no window of 196,608 bases is included: it has the base
composition of the human genome, and a TATA box in its center. Without weights, they are random too,
and effects mean nothing.

Writes ``effects.csv`` and ``effects.png`` into ``--out``. Needs ``enformer-pytorch`` or
``alphagenome-pytorch``, installed with ``--no-deps`` so that PyTorch and NumPy stay as they are,
and ``einops``, ``polars`` and ``pyfaidx``.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mlff_triton import bio

BASES = "ACGT"
COMPOSITION = (0.295, 0.205, 0.205, 0.295)  # of the human genome
TATA_BOX = "TATAAAAG"
WINDOW = {"enformer": 196_608, "alphagenome": 131_072}  # bases
BIN = 128  # bases per row of tracks
CENTER = 4  # rows of tracks that are compared


def enformer(args: argparse.Namespace) -> nn.Module:
    """Load Enformer, or make one."""
    from enformer_pytorch import Enformer, from_pretrained

    if args.weights:
        return from_pretrained(args.weights)
    bins = min(896, args.length // BIN)
    model = Enformer.from_hparams(dim=args.channels, depth=args.layers, target_length=bins)
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)  # PyTorch's own weights shrink their inputs
    return model


def alphagenome(args: argparse.Namespace) -> nn.Module:
    """Load AlphaGenome, or make one."""
    from alphagenome_pytorch import AlphaGenome

    return AlphaGenome.from_pretrained(args.weights) if args.weights else AlphaGenome()


def tracks(model: nn.Module, sequences: Tensor) -> Tensor:
    """Predict human tracks of one-hot sequences, [B, bins, tracks]."""
    if type(model).__name__ == "Enformer":
        return model(sequences)["human"]
    human = torch.zeros(len(sequences), dtype=torch.int64, device=sequences.device)
    return model(sequences, human, resolutions=(BIN,), heads=("dnase",))["dnase"][BIN]


def read_window(path: Path | None, length: int) -> Tensor:
    """Return the middle of the first sequence of a FASTA file, or a random window, as indices."""
    if path is None:
        weights = torch.tensor(COMPOSITION).expand(length, -1)
        window = torch.multinomial(weights, 1, generator=torch.Generator().manual_seed(0))[:, 0]
        start = (length - len(TATA_BOX)) // 2
        window[start : start + len(TATA_BOX)] = torch.tensor([*map(BASES.index, TATA_BOX)])
        return window
    entry = path.read_text().partition(">")[2].partition(">")[0]
    letters = "".join(entry.split("\n")[1:]).upper()
    if len(letters) < length:
        raise SystemExit(f"{path} has {len(letters)} bases, fewer than {length}: see --length")
    start = (len(letters) - length) // 2
    # Unknown bases are -1, and their rows become zero.
    return torch.tensor([BASES.find(letter) for letter in letters[start : start + length]])


def one_hot(windows: Tensor) -> Tensor:
    """Return one-hot rows of bases, float32 [B, length, 4], with zeros for unknown bases."""
    return (windows[..., None] == torch.arange(4, device=windows.device)).float()


def mutants(window: Tensor, positions: range) -> Tensor:
    """Return the window itself, followed by all mutants of single bases, int64 [M, length]."""
    rows = [window]
    for position in positions:
        for base in range(4):
            if base != window[position]:
                rows.append(window.clone())
                rows[-1][position] = base
    return torch.stack(rows)


@torch.inference_mode()
def signals(model: nn.Module, windows: Tensor, batch: int, device: torch.device) -> Tensor:
    """Sum the central rows of the tracks of all windows, as log2(1 + sum) [M, tracks]."""
    sums = []
    for part in windows.split(batch):
        predicted = tracks(model, one_hot(part.to(device)))
        first = (predicted.shape[1] - CENTER) // 2
        sums.append(predicted[:, first : first + CENTER].float().sum(1))
    return (torch.cat(sums) + 1).log2().cpu()


def main() -> None:
    """Predict, accelerate, predict again, compare, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("window", type=Path, nargs="?", help="FASTA file; random by default")
    parser.add_argument("--model", choices=WINDOW, default="enformer")
    parser.add_argument("--weights", help="name of a published Enformer, or file of AlphaGenome")
    parser.add_argument("--length", type=int, help="bases of the window")
    parser.add_argument("--positions", type=int, default=16, help="bases to mutate")
    parser.add_argument("--batch", type=int, default=4, help="windows computed at a time")
    parser.add_argument("--channels", type=int, default=1536, help="of an Enformer without weights")
    parser.add_argument("--layers", type=int, default=11, help="of an Enformer without weights")
    parser.add_argument("--precision", default="fp16", help="of the accelerated model")
    parser.add_argument("--backend", default="auto", help="'torch' accelerates on a CPU too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()
    args.length = args.length or WINDOW[args.model]

    torch.manual_seed(0)
    device = torch.device(args.device)
    build = enformer if args.model == "enformer" else alphagenome
    model = build(args).eval().to(device)
    window = read_window(args.window, args.length)
    middle = args.length // 2
    positions = range(middle - args.positions // 2, middle + (args.positions + 1) // 2)
    windows = mutants(window, positions)

    found, times = {}, {}
    for label in ("original", "accelerated"):
        if label == "accelerated":
            bio.accelerate(model, precision=args.precision, backend=args.backend)
            print(bio.report(model))
        signals(model, windows[: args.batch], args.batch, device)  # compiles and captures
        start = time.perf_counter()
        found[label] = signals(model, windows, args.batch, device)
        times[label] = time.perf_counter() - start
    effects = {label: values[1:] - values[0] for label, values in found.items()}
    pair = (ratios.flatten().double() for ratios in effects.values())
    print(f"cosine similarity of all effects: {nn.functional.cosine_similarity(*pair, dim=0):.6f}")
    for label, elapsed in times.items():
        print(f"{label:12s} {elapsed:8.2f} s for {len(windows)} windows of {args.length} bases")

    args.out.mkdir(parents=True, exist_ok=True)
    over_tracks = effects["accelerated"].abs().mean(1)
    write(args.out, window, windows[1:], positions, over_tracks)


def write(folder: Path, window: Tensor, windows: Tensor, positions: range, effects: Tensor) -> None:
    """Write the effect of each mutation as a table and as a map."""
    grid = torch.zeros(4, len(positions))
    with (folder / "effects.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["position", "reference", "alternative", "mean |log2 ratio|"])
        for mutant, effect in zip(windows, effects.tolist(), strict=True):
            (position,) = (mutant != window).nonzero()[0].tolist()
            old, new = int(window[position]), int(mutant[position])
            grid[new, position - positions.start] = effect
            letter = "N" if old < 0 else BASES[old]
            table.writerow([position + 1, letter, BASES[new], f"{effect:.6g}"])
    figure = Figure(figsize=(8, 2.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(grid.numpy(), aspect="auto", cmap="viridis")
    axes.set_yticks(range(4), [*BASES])
    letters = ["N" if window[p] < 0 else BASES[window[p]] for p in positions]
    axes.set_xticks(range(len(positions)), letters)
    axes.set(xlabel="reference", ylabel="mutated to")
    figure.colorbar(image, label="mean |log2 ratio|")
    figure.savefig(folder / "effects.png", dpi=150)


if __name__ == "__main__":
    main()
