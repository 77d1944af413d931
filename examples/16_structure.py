"""Predict the structure of a peptide and a ligand with Boltz-2, before and after `bio.accelerate`.

Usage: ``python 16_structure.py`` with boltz, einx and RDKit installed. Without ``--checkpoint``,
the weights of a shallow model are random, and so is the structure: it shows that the accelerated
model computes what the original one does, and nothing about the peptide. With the published
checkpoint, the sequence is predicted without an alignment of related ones.

Writes ``complex.pdb``, with confidence as B factors, into ``--out``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from boltz.data import const
from boltz.model.models.boltz2 import Boltz2
from rdkit import Chem
from rdkit.Chem import AllChem
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from mlff_triton import bio

WINDOW = 32
SIZES = {"atom_s": 128, "atom_z": 16, "token_s": 384, "token_z": 128, "num_bins": 64}
SIZES["atom_feature_dim"] = 388
ATOMS = {"atom_encoder_depth": 3, "atom_encoder_heads": 4}
CONFIDENCE = {"num_plddt_bins": 50, "num_pde_bins": 64, "num_pae_bins": 64}
STEERING = dict.fromkeys(("fk_steering", "physical_guidance_update", "contact_guidance_update"))
NOISE = {"gamma_0": 0.8, "gamma_min": 1.0, "noise_scale": 1.003, "rho": 7, "step_scale": 1.5}


class Atom(NamedTuple):
    """A heavy atom of a token, in a conformer of its own residue or ligand."""

    name: str
    number: int
    charge: float
    position: tuple[float, float, float]


class Residue(NamedTuple):
    """Atoms of a residue, or of a ligand, each of whose atoms is a token."""

    name: str
    chain: int
    index: int
    atoms: list[Atom]


def read_peptide(sequence: str) -> list[Residue]:
    """Split a conformer of a peptide into residues."""
    mol = Chem.MolFromSequence(sequence)
    if mol is None or not sequence:
        raise SystemExit(f"{sequence!r} is not a sequence of amino acids in one-letter codes")
    residues: dict[int, Residue] = {}
    for atom, found in zip(mol.GetAtoms(), embed(mol), strict=True):
        info = atom.GetPDBResidueInfo()
        index = info.GetResidueNumber() - 1
        empty = Residue(info.GetResidueName(), 0, index, [])
        residues.setdefault(index, empty).atoms.append(found._replace(name=info.GetName().strip()))
    return list(residues.values())


def read_ligand(smiles: str) -> Residue:
    """Make a conformer of a ligand."""
    mol = Chem.MolFromSmiles(smiles)
    if mol is None or not mol.GetNumAtoms():
        raise SystemExit(f"{smiles!r} is not a molecule in SMILES")
    return Residue("LIG", 1, 0, embed(mol))


def embed(mol: Chem.Mol) -> list[Atom]:
    """Return the heavy atoms of a conformer, named by element and number."""
    whole = Chem.AddHs(mol)
    if AllChem.EmbedMolecule(whole, randomSeed=1):
        raise SystemExit("RDKit found no conformer")
    positions = whole.GetConformer().GetPositions()
    return [
        Atom(
            f"{atom.GetSymbol()}{i + 1}".upper(),
            atom.GetAtomicNum(),
            float(atom.GetFormalCharge()),
            tuple(positions[i]),
        )
        for i, atom in enumerate(mol.GetAtoms())
    ]


def featurize(residues: list[Residue], ligand: Residue, bonds: list[tuple[int, int]]) -> Any:
    """Make the features of Boltz-2, each with a batch of one, without an alignment."""
    tokens = [(r, r.atoms) for r in residues] + [(ligand, [atom]) for atom in ligand.atoms]
    owners, atoms = zip(*((i, a) for i, (_, own) in enumerate(tokens) for a in own), strict=True)
    owner, n, first = torch.tensor(owners), len(tokens), len(residues)
    chain = torch.tensor([r.chain for r, _ in tokens])
    unknown = const.unk_token["PROTEIN"]
    kinds = [r.name if r.name in const.token_ids else unknown for r, _ in tokens]
    kind = one_hot(torch.tensor([const.token_ids[name] for name in kinds]), const.num_tokens)
    bonded = torch.zeros(n, n)
    for i, j in bonds:
        bonded[first + i, first + j] = bonded[first + j, first + i] = 1
    begin = torch.tensor([owners.index(i) for i in range(n)])
    center = begin + torch.where(chain == 0, 1, 0)  # CA follows N
    frame = torch.where((chain == 0)[:, None], begin[:, None] + torch.arange(3), begin[:, None])
    zeros, none = torch.zeros(n, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long)
    per_token = {
        "token_index": torch.arange(n),
        "residue_index": torch.tensor([r.index for r, _ in tokens]),
        "asym_id": chain,
        "entity_id": chain,
        "mol_type": chain * const.chain_type_ids["NONPOLYMER"],
        **dict.fromkeys(("sym_id", "modified", "method_feature"), zeros),
        "res_type": kind,
        "profile": kind.float(),
        "deletion_mean": torch.zeros(n),
        "cyclic_period": torch.zeros(n),
        "token_pad_mask": torch.ones(n),
        "token_bonds": bonded[..., None],
        "type_bonds": bonded.long(),
        "contact_conditioning": one_hot(torch.zeros(n, n).long(), 5),
        "contact_threshold": torch.zeros(n, n),
        "frames_idx": frame,
        "token_to_rep_atom": one_hot(center, len(atoms) + -len(atoms) % WINDOW),
        "contact_pair_index": none,
        "contact_union_index": none[0],
        "contact_negation_mask": none[0].bool(),
        "contact_thresholds": none[0].float(),
    }
    names = torch.tensor([[ord(c) - 32 for c in atom.name[:4].ljust(4)] for atom in atoms])
    own = torch.where(chain == 0, torch.arange(n), first)[owner]
    per_atom = {
        "ref_pos": torch.tensor([atom.position for atom in atoms]).float(),
        "ref_charge": torch.tensor([atom.charge for atom in atoms]),
        "ref_element": one_hot(torch.tensor([atom.number for atom in atoms]), 128),
        "ref_atom_name_chars": one_hot(names, 64),
        "ref_space_uid": own,
        "atom_to_token": one_hot(owner, n),
        "atom_pad_mask": torch.ones(len(atoms)),
    }
    missing = -len(atoms) % WINDOW
    padded = {k: pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) for k, x in per_atom.items()}
    alignment = {
        "msa": kind.argmax(-1)[None],
        "msa_mask": torch.ones(1, n, dtype=torch.long),
        **{name: torch.zeros(1, n) for name in ("has_deletion", "deletion_value", "msa_paired")},
    }
    empty = {
        "template_restype": one_hot(zeros[None], const.num_tokens),
        "template_frame_rot": torch.zeros(1, n, 3, 3),
        **{f"template_{name}": torch.zeros(1, n, 3) for name in ("frame_t", "cb", "ca")},
        **{f"template_{name}": torch.zeros(1, n) for name in ("mask_cb", "mask_frame", "mask")},
        "visibility_ids": torch.zeros(1, n),
    }
    return {name: x[None] for name, x in {**per_token, **padded, **alignment, **empty}.items()}


def random_model(blocks: int) -> nn.Module:
    """Make a shallow Boltz-2, all of whose weights are random: new ones are zero in part."""
    torch.manual_seed(0)
    depths = {"token_transformer_depth": blocks, "token_transformer_heads": 16}
    atoms = {**ATOMS, "atom_decoder_depth": 3, "atom_decoder_heads": 4}
    heads = {"num_blocks": blocks, "num_heads": 16, "dropout": 0.0}
    model: nn.Module = Boltz2(
        **SIZES,
        embedder_args=ATOMS,
        msa_args={"msa_s": 64, "msa_blocks": 1, "msa_dropout": 0.0, "z_dropout": 0.0},
        pairformer_args={**heads, "v2": True},
        score_model_args={**atoms, **depths, "conditioning_transition_layers": 2},
        diffusion_process_args={**NOISE, "alignment_reverse_diff": True},
        confidence_model_args={"pairformer_args": heads, "confidence_args": CONFIDENCE},
        **{name: {} for name in ("training_args", "validation_args", "diffusion_loss_args")},
        validate_structure=False,
        steering_args=STEERING,
    )
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.5 * p.shape[1:].numel() ** -0.5)
            else:
                p.add_(torch.randn_like(p) / 4)
    return model


@torch.inference_mode()
def predict(model: nn.Module, features: dict[str, Tensor], steps: int) -> tuple[Tensor, Tensor]:
    """Return positions of atoms [M, 3] in Å, and the confidence of tokens [N] between 0 and 1."""
    torch.manual_seed(0)
    found = model(features, recycling_steps=1, num_sampling_steps=steps, diffusion_samples=1)
    present = features["atom_pad_mask"][0].bool()
    return found["sample_atom_coords"][0, present].cpu(), found["plddt"][0].cpu()


def write_pdb(path: Path, residues: list[Residue], positions: Tensor, plddt: Tensor) -> None:
    """Write residues and the ligand, which comes last."""
    table, lines, token = Chem.GetPeriodicTable(), [], 0
    rows = iter(positions.tolist())
    for residue in residues:
        is_ligand = residue.chain == 1
        for i, (name, number, _, _) in enumerate(residue.atoms):
            x, y, z = next(rows)
            record, chain = ("HETATM", "B") if is_ligand else ("ATOM", "A")
            trust = 100 * float(plddt[token + i * is_ligand])
            lines.append(
                f"{record:6s}{len(lines) + 1:5d} {name:^4.4s} {residue.name:>3s} {chain}"
                f"{residue.index + 1:4d}    {x:8.3f}{y:8.3f}{z:8.3f}{1:6.2f}{trust:6.2f}"
                f"          {table.GetElementSymbol(number):>2s}"
            )
        token += len(residue.atoms) if is_ligand else 1
    path.write_text("\n".join([*lines, "END", ""]))


def main() -> None:
    """Predict, accelerate, predict again, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peptide", default="GSYWALKF", help="amino acids, one letter each")
    parser.add_argument("--ligand", default="CC(=O)Nc1ccc(O)cc1", help="SMILES")
    parser.add_argument("--checkpoint", type=Path, help="boltz2_conf.ckpt; random by default")
    parser.add_argument("--blocks", type=int, default=1, help="depth of a model of random weights")
    parser.add_argument("--steps", type=int, default=5, help="sampling steps; 200 are usual")
    parser.add_argument("--backend", default="auto", help="'torch' accelerates on a CPU too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    peptide, ligand = read_peptide(args.peptide), read_ligand(args.ligand)
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
        for bond in Chem.MolFromSmiles(args.ligand).GetBonds()
    ]
    features = {k: x.to(args.device) for k, x in featurize(peptide, ligand, bonds).items()}
    if args.checkpoint is None:
        model = random_model(args.blocks)
        print("random weights: the structure means nothing")
    else:
        model = Boltz2.load_from_checkpoint(
            args.checkpoint, use_kernels=False, steering_args=STEERING
        )
    model.to(args.device).eval()
    found, times = {}, {}
    for label in ("original", "accelerated"):
        if label == "accelerated":
            bio.accelerate(model, backend=args.backend)
        predict(model, features, 3)  # compiles kernels
        start = time.perf_counter()
        found[label], plddt = predict(model, features, args.steps)
        times[label] = time.perf_counter() - start
    print(bio.report(model))
    difference = (found["accelerated"] - found["original"]).norm(dim=-1).max()
    print(f"largest difference: {difference / found['original'].norm(dim=-1).max():.1e}")
    for label, elapsed in times.items():
        print(f"{label:12s} {elapsed:8.3f} s for {len(plddt)} tokens, {args.steps} steps")
    args.out.mkdir(parents=True, exist_ok=True)
    write_pdb(args.out / "complex.pdb", [*peptide, ligand], found["accelerated"], plddt)


if __name__ == "__main__":
    main()
