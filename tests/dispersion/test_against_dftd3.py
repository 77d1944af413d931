"""Both libraries agree with s-dftd3 by itself: energies, forces and virials."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

import mlff_triton
from mlff_triton.dispersion.damping import damping_of
from mlff_triton.dispersion.pairs import find_pairs
from mlff_triton.testing import assert_close, assert_within, random_crystal, water_box
from mlff_triton.testing.settings import CALLER_SETTINGS
from mlff_triton.units import BOHR
from tests.support.dispersion import CRYSTALS, batch_of, expected_of, shaken, structures

pytest.importorskip("dftd3", reason="s-dftd3 is an optional extra")

FUNCTIONALS = ("pbe", "r2scan")
LEFT_OUT = 1e-4
"""Error of forces by nvalchemi-toolkit-ops, relative to the largest.

Reference coordination numbers with less than exp(-12) = 6e-6 of the largest weight have none there,
so that the gradient by coordination numbers has jumps of about that size.
"""
CPU = torch.device("cpu")


def on_cpu(batch, functional, of_atoms=True):
    from mlff_triton.dispersion import on_cpu

    return on_cpu.compute(batch, damping_of(f"d3bj:{functional}"), of_atoms=of_atoms)


def on_gpu(batch, functional, of_atoms=True, device=CPU):
    """Compute by the kernels for GPUs, which Warp compiles for the CPU as well."""
    reason = "nvalchemi-toolkit-ops and tad-dftd3 are optional extras"
    pytest.importorskip("nvalchemiops", reason=reason)
    pytest.importorskip("tad_dftd3", reason=reason)
    from mlff_triton.dispersion import on_gpu

    damping = damping_of(f"d3bj:{functional}")
    return on_gpu.compute(batch, damping, device, of_atoms=of_atoms)


def on_a_gpu(batch, functional, of_atoms=True):
    return on_gpu(batch, functional, of_atoms, torch.device("cuda"))


OPEN = [structures()[name] for name in ("graphene", "slab", "chain", "other chain")]
LIBRARIES = [on_cpu, on_gpu, pytest.param(on_a_gpu, marks=pytest.mark.gpu)]


def check(compute, found, atoms, functional, own=slice(None), system=0, expected=None):
    """Compare the results of one system in a batch with those of s-dftd3.

    Results in float32 are added to those of a model in float32. So their errors are relative to its
    energies and forces, of at least 1 eV per atom and 0.1 eV/Å, not to a dispersion that may be
    much smaller, or vanish by symmetry.
    """
    expected = expected_of(atoms, functional) if expected is None else expected
    dtype = "float64" if compute is on_cpu else "float32"
    per_atom, of_force = (0.0, 0.0) if compute is on_cpu else (1.0, 0.1)
    total = len(atoms) * per_atom
    assert_close(found.energy[system], expected.energy, 0, dtype, floor=total)
    if compute is on_cpu:
        assert_close(found.forces[own], expected.forces, 1)
    else:
        assert_within(found.forces[own], expected.forces, LEFT_OUT, floor=of_force)
    assert_close(found.virial[system], expected.virial, 1, dtype, floor=total)
    if found.atom_energies is not None:
        of_atoms = found.atom_energies[own]
        assert_close(of_atoms, expected.atom_energies, 0, dtype, floor=per_atom)
        assert_close(of_atoms.sum(), found.energy[system], 0)


@pytest.mark.parametrize("compute", LIBRARIES)
@pytest.mark.parametrize("functional", FUNCTIONALS)
def test_molecules_and_crystals_agree_in_one_batch(compute, functional):
    named = structures()
    assert len(named) == 29
    found, first = compute(batch_of(*named.values()), functional), 0
    for k, atoms in enumerate(named.values()):
        check(compute, found, atoms, functional, slice(first, first + len(atoms)), k)
        first += len(atoms)


@pytest.mark.parametrize("compute", LIBRARIES)
@pytest.mark.parametrize("name", ["CH3CH2OH", "Si crystal", "graphene"])
def test_other_geometries_agree(compute, name):
    """Some of them have weights just above and below those that a library leaves out."""
    every = [structures()[name] for _ in range(8)]
    for seed, atoms in enumerate(every):
        atoms.rattle(0.03, seed=seed)
    found = compute(batch_of(*every), "pbe")
    for k, atoms in enumerate(every):
        own = slice(k * len(atoms), (k + 1) * len(atoms))
        check(compute, found, atoms, "pbe", own, k)


@pytest.mark.parametrize("compute", LIBRARIES)
def test_a_box_of_water_agrees(compute):
    atoms = water_box(64)
    check(compute, compute(batch_of(atoms), "pbe", of_atoms=False), atoms, "pbe")


@pytest.mark.parametrize("compute", LIBRARIES)
@pytest.mark.parametrize("name", ["NaCl crystal", "TiN crystal", "slab", "other chain"])
def test_virials_are_derivatives_by_strain(compute, name):
    atoms = structures()[name]
    virial = compute(batch_of(atoms), "pbe", of_atoms=False).virial[0]
    step = 1e-4 if compute is on_cpu else 1e-2
    strained = []
    for i, j in np.ndindex(3, 3):
        for sign in (1, -1):
            strain = np.eye(3)
            strain[i, j] += sign * step
            copy = atoms.copy()
            copy.set_cell(atoms.cell.array @ strain.T, scale_atoms=False)
            copy.positions = atoms.positions @ strain.T
            strained.append(copy)
    energies = compute(batch_of(*strained), "pbe", of_atoms=False).energy.reshape(3, 3, 2)
    differences = (energies[..., 0] - energies[..., 1]) / (2 * step)
    assert_within(virial, differences, 1e-6 if compute is on_cpu else 5e-3)


@pytest.mark.parametrize("compute", LIBRARIES)
def test_forces_are_derivatives_by_position(compute):
    atoms = shaken(molecule("CH3CH2OH"))
    forces = compute(batch_of(atoms), "r2scan", of_atoms=False).forces
    step = 1e-4 if compute is on_cpu else 1e-2
    moved = []
    for i, j in np.ndindex(*forces.shape):
        for sign in (1, -1):
            moved.append(atoms.copy())
            moved[-1].positions[i, j] += sign * step
    energies = compute(batch_of(*moved), "r2scan", of_atoms=False).energy
    differences = -np.diff(energies.reshape(-1, 2)[:, ::-1])[:, 0] / (2 * step)
    assert_within(forces.ravel(), differences, 1e-6 if compute is on_cpu else 5e-3)


@pytest.mark.parametrize("compute", LIBRARIES)
def test_systems_do_not_see_each_other_and_bits_stay(compute):
    named = structures()
    chosen = [named[name] for name in ("C6H6", "Si crystal", "slab", "H2O")]
    together = compute(batch_of(*chosen), "pbe")
    for _ in range(2):
        alone = [compute(batch_of(atoms), "pbe") for atoms in chosen]
        for key in ("energy", "forces", "virial", "atom_energies"):
            parts = np.concatenate([getattr(one, key) for one in alone])
            assert np.array_equal(getattr(together, key), parts)


@pytest.mark.parametrize("compute", LIBRARIES)
@pytest.mark.parametrize("name", ["Si crystal", "slab"])
def test_other_cells_of_the_same_crystal_change_nothing(compute, name):
    """Left-handed and skewed cells, with atoms in any image."""
    atoms = structures()[name]
    expected = expected_of(atoms, "pbe")
    found = compute(batch_of(*map(partial(in_cell, atoms), OTHER_CELLS)), "pbe")
    for k in range(len(OTHER_CELLS)):
        own = slice(k * len(atoms), (k + 1) * len(atoms))
        check(compute, found, atoms, "pbe", own, k, expected)


OTHER_CELLS = (
    [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
    [[-1, 0, 0], [0, 1, 0], [0, 0, 1]],
    [[1, 0, 0], [5, 1, 0], [0, 0, 1]],
)


def in_cell(atoms, combinations):
    copy = atoms.copy()
    copy.set_cell(np.array(combinations, dtype=float) @ atoms.cell.array, scale_atoms=False)
    turns = np.arange(3 * len(atoms)).reshape(-1, 3) % 3 - 1
    copy.positions += turns @ np.where(copy.pbc[:, None], copy.cell.array, 0.0)
    return copy


@pytest.mark.parametrize("compute", LIBRARIES)
@pytest.mark.parametrize("name", ["graphene", "slab", "other chain", "NaCl crystal"])
def test_orientations_turn_results(compute, name):
    """Open directions along no axis, and at each index."""
    upright = structures()[name]
    for k, index in enumerate(([0, 1, 2], [1, 2, 0], [2, 0, 1])):
        atoms = upright.copy()
        atoms.set_cell(upright.cell.array[index])
        atoms.pbc = upright.pbc[index]
        turn = np.linalg.qr(np.random.default_rng(k).normal(size=(3, 3)))[0]
        atoms.set_cell(atoms.cell.array @ turn)
        atoms.positions = atoms.positions @ turn
        check(compute, compute(batch_of(atoms), "pbe"), atoms, "pbe")


@pytest.mark.parametrize("setting", CALLER_SETTINGS)
@pytest.mark.parametrize("compute", LIBRARIES)
def test_settings_of_the_caller_change_nothing(compute, setting):
    batch = batch_of(shaken(CRYSTALS["TiN"]), molecule("CH3CH2OH"))
    expected = compute(batch, "pbe")
    with CALLER_SETTINGS[setting]():
        found = compute(batch, "pbe")
    for key in ("energy", "forces", "virial", "atom_energies"):
        assert np.array_equal(getattr(found, key), getattr(expected, key))


@pytest.mark.parametrize("compute", LIBRARIES)
def test_single_and_distant_atoms_have_none(compute):
    distant = Atoms("ArKr", positions=[[0, 0, 0], [0, 0, 40.1 * BOHR]])
    near = Atoms("ArKr", positions=[[0, 0, 0], [0, 0, 34.9 * BOHR]])
    found = compute(batch_of(Atoms("C"), distant, near), "pbe")
    assert found.energy[:2].tolist() == [0, 0]
    assert not found.forces[:3].any()
    whole = expected_of(near, "pbe", cutoff=100.0, width=0.0)
    assert found.energy[2] == pytest.approx(whole.energy, rel=1e-6)
    assert found.forces[3, 2] > 0 > found.forces[4, 2]


def test_the_cutoff_costs_a_third_of_a_percent():
    """The default cutoff of s-dftd3 is 60 Bohr, without fading."""
    for atoms in CRYSTALS.values():
        ours, whole = (expected_of(atoms, "pbe", *far) for far in ((40.0, 5.0), (60.0, 0.0)))
        assert ours.energy == pytest.approx(whole.energy, rel=0.0035)
        assert_within(ours.virial, whole.virial, 0.0025)


@pytest.mark.parametrize(
    "atoms",
    [bulk("Si"), random_crystal(9, "triclinic"), water_box(27), *OPEN],
)
def test_pairs_are_those_of_vesin(atoms):
    """Another search finds as many neighbors of each atom, also far outside of the cell."""
    from vesin import ase_neighbor_list

    pairs = find_pairs(batch_of(atoms), CPU)
    (receivers,) = ase_neighbor_list("i", atoms, 40.0 * BOHR)
    expected = np.bincount(receivers, minlength=len(atoms))
    assert np.diff(pairs.ptr.numpy()).tolist() == expected.tolist()
    assert len(pairs.others) == len(pairs.shifts) == pairs.ptr[-1]


def test_the_first_call_prints_nothing(tmp_path):
    """Warp says where it starts and what it compiles, which would get into the output of users.

    It compiles without optimization, in half the time.
    """
    pytest.importorskip("nvalchemiops", reason="nvalchemi-toolkit-ops is an optional extra")
    code = (
        "import torch\nimport warp\nwarp.config.optimization_level = 0\n"
        "from mlff_triton.engine.batch import Batch\n"
        "from mlff_triton.dispersion import on_gpu\n"
        "from mlff_triton.dispersion.damping import damping_of\n"
        "batch = Batch.of([1, 1], [[0, 0, 0], [0, 0, 0.74]])\n"
        "on_gpu.compute(batch, damping_of('d3bj:pbe'), torch.device('cpu'), of_atoms=False)\n"
    )
    root = str(Path(mlff_triton.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "WARP_CACHE_PATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == ""
