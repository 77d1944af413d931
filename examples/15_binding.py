"""Rank complexes of proteins and ligands by DualBind, before and after `bio.accelerate`.

Usage: ``PYTHONPATH=dualbind/DualBind python 15_binding.py complexes --weights dualbind.ckpt`` with
the path of a checkout of https://github.com/NVIDIA-Digital-Bio/dualbind, its dependencies, and a
folder that holds a PDB file and an SDF file of the same name for each complex. Without weights,
they are random, and the order means nothing.

Writes ``affinities.csv``, the strongest binder first, into ``--out``.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from data.dataset import InferenceDataset
from model.dualbind_model import DualBind
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mlff_triton import bio

SIZES = {"hidden_size": 256, "mpn_depth": 3, "num_heads": 4, "vocab_size": 38, "aa_size": 21}
OTHERS = {"max_residue_atoms": 14, "threshold": 10.0, "dropout": 0.1}
TRAINING = {"loss_ratio": 2, "eps_scaling": True, "use_mtl_loss": False}
Batch = tuple[tuple[Any, ...], tuple[Any, ...]]


def load_model(weights: Path | None, device: torch.device) -> nn.Module:
    """Make the model in its published size, and load its weights."""
    optimizer = SimpleNamespace(lr=5e-4, anneal_rate=0.95)
    torch.manual_seed(0)
    model = DualBind(SimpleNamespace(**SIZES, **OTHERS, **TRAINING, optimizer=optimizer))
    if weights is not None:
        stored = torch.load(weights, map_location="cpu", weights_only=True)
        model.load_state_dict(stored["state_dict"])
    return model.to(device).eval()


def read_complexes(folder: Path, batch: int, workers: int) -> tuple[list[str], list[Batch]]:
    """Read all complexes of a folder in batches, by the package's own loader."""
    proteins = sorted(path for path in folder.glob("*.pdb") if path.with_suffix(".sdf").exists())
    if not proteins:
        raise SystemExit(f"{folder} has no PDB file with an SDF file of the same name")
    files = [str(path) for path in proteins], [str(path.with_suffix(".sdf")) for path in proteins]
    dataset = InferenceDataset(*files, permissive=False)
    loader = DataLoader(dataset, batch, collate_fn=dataset.pl_collate_fn, num_workers=workers)
    return [path.stem for path in proteins], [(binder, target) for binder, target, _ in loader]


@torch.inference_mode()
def affinities(model: nn.Module, batches: list[Batch], device: torch.device) -> Tensor:
    """Predict the binding free energy of all complexes in kcal/mol, [complexes]."""

    def move(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(x.to(device) if isinstance(x, Tensor) else x for x in values)

    return torch.cat([model(move(binder), move(target)) for binder, target in batches]).cpu()


def main() -> None:
    """Predict, accelerate, predict again, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("complexes", type=Path, help="folder of PDB and SDF files")
    parser.add_argument("--weights", type=Path, help="checkpoint; random weights by default")
    parser.add_argument("--batch", type=int, default=192, help="complexes computed at a time")
    parser.add_argument("--workers", type=int, default=0, help="processes that read files")
    parser.add_argument("--backend", default="auto", help="'torch' accelerates on a CPU too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    device = torch.device(args.device)
    model = load_model(args.weights, device)
    names, batches = read_complexes(args.complexes, args.batch, args.workers)
    found, times = {}, {}
    for label in ("original", "accelerated"):
        if label == "accelerated":
            bio.accelerate(model, backend=args.backend)
            print(bio.report(model))
        affinities(model, batches, device)  # compiles kernels
        start = time.perf_counter()
        found[label] = affinities(model, batches, device)
        times[label] = time.perf_counter() - start
    difference = (found["accelerated"] - found["original"]).abs().max()
    print(f"largest difference: {difference / found['original'].abs().max():.1e} of the largest")
    for label, elapsed in times.items():
        print(f"{label:12s} {elapsed:8.3f} s for {len(names)} complexes")

    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "affinities.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["complex", "affinity"])
        ranked = sorted(zip(found["accelerated"].tolist(), names, strict=True))
        table.writerows([name, f"{value:.4f}"] for value, name in ranked)


if __name__ == "__main__":
    main()
