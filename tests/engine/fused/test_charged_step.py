"""A whole step of TensorNet2 in fused kernels, compared with the exact module."""

from __future__ import annotations

import copy

import pytest
import torch
from ase import Atoms

from mlff_triton.engine.charged_step import Geometry, Operators, evaluate_charged_step
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Outputs
from mlff_triton.engine.totals import Totals
from mlff_triton.kernels.electrostatics.charge_channels import channel_sums
from mlff_triton.kernels.neighbors.edges import edges
from mlff_triton.kernels.neighbors.neighbor_list import build_rows
from mlff_triton.kernels.tensornet import operators as fused
from mlff_triton.kernels.tensornet2 import operators as charged
from mlff_triton.model.tensornet2 import TensorNet2
from mlff_triton.testing import assert_close, random_cluster, random_crystal, tolerance, water_box
from tests.support.charged import charged_model
from tests.support.device_steps import batch_of
from tests.support.tensornets import Batch, uncertain

# The interpreter converts bounds of loops, and PyTorch's forward differentiation compiles, in ways
# that NumPy and PyTorch deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

OPERATORS = Operators(fused, charged, channel_sums)
SKIN, CAPACITY = 0.5, 128
ORDERS = {"energy": 0, "atom_energies": 0, "charges": 0, "uncertainty": 1, "forces": 1, "virial": 1}
VARIANTS = {
    "all pairs": {"num_layers": 2},
    "all pairs, SO(3)": {"group": "SO(3)", "repulsion": True, "charge_channels": 16},
    "reaction field": {"coulomb_cutoff": 2.5, "num_layers": 2, "softness_floor": 0.02},
    "reaction field, beyond the network": {"coulomb_cutoff": 5.0},
    "particle-mesh Ewald": {"coulomb_cutoff": 5.0, "pme_error": 1e-3},
    "no Coulomb energy": {"coulomb": False, "head_layers": 1},
}


def run(batch: Batch, p: Parameters, dtype: torch.dtype, device: str) -> Outputs:
    positions, cell = batch.positions.to(device), batch.cell.to(device)
    system = batch.system.to(device)
    pbc = torch.tensor([a.pbc.tolist() for a in batch.structures], device=device)
    radius = p.cutoff + SKIN
    rows = build_rows(positions, cell, pbc, system, radius, CAPACITY)
    assert rows.needed <= CAPACITY

    def within(cutoff: float) -> tuple:
        given = positions, cell, system.int(), rows, p.tables.knots
        return edges(*given, cutoff, radius, dtype)

    far, status = within(p.cutoff)
    near, _ = within(p.charges.network_cutoff)
    mesh = None
    if p.mesh_choice is not None:
        given = batch_of(*batch.structures, charge=batch.charges)
        mesh = p.mesh_choice.update(given, is_new=True)[0].in_cells(cell)
    geometry = Geometry(positions, near, far if p.charges.is_truncated else None, mesh)
    systems = batch.systems(p, rows.order)
    return evaluate_charged_step(OPERATORS, p, systems, geometry, status)


def on_cpu(outputs: Outputs) -> Outputs:
    totals, forces, atoms, *some = outputs
    some = (None if result is None else result.cpu() for result in some)
    return Outputs(Totals(totals.values.cpu()), forces.cpu(), atoms.cpu(), *some)


def check(batch: Batch, model: TensorNet2, dtype: torch.dtype, device: str) -> None:
    """Compare a step with the exact module: in float32, with the errors that the module has."""
    p = Parameters.of(model, torch.device(device), dtype, halves=True)
    outputs, expected = on_cpu(run(batch, p, dtype, device)), batch.predict(model)
    own = batch.predict(copy.deepcopy(model).to(dtype))
    found = outputs.prediction
    assert found.tensors.keys() == expected.tensors.keys()
    for name, truth in expected.tensors.items():
        if dtype == torch.float64:
            assert_close(found.tensors[name], truth, ORDERS[name])
            continue
        error = (found.tensors[name] - truth).abs().max()
        allowed = tolerance(ORDERS[name], dtype) * truth.abs().max()
        assert error <= allowed + 3 * (own.tensors[name] - truth).abs().max(), name
    assert not outputs.totals.status.any()


IN_FLOAT32 = ("all pairs", "reaction field", "particle-mesh Ewald")  # which run all kernels
STEPS = [
    *((variant, torch.float64) for variant in VARIANTS),
    *((variant, torch.float32) for variant in IN_FLOAT32),
    *(
        pytest.param(variant, torch.float32, marks=pytest.mark.slow)
        for variant in VARIANTS
        if variant not in IN_FLOAT32
    ),
]


@pytest.mark.parametrize(("variant", "dtype"), STEPS)
def test_agrees_with_the_exact_module(variant, dtype, device):
    model = uncertain(charged_model(hidden_channels=32, **VARIANTS[variant]))
    structures = [random_cluster(5), Atoms("C", [[0, 0, 0]]), random_cluster(3, seed=5)]
    if variant == "no Coulomb energy":
        structures[2] = random_crystal(2, "triclinic")
    if variant == "particle-mesh Ewald":
        kinds = [(5, "triclinic"), (1, "cubic"), (3, "small")]
        structures = [random_crystal(n, kind, seed=n) for n, kind in kinds]
    check(Batch(structures, [1, 0, -2], model.cutoff), model, dtype, device)


def test_gives_the_same_bits_again(device):
    model = uncertain(charged_model(hidden_channels=32))
    batch = Batch([random_cluster(7)], [1], model.cutoff)
    p = Parameters.of(model, torch.device(device), torch.float32, halves=True)
    runs = [on_cpu(run(batch, p, torch.float32, device)).prediction for _ in range(2)]
    for name, tensor in runs[0].tensors.items():
        assert torch.equal(tensor, runs[1].tensors[name])


@pytest.mark.gpu
@pytest.mark.parametrize("cutoff", [None, 3.0])
def test_systems_have_the_same_bits_alone_and_in_a_batch(cutoff, device):
    """Bits of the interpreter's matrix products depend on the rows in which atoms are."""
    model = uncertain(charged_model(hidden_channels=32, coulomb_cutoff=cutoff))
    p = Parameters.of(model, torch.device(device), torch.float32, halves=True)
    one, other = random_cluster(4), random_cluster(5, seed=5)
    batches = Batch([other], [1], model.cutoff), Batch([one, other], [-1, 1], model.cutoff)
    found = (on_cpu(run(batch, p, torch.float32, device)).prediction for batch in batches)
    single, both = found
    for name, tensor in single.tensors.items():
        assert torch.equal(both.tensors[name][-len(tensor) :], tensor), name


@pytest.mark.gpu
@pytest.mark.parametrize("n_molecules", [7, 343, 1000])
def test_many_atoms(n_molecules, device, dtype):
    model = uncertain(charged_model(hidden_channels=128, num_layers=2, charge_channels=16), 64)
    water = water_box(n_molecules)
    water.pbc = False
    batch = Batch([water], [0], model.cutoff)
    check(batch, model, dtype, device)
