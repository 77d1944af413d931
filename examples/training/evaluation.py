"""Errors of a model on a batch, on a split, and on each kind of configuration."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import torch
from dataset import TRAIN, Batch, Dataset
from torch import Tensor

from mlff_triton import Graph, TensorNet, predict
from mlff_triton.model.fused import fused
from mlff_triton.training.batches import LISTED
from mlff_triton.units import EV_TO_KCAL_PER_MOL

COLUMNS = ("split", "group", "configurations", "energy_mae_kcal_mol_atom", "force_mae_kcal_mol_A")
Row = tuple[str, str, int, str, str]


def errors(model: TensorNet, batch: Batch, create_graph: bool) -> tuple[Tensor, Tensor]:
    """Compare a model with the labels of a batch.

    Parameters
    ----------
    model : TensorNet
        Model to evaluate.
    batch : Batch
        B configurations with N atoms in total, on the device of the model.
    create_graph : bool
        If True, the errors can be differentiated.

    Returns
    -------
    energy : float32 [B]
        Error of the energy per atom, eV.
    forces : float32 [N, 3]
        Error of the forces, eV/Å.
    """
    result = predict(
        fused(model),
        batch["z"],
        batch["pos"],
        Graph(**{name: batch[name] for name in LISTED}),
        batch=batch["batch"],
        create_graph=create_graph,
        n_systems=len(batch["energy"]),  # which a captured step cannot read from the GPU
    )
    ones = torch.ones_like(result.atom_energies)
    counts = torch.zeros_like(result.energy).index_add(0, batch["batch"], ones)
    energy_error = (result.energy - batch["energy"]) / counts
    return energy_error.float(), result.forces - batch["forces"]


def on_device_of(model: TensorNet, batch: Batch) -> Batch:
    """Copy a batch to the device of a model."""
    return {name: tensor.to(model.std.device) for name, tensor in batch.items()}


@torch.no_grad()
def mean_absolute_errors(
    model: TensorNet, data: Dataset, configs: Tensor, size: int
) -> tuple[float, float]:
    """Average the absolute errors of some configurations, evaluated ``size`` at a time.

    Returns
    -------
    energy, force : float
        kcal/mol per atom and kcal/mol/Å per component; NaN without configurations.
    """
    if not len(configs):
        return math.nan, math.nan
    energy_sum = force_sum = 0.0
    n_components = 0
    for chunk in configs.split(size):
        batch = on_device_of(model, data.batch(chunk))
        energy_error, force_error = errors(model, batch, create_graph=False)
        energy_sum += float(energy_error.abs().double().sum())
        force_sum += float(force_error.abs().double().sum())
        n_components += force_error.numel()
    return (
        energy_sum / len(configs) * EV_TO_KCAL_PER_MOL,
        force_sum / n_components * EV_TO_KCAL_PER_MOL,
    )


def error_table(model: TensorNet, data: Dataset, size: int) -> list[Row]:
    """Tabulate errors by split and, in held-out data, by kind of sampling and by molecule."""
    rows: list[Row] = []
    for split, split_name in enumerate(data.split_names):
        configs = data.select(split)
        labels = [data.task_names[task] for task in data.task[configs].tolist()]
        groups = {"all": configs}
        if split != TRAIN:
            groups |= _grouped(configs, [label.split("_")[0] for label in labels])
        if split_name == "test_molecule":
            groups |= _grouped(configs, [re.split("[_.]", label)[1] for label in labels])
        for group, members in groups.items():
            energy, force = mean_absolute_errors(model, data, members, size)
            rows.append((split_name, group, len(members), f"{energy:.4f}", f"{force:.4f}"))
    return rows


def write_table(rows: list[Row], path: Path) -> None:
    """Write the rows of `error_table` as comma-separated values, with a header."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def _grouped(configs: Tensor, labels: list[str]) -> dict[str, Tensor]:
    """Group the configurations by label, in alphabetical order."""
    names = np.array(labels)
    return {name: configs[torch.from_numpy(names == name)] for name in sorted(set(labels))}
