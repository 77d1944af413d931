"""A whole step of TensorNet2 in plain PyTorch compared with the exact module and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import Engine, Ensemble, Prediction, TensorNet2
from mlff_triton.engine.host_operators import PACKAGES
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Systems
from mlff_triton.errors import InputError, UnsupportedModelError
from mlff_triton.model.config import ZBLConfig
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.charged import charged_model

# PyTorch's forward differentiation compiles in a way that PyTorch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

CPU = torch.device("cpu")
ZBL = ZBLConfig(cutoff=4.5, prefactor=14.4, charges=(1.0, 5.5, 7.0, 0.0))
ORDERS = {"energy": 0, "atom_energies": 0, "charges": 0, "forces": 1, "virial": 1}
VARIANTS = {
    "O(3)": {"num_layers": 2},
    "SO(3)": {"num_layers": 2, "group": "SO(3)", "activation": "ssp"},
    "three layers": {"num_layers": 3, "activation": "tanh"},
    "gauss": {"rbf_type": "gauss", "charge_channels": 17},
    "lower cutoff": {"cutoff_lower": 1.3, "activation": "mish"},
    "no Coulomb energy": {"coulomb": False, "num_layers": 2},
    "nuclear repulsion": {"repulsion": True},
    "two repulsions, one farther than the network": {"repulsion": True, "zbl": ZBL},
    "deep head": {"head_layers": 2, "readout_activation": False},
    "least softness": {"softness_floor": 0.02, "num_layers": 2},
    "gated head": {"head": "gated"},
    "more channels than heads fill": {"hidden_channels": 64},
    "7 channels": {"hidden_channels": 7},
}


@pytest.fixture(params=PACKAGES)
def backend(request) -> str:
    return request.param


@pytest.fixture(scope="module", params=VARIANTS)
def model(request) -> TensorNet2:
    return charged_model(**VARIANTS[request.param])


def molecules() -> tuple[list[Atoms], list[int]]:
    """Return molecules in vacuum, one with atoms too far away for the network."""
    far = Atoms("COH", [[0, 0, 0], [50, 0, 0], [50, 0.5, 0.8]])
    return [random_cluster(9), far, Atoms("N"), random_cluster(4, seed=5)], [1, -2, 0, -1]


def compute(engine: Engine, images: list[Atoms], charges: list[int]) -> Prediction:
    return engine.compute(
        np.concatenate([a.numbers for a in images]),
        np.concatenate([a.positions for a in images]),
        np.stack([a.cell.array for a in images]),
        np.stack([a.pbc for a in images]),
        np.repeat(np.arange(len(images)), [len(a) for a in images]),
        charges,
    )


def check(
    backend: str, model: TensorNet2 | Ensemble, images: list[Atoms], charges: list[int]
) -> None:
    found = compute(Engine(model, "cpu", "float64", backend), images, charges)
    expected = compute(Engine(model, "cpu", "float64", "exact"), images, charges)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert_close(found.tensors[name], tensor, ORDERS[name])


def test_agrees_with_the_exact_module(backend, model):
    check(backend, model, *molecules())


@pytest.mark.parametrize("coulomb_cutoff", [2.8, 5.5])
@pytest.mark.parametrize("changes", [{}, {"zbl": ZBL, "group": "SO(3)"}], ids=["", "ZBL"])
def test_reaction_fields(backend, coulomb_cutoff, changes):
    """The Coulomb energy may end before or beyond the network."""
    model = charged_model(num_layers=2, coulomb_cutoff=coulomb_cutoff, **changes)
    images, charges = molecules()
    crystal = random_crystal(300, "triclinic", seed=2)  # 11.1 Å high
    check(backend, model, [*images, crystal], [*charges, -1])


def test_periodic_boxes_without_coulomb_energy(backend):
    crystals = [random_crystal(4, "small"), random_crystal(5, "slab")]
    check(backend, charged_model(num_layers=2, coulomb=False), crystals, [0, 0])


def test_virials_do_not_depend_on_the_origin(backend):
    """Virials of all pairs are computed from positions."""
    model, atoms = charged_model(), random_cluster(9)
    engine = Engine(model, "cpu", "float64", backend)
    expected = compute(engine, [atoms], [1])
    atoms.positions += [900.0, -500.0, 70.0]
    found = compute(engine, [atoms], [1])
    assert_close(found.virial, expected.virial, 1)


def test_float32_is_as_exact_as_the_modules(backend, rng):
    """Rounding errors of so few atoms scatter, so those of four displaced batches are averaged."""
    model = charged_model(hidden_channels=32, num_layers=2, charge_channels=8)
    truth = Engine(model, "cpu", "float64", "exact")
    engines = [Engine(model, "cpu", "float32", each) for each in (backend, "exact")]
    squares = {name: np.zeros(2) for name in ("forces", "charges", "virial", "energy")}
    for _ in range(4):
        images, charges = molecules()
        for atoms in images:
            atoms.positions += rng.uniform(-0.05, 0.05, atoms.positions.shape)
        expected = compute(truth, images, charges)
        found = [compute(engine, images, charges) for engine in engines]
        for name, total in squares.items():
            exact, *values = (getattr(prediction, name) for prediction in (expected, *found))
            total += [float((value - exact).norm() / exact.norm()) ** 2 for value in values]
    errors = {name: np.sqrt(total / 4) for name, total in squares.items()}
    for name, (of_step, of_module) in errors.items():
        assert of_step <= max(1.5 * of_module, 1e-7), errors[name]


def test_two_steps_agree_to_the_bit(backend):
    engine = Engine(charged_model(num_layers=2), "cpu", "float32", backend)
    first, second = (compute(engine, *molecules()) for _ in range(2))
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name])


def test_bits_do_not_depend_on_threads():
    engine = Engine(charged_model(num_layers=2, coulomb_cutoff=5.0), "cpu", "float32", "cpu")
    images, charges = molecules()
    crystal = random_crystal(300, "triclinic", seed=2)
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            found.append(compute(engine, [*images, crystal], [*charges, -1]))
            assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)
    for name, tensor in found[0].tensors.items():
        assert all(torch.equal(tensor, other.tensors[name]) for other in found[1:]), name


@pytest.mark.slow
def test_more_atoms_in_vacuum_than_a_list_of_all_pairs_may_have():
    grid = torch.cartesian_prod(*[torch.arange(28.0)] * 3)[:20_500].numpy()
    atoms = Atoms(numbers=[6] * len(grid), positions=4.5 * grid)
    model = charged_model(hidden_channels=8)
    with pytest.raises(InputError, match="too many pairs"):
        compute(Engine(model, "cpu", "float64", "exact"), [atoms], [1])
    found = compute(Engine(model, "cpu", "float64", "cpu"), [atoms], [1])
    assert (found.charges * len(atoms) - 1).abs().max() < 1e-6
    assert found.forces.sum(0).abs().max() < 1e-10 * found.forces.abs().max()


def test_ensembles(backend):
    members = [charged_model(seed=k, coulomb_cutoff=3.0 + k) for k in range(2)]
    check(backend, Ensemble(members), *molecules())


def test_trajectories_reuse_one_list_of_the_networks_cutoff(backend, rng):
    model, atoms = charged_model(), random_cluster(8)
    engine = Engine(model, "cpu", "float64", backend, skin=2.0)
    exact = Engine(model, "cpu", "float64", "exact")
    for _ in range(5):
        atoms.positions += rng.normal(0, 0.05, (8, 3))
        assert_close(compute(engine, [atoms], [0]).forces, compute(exact, [atoms], [0]).forces, 1)
    assert engine.n_builds == 1


def test_boxes_need_a_cutoff_that_fits(backend):
    crystal = random_crystal(40, "triclinic", seed=2)  # 5.7 Å high
    for cutoff, message in ((None, "cannot be periodic"), (9.0, "less than twice the Coulomb")):
        engine = Engine(charged_model(coulomb_cutoff=cutoff), "cpu", backend=backend)
        with pytest.raises(InputError, match=message):
            compute(engine, [crystal], [0])


def test_models_that_are_not_served():
    for changes, message in (
        ({"num_layers": 0}, "needs a layer"),
        ({"self_loops": False}, "loops"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"{message}.*use backend='exact'"):
            Parameters.of(charged_model(**changes), CPU, torch.float64)


def test_making_parameters_draws_no_random_numbers():
    state = torch.random.get_rng_state()
    model = charged_model()
    torch.random.set_rng_state(state)
    Parameters.of(model, CPU, torch.float32)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_systems_take_over_others_in_any_order():
    p = Parameters.of(charged_model(), CPU, torch.float64)

    def systems(sizes: list[int]) -> Systems:
        numbers = torch.tensor([1, 6, 7, 8, 1, 1])
        ptr = torch.tensor([0, *np.cumsum(sizes)]).int()
        return Systems.of(p, numbers, torch.tensor([1.0, -1.0]), ptr)

    small, large = systems([3, 3]), systems([5, 1])
    assert (small.charged.largest, large.charged.largest) == (4, 6)
    assert large.fits(small)
    assert not small.fits(large)
    assert (large.charge_factor == 1).all()
    order = torch.tensor([4, 2, 0, 5, 1, 3]).int()
    out = large.clone()
    large.copy_(small)
    large.sort(order, out)
    assert out.charged.system.tolist() == [1, 0, 0, 1, 0, 1]
    assert order[out.charged.rank.long()].tolist() == list(range(6))
    assert out.charged.largest == 6
