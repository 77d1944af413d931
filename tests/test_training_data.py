"""Geometries and labels that `examples/training` makes for new default models."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pytest
import torch

from mlff_triton import TensorNet, TensorNetConfig, save_model
from mlff_triton.training.labels import Labels
from mlff_triton.training.run import train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames

SMALL = (
    "water",
    "ammonia",
    "methanol",
    "ethanol",
    "glycine",
    "chloride",
    "ammonium",
    "ethylene",
    "methanethiol",
)


class StandIn(torch.nn.Module):
    """Springs between all atoms, in the form of a teacher; its networks disagree about chlorine."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x, z = inputs["coord"], inputs["numbers"]
        real = (z > 0)[:, :, None]
        centered = torch.where(real, x - x.sum(1, keepdim=True) / real.sum(1, keepdim=True), 0.0)
        energy = 0.05 * (centered**2).sum(-1).sum(-1) - 3.0 * z.sum(1)
        spread = torch.zeros_like(x) + 200.0 * (z == 17).any(1)[:, None, None]
        return {
            "energy": energy.double(),
            "forces": -0.1 * centered,
            "charges": torch.zeros_like(x[:, :, 0]) + (inputs["charge"][:, None] / real.sum(1)),
            "energy_std": 0.001 * torch.ones_like(energy).double(),
            "forces_std": spread,
        }


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "stand_in.jpt"
    torch.jit.script(StandIn()).save(str(path))
    return path


@pytest.fixture
def small(training_modules):
    """Return conformers of a few molecules."""
    pytest.importorskip("rdkit", reason="needs RDKit: pip install mlff-triton[train]")
    tables = training_modules("compounds")
    smiles = {name: text for table in tables.NAMED.values() for name, text in table.items()}
    molecules = [tables.parsed(smiles[name], "fragment", name) for name in SMALL]
    build = training_modules("conformers").built
    return [structure for molecule in molecules for structure in build(molecule)]


def test_conformers_are_read_as_they_were_written(small, tmp_path, training_modules):
    conformers = training_modules("conformers")
    conformers.save_structures(tmp_path / "conformers.npz", small)
    again = conformers.load_structures(tmp_path / "conformers.npz")
    assert [s.name for s in again] == [s.name for s in small]
    for found, expected in zip(again, small, strict=True):
        assert (found.bonds, found.torsions) == (expected.bonds, expected.torsions)
        assert (found.charge, found.split) == (expected.charge, expected.split)
        np.testing.assert_array_equal(found.numbers, expected.numbers)
        np.testing.assert_allclose(found.positions, expected.positions, atol=1e-5)


def test_atoms_are_close_only_where_wanted(small, training_modules):
    recipes, wall = training_modules("recipes"), training_modules("wall")
    partners = recipes.Partners.among(small)
    made = [each for start in small for each in recipes.samples(start, partners)]
    assert {each.recipe for each in made} == set(recipes.RECIPES)
    for each in made:
        z, x = each.structure.numbers, each.structure.positions
        gaps = np.linalg.norm(x[:, None] - x, axis=-1) + 10 * np.eye(len(z))
        inside = np.argwhere(np.triu(gaps < wall.wall_radius(z[:, None], z)))
        assert inside.tolist() == ([sorted(each.pair)] if each.pair else [])
        assert len(z) <= recipes.MAX_ATOMS
    again = [each for start in small for each in recipes.samples(start, partners)]
    for one, other in zip(made, again, strict=True):
        np.testing.assert_array_equal(one.structure.positions, other.structure.positions)


def test_dimers_of_s22_are_left_out(small, training_modules):
    recipes = training_modules("recipes")
    water = [s for s in small if s.name == "water"]
    partners = recipes.Partners.among(water)
    made = [each for _ in range(9) for each in recipes.samples(water[0], partners)]
    sizes = {len(each.structure.numbers) for each in made}
    assert 3 in sizes
    assert 6 not in sizes
    assert max(sizes) > 8


def test_hydrogen_bonds_join_molecules(small, training_modules):
    bonds, recipes = training_modules("hydrogen_bonds"), training_modules("recipes")
    rng, found = np.random.default_rng(0), 0
    for host in small:
        for guest in small:
            made = bonds.hydrogen_bonded(host, guest, rng)
            if made is None:
                continue
            found += 1
            both, bond = made
            assert both.charge == host.charge + guest.charge
            donor, hydrogen, acceptor = bond
            assert both.numbers[hydrogen] == 1
            assert {donor, hydrogen} in map(set, both.bonds)
            assert (donor < len(host.numbers)) != (acceptor < len(host.numbers))
            to_donor, to_acceptor = both.positions[[donor, acceptor]] - both.positions[hydrogen]
            length = np.linalg.norm(to_acceptor)
            assert bonds.SHORTEST - 1e-9 < length < bonds.LONGEST
            cosine = to_donor @ to_acceptor / length / np.linalg.norm(to_donor)
            assert cosine == pytest.approx(-1)
            assert recipes.outside_wall(both) is not None
    assert found > 20
    ammonium, ethylene = (next(s for s in small if s.name == n) for n in ("ammonium", "ethylene"))
    assert not len(bonds.acceptors(ammonium))
    assert len(bonds.donors(ammonium)) == 4
    assert bonds.hydrogen_bonded(ethylene, ethylene, rng) is None


def test_pairs_prefer_several_hydrogen_bonds(training_modules):
    tables = pytest.importorskip("rdkit") and training_modules("compounds")
    acid = training_modules("conformers").built(tables.parsed("CC(=O)O", "fragment", "acid"))[0]
    bonds, rng = training_modules("hydrogen_bonds"), np.random.default_rng(0)
    n, counts = len(acid.numbers), []
    for _ in range(30):
        both, _bond = bonds.hydrogen_bonded(acid, acid, rng)
        halves = both.positions[:n], both.positions[n:]
        hydrogen = bonds.donors(acid)[0][1]
        counts.append(
            sum(
                np.linalg.norm(one[hydrogen] - other[bonds.acceptors(acid)], axis=1).min() < 2.8
                for one, other in (halves, halves[::-1])
            )
        )
    assert counts.count(2) > 8


def test_protons_are_between_donor_and_acceptor(small, training_modules):
    bonds, recipes = training_modules("hydrogen_bonds"), training_modules("recipes")
    rng = np.random.default_rng(0)
    water, ammonia = (next(s for s in small if s.name == name) for name in ("water", "ammonia"))
    shares = []
    for _ in range(30):
        both, bond = bonds.hydrogen_bonded(water, ammonia, rng)
        movable = np.flatnonzero((np.arange(7) < 3) == (bond.acceptor < 3))
        moved = bonds.with_shared_proton(both, bond, movable, rng)
        x = moved.positions
        gaps = [np.linalg.norm(x[bond.hydrogen] - x[end]) for end in bond[::2]]
        assert min(gaps) > 0.95 - 1e-9
        assert bonds.CLOSE - 1e-9 < sum(gaps) < bonds.WIDE
        shares.append(gaps[0] / sum(gaps))
    assert min(shares) < 0.45
    assert max(shares) > 0.55
    glycine = [s for s in small if s.name == "glycine"]
    partners = recipes.Partners.among(small)
    made = [recipes.transferred(s, partners, rng) for s in 4 * glycine]
    assert any(each is not None for each in made)


def test_teachers_move_samples_down(stand_in, small, training_modules):
    label, teacher = training_modules("label_data"), training_modules("teacher")
    recipes, model = training_modules("recipes"), teacher.load_teacher(stand_in, "cpu")
    start = next(s for s in small if s.name == "ethanol")
    none = np.zeros(len(start.numbers), dtype=bool)
    batch = [recipes.Sample("", start, (), none, steps) for steps in (0, 3, 20, 3)]
    moved = label.moved_down(model, batch, "cpu")
    x = np.array([each.structure.positions for each in moved])
    np.testing.assert_allclose(x[0], start.positions - start.positions.mean(0), atol=1e-6)
    np.testing.assert_array_equal(x[1], x[3])
    alone = label.moved_down(model, batch[2:3], "cpu")[0]
    np.testing.assert_allclose(x[2], alone.structure.positions, atol=1e-6)
    energies = label.label_batch(model, moved, "cpu").energy
    assert energies[0] > energies[1] > energies[2]
    assert np.linalg.norm(x[1] - x[0], axis=1).max() < 3 * teacher.LONGEST_MOVE


def test_molecules_are_moved_apart(small, training_modules):
    separation, geometry = training_modules("separation"), training_modules("geometry")
    water = next(s for s in small if s.name == "water")
    rng = np.random.default_rng(0)
    three = geometry.attach(rng, geometry.attach(rng, water, water, 1.0), water, 1.0)
    far = separation.separated(three).positions
    for k in range(3):
        own = slice(3 * k, 3 * k + 3)
        shift = far[own] - three.positions[own]
        np.testing.assert_allclose(shift, [[separation.FAR * k, 0, 0]] * 3, atol=1e-12)
    assert separation.separated(water) is None
    assert separation.separated(replace(three, charge=1)) is None
    crowd = three
    for _ in range(2):
        crowd = geometry.attach(rng, crowd, water, 1.0)
    assert separation.separated(crowd) is None


def test_vibrations_are_thermal(small, training_modules):
    recipes = training_modules("recipes")
    water, rng = next(s for s in small if s.name == "water"), np.random.default_rng(0)
    lengths = []
    for _ in range(2000):
        x = recipes.shaken(water, rng, recipes.COLD).positions
        lengths.append(np.linalg.norm(x[1] - x[0]))
    assert 0.02 < np.std(lengths) < 0.045


def test_forces_inside_the_wall_are_gradients(stand_in, training_modules):
    teacher, wall = training_modules("teacher"), training_modules("wall")
    model = teacher.load_teacher(stand_in, "cpu")
    z = torch.tensor([[6, 1, 8, 1]])
    x = torch.tensor([[[0.0, 0, 0], [0, 1.1, 0.2], [0.5, 0.1, 0], [0.9, 0.9, 0.3]]]).double()
    pair, side = torch.tensor([[0, 2]]), torch.tensor([[False, False, True, True]])
    radius = torch.tensor(wall.wall_radius(np.array([6]), np.array([8])))
    others = (z, torch.zeros(1), pair, side, radius)

    def label(positions):
        return teacher.label_inside(model, others[0], positions, *others[1:])

    forces = label(x).forces.double()
    for atom, axis in ((0, 0), (1, 2), (2, 0), (2, 1), (3, 0)):
        step = torch.zeros_like(x)
        step[0, atom, axis] = 1e-3
        slope = (label(x + step).energy - label(x - step).energy) / 2e-3
        assert -slope.item() == pytest.approx(forces[0, atom, axis].item(), rel=2e-3, abs=2e-3)
    assert forces[0, 0, 0] < -10  # the pair is pushed apart
    at_wall = x.clone()
    at_wall[0, 2:] += (radius.item() / 0.5099 - 1) * (x[0, 2] - x[0, 0])
    found = model(z, at_wall.float(), torch.zeros(1)).energy
    assert label(x).energy > found + 10


def labeling(training_modules, folder, stand_in, small, **options):
    """Return the module that labels, and its arguments for a few molecules."""
    training_modules("conformers").save_structures(folder / "conformers.npz", small)
    arguments = {
        "teacher": stand_in, "conformers": folder / "conformers.npz", "out": folder / "data",
        "device": "cpu", "workers": 1, "minutes": 5.0, "limit": None,
        "share": (0, 1),
    }  # fmt: skip
    (folder / "data").mkdir(exist_ok=True)
    return training_modules("label_data"), argparse.Namespace(**(arguments | options))


def test_labels_are_read_and_trained_on(stand_in, small, tmp_path, training_modules):
    h5py = pytest.importorskip("h5py")
    module, arguments = labeling(training_modules, tmp_path, stand_in, small)
    splits = ("train", "train", "valid", "test")
    small = [replace(s, split=splits[k % 4]) for k, s in enumerate(small)]
    small = [s for s in small if len(s.numbers) < 7]
    module.load_structures = lambda _: small
    module.MAX_INTERACTION = np.inf  # springs bind also molecules that are far
    training_modules("separation").FAR = 14.0  # Å, for which their energy is not yet absurd
    module.run(arguments)
    files = sorted((tmp_path / "data").glob("*.h5"))
    assert [path.stem for path in files] == ["charged-0000", "neutral-0000", "neutral-pairs"]
    charged, neutral = (read_frames([path], Labels()) for path in files[:2])
    assert set(neutral.charge) == {0.0}
    assert 1.0 in charged.charge
    assert 17 not in charged.numbers  # the networks disagree
    assert set(neutral.split) == set(splits)
    assert any(group.endswith("compressed") for group in neutral.group)
    names, counts = np.unique(neutral.series[neutral.series != ""].astype(str), return_counts=True)
    assert len(names) > 5
    assert set(counts) == {2}
    for name in names:
        near, far = (neutral.select(k) for k in np.flatnonzero(neutral.series == name)[:, None])
        assert far.group[0].endswith("separated")
        np.testing.assert_array_equal(near.numbers, far.numbers)
        assert np.linalg.norm(far.positions, axis=1).max() > 4
        assert far.energy > near.energy
    assert not charged.series.any()
    with h5py.File(files[2]) as file:
        pairs, ends, forces = (file[name][:] for name in ("numbers", "positions", "forces"))
    assert 17 in pairs  # whatever the networks think
    elements = len(set(np.concatenate([s.numbers for s in small])))
    assert len(set(map(tuple, pairs.reshape(-1, 2)))) == elements * (elements + 1) // 2
    along = np.diff(ends.reshape(-1, 2, 3), axis=1)[:, 0]
    assert ((forces.reshape(-1, 2, 3)[:, 1] * along).sum(1) > 0).all(), "they repel"
    train_files(
        Data((str(files[1]),), split="given", skip_bad=True),
        tmp_path / "run",
        Architecture(channels=4, layers=1, rbf=4, zbl=1.5),
        Settings(epochs=1),
        device="cpu",
    )
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.parametrize("change", [{"ROOM": 1}, {"CHUNK": 2, "PAIRS": 500}])
def test_batches_do_not_change_labels(change, stand_in, small, tmp_path, training_modules):
    found = []
    for values in ({"CHUNK": 99}, change):
        module, arguments = labeling(training_modules, tmp_path, stand_in, small)
        arguments.out = tmp_path / "-".join(values)
        arguments.out.mkdir()
        for name, value in values.items():
            setattr(module, name, value)
        module.run(arguments)
        paths = sorted(arguments.out.glob("*-0*.h5"))
        found.append(read_frames([str(path) for path in paths], Labels(with_charges=True)))
    one, other = found
    assert len(one) == len(other) > 150
    assert not one.series.any()  # springs bind too much
    keys = [np.lexsort((frames.energy, frames.n_atoms, frames.group)) for frames in found]
    for name in ("energy", "charge", "weight", "n_atoms", "split"):
        values = (getattr(frames, name)[key] for frames, key in zip(found, keys, strict=True))
        compare(*values, name)
    sizes = [np.sort(np.linalg.norm(frames.forces, axis=1)) for frames in found]
    compare(*sizes, "forces")
    compare(np.sort(one.charges), np.sort(other.charges), "charges")


def compare(found, expected, name):
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_interrupted_labeling_resumes(stand_in, small, tmp_path, training_modules, capsys):
    module, arguments = labeling(training_modules, tmp_path, stand_in, small)
    module.PART = 4
    save, saved = module.save, []

    def interrupted(path, arrays, source):
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(path)
        save(path, arrays, source)

    module.save = interrupted
    with pytest.raises(KeyboardInterrupt):
        module.run(arguments)
    times = {path: path.stat().st_mtime_ns for path in saved}
    assert sorted((tmp_path / "data").iterdir()) == sorted(saved)
    module.save = save
    module.run(arguments)
    total = len(module.plan(small))
    assert f"{total - 2} of {total} parts to do" in capsys.readouterr().out
    assert len(list((tmp_path / "data").iterdir())) == total == 4
    assert {path: path.stat().st_mtime_ns for path in saved} == times
    stand_in.write_bytes(stand_in.read_bytes() + b"\0")
    with pytest.raises(SystemExit, match="choose another --out"):
        module.run(arguments)


def test_processes_share_the_parts(stand_in, small, tmp_path, training_modules):
    found = []
    for share in ((0, 2), (1, 2)):
        module, arguments = labeling(training_modules, tmp_path, stand_in, small, share=share)
        module.PART = 4
        module.run(arguments)
        found.append(len(list((tmp_path / "data").iterdir())))
    assert found == [2, 4]
    assert module.share("1/4") == (1, 4)
    for text in ("4/4", "-1/4", "1/0"):
        with pytest.raises(argparse.ArgumentTypeError, match="the first of four processes"):
            module.share(text)


def test_places_that_a_model_visits_are_labeled(stand_in, small, tmp_path, training_modules):
    explore = training_modules("explore")
    training_modules("conformers").save_structures(tmp_path / "conformers.npz", small)
    elements = (1, 6, 7, 8, 16)
    sizes = {"hidden_channels": 4, "num_layers": 1, "num_rbf": 4}
    config = TensorNetConfig(elements=elements, uses_charge=False, **sizes)
    torch.manual_seed(0)
    save_model(TensorNet(config), tmp_path / "model.safetensors")
    out = tmp_path / "visited-0000.h5"
    arguments = [
        *("--model", str(tmp_path / "model.safetensors"), "--teacher", str(stand_in)),
        *("--conformers", str(tmp_path / "conformers.npz"), "--out", str(out)),
        *("--device", "cpu", "--count", "12", "--share", "1"),
    ]
    explore.MOST_DOWN, explore.MOST_STEPS = 4, 6
    explore.sys.argv = ["explore.py", *arguments]
    explore.main()
    found = read_frames([str(out)], Labels())
    neutral = [each for each in small if not each.charge]
    assert 0 < len(found) <= len(neutral)
    assert set(found.numbers) <= set(elements)
    assert all(group.endswith(" visited") for group in found.group)
    with pytest.raises(SystemExit):
        explore.main()  # the file exists


def test_dynamics_of_samples_are_thermal(training_modules):
    """In a harmonic well, positions have the variance of their temperature."""
    explore, teacher = training_modules("explore"), training_modules("teacher")
    stiffness, kelvin = 1.0, 500.0

    def well(_, x, __):
        energy = 0.5 * stiffness * x.square().sum((1, 2))
        return teacher.Labels(energy, -stiffness * x, x[:, :, 0], energy, energy)

    z = torch.ones(40, 30, dtype=torch.int64)
    z[:, -1] = 0  # filler
    x = torch.zeros(40, 30, 3, dtype=torch.float64)
    steps = torch.full((40,), 2500)
    steps[0] = 3
    found = explore.wandered(well, z, x, torch.zeros(40), steps, torch.full((40,), kelvin), 0)
    assert (found[:, -1] == 0).all()
    assert 0 < found[0].abs().max() <= 3 * teacher.LONGEST_MOVE
    variance = float(found[1:, :-1].square().mean())
    assert variance == pytest.approx(explore.units.kB * kelvin / stiffness, rel=0.1)
    cold = explore.wandered(well, z, x, torch.zeros(40), steps[:1].expand(40), torch.zeros(40), 0)
    assert cold.abs().max() == 0


def test_the_least_certain_places_come_first(small, training_modules):
    explore, teacher = training_modules("explore"), training_modules("teacher")
    recipes = training_modules("recipes")
    water = next(s for s in small if s.name == "water")
    doubts = torch.tensor([0.1, 0.4, 0.2])

    def still(z, x, charge):
        nothing = torch.zeros(len(z))
        return teacher.Labels(nothing, 0 * x, x[:, :, 0], nothing, doubts[charge.long()])

    batch = [
        recipes.Sample("", replace(water, charge=k), (), np.zeros(3, dtype=bool)) for k in range(3)
    ]
    explore.MOST_STEPS = 1
    found = explore.visited(still, batch, "cpu", 0)
    assert [each.structure.charge for each in found] == [1, 2, 0]
    assert {each.recipe for each in found} == {"visited"}
    assert len(list(explore.batches(batch))) == 1


def test_small_molecules_come_in_turns(small, training_modules):
    density = training_modules("label_dft")
    names = [name for name, _ in density.chosen(small, ["H", "O", "N", "C"], 2)]
    assert len(set(names)) == len(names)
    molecules = ["water", "ammonia", "methanol", "ammonium", "ethylene"]
    assert names[: len(molecules)] == [f"{name}-0-0" for name in molecules]
    assert not any(name.startswith(("ethanol", "chloride")) for name in names)


def test_labels_of_density_functionals_can_be_trained_on(small, tmp_path, training_modules):
    density = training_modules("label_dft")
    known = {}
    for name, sample in density.chosen(small, ["H", "O", "N", "C"], 1):
        n = len(sample.structure.numbers)
        largest = 100.0 if name == "water-0-0" else 1.0
        known[name] = (
            sample,
            -2081.0 * n,
            [[largest, 0, 0], [-largest, 0, 0], *[[0, 0, 0]] * (n - 2)],
        )
    density.write(known, argparse.Namespace(out=tmp_path / "small.h5", weight=10.0))
    frames = read_frames([str(tmp_path / "neutral-small.h5")], Labels())
    neutral = [sample for sample, *_ in known.values() if not sample.structure.charge]
    assert len(frames) == len(neutral) - 1
    charged = read_frames([str(tmp_path / "charged-small.h5")], Labels())
    assert set(charged.charge) == {1.0}


def test_a_functional_labels_water(small, training_modules):
    pytest.importorskip("pyscf", reason="needs PySCF: pip install pyscf pyscf-dispersion")
    density = training_modules("label_dft")
    item = next(iter(density.chosen(small, ["H", "O"], 1)))
    _, energy, forces = density.labeled(item)
    assert energy == pytest.approx(-2081.03, abs=0.1)
    np.testing.assert_allclose(np.sum(forces, axis=0), 0, atol=0.01)
    (hydrogen,) = density.lone_atoms(["H"])
    _, energy, forces = density.labeled(hydrogen)
    assert energy == pytest.approx(-13.6, abs=0.1)
    np.testing.assert_allclose(forces, 0, atol=1e-6)


def test_lone_atoms_are_written_with_the_molecules(small, tmp_path, training_modules):
    density = training_modules("label_dft")
    atoms = dict(density.lone_atoms(["H", "C", "Br"]))
    assert [each.structure.numbers.tolist() for each in atoms.values()] == [[1], [6], [35]]
    _, water = next(iter(density.chosen(small, ["H", "O"], 1)))
    known = {name: (each, -13.5, [[0.0] * 3]) for name, each in atoms.items()}
    known["water"] = water, -2081.0, [[0.0] * 3] * 3
    density.write(known, argparse.Namespace(out=tmp_path / "small.h5", weight=10.0))
    frames = read_frames([str(tmp_path / "neutral-small.h5")], Labels())
    assert sorted(frames.n_atoms) == [1, 1, 1, 3]
    assert set(frames.split) == {"train"}
