"""A whole step of fused kernels, from positions to forces, compared with the exact module."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ase import Atoms
from triton.runtime.interpreter import GridExecutor

from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Outputs, evaluate_step
from mlff_triton.engine.totals import Totals
from mlff_triton.kernels.neighbors.edges import edges
from mlff_triton.kernels.neighbors.neighbor_list import build_rows
from mlff_triton.kernels.tensornet import operators as fused
from mlff_triton.testing import random_cluster, random_crystal, water_box
from tests.support.tensornets import ZBL, Batch, assert_equal, assert_same, model_of, uncertain

# The interpreter converts bounds of loops, and PyTorch's forward differentiation compiles, in ways
# that NumPy and PyTorch deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

SKIN, CAPACITY = 0.5, 128
VARIANTS = {
    "O(3)": ({"num_layers": 2, "activation": "silu"}, torch.float32),
    "SO(3)": (
        {"num_layers": 2, "group": "SO(3)", "head": "gated", "readout_activation": False},
        torch.float64,
    ),
    "nuclear repulsion": ({"num_layers": 1, "zbl": ZBL}, torch.float32),
    "nuclear repulsion, farther than the network": (
        {"num_layers": 1, "zbl": replace(ZBL, cutoff=4.5)},
        torch.float64,
    ),
    "smooth repulsion": ({"num_layers": 1, "zbl": replace(ZBL, is_smooth=True)}, torch.float64),
}


def run(batch: Batch, p: Parameters, dtype: torch.dtype, device: str) -> Outputs:
    positions, cell = batch.positions.to(device), batch.cell.to(device)
    system = batch.system.to(device)
    pbc = torch.tensor([a.pbc.tolist() for a in batch.structures], device=device)
    rows = build_rows(positions, cell, pbc, system, batch.cutoff + SKIN, CAPACITY)
    assert rows.needed <= CAPACITY
    radii = batch.cutoff, batch.cutoff + SKIN
    found, status = edges(positions, cell, system.int(), rows, p.tables.knots, *radii, dtype)
    return evaluate_step(fused, p, batch.systems(p, rows.order), found, status)


def on_cpu(outputs: Outputs) -> Outputs:
    totals, forces, atoms, _, uncertainty = outputs
    on_host = None if uncertainty is None else uncertainty.cpu()
    return Outputs(Totals(totals.values.cpu()), forces.cpu(), atoms.cpu(), None, on_host)


@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_exact_module(variant, device):
    changes, dtype = VARIANTS[variant]
    model = model_of(**changes)
    lonely = Atoms("C", [[0, 0, 0]])
    structures = [random_cluster(5), lonely, random_crystal(2, "triclinic")]
    batch = Batch(structures, [1, 0, -2], model.cutoff)
    p = Parameters.of(uncertain(model), torch.device(device), dtype)
    assert_same(on_cpu(run(batch, p, dtype, device)), batch.predict(model), dtype)


def test_uncertainties_take_no_launch(monkeypatch, device):
    """The kernel that computes the energies writes them, so that they cost next to nothing."""
    if device != "cpu":
        pytest.skip("launches are counted in the interpreter")
    launched: list[str] = []
    run_kernel = GridExecutor.__call__

    def count(kernel, *arguments, **options):
        launched.append(kernel.fn.__name__)
        run_kernel(kernel, *arguments, **options)

    model = model_of(num_layers=1)
    batch = Batch([random_cluster(3)], [0], model.cutoff)
    given = [Parameters.of(m, torch.device(device), torch.float32) for m in (model,)]
    given.append(Parameters.of(uncertain(model), torch.device(device), torch.float32))
    monkeypatch.setattr(GridExecutor, "__call__", count)
    kernels, found = [], []
    for p in given:
        launched.clear()
        found.append(run(batch, p, torch.float32, device))
        kernels.append(list(launched))
    assert kernels[0] == kernels[1]
    assert "_scalar_head_kernel" in kernels[0]
    assert [each.uncertainty is None for each in found] == [True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
@pytest.mark.parametrize("n_molecules", [7, 343, 1000])
def test_many_atoms(n_molecules, group, device, dtype):
    model = uncertain(model_of(hidden_channels=128, group=group), 64)
    batch = Batch([water_box(n_molecules)], [0])
    p = Parameters.of(model, torch.device(device), dtype)
    outputs, again = (on_cpu(run(batch, p, dtype, device)) for _ in range(2))
    assert_same(outputs, batch.predict(model), dtype)
    assert_equal(outputs, again)
