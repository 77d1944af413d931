"""DCD and XTC, read back by MDAnalysis together with the PDB topology."""

from __future__ import annotations

import tempfile

import MDAnalysis
import numpy as np
import pytest
from ase.cell import Cell
from ase.io import read
from MDAnalysis.lib.formats.libdcd import DCDFile
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

from mlff_triton.dynamics.trajectories import write_topology
from mlff_triton.dynamics.trajectories import xtc as xtc_module
from mlff_triton.errors import InputError, OutputError
from tests.dynamics.trajectories.frames import CELLS, frame, opened, random_atoms
from tests.support.disks import largest_file

FORMATS = (".dcd", ".xtc")
LIBRARY = ("ignore::UserWarning:MDAnalysis", "ignore::DeprecationWarning:MDAnalysis")


def write(path, *frames):
    file = opened(path)
    for each in frames:
        file.append(each)
    return file


def rounding(suffix, count):
    """Largest error of positions in Å: of float32, and of the third decimal in nm."""
    return 4e-6 + (0.005 if suffix == ".xtc" and count > 9 else 0.0)


@pytest.mark.filterwarnings(*LIBRARY)
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("count", [1, 9, 10, 500])
def test_a_viewer_reads_what_was_written(tmp_path, suffix, cell, count):
    frames = [frame(index, count=count, cell=cell) for index in range(3)]
    path, topology = tmp_path / f"t{suffix}", tmp_path / "topology.pdb"
    write(path, *frames)
    write_topology(topology, random_atoms(count, cell=cell))

    universe = MDAnalysis.Universe(topology, path)
    assert len(universe.trajectory) == 3
    symbols = random_atoms(count).get_chemical_symbols()
    assert list(universe.atoms.elements) == symbols
    for each, expected in zip(universe.trajectory, frames, strict=True):
        difference = np.abs(each.positions - expected.positions).max()
        assert difference <= rounding(suffix, count)
        assert each.time == pytest.approx(expected.time_ps, abs=1e-6)
        if cell in ("none", "not periodic"):
            assert each.dimensions is None
        elif cell != "slab":  # MDAnalysis has only three-dimensional cells
            expected_cell = Cell(expected.cell).cellpar()
            np.testing.assert_allclose(each.dimensions, expected_cell, rtol=1e-6)


def test_xtc_stores_steps_times_and_lattice_vectors(tmp_path):
    frames = [frame(index, cell="slab") for index in (0, 1, 7)]
    write(tmp_path / "t.xtc", *frames)
    with XTCFile(str(tmp_path / "t.xtc")) as file:
        for each, expected in zip(file, frames, strict=True):
            assert each.step == expected.step
            assert each.time == np.float32(expected.time_ps)
            np.testing.assert_array_equal(each.box, (expected.cell / 10).astype(np.float32))


def test_the_dcd_header_counts_frames_and_gives_times(tmp_path):
    path = tmp_path / "t.dcd"
    file = opened(path)
    for index in range(3):
        file.append(frame(index))
        with DCDFile(str(path)) as read_back:
            header = read_back.header
        assert int.from_bytes(path.read_bytes()[8:12], "little") == index + 1
        assert file.size == path.stat().st_size
    assert (header["istart"], header["nsavc"]) == (0, 100)
    assert header["delta"] * 0.04888821 == pytest.approx(0.0005, rel=1e-6)


def test_equal_runs_write_equal_files(tmp_path):
    for suffix in FORMATS:
        for name in ("a", "b"):
            write(tmp_path / f"{name}{suffix}", frame(0), frame(1))
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "cell", [[[0, 20, 0], [20, 0, 0], [0, 0, 20]], [[-20, 0, 0], [0, 20, 0], [0, 0, 20]]]
)
def test_a_cell_that_the_formats_cannot_orient_is_refused(tmp_path, suffix, cell):
    rotated = frame(0)
    rotated.cell[:] = cell
    with pytest.raises(InputError, match=r"rotate the structure, or write \.xyz"):
        write(tmp_path / f"t{suffix}", rotated)
    assert not (tmp_path / f"t{suffix}").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_xtc_refuses_positions_on_which_its_library_would_abort(tmp_path, value):
    broken = frame(0)
    broken.positions[2, 1] = value
    with pytest.raises(InputError, match=r"write \.xyz"):
        write(tmp_path / "t.xtc", broken)


def test_xtc_keeps_the_largest_positions_that_it_accepts(tmp_path):
    wide = frame(0, count=200)
    wide.positions[:] = np.random.default_rng(0).choice([-1, 1], (200, 3)) * 10_485.7
    write(tmp_path / "t.xtc", wide)
    with XTCFile(str(tmp_path / "t.xtc")) as file:
        np.testing.assert_allclose(10 * file.read().x, wide.positions, rtol=0, atol=0.006)
    wide.positions[0] = 10 * xtc_module.LARGEST / xtc_module.PRECISION
    with pytest.raises(InputError, match="too large for XTC"):
        write(tmp_path / "u.xtc", wide)


def test_xtc_refuses_steps_of_more_than_32_bits(tmp_path):
    with pytest.raises(InputError, match="too large for XTC"):
        write(tmp_path / "t.xtc", frame(2**31 // 100 + 1))


@pytest.mark.parametrize("other", [{"count": 21}, {"cell": "none"}])
def test_all_frames_of_a_dcd_are_alike(tmp_path, other):
    path = tmp_path / "t.dcd"
    size = write(path, frame(0)).size
    for file in (write(tmp_path / "u.dcd", frame(0)), opened(path, size)):
        with pytest.raises(InputError, match="equal atoms and periodic directions"):
            file.append(frame(1, **other))


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("count", [5, 20, 2000])
@pytest.mark.parametrize("limit", [1, 30, 91, 100, 4096, 8191])
def test_a_temporary_file_that_is_cut_short_is_noticed(tmp_path, suffix, count, limit):
    whole = write(tmp_path / f"a{suffix}", frame(0, count=count)).size
    path = tmp_path / f"b{suffix}"
    with (
        largest_file(min(limit, whole - 1)),
        pytest.raises(OutputError, match=r"cannot write .*tmp"),
    ):
        write(path, frame(0, count=count))
    assert not path.exists()


def test_a_missing_folder_for_temporary_files_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match="missing"):
        write(tmp_path / "t.xtc", frame(0))


def test_a_topology_keeps_names_from_pdb(tmp_path):
    source = tmp_path / "source.pdb"
    lines = [
        "ATOM      1  CA  ALA A   7      11.000  12.000  13.000  1.00  0.00           C  ",
        "ATOM      2  CB  ALA A   7      12.000  12.500  13.000  1.00  0.00           C  ",
    ]
    source.write_text("\n".join([*lines, "END", ""]))
    write_topology(tmp_path / "topology.pdb", read(source))
    text = (tmp_path / "topology.pdb").read_text()
    assert text.split()[4:11] == ["CA", "ALA", "7", "11.000", "12.000", "13.000", "1.00"]
    with pytest.raises(OutputError, match="cannot write"):
        write_topology(tmp_path / "missing" / "topology.pdb", read(source))
