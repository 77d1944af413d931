"""Proteins per second of ``mlff-triton embed``, from a FASTA file to a table.

Usage: ``python -m benchmarks.jobs.embed --models esm2-8m esm2-650m``. Each run is a process of its
own, and its wall time counts, from start to end: that of the imports and of the model, too. Lengths
of proteins are those of bench ``bio``'s proteome, and weights are random, in the sizes of the
published models. The gate compares the first proteins with transformers in float32, by one minus
the smallest cosine similarity of their mean embeddings. Rows go to ``embed.csv``: ``atoms`` counts
residues, and the case names the model, the number of proteins and the format.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bio.encoders import ARCHITECTURES, OUR_TOLERANCE, PROTEOME
from benchmarks.jobs.predict import name_of
from benchmarks.lab.guards import clean_up
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import RESULTS, Results, make_row
from benchmarks.systems.models import CHECKOUT
from mlff_triton._common.timing import Timing, environment

BENCH = "embed"
MODELS = tuple(name for name in ARCHITECTURES if name.startswith("esm2-"))
RESIDUES = "LAGVSERTIDPKQNFYMHWC"
TOKENS = ["<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, *"XBUZO.-", "<null_1>", "<mask>"]
CHECKED = 16  # proteins


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all models on all lists of devices, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["esm2-8m"])
    parser.add_argument("--proteins", type=int, default=20_000, help="about those of a human")
    parser.add_argument("--devices", nargs="+", default=["cuda:0"], help="as in --device")
    parser.add_argument("--workers", type=int, help="default: those of the command")
    parser.add_argument("--precision", default="fp16", help="as of the command; CPUs ignore it")
    parser.add_argument("--folder", type=Path, help="folder of the models and results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = torch.device(options.devices[0].partition(",")[0])
    lab = Lab(device, environment(device), Results(options.out))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / "proteins.fasta"
        proteins = draw(options.proteins)
        source.write_text("".join(f">p{k}\n{protein}\n" for k, protein in enumerate(proteins)))
        size = sum(map(len, proteins)), 0
        for name in options.models:
            model = save_model(name, Path(folder) / name, device)
            expected = embeddings(model, proteins[:CHECKED], device)
            clean_up(device)
            for devices in options.devices:
                result = Path(folder) / "embeddings.h5"
                seconds = run(source, model, result, devices, options)
                error = error_of(result, expected)
                timing = Timing(*(3 * [1e3 * seconds]), None) if error <= OUR_TOLERANCE else None
                impl = name_of(devices) + f"-{options.precision}"
                impl += f"-workers-{options.workers}" if options.workers else ""
                case = f"{name}-{len(proteins)}-h5"
                lab.report(make_row(BENCH, case, impl, size, lab.where, timing, error))
                print(f"{name}, {devices}: {len(proteins) / seconds:.0f} proteins/s")


def draw(count: int) -> list[str]:
    """Return random proteins with the lengths of a proteome."""
    rng = np.random.default_rng(0)
    residues = np.array(list(RESIDUES))
    return ["".join(rng.choice(residues, length)) for length in PROTEOME.draw(rng, count)]


def save_model(name: str, folder: Path, device: torch.device) -> Path:
    """Write a model with random weights and its tokenizer into a new folder, and return it."""
    from transformers import EsmTokenizer

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(TOKENS))
    EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    ARCHITECTURES[name].build("sdpa", device, head=False).cpu().save_pretrained(folder)
    return folder


def embeddings(model: Path, proteins: Sequence[str], device: torch.device) -> NDArray[np.floating]:
    """Return the mean embeddings of proteins by transformers in float32, one at a time."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    encoder = AutoModel.from_pretrained(model, attn_implementation="eager").eval().to(device)
    found = []
    with torch.inference_mode():
        for protein in proteins:
            tokens = tokenizer(protein, return_tensors="pt").to(device)
            found.append(encoder(**tokens).last_hidden_state[0, 1:-1].double().mean(0).cpu())
    return torch.stack(found).numpy()


def run(
    source: Path, model: Path, result: Path, devices: str, options: argparse.Namespace
) -> float:
    """Run the command on some devices, and return its wall time in s."""
    command = [sys.executable, "-m", "benchmarks.jobs.command", "embed", str(source)]
    command += ["--model", str(model), "--out", str(result), "--device", devices, "--overwrite"]
    command += ["--precision", options.precision]
    command += ["--workers", str(options.workers)] if options.workers else []
    began = time.perf_counter()
    subprocess.run(command, cwd=CHECKOUT, check=True)  # noqa: S603 - the command is ours
    return time.perf_counter() - began


def error_of(result: Path, expected: NDArray[np.floating]) -> float:
    """Return one minus the smallest cosine similarity of the first embeddings in a file."""
    import h5py

    with h5py.File(result) as file:
        found = torch.tensor(file["embedding"][: len(expected)]).double()
    cosine = torch.cosine_similarity(found, torch.from_numpy(expected), dim=-1)
    return float((1 - cosine).clamp(min=0).max())


if __name__ == "__main__":
    main()
