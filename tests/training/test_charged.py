"""Training of partial charges and dipoles: the loss against a plain one, labels, and whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from torch._subclasses.fake_tensor import FakeTensorMode

from mlff_triton import Engine, TensorNet2, TensorNet2Config, load_model, save_model
from mlff_triton.errors import InputError
from mlff_triton.model import prediction, tensornet, tensornet2
from mlff_triton.model.prediction import predict
from mlff_triton.model.tensornet2 import with_coulomb
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_within
from mlff_triton.training import evaluation
from mlff_triton.training.batches import GraphData
from mlff_triton.training.evaluation import evaluate
from mlff_triton.training.labels import Labels, parse_keys
from mlff_triton.training.loss import HUBER, PENALTIES, Loss
from mlff_triton.training.run import Base, train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames
from mlff_triton.training.step import TrainingStep
from mlff_triton.units import BOHR, DEBYE
from tests.support.labeled import labeled

SMALL = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0, charges=True)
DATA = Data(("data.xyz",), valid=4, test=4)
SHORT = Settings(epochs=3, batch=4)
CHARGED = Labels(with_charges=True)
CHOSEN = torch.tensor([3, 0, 6, 4])
ELECTRONEGATIVE = {29: -0.3, 47: 0.3}


def charged(count: int, *, charge: int = 0, seed: int = 0) -> list[Atoms]:
    """Return clusters whose charges depend on elements and on the total charge, with dipoles."""
    images = labeled(count, seed=seed)
    for atoms in images:
        charges = np.array([ELECTRONEGATIVE[z] for z in atoms.numbers])
        charges += (charge - charges.sum()) / len(atoms)
        results = dict(atoms.calc.results)
        results |= {"charges": charges, "dipole": charges @ atoms.positions}
        atoms.calc = SinglePointCalculator(atoms, **results)
        atoms.info["charge"] = charge
    return images


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = charged(20) + charged(8, charge=1, seed=1)
    ase.io.write("data.xyz", images, format="extxyz")


def new_model(coulomb_cutoff: float | None = None) -> TensorNet2:
    torch.manual_seed(0)
    config = TensorNet2Config(
        (29, 47),
        hidden_channels=8,
        num_layers=1,
        num_rbf=6,
        cutoff_upper=3.0,
        charge_channels=4,
        coulomb_cutoff=coulomb_cutoff,
    )
    return TensorNet2(config).double()


def data_of(model: TensorNet2, *, with_unknown: bool = True) -> GraphData:
    """Return structures of which number 0 has no charges, and number 6 has no dipole."""
    images = [*charged(5), *charged(3, charge=1, seed=1)]
    if with_unknown:
        del images[0].calc.results["charges"]
        del images[6].calc.results["dipole"]
    ase.io.write("some.xyz", images, format="extxyz")
    return GraphData(read_frames(["some.xyz"], CHARGED), model.cutoff)


def gradients(model, value):
    model.zero_grad()
    value.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [value.detach(), *grads]


def plain_loss(model, data, chosen, penalty, charge, dipole):
    """Return the terms of charges and dipoles, structure by structure."""
    penalties = {
        "mae": lambda x: x,
        "mse": lambda x: x**2,
        "huber": lambda x: torch.where(x < HUBER, x**2 / (2 * HUBER), x - HUBER / 2),
    }
    frames, charges, dipoles = data.frames, [], []
    for k in chosen.tolist():
        atoms = slice(frames.start[k], frames.start[k + 1])
        positions = torch.tensor(frames.positions[atoms])
        found = predict(
            model,
            torch.tensor(frames.numbers[atoms]),
            positions,
            neighbor_list(positions, model.cutoff),
            charge=torch.tensor(frames.charge[k : k + 1]),
            create_graph=True,
        )
        if np.isfinite(frames.charges[atoms]).all():
            errors = found.charges - torch.tensor(frames.charges[atoms])
            charges += [(frames.weight[k], penalties[penalty](error.abs())) for error in errors]
        if np.isfinite(frames.dipole[k]).all():
            moment = sum(q * x for q, x in zip(found.charges, positions, strict=True))
            error = (moment - torch.tensor(frames.dipole[k])).norm()
            dipoles.append((frames.weight[k], penalties[penalty](error)))

    def mean(terms):
        return sum(w * value for w, value in terms) / sum(w for w, _ in terms)

    return charge * mean(charges) + dipole * mean(dipoles)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("cutoff", [None, 3.5])
def test_the_loss_is_that_of_each_structure(penalty, cutoff):
    model = new_model(cutoff)
    data = data_of(model)
    weights = np.linspace(0.5, 2.0, len(data.frames))
    data = GraphData(replace(data.frames, weight=weights), model.cutoff)
    batch = data.batch(CHOSEN)
    terms = Loss(penalty, charge=2.0, dipole=3.0), Loss(penalty, charge=0.0, dipole=0.0)
    found = gradients(model, terms[0](model, batch) - terms[1](model, batch))
    expected = gradients(model, plain_loss(model, data, CHOSEN, penalty, 2.0, 3.0))
    reached = [name for name, p in model.named_parameters() if p.grad is not None]
    assert any(name.startswith("charges.1") for name in reached)
    assert_within(found[0], expected[0], 1e-9)
    assert_within(
        *(torch.cat([t.flatten() for t in grads[1:]]) for grads in (found, expected)), 1e-8
    )


def test_gradients_of_weights_are_finite_differences():
    model = new_model()
    batch = data_of(model).batch(CHOSEN)
    loss = Loss("mse", energy=1e-9, forces=0.0, stress=0.0, charge=5.0, dipole=7.0)
    gradients(model, loss(model, batch))
    step = 1e-6
    for name, weight in model.named_parameters():
        if weight.grad is None or not weight.grad.abs().max() > 0:
            continue
        place = int(weight.grad.abs().argmax())
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.view(-1)[place] += sign * step
            values.append(float(loss(model, batch).detach()))
            with torch.no_grad():
                weight.view(-1)[place] -= sign * step
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == pytest.approx(float(weight.grad.view(-1)[place]), rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("cutoff", [None, 3.5])
def test_filler_and_captures_change_nothing(penalty, cutoff, monkeypatch):
    model = new_model(cutoff)
    data, loss = data_of(model), Loss(penalty)
    plain = gradients(model, loss(model, data.batch(CHOSEN)))
    batch = data.batch(CHOSEN, data.size(len(CHOSEN)).grown())
    for is_captured in (False, True):
        if is_captured:
            for module in (prediction, tensornet, tensornet2):
                monkeypatch.setattr(module, "is_capturing", lambda _: True)
        for found, expected in zip(gradients(model, loss(model, batch)), plain, strict=True):
            assert_within(found, expected, 1e-9)
    step = TrainingStep(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert step({name: mode.from_tensor(t) for name, t in batch.items()}).shape == ()


def test_weights_act_as_repeated_structures():
    model = new_model()
    data, loss = data_of(model), Loss()
    weights = np.ones(len(data.frames))
    weights[3] = 3.0
    weighted = GraphData(replace(data.frames, weight=weights), model.cutoff)
    repeated = data.batch(torch.cat([CHOSEN, CHOSEN[:1], CHOSEN[:1]]))
    found = gradients(model, loss(model, weighted.batch(CHOSEN, data.size(5))))
    for ours, theirs in zip(found, gradients(model, loss(model, repeated)), strict=True):
        assert_within(ours, theirs, 1e-9)


def test_without_labels_of_charges_only_energies_and_forces_count():
    model = new_model()
    images = charged(4)
    for atoms in images:
        del atoms.calc.results["charges"], atoms.calc.results["dipole"]
    ase.io.write("none.xyz", images, format="extxyz")
    data = GraphData(read_frames(["none.xyz"], CHARGED), model.cutoff)
    errors = evaluate(model, data, torch.arange(4), Loss())
    assert math.isfinite(errors.loss)
    assert len(errors.known_charges) == len(errors.known_dipoles) == 0


@pytest.mark.parametrize(("most", "pads"), [(1, False), (1, True), (60, True), (10**9, True)])
def test_errors_do_not_depend_on_batches(monkeypatch, most, pads):
    model = new_model()
    data = data_of(model)
    whole = evaluate(model, data, CHOSEN, Loss(), 10**9)
    monkeypatch.setattr(evaluation, "pads", lambda _: pads)
    shapes = [batch["pos"].shape for _, batch in evaluation.batches_of(model, data, CHOSEN, most)]
    assert (len(set(shapes)) == 1) is (pads or len(shapes) == 1)
    parts = evaluate(model, data, CHOSEN, Loss(), most)
    for name in ("energy", "forces", "charges", "dipole", "loss"):
        found, expected = getattr(whole, name), getattr(parts, name)
        assert np.allclose(found, expected, equal_nan=True, rtol=1e-9)
    known = data.frames.select(CHOSEN.numpy())
    assert (np.isfinite(whole.charges) == known.has_charges[known.owner]).all()
    assert len(whole.known_dipoles) == 3


def test_labels_of_files_in_units():
    images = charged(6)
    frames = read_frames(["data.xyz"], CHARGED)
    expected = np.concatenate([atoms.calc.results["charges"] for atoms in images])
    assert np.allclose(frames.charges[: len(expected)], expected, atol=1e-7)
    assert np.allclose(frames.dipole[4], images[4].calc.results["dipole"], atol=1e-7)
    without = read_frames(["data.xyz"], Labels())
    assert not without.has_charges.any()
    assert not without.has_dipole.any()
    arrays = {
        "n_atoms": [len(atoms) for atoms in images],
        "numbers": np.concatenate([atoms.numbers for atoms in images]),
        "positions": np.concatenate([atoms.positions for atoms in images]) / BOHR,
        "forces": np.concatenate([atoms.get_forces() for atoms in images]) * BOHR,
        "energy": [atoms.get_potential_energy() for atoms in images],
        "q": expected,
        "mu": np.array([atoms.calc.results["dipole"] for atoms in images]) / DEBYE,
    }
    np.savez("data.npz", **arrays)
    keys = parse_keys(["charges=q", "dipole=mu"])
    options = {"length_unit": "Bohr", "dipole_unit": "Debye", "with_charges": True}
    found = read_frames(["data.npz"], Labels(keys, **options))
    assert np.allclose(found.charges, expected)
    assert np.allclose(found.dipole[4], images[4].calc.results["dipole"])


@pytest.mark.parametrize(
    ("factor", "unit", "reason"),
    [
        (
            1 / DEBYE,
            "e*A",
            "dipoles are 4.8 times.*as if they were in Debye: add --dipole-unit Deb",
        ),
        (1.0, "Debye", r"dipoles are 0.208 times.*as if they were in e\*A: add --dipole-unit e\*A"),
        (-1.0, "e*A", "dipoles are -1 times.*: --key dipole=-NAME takes the negative"),
    ],
)
def test_dipoles_that_contradict_partial_charges_are_refused(factor, unit, reason):
    images = charged(20)
    for atoms in images:
        atoms.calc.results["dipole"] = atoms.calc.results["dipole"] * factor
    ase.io.write("data.xyz", images)
    data = replace(DATA, labels=Labels(dipole_unit=unit))
    with pytest.raises(InputError, match=reason):
        train(data=data)


def test_partial_charges_that_make_dipoles_too_small_are_taken():
    images = charged(20)
    for atoms in images:
        atoms.calc.results["charges"] = atoms.calc.results["charges"] / 2.5
    ase.io.write("data.xyz", images)
    train()


def test_dipoles_of_periodic_structures_are_not_used():
    images = labeled(3, periodic=True)
    for atoms in images:
        results = dict(atoms.calc.results) | {"dipole": np.ones(3), "charges": np.zeros(4)}
        atoms.calc = SinglePointCalculator(atoms, **results)
    ase.io.write("cells.xyz", images, format="extxyz")
    frames = read_frames(["cells.xyz"], CHARGED)
    assert frames.has_charges.all()
    assert not frames.has_dipole.any()


def spoiled(kind):
    images = charged(5)
    results = images[2].calc.results
    if kind == "sum":
        results["charges"] = results["charges"] + 0.2
    elif kind == "some":
        results["charges"] = np.where(np.arange(len(images[2])) == 0, np.nan, results["charges"])
    elif kind == "dipole":
        results["dipole"] = np.array([np.nan, 0.0, 0.0])
    elif kind == "weight":
        images[2].info["weight"] = float("nan")
    else:
        del results["dipole"]
        images[2].info["dipole"] = "1 2"
    return images


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sum", "its charges add up to .*, and its total charge is 0: correct them, or name the"),
        ("some", "there is NaN or infinity in its charges"),
        ("dipole", "there is NaN or infinity in its dipole"),
        ("shape", r"the shape of its dipole is \[2\], expected \[3\]"),
        ("weight", "there is NaN or infinity in its weight"),
    ],
)
def test_bad_labels_are_named_or_left_out(kind, reason):
    ase.io.write("bad.xyz", spoiled(kind), format="extxyz")
    with pytest.raises(InputError, match=rf"bad\.xyz, frame 2: {reason}") as error:
        read_frames(["bad.xyz"], CHARGED)
    assert "\n" not in str(error.value)
    assert len(read_frames(["bad.xyz"], CHARGED, skip_bad=True)) == 4


def train(out="out", data=DATA, begin=SMALL, settings=SHORT, **options):
    return train_files(data, Path(out), begin, settings, device="cpu", **options)


def weights(out):
    return load_model(Path(out, "model.safetensors")).state_dict()


def test_charges_are_learned_and_are_those_of_the_saved_model():
    said = []
    result = train(settings=Settings(epochs=30, batch=4, lr=1e-2), say=said.append)
    assert "of 28 structures, 28 have partial charges and 28 have a dipole" in said
    first, best = result.trainer.log[0], result.trainer.best_row
    assert best.valid_charge_e < first.valid_charge_e / 3
    assert best.valid_dipole_e_A < first.valid_dipole_e_A / 3
    assert best.valid_loss < first.valid_loss / 3
    assert " e, " in best.text()
    test = result.errors["test"]
    engine = Engine(load_model("out/model.safetensors"), device="cpu")
    images = ase.io.read("data.xyz", ":")
    chosen = [images[int(name.split()[-1])] for name in test.frames.name]
    errors = []
    for atoms in chosen:
        found = engine.compute(atoms.numbers, atoms.positions, charge=float(atoms.info["charge"]))
        errors.append(found.charges.numpy() - atoms.calc.results["charges"])
    assert np.allclose(np.concatenate(errors), test.charges, atol=1e-5)
    report = Path("out/report.md").read_text()
    assert "charge MAE, e" in report
    assert "TensorNet2 of Cu, Ag" in report
    assert "stress" not in report.partition("## Elements")[0].partition("| part")[2]


@pytest.mark.parametrize("steps", [1, 5])
def test_an_interrupted_training_goes_on_to_the_bit(steps):
    train("whole")
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > steps

    train(stop=stop)
    assert train().errors
    for name in ("log.csv", "report.md"):
        assert Path("whole", name).read_bytes() == Path("out", name).read_bytes()
    whole, resumed = weights("whole"), weights("out")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.gpu
def test_a_gpu_trains_alike():
    expected = train("cpu").trainer.log
    result = train_files(DATA, Path("out"), SMALL, SHORT, device="cuda")
    for found, row in zip(result.trainer.log, expected, strict=True):
        for name in ("valid_loss", "valid_charge_e", "valid_dipole_e_A"):
            assert getattr(found, name) == pytest.approx(getattr(row, name), rel=1e-2)


def test_fine_tuning_begins_with_the_model():
    train("base", begin=replace(SMALL, coulomb_cutoff=6.0))
    base = Base("base/model.safetensors", "keep")
    result = train(begin=base, stop=lambda: True)
    assert all(torch.equal(t, weights("base")[name]) for name, t in weights("out").items())
    assert result.trainer.log[0].valid_charge_e > 0
    assert load_model("out/model.safetensors").config.coulomb_cutoff == 6.0
    assert train("tuned", begin=Base("base/model.safetensors")).errors["test"].known_charges.size


def test_cells_need_a_coulomb_cutoff_that_fits():
    images = [atoms.repeat(2) for atoms in labeled(6, periodic=True)]
    for atoms, single in zip(images, labeled(6, periodic=True), strict=True):
        results = {
            "energy": 8 * single.get_potential_energy(),
            "forces": np.tile(single.get_forces(), (8, 1)),
            "stress": single.get_stress(),
        }
        atoms.calc = SinglePointCalculator(atoms, **results)
    ase.io.write("cells.xyz", images, format="extxyz")
    data = Data(("cells.xyz",), valid=2)
    with pytest.raises(InputError, match=r"cells\.xyz, frame 0 is periodic, .*--coulomb-cutoff 6"):
        train(data=data)
    with pytest.raises(InputError, match=r"cells\.xyz, frame 0: the cell is 7.* Å high, less than"):
        train(data=data, begin=replace(SMALL, coulomb_cutoff=5.0))
    assert not Path("out").exists()
    result = train(
        data=data, begin=replace(SMALL, coulomb_cutoff=3.0), settings=replace(SHORT, epochs=1)
    )
    assert result.trainer.log[-1].valid_stress_GPa > 0


def test_models_with_meshes_are_not_trained():
    model = TensorNet2(TensorNet2Config((1, 6, 8, 29, 47), hidden_channels=8))
    save_model(with_coulomb(model, "pme"), "pme.safetensors")
    with pytest.raises(InputError, match="particle-mesh Ewald are not trained: give --from"):
        train(begin=Base("pme.safetensors"))
    assert not Path("out").exists()


def test_options_without_effect_are_refused():
    plain = replace(SMALL, charges=False)
    save_model(new_model().float(), "two.safetensors")
    for data, settings, option in (
        (replace(DATA, labels=Labels({"charges": "q"})), SHORT, "--key charges"),
        (replace(DATA, labels=Labels(dipole_unit="Debye")), SHORT, "--dipole-unit"),
        (DATA, replace(SHORT, loss=Loss(charge=2.0)), "--charge-weight"),
        (DATA, replace(SHORT, loss=Loss(dipole=2.0)), "--dipole-weight"),
    ):
        with pytest.raises(InputError, match=f"{option} needs a model with charges: use --charges"):
            train(data=data, begin=plain, settings=settings)
    with pytest.raises(InputError, match="--coulomb-cutoff needs --charges"):
        replace(plain, coulomb_cutoff=6.0)
    assert not Path("out").exists()


def test_a_repulsion_is_added_to_charges():
    result = train(begin=replace(SMALL, zbl=2.5))
    model = load_model("out/model.safetensors")
    assert model.config.repulsions[0].cutoff == 2.5
    test = result.errors["test"]
    images = ase.io.read("data.xyz", ":")
    chosen = [images[int(name.split()[-1])] for name in test.frames.name]
    engine = Engine(model, device="cpu")
    for atoms, error in zip(chosen, test.energy, strict=True):
        charge = float(atoms.info["charge"])
        found = engine.compute(atoms.numbers, atoms.positions, charge=charge)
        difference = float(found.energy[0]) - atoms.get_potential_energy()
        assert difference == pytest.approx(error, abs=1e-3)
