"""Workload of bench ``models``: binding energies by DualBind, with random weights.

The package is that of its authors' repository, whose folder must be on the path of Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SIZES = {"hidden_size": 256, "mpn_depth": 3, "num_heads": 4, "vocab_size": 38, "aa_size": 21}
SLOTS, THRESHOLD = 14, 10.0
SMALLEST, LARGEST, RESIDUES = 15, 35, 50
"""Heavy atoms of a ligand, and residues of a pocket."""


class Molecules(NamedTuple):
    """Ligands with the interface of chemprop's BatchMolGraph."""

    components: tuple[Any, ...]

    def get_components(self) -> tuple[Any, ...]:
        """Return features of atoms and bonds, their topology, and the range of each molecule."""
        return self.components


def molecules(sizes: list[int], n_features: tuple[int, int], rng: torch.Generator) -> Molecules:
    """Return random trees. The first atom and the first bond stand for none."""
    scopes, ends = [], [(0, 0)]
    for size in sizes:
        first = scopes[-1][0] + scopes[-1][1] if scopes else 1
        scopes.append((first, size))
        for k in range(1, size):
            parent = int(torch.randint(max(0, k - 3), k, (), generator=rng))
            ends += [(first + parent, first + k), (first + k, first + parent)]
    source, target = torch.tensor(ends).T
    n_atoms = 1 + sum(sizes)
    incoming: list[list[int]] = [[] for _ in range(n_atoms)]
    for bond, atom in enumerate(target.tolist()):
        if bond:
            incoming[atom].append(bond)
    width = max(map(len, incoming))
    reverse = torch.arange(len(ends)).sub(1).bitwise_xor(1).add(1)
    reverse[0] = 0
    atoms = torch.randn(n_atoms, n_features[0], generator=rng)
    bonds = torch.randn(len(ends), n_features[1], generator=rng)
    atoms[0] = bonds[0] = 0
    padded = torch.tensor([known + [0] * (width - len(known)) for known in incoming])
    return Molecules((atoms, bonds, padded, source, reverse, scopes, scopes))


def complexes(count: int, n_features: tuple[int, int], rng: torch.Generator) -> dict[str, Any]:
    """Return ligands in pockets around them."""
    sizes = torch.randint(SMALLEST, LARGEST + 1, (count,), generator=rng).tolist()
    ligand, kinds = torch.zeros(count, max(sizes), SLOTS, 3), torch.zeros(count, max(sizes), SLOTS)
    for b, size in enumerate(sizes):
        shape = torch.tensor([3.5, 2.0, 1.2])
        ligand[b, :size, 1] = torch.randn(size, 3, generator=rng) * shape + 20
        kinds[b, :size, 1] = 1
    shell = torch.randn(count, RESIDUES, 1, 3, generator=rng)
    shell = nn.functional.normalize(shell, dim=-1) * torch.tensor([1.3, 1.0, 0.8])
    radius = 5 + 7 * torch.rand(count, RESIDUES, 1, 1, generator=rng)
    pocket = 20 + shell * radius + 1.7 * torch.randn(count, RESIDUES, SLOTS, 3, generator=rng)
    pocket_kinds = torch.randint(1, SIZES["vocab_size"], (count, RESIDUES, SLOTS), generator=rng)
    heavy = torch.randint(4, 13, (count, RESIDUES, 1), generator=rng)
    pocket_kinds[torch.arange(SLOTS) >= heavy] = 0
    pocket[pocket_kinds == 0] = 0
    types = torch.randint(SIZES["aa_size"], (count, RESIDUES), generator=rng)
    residues = nn.functional.one_hot(types, SIZES["aa_size"]).float()
    return {
        "binder": (ligand, molecules(sizes, n_features, rng), kinds.long()),
        "target": (pocket, residues, pocket_kinds),
    }


@dataclass(frozen=True)
class DualBind:
    """Complexes, in batches. The error is relative to the largest energy."""

    count: int
    batch: int
    package = "DualBind"
    limit = 1e-6
    runs_in_graphs = compiles = False
    has_half = False
    has_kernels = False
    is_checked = True
    short = other = cheaper = None

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"dualbind-{self.count}x{self.batch}"

    @property
    def size(self) -> int:
        """Number of complexes."""
        return self.count

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with random weights, in the sizes of its authors."""
        from DualBind.model.dualbind_model import DualBind as Model

        training = {"loss_ratio": 2, "eps_scaling": True, "use_mtl_loss": False, "dropout": 0.1}
        sizes = SIZES | {"max_residue_atoms": SLOTS, "threshold": THRESHOLD}
        optimizer = SimpleNamespace(lr=1e-3, anneal_rate=0.9)
        torch.manual_seed(0)
        model: nn.Module = Model(SimpleNamespace(**sizes, **training, optimizer=optimizer))
        return model.to(device).eval()

    def half(self, model: nn.Module) -> nn.Module:
        """Raise an error: the model makes tensors in float32."""
        raise NotImplementedError

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make batches on the device, except for molecules, which the model moves there itself."""
        network: Any = self.build(torch.device("cpu")).mpn
        n_atom_features = network.W_o.in_features - network.W_o.out_features
        n_features = n_atom_features, network.W_i.in_features
        rng = torch.Generator().manual_seed(self.count)
        starts = [*range(0, self.count, self.batch), self.count]
        batches = [complexes(end - start, n_features, rng) for start, end in pairwise(starts)]
        return {"batches": [_to(batch, device) for batch in batches]}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Predict the energies of all complexes."""
        return torch.cat([model(**batch) for batch in inputs["batches"]])

    def error(self, actual: Tensor, expected: Tensor) -> float:
        """Return the largest difference, relative to the largest energy."""
        return float((actual.cpu() - expected).abs().max() / expected.abs().max())


def _to(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        name: tuple(x.to(device) if isinstance(x, Tensor) else x for x in group)
        for name, group in batch.items()
    }


WORKLOADS = (DualBind(800, 192), DualBind(800, 800))  # the package lacks memory for 266 at once
