"""Train a TensorNet on energies and forces, from the exact module of the package.

Usage: ``python train.py --data data --out run --steps 60000 --minutes 9``

The data are the shards that `make_data.py` writes. Training stops after ``--minutes`` and goes on
where it stopped when called again, until ``--steps`` are done; then the averaged weights are
evaluated on all held-out data and written to ``model.safetensors``, the errors to ``errors.csv``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mlff_triton import Graph, TensorNet, TensorNetConfig, neighbor_list, predict, save_model
from mlff_triton.graph import concatenate
from mlff_triton.units import EV_TO_KCAL_PER_MOL

TRAIN, VALIDATION = 0, 1
WARM_UP = 1000  # steps
EMA_DECAY = 0.999
ENERGY_WEIGHT, FORCE_WEIGHT = 4.0, 1.0  # 1 / eV an atom, 1 / (eV/Å)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """All configurations as one large graph on one device.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers of all atoms.
    positions, forces : float32 [N, 3]
        Å and eV/Å.
    energy : float64 [C]
        eV.
    split, task : int64 [C]
        What each configuration is for, and the sampling task that it comes from.
    atom_start, edge_start : int64 [C + 1]
        Where atoms and edges of each configuration begin.
    graph : Graph
        Neighbors, with atoms and edges numbered through.
    """

    numbers: Tensor
    positions: Tensor
    forces: Tensor
    energy: Tensor
    split: Tensor
    task: Tensor
    atom_start: Tensor
    edge_start: Tensor
    graph: Graph
    task_names: list[str]
    split_names: list[str]

    def select(self, *splits: int) -> Tensor:
        """Indices of the configurations of some splits."""
        return torch.isin(self.split, self.split.new_tensor(splits)).nonzero()[:, 0]

    def batch(self, configs: Tensor) -> Batch:
        """Some configurations as a batch of their own."""
        atoms, system = ragged_range(self.atom_start, configs)
        edges, edge_system = ragged_range(self.edge_start, configs)
        first_atom, first_edge = starts(self.atom_start, configs), starts(self.edge_start, configs)
        atom_shift = (first_atom - self.atom_start[configs])[edge_system]
        edge_shift = (first_edge - self.edge_start[configs])[edge_system]
        counts = self.graph.row_ptr.diff()[atoms]
        graph = Graph(
            row_ptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            senders=self.graph.senders[edges] + atom_shift,
            shifts=self.graph.shifts[edges],
            reverse=self.graph.reverse[edges] + edge_shift,
        )
        return Batch(
            numbers=self.numbers[atoms],
            positions=self.positions[atoms],
            forces=self.forces[atoms],
            energy=self.energy[configs],
            system=system,
            graph=graph,
        )


@dataclasses.dataclass(frozen=True)
class Batch:
    """Configurations that go through the model together; fields as in `Dataset`."""

    numbers: Tensor
    positions: Tensor
    forces: Tensor
    energy: Tensor
    system: Tensor
    graph: Graph


def ragged_range(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenated ``range(start[r], start[r + 1])`` for each row, and the row's number."""
    lengths = (start[1:] - start[:-1])[rows]
    owner = torch.arange(len(rows), device=rows.device).repeat_interleave(lengths)
    offset = start[rows] - (lengths.cumsum(0) - lengths)
    return torch.arange(len(owner), device=rows.device) + offset[owner], owner


def starts(start: Tensor, rows: Tensor) -> Tensor:
    """Where each row begins once the rows stand one after another."""
    lengths = (start[1:] - start[:-1])[rows]
    return lengths.cumsum(0) - lengths


def load(folder: Path, cutoff: float, device: torch.device) -> Dataset:
    """Read all shards and find all neighbors."""
    shards = [np.load(path) for path in sorted(folder.glob("data_*.npz"))]
    if not shards:
        raise SystemExit(f"no data_*.npz in {folder}: run make_data.py first")
    keys = ("n_atoms", "numbers", "positions", "energy", "forces", "split", "task")
    data = {key: np.concatenate([shard[key] for shard in shards]) for key in keys}
    bounds = np.concatenate([[0], data["n_atoms"].cumsum()])
    graphs = [neighbor_list(data["positions"][a:b], cutoff) for a, b in itertools.pairwise(bounds)]
    edges = np.concatenate([[0], np.cumsum([g.n_edges for g in graphs])])
    return Dataset(
        numbers=torch.tensor(data["numbers"].astype(np.int64), device=device),
        positions=torch.tensor(data["positions"], device=device),
        forces=torch.tensor(data["forces"], device=device),
        energy=torch.tensor(data["energy"], device=device),
        split=torch.tensor(data["split"].astype(np.int64), device=device),
        task=torch.tensor(data["task"].astype(np.int64), device=device),
        atom_start=torch.tensor(bounds, device=device),
        edge_start=torch.tensor(edges, device=device),
        graph=concatenate(graphs).to(device),
        task_names=[str(name) for name in shards[0]["task_names"]],
        split_names=[str(name) for name in shards[0]["split_names"]],
    )


def fit_references(data: Dataset, elements: tuple[int, ...]) -> tuple[Tensor, float]:
    """Energies of the elements by least squares over the training set, and a scale for the network.

    Returns
    -------
    references : float64 [elements]
        eV.
    scale : float
        Root mean square of the forces in eV/Å, taken as eV.
    """
    chosen = data.select(TRAIN)
    atoms, owner = ragged_range(data.atom_start, chosen)
    counts = torch.stack(
        [torch.bincount(owner[data.numbers[atoms] == z], minlength=len(chosen)) for z in elements],
        dim=1,
    ).double()
    # The tiny ridge keeps an element that is absent at zero.
    normal = counts.T @ counts + 1e-6 * torch.eye(len(elements), device=counts.device)
    references = torch.linalg.solve(normal, counts.T @ data.energy[chosen])
    return references, float(data.forces[atoms].square().mean().sqrt())


def errors(model: TensorNet, batch: Batch, create_graph: bool) -> tuple[Tensor, Tensor]:
    """Energy error an atom, eV [B], and force error, eV/Å [N, 3], of a batch."""
    result = predict(
        model,
        batch.numbers,
        batch.positions,
        batch.graph,
        batch=batch.system,
        create_graph=create_graph,
    )
    counts = torch.bincount(batch.system)
    return ((result.energy - batch.energy) / counts).float(), result.forces - batch.forces


def loss_of(model: TensorNet, batch: Batch) -> Tensor:
    """Mean absolute energy error an atom and mean length of the force error, weighted."""
    energy_error, force_error = errors(model, batch, create_graph=True)
    energy_loss = torch.nn.functional.smooth_l1_loss(
        energy_error, torch.zeros_like(energy_error), beta=0.002
    )
    force_loss = (force_error.square().sum(1) + 1e-8).sqrt().mean()
    return ENERGY_WEIGHT * energy_loss + FORCE_WEIGHT * force_loss


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then half a cosine down to a thousandth of the peak."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return peak * (1e-3 + (1 - 1e-3) * 0.5 * (1 + math.cos(math.pi * progress)))


def batches(chosen: Tensor, size: int, seed: int, start: int) -> Iterator[Tensor]:
    """Shuffled batches without end; batch ``k`` is the same however often training was resumed."""
    per_epoch = max(1, len(chosen) // size)
    for epoch in itertools.count(start // per_epoch):
        generator = torch.Generator().manual_seed(seed + epoch)
        order = chosen[torch.randperm(len(chosen), generator=generator).to(chosen.device)]
        first = start % per_epoch if epoch == start // per_epoch else 0
        for k in range(first, per_epoch):
            yield order[k * size : (k + 1) * size]


@torch.no_grad()
def mean_absolute_errors(
    model: TensorNet, data: Dataset, configs: Tensor, size: int
) -> tuple[float, float]:
    """Mean absolute errors: energy in kcal/mol an atom, force components in kcal/mol/Å."""
    if not len(configs):
        return math.nan, math.nan
    energy_sum = force_sum = 0.0
    n_components = 0
    for chunk in configs.split(size):
        energy_error, force_error = errors(model, data.batch(chunk), create_graph=False)
        energy_sum += float(energy_error.abs().double().sum())
        force_sum += float(force_error.abs().double().sum())
        n_components += force_error.numel()
    return (
        energy_sum / len(configs) * EV_TO_KCAL_PER_MOL,
        force_sum / n_components * EV_TO_KCAL_PER_MOL,
    )


class Trainer:
    """A model, its averaged copy and its optimiser, which survive an interruption."""

    def __init__(self, model: TensorNet, args: argparse.Namespace) -> None:
        self.args = args
        self.model = model
        self.average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA_DECAY)
        )
        fused = model.std.is_cuda
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=fused)
        self.step = 0
        self.path: Path = args.out / "checkpoint.pt"
        if self.path.exists():
            self._resume()

    def train_step(self, batch: Batch) -> Tensor:
        """One step of the optimiser; the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.args.steps, self.args.lr)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.average.update_parameters(self.model)
        self.step += 1
        return loss.detach()

    def save(self) -> None:
        """Write everything that training needs to go on."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        partial = self.path.with_suffix(".part")
        torch.save(state, partial)
        partial.replace(self.path)

    def _resume(self) -> None:
        state = torch.load(self.path, map_location=self.model.std.device, weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])


def build(data: Dataset, args: argparse.Namespace, device: torch.device) -> TensorNet:
    """A fresh model with the energy scale of the data."""
    torch.manual_seed(args.seed)
    elements = tuple(sorted(set(data.numbers.tolist())))
    model = TensorNet(
        TensorNetConfig(
            elements=elements,
            hidden_channels=args.channels,
            num_layers=args.layers,
            num_rbf=args.rbf,
            cutoff_upper=args.cutoff,
            uses_charge=False,
        )
    ).to(device)
    references, scale = fit_references(data, elements)
    model.references, model.std = references, torch.tensor(scale, dtype=torch.float64).to(device)
    return model


def run(args: argparse.Namespace) -> None:
    """Train until the steps or the minutes are used up, then evaluate if the steps are."""
    begin = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    data = load(args.data, args.cutoff, device)
    chosen = data.select(TRAIN)
    print(f"{len(chosen)} of {len(data.energy)} configurations to train on", flush=True)
    trainer = Trainer(build(data, args, device), args)
    recent: list[Tensor] = []
    for configs in batches(chosen, args.batch, args.seed, trainer.step):
        if trainer.step >= args.steps or time.monotonic() - begin > 60 * args.minutes:
            break
        recent.append(trainer.train_step(data.batch(configs)))
        if trainer.step % args.report == 0:
            report(trainer, data, recent, begin)
            trainer.save()
            recent = []
    trainer.save()
    if trainer.step >= args.steps:
        finish(trainer, data)


def report(trainer: Trainer, data: Dataset, recent: list[Tensor], begin: float) -> None:
    """Print the loss and the validation errors of the averaged weights."""
    subset = data.select(VALIDATION)[:512]
    energy, force = mean_absolute_errors(trainer.average.module, data, subset, trainer.args.batch)
    loss = float(torch.stack(recent).mean())
    print(
        f"{time.monotonic() - begin:6.0f} s  step {trainer.step:6d}  loss {loss:.4f}  "
        f"validation {energy:.4f} kcal/mol an atom, {force:.3f} kcal/mol/Å",
        flush=True,
    )


def finish(trainer: Trainer, data: Dataset) -> None:
    """Write the model and its errors, by split, kind of sampling and held-out molecule."""
    model: TensorNet = trainer.average.module
    rows: list[tuple[str, str, int, str, str]] = []
    for split, split_name in enumerate(data.split_names):
        configs = data.select(split)
        labels = [data.task_names[task] for task in data.task[configs].tolist()]
        groups = {"all": configs}
        if split != TRAIN:
            groups |= grouped(configs, [label.split("_")[0] for label in labels])
        if split_name == "test_molecule":
            groups |= grouped(configs, [re.split("[_.]", label)[1] for label in labels])
        for group, members in groups.items():
            energy, force = mean_absolute_errors(model, data, members, trainer.args.batch)
            rows.append((split_name, group, len(members), f"{energy:.4f}", f"{force:.4f}"))
    with (trainer.args.out / "errors.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["split", "group", "configurations", "energy_mae_kcal_mol_atom", "force_mae_kcal_mol_A"]
        )
        writer.writerows(rows)
    for row in rows:
        print(*row)
    save_model(model, trainer.args.out / "model.safetensors")


def grouped(configs: Tensor, labels: list[str]) -> dict[str, Tensor]:
    """Configurations by label, labels in alphabetical order."""
    names = np.array(labels)
    return {
        name: configs[torch.from_numpy(names == name).to(configs.device)]
        for name in sorted(set(labels))
    }


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rbf", type=int, default=32)
    parser.add_argument("--cutoff", type=float, default=5.0)
    parser.add_argument("--report", type=int, default=500, help="steps between reports")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    run(parse_arguments())
