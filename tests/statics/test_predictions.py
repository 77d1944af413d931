"""`predict_files`: results of many structures, errors of some, and continuation."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton import TensorNetCalculator, predict_files, save_model
from mlff_triton._common.remedies import install
from mlff_triton.errors import CheckpointError, InputError, OutputError
from mlff_triton.jobs.tables import unpack
from mlff_triton.jobs.workers import OwnProcess
from mlff_triton.statics import inputs
from mlff_triton.testing import random_crystal, water_box
from tests.support.charged import charged_model
from tests.support.checkpoints import save_tiny_model

ROOT = Path(__file__).parents[2]
SHIPPED = {"model": "default"}
NAMES = ("CH3CH2OH", "H2O", "CH4", "NH3", "C6H6")
BAD = {2: "does not know", 4: "NaN", 5: "apart", 7: "contains no atoms", 8: "charge"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "STRUCTURES", 4)


@pytest.fixture
def images(rng):
    """Molecules of several sizes, and a crystal."""
    found = [molecule(NAMES[k % 5]) for k in range(11)]
    for k, atoms in enumerate(found):
        atoms.positions += rng.normal(0, 0.02, atoms.positions.shape)
        atoms.info.update(name=f"molecule {k}", weight=0.5 * k)
    found[3] = random_crystal(6, seed=0)
    found[3].numbers[:] = (1, 6, 7, 8, 1, 6)
    return found


@pytest.fixture
def predict(model):
    def function(structures, out, **options):
        given = {"model": model, "device": "cpu", "dtype": "float64"} | options
        return predict_files(structures, out, **given)

    return function


def write(name, images):
    ase.io.write(name, images, format="extxyz")
    return ase.io.read(name, ":")  # positions have eight decimals in the file


def results_of(images, model):
    return TensorNetCalculator(model, device="cpu", dtype="float64").calculate_many(images)


def assert_results(found, images, model):
    for atoms, image, expected in zip(found, images, results_of(images, model), strict=True):
        assert np.array_equal(atoms.numbers, image.numbers)
        assert atoms.get_potential_energy() == pytest.approx(expected["energy"], abs=1e-10)
        np.testing.assert_allclose(atoms.get_forces(), expected["forces"], atol=6e-9)
        assert ("stress" in atoms.calc.results) == ("stress" in expected)
        if "stress" in expected:
            np.testing.assert_allclose(atoms.get_stress(), expected["stress"], atol=1e-10)


def test_extended_xyz(predict, images, model):
    read = write("in.xyz", images)
    progress = predict("in.xyz", "out.xyz")
    assert (progress.items, progress.errors) == (11, 0)
    found = ase.io.read("out.xyz", ":")
    assert_results(found, read, model)
    assert [atoms.info.get("name") for atoms in found] == [a.info.get("name") for a in read]


@pytest.mark.parametrize("suffix", ["parquet", "h5"])
def test_tables(predict, images, model, suffix):
    read = write("in.xyz", images)
    predict("in.xyz", f"out.{suffix}")
    table = (read_parquet if suffix == "parquet" else read_hdf5)(f"out.{suffix}")
    assert table["source"] == ["in.xyz"] * 11
    assert table["frame"] == list(range(11))
    assert table["error"] == [""] * 11
    assert json.loads(table["info"][1]) == {"name": "molecule 1", "weight": 0.5}
    for k, expected in enumerate(results_of(read, model)):
        assert np.array_equal(table["numbers"][k], read[k].numbers)
        assert np.array_equal(table["positions"][k], read[k].positions)
        assert np.array_equal(table["cell"][k], read[k].cell.array)
        assert np.array_equal(table["pbc"][k], read[k].pbc)
        assert table["energy"][k] == pytest.approx(expected["energy"], abs=1e-10)
        np.testing.assert_allclose(table["forces"][k], expected["forces"], atol=1e-10)
        stress = expected.get("stress", np.full(6, np.nan))
        np.testing.assert_allclose(table["stress"][k], stress, atol=1e-10)


def read_parquet(name):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an optional extra")
    return parquet.read_table(name).to_pydict()


def read_hdf5(name):
    h5py = pytest.importorskip("h5py", reason="h5py is an optional extra")
    with h5py.File(name) as file:
        table = {
            key: data.asstr()[:] if data.dtype.kind == "O" else data[:]
            for key, data in file.items()
        }
        assert file.attrs["items"] == "n_atoms"
    ends = np.cumsum(table["n_atoms"])[:-1]
    ragged = {key: np.split(table[key], ends) for key in ("numbers", "positions", "forces")}
    return {key: list(value) for key, value in (table | ragged).items()}


def test_bits_do_not_depend_on_workers_or_interruptions(predict, images):
    write("in.xyz", images)
    predict("in.xyz", "whole.xyz", dtype="float32")
    predict("in.xyz", "two.xyz", dtype="float32", device="cpu,cpu")
    assert not predict("in.xyz", "stopped.xyz", dtype="float32", stop=lambda: True).is_complete
    assert predict("in.xyz", "stopped.xyz", dtype="float32").resumed == 4
    whole = Path("whole.xyz").read_bytes()
    assert Path("two.xyz").read_bytes() == whole
    assert Path("stopped.xyz").read_bytes() == whole


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [None, 2])
def test_gpus(predict, images, workers):
    """The shipped model, which runs through kernels."""
    write("in.xyz", images[:3] + images[4:])
    predict("in.xyz", "cpu.h5", **SHIPPED)
    predict("in.xyz", "gpu.h5", **SHIPPED | {"device": "auto", "workers": workers})
    expected, found = read_hdf5("cpu.h5"), read_hdf5("gpu.h5")
    np.testing.assert_allclose(found["energy"], expected["energy"], rtol=1e-9)
    for a, b in zip(found["forces"], expected["forces"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_bad_structures_have_errors(predict, images, model):
    images[2].numbers[0] = 92
    images[4].positions[1] = np.nan
    images[5].positions[1] = images[5].positions[0] + 1e-3
    images[7] = Atoms()
    images[8].info["charge"] = 0.5
    read = write("in.xyz", images)
    progress = predict("in.xyz", "out.xyz")
    assert (progress.items, progress.errors) == (11, len(BAD))
    assert progress.first_error.startswith("in.xyz, frame 2: ")
    found = ase.io.read("out.xyz", ":")
    good = [k for k in range(11) if k not in BAD]
    assert_results([found[k] for k in good], [read[k] for k in good], model)
    for k, reason in BAD.items():
        assert reason in found[k].info["error"]
        assert found[k].calc is None
        assert np.array_equal(found[k].positions, read[k].positions, equal_nan=True)


@pytest.mark.parametrize("suffix", ["xyz", "h5"])
def test_hostile_info_and_numbers_spoil_nothing(predict, images, suffix):
    """None of them is lost, ends the job or breaks the text of another structure."""
    hostile = {"a\nb": 1, "Properties": "species:S:1", "energy": 1.0, "error": "of an earlier run"}
    usual = {"note": "two\nlines", "kept": "text", "id": "007=", "empty": ""}
    images[0].info = hostile | usual
    images[1].numbers[0], images[2].numbers[0] = 200, -3
    ase.io.write("in.traj", images)
    progress = predict("in.traj", f"out.{suffix}")
    assert (progress.items, progress.errors) == (11, 2)
    if suffix == "h5":
        assert json.loads(read_hdf5("out.h5")["info"][0]) == hostile | usual
    else:
        found = ase.io.read("out.xyz", ":")
        assert [len(atoms) for atoms in found] == [len(atoms) for atoms in images]
        assert [found[k].symbols[0] for k in (1, 2)] == ["X", "X"]
        assert found[0].info == usual | {"other": hostile}
        assert "energy" in found[0].calc.results


def test_the_output_may_lie_in_the_folder_of_the_structures(predict, images):
    Path("folder").mkdir()
    for k in range(9):
        ase.io.write(f"folder/{k}.xyz", images[k])
    out = Path("folder/out.xyz")
    assert not predict("folder", out, stop=lambda: True).is_complete
    progress = predict("folder", out)
    assert (progress.items, progress.errors, progress.resumed) == (9, 0, 4)
    with pytest.raises(InputError, match="is among the structures"):
        predict("folder", out, overwrite=True)


def test_other_charges_in_a_trajectory_are_other_input(predict, images, monkeypatch):
    monkeypatch.setattr(inputs, "LARGE", 1)
    monkeypatch.setattr(inputs, "FRAMES", 4)
    ase.io.write("in.traj", images)
    predict("in.traj", "out.xyz", stop=lambda: True)
    images[0].info["charge"] = 1
    ase.io.write("in.traj", images)
    with pytest.raises(OutputError, match="was begun with other input"):
        predict("in.traj", "out.xyz")


def test_errors_in_tables(predict, images):
    images[2].numbers[0] = 92
    images[7] = Atoms()
    write("in.xyz", images)
    predict("in.xyz", "out.h5")
    table = read_hdf5("out.h5")
    assert "does not know" in table["error"][2]
    assert np.isnan(table["energy"][2])
    assert np.isnan(table["forces"][2]).all()
    assert table["n_atoms"][7] == 0
    assert len(table["energy"]) == 11


def test_a_frame_that_cannot_be_read_has_an_error(predict, images):
    write("in.xyz", images)
    text = Path("in.xyz").read_text().splitlines(keepends=True)
    text[3] = "C nonsense\n"  # an atom of the first frame
    text[13] = f"Qq{text[13][2:]}"  # of the second one
    Path("in.xyz").write_text("".join(text))
    assert predict("in.xyz", "out.xyz").errors == 2
    found = ase.io.read("out.xyz", ":")
    assert len(found) == 11
    assert "the frame cannot be read: " in found[0].info["error"]
    assert "there is no element 'Qq'" in found[1].info["error"]


def test_a_file_that_vanishes_costs_its_structures_alone(predict, images, monkeypatch):
    names = [f"{k}.{'xyz' if k % 2 else 'json'}" for k in range(11)]
    for name, image in zip(names, images, strict=True):
        ase.io.write(name, image)

    def found(given):
        for name in names[4:6]:
            Path(name).unlink(missing_ok=True)
        return given

    monkeypatch.setattr("mlff_triton.statics.predictions.find_files", found)
    progress = predict(names, "out.xyz")
    assert (progress.items, progress.errors) == (11, 2)
    found = ase.io.read("out.xyz", ":")
    for k, atoms in enumerate(found):
        is_there = k not in (4, 5)
        assert (len(atoms), "error" in atoms.info) == (len(images[k]) * is_there, not is_there)
    assert "cannot be read: No such file" in found[4].info["error"]


DAMAGED = {  # files of a folder, by their content, and the number of structures before the damage
    "empty": [(f"empty{suffix}", b"") for suffix in (".xyz", ".extxyz", ".pdb", ".traj", ".cif")],
    "blank": [(f"blank{suffix}", b" \n\n\t\n") for suffix in (".xyz", ".sdf", ".gen", ".vasp")],
    "garbage": [("garbage.xyz", bytes(range(256))), ("garbage.json", bytes(range(256)))],
    "archive": [("empty.xyz.gz", b""), ("not.xyz.gz", b"1\n\nH 0 0 0\n")],
}


@pytest.fixture
def folder(images, monkeypatch):
    """A folder with two good files, between which tests put others."""
    monkeypatch.setattr(inputs, "STRUCTURES", 2)
    Path("folder").mkdir()
    for name in ("a.xyz", "z.xyz"):
        ase.io.write(f"folder/{name}", images[0], format="extxyz")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_cannot_be_read_costs_itself_alone(predict, kind):
    for name, content in DAMAGED[kind]:
        (Path("folder") / name).write_bytes(content)
    assert_only_a_and_z(predict, [name for name, _ in DAMAGED[kind]])


def assert_only_a_and_z(predict, bad):
    """All other files of the folder have a row that names them, and a continued job has them."""
    assert not predict("folder", "out.h5", stop=lambda: True).is_complete
    progress = predict("folder", "out.h5")
    assert (progress.items, progress.errors) == (2 + len(bad), len(bad))
    table = read_hdf5("out.h5")
    rows = dict(zip(table["source"], table["error"], strict=True))
    assert [name for name, error in rows.items() if not error] == ["folder/a.xyz", "folder/z.xyz"]
    assert {Path(name).name for name, error in rows.items() if error} == set(bad)
    assert not any("\n" in error for error in rows.values())


@pytest.mark.usefixtures("folder")
def test_what_is_no_file_costs_itself_alone(predict):
    """A pipe is not opened, as that would wait for its writer."""
    Path("folder/d.xyz").mkdir()
    Path("folder/POSCARs").mkdir()
    Path("folder/l.xyz").symlink_to("absent.xyz")
    os.mkfifo("folder/p.xyz")
    os.mkfifo("folder/q.traj")
    Path("folder/r.xyz").symlink_to("r.xyz")
    assert_only_a_and_z(predict, ["d.xyz", "l.xyz", "p.xyz", "q.traj", "r.xyz"])


@pytest.mark.usefixtures("folder")
def test_a_file_that_must_not_be_read_costs_itself_alone(predict, images, monkeypatch):
    for name in ("b.xyz", "c.json"):
        ase.io.write(f"folder/{name}", images[0])
    opened = Path.open

    def refusing(self, *arguments, **options):
        if self.name in ("b.xyz", "c.json"):
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    assert_only_a_and_z(predict, ["b.xyz", "c.json"])


def test_a_file_that_is_damaged_behind_some_frames_costs_the_rest(predict, images):
    write("a.xyz", images)
    text = Path("a.xyz").read_bytes()
    Path("a.xyz").write_bytes(text + b"3\n\nH 0 0 0\n")
    Path("b.xyz.gz").write_bytes(gzip.compress(text)[:-9])
    write("c.xyz", images[:2])
    progress = predict(["a.xyz", "b.xyz.gz", "c.xyz"], "out.xyz")
    assert (progress.items, progress.errors) == (11 + 1 + 11 + 1 + 2, 2)
    found = ase.io.read("out.xyz", ":")
    assert "frame 11 lacks 2 of its 3 atoms" in found[11].info["error"]
    assert "b.xyz.gz cannot be read" in found[23].info["error"]
    assert all("error" not in atoms.info for k, atoms in enumerate(found) if k not in (11, 23))


@pytest.mark.parametrize("name", ["in.xyz", "in.pdb", "in.traj"])
def test_an_empty_file_alone_is_an_error(predict, name):
    Path(name).touch()
    with pytest.raises(InputError, match=rf"{name} contains no structures"):
        predict(name, "out.xyz")
    assert [path.name for path in Path().iterdir()] == [name]


@pytest.mark.parametrize("suffix", ["xyz", "h5"])
def test_a_structure_at_which_workers_die_has_an_error(predict, images, suffix, monkeypatch):
    """The frames beside it, and those of other files, have results."""
    write("in.xyz", images)
    ase.io.write("in.traj", images[0])
    monkeypatch.setattr(inputs, "STRUCTURES", 100)
    submit = OwnProcess.submit

    def dies(self, pieces):
        texts = [piece for piece in pieces if isinstance(piece, inputs.Text)]
        if any(6 in range(text.first, text.first + len(text.frames)) for text in texts):
            future = Future()
            future.set_exception(BrokenExecutor("killed"))
            return future
        return submit(self, pieces)

    monkeypatch.setattr(OwnProcess, "submit", dies)
    progress = predict(["in.xyz", "in.traj"], f"out.{suffix}")
    assert (progress.items, progress.errors) == (12, 1)
    assert progress.first_error.startswith("in.xyz, frame 6: workers die at it repeatedly")
    if suffix == "h5":
        table = read_hdf5("out.h5")
        assert [k for k, error in enumerate(table["error"]) if error] == [6]
        assert table["frame"] == [*range(11), 0]
    else:
        found = ase.io.read("out.xyz", ":")
        assert [k for k, atoms in enumerate(found) if "error" in atoms.info] == [6]


def test_many_files_of_many_formats(predict, images, model, monkeypatch):
    monkeypatch.setattr(inputs, "LARGE", 5000)
    Path("folder").mkdir()
    for k in range(5):
        ase.io.write(f"folder/{k}.{'json' if k % 2 else 'extxyz'}", images[k])
    Path("folder/5.cif").write_text("not a crystal")
    ase.io.write("movie.traj", images)
    Path("packed.xyz.gz").write_bytes(gzip.compress(Path("folder/2.extxyz").read_bytes()))
    assert Path("movie.traj").stat().st_size > inputs.LARGE
    sources = ["movie.traj", "folder", "packed.xyz.gz", "alanine-dipeptide-water"]
    progress = predict(sources, "out.xyz")
    assert (progress.items, progress.errors) == (11 + 6 + 1 + 1, 1)
    assert progress.first_error.startswith(f"{Path('folder/5.cif')}, frame 0: ")
    found = ase.io.read("out.xyz", ":")
    single = [ase.io.read(path) for path in sorted(Path("folder").iterdir())[:5]]
    assert_results(found[:16], [*images, *single], model)
    assert (len(found[16]), len(found[17]), len(found[18])) == (0, 3 + 2, 166)


def test_options(predict, images):
    write("in.xyz", images)
    predict("in.xyz", "out.xyz", charge=1, periodic=False)
    for atoms in ase.io.read("out.xyz", ":"):
        assert atoms.info["charge"] == 1
        assert not atoms.pbc.any()
    with pytest.raises(OutputError, match="exists"):
        predict("in.xyz", "out.xyz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no structures"),
        ("two\n\nH 0 0 0\n", "frame 0 does not begin with its number of atoms"),
        ("1\n\nH 0 0 0\n999999999999\n\n", "frame 1 does not begin with its number of atoms"),
        ("1\n\nH 0 0 0\n3\n\nH 0 0 0\n", "frame 1 lacks 2 of its 3 atoms"),
        ("1\n\nH 0 0 0\n\n1\n\nH 0 0 0\n", "frame 1 begins with a blank line"),
        ("1", "frame 0 lacks 1 of its 1 atoms"),
    ],
)
def test_damaged_files_are_refused(predict, text, message):
    Path("in.xyz").write_text(text)
    with pytest.raises(InputError, match=message) as refusal:
        predict("in.xyz", "out.xyz")
    assert "\n" not in str(refusal.value)
    assert sorted(path.name for path in Path().iterdir()) == ["in.xyz"]


def test_a_truncated_archive_is_refused(predict, images):
    write("in.xyz", images)
    Path("in.xyz.gz").write_bytes(gzip.compress(Path("in.xyz").read_bytes())[:-9])
    with pytest.raises(InputError, match=r"in\.xyz\.gz cannot be read"):
        predict("in.xyz.gz", "out.xyz")
    progress = predict("in.xyz", "out.xyz", overwrite=True)
    assert (progress.items, progress.resumed) == (11, 8)  # of the same frames


def test_arguments_are_refused_first(predict):
    molecule("H2O").write("in.xyz")
    Path("empty").mkdir()
    for arguments, message in (
        (("in.xyz", "out.csv"), r"the suffix of out.csv is unknown: use \.xyz, .*\.parquet"),
        (("absent.xyz", "out.xyz"), "there is no structure 'absent.xyz'"),
        (("empty", "out.xyz"), "contains no files"),
        (([], "out.xyz"), "there are no structures"),
    ):
        with pytest.raises(InputError, match=message):
            predict(*arguments)
    with pytest.raises(CheckpointError):
        predict_files("in.xyz", "out.xyz", model="absent")


def test_a_missing_library_is_named(predict, monkeypatch):
    molecule("H2O").write("in.xyz")
    monkeypatch.setattr("mlff_triton.jobs.tables.find_spec", lambda _: None)
    with pytest.raises(InputError, match=rf"pyarrow: {re.escape(install('tables'))}"):
        predict("in.xyz", "out.parquet")


SLOWLY = """
import sys, time
from mlff_triton import predict_files
from mlff_triton.statics import inputs

inputs.STRUCTURES = 4
if __name__ == "__main__":
    predict_files("in.xyz", "out.h5", model=sys.argv[1], device="cpu", dtype="float64",
                  workers=int(sys.argv[2]), show=lambda _: print(flush=True))
"""


def test_a_killed_process_continues(predict, images, model):
    """SIGKILL leaves no process behind, and the result is that of an unbroken run."""
    workers = 2
    pytest.importorskip("h5py", reason="h5py is an optional extra")
    write("in.xyz", images * 4)
    Path("slowly.py").write_text(SLOWLY)
    command = [sys.executable, "slowly.py", str(model), str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:  # noqa: S603
        for _ in range(3):
            process.stdout.readline()
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(children) > workers  # they, and Python's resource tracker
    assert predict("in.xyz", "out.h5").resumed >= 8
    predict("in.xyz", "whole.h5")
    left, right = read_hdf5("out.h5"), read_hdf5("whole.h5")
    for name in left:
        for a, b in zip(left[name], right[name], strict=True):
            np.testing.assert_array_equal(a, b)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def environment():
    return {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}


def children_of(pid):
    """Return the children of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for text in lists for child in text.read_text().split()]


def test_unpacking_loads_no_pickles():
    with pytest.raises(ValueError, match="pickle"):
        unpack(b"cos\nsystem\n(S'true'\ntR.")


def test_another_coulomb_energy_does_not_continue(predict, tmp_path):
    save_model(charged_model(coulomb_cutoff=5.0), tmp_path / "charged.safetensors")
    write("in.xyz", [water_box(27, seed=k) for k in range(9)])
    given = {"model": "charged.safetensors", "coulomb": "pme"}
    assert not predict("in.xyz", "out.xyz", **given, stop=lambda: True).is_complete
    for coulomb in (None, "reaction-field"):
        with pytest.raises(OutputError, match="coulomb=pme: repeat that"):
            predict("in.xyz", "out.xyz", **given | {"coulomb": coulomb})
    assert predict("in.xyz", "out.xyz", **given).resumed > 0
