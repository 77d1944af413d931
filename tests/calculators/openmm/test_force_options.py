"""Routes and options of OpenMM forces, refused input, errors, and imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from mlff_triton import create_openmm_force
from mlff_triton._common.remedies import install
from mlff_triton.calculators import explain_openmm_route
from mlff_triton.calculators.openmm import force as openmm_force
from mlff_triton.calculators.openmm import torch_force
from mlff_triton.calculators.openmm.force import EngineForce
from mlff_triton.errors import BackendError, CheckpointError, InputError, UnknownElementError

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from openmm import app  # noqa: E402

from tests.support.openmm_systems import (  # noqa: E402
    STRUCTURES,
    context_of,
    energy_and_forces,
    force_for,
    small_model,
    system_of,
    topology_of,
)

# Routes


@pytest.fixture
def obstacle(monkeypatch):
    """Return a function that sets the obstacle to a TorchForce."""

    def say(reason):
        monkeypatch.setattr(torch_force, "torch_route_obstacle", lambda: reason)

    return say


def test_auto_takes_what_costs_less(obstacle):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    obstacle(None)
    for device, expected in ((gpu, "torch"), (cpu, "python")):
        route, reason = openmm_force.choose_route("auto", device)
        assert route == expected
        assert reason
    obstacle("OpenMM-Torch is not installed")
    route, reason = openmm_force.choose_route("auto", gpu)
    assert route == "python"
    assert "not installed" in reason


def test_route_asked_for_is_taken_or_refused(obstacle):
    atoms, device = STRUCTURES["water"], torch.device("cpu")
    obstacle(None)
    assert openmm_force.choose_route("torch", device)[0] == "torch"
    assert openmm_force.choose_route("python", device)[0] == "python"
    obstacle("OpenMM-Torch is not installed")
    with pytest.raises(BackendError, match="is not installed; use route='python'"):
        force_for(atoms, route="torch")
    with pytest.raises(InputError, match="use one of auto, python, torch"):
        force_for(atoms, route="fast")


def test_route_is_explained_in_a_line():
    line = explain_openmm_route("cpu")
    assert line.startswith("python: ")
    assert "\n" not in line


# What is refused


def topology_with(element, bonded=True):
    topology = topology_of(STRUCTURES["water"])
    ion = topology.addResidue("ION", next(topology.chains()))
    atom = topology.addAtom("NA", app.Element.getBySymbol(element), ion)
    if bonded:
        topology.addBond(next(topology.atoms()), atom)
    return topology


WATER = topology_of(STRUCTURES["water"])
BAD = {
    "no indices": ({"particles": []}, InputError, "particles is empty"),
    "too large": ({"particles": [0, 24]}, InputError, "no particle 24: the atoms are 0 to 23"),
    "negative": ({"particles": [-1]}, InputError, "no particle -1"),
    "twice": ({"particles": [0, 1, 2, 1]}, InputError, "atom 1 more than once"),
    "fractions": ({"particles": [0.5, 1]}, InputError, "must be a list of indices"),
    "a mask": ({"particles": [True, False]}, InputError, "must be a list of indices"),
    "names": ({"particles": "HOH"}, InputError, "must be a list of indices"),
    "one index": ({"particles": 3}, InputError, "must be a list of indices"),
    "nested": ({"particles": [[0, 1]]}, InputError, "must be a list of indices"),
    "a bond cut": (
        {"particles": [0, 1, 2, 3, 4]},
        InputError,
        r"from atom 3 \(X0 of MOL 2\) to atom 5 \(X2 of MOL 2\).*createMixedSystem",
    ),
    "element": (
        {"topology_or_numbers": topology_with("Na")},
        UnknownElementError,
        r"not know Na, which atom 24 \(NA of ION 9\) is; it knows H, B, C, N, O, F, Si, P, S, ",
    ),
    "element of a number": (
        {"topology_or_numbers": [8, 1, 92]},
        UnknownElementError,
        "not know U, which atom 2 is",
    ),
    "number of none": ({"topology_or_numbers": [8, 0]}, UnknownElementError, "atomic number 0"),
    "no atoms": ({"topology_or_numbers": []}, InputError, "give an openmm.app.Topology"),
    "empty topology": ({"topology_or_numbers": app.Topology()}, InputError, "has no atoms"),
    "a path": ({"topology_or_numbers": "box.pdb"}, InputError, "give an openmm.app.Topology"),
    "symbols": ({"topology_or_numbers": ["H", "O"]}, InputError, "give an openmm.app.Topology"),
    "charge": ({"charge": 0.5}, InputError, "must be an integer"),
    "no charges": ({"charge": 1}, InputError, "made for neutral systems"),
    "periodicity": ({"periodic": (True, True, False)}, InputError, "True or False"),
    "group": ({"force_group": 32}, InputError, "from 0 to 31"),
    "dtype": ({"dtype": "float16"}, InputError, "float32, float64"),
    "device": ({"device": "quantum"}, InputError, "'auto', 'cpu' or 'cuda'"),
    "backend": ({"backend": "fast"}, BackendError, "use 'auto'"),
    "skin": ({"skin": -1.0}, InputError, "skin must be"),
    "no model": ({"model": 3}, InputError, "a name, a path or a model"),
    "model": ({"model": "missing.ckpt"}, CheckpointError, "no model 'missing.ckpt'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_when_the_force_is_made(case):
    options, error, message = BAD[case]
    with pytest.raises(error, match=message) as refusal:
        create_openmm_force(**{"topology_or_numbers": WATER, "device": "cpu", **options})
    assert "\n" not in str(refusal.value)


def test_an_element_outside_the_part_does_not_matter():
    topology = topology_with("Na", bonded=False)
    create_openmm_force(topology, particles=range(24), device="cpu")


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError):
        create_openmm_force([8, 1, 1], precision="high")


TROUBLES = {
    "NaN": (lambda x: x.__setitem__((4, 1), np.nan), "InputError: the position of atom 4 is NaN"),
    "infinity": (
        lambda x: x.__setitem__((4, 1), -np.inf),
        "InputError: the position of atom 4 is NaN",
    ),
    "overlap": (lambda x: x.__setitem__(2, x[1]), "OverlappingAtomsError: atoms 1 and 2"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles_on_the_way_are_one_line(trouble):
    spoil, message = TROUBLES[trouble]
    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, force_for(atoms, small_model())), atoms)
    expected = energy_and_forces(context)
    bad = atoms.positions / 10
    spoil(bad)
    context.setPositions(bad)
    with pytest.raises(openmm.OpenMMException, match=f"mlff_triton: {message}") as error:
        context.getState(energy=True)
    assert "\n" not in str(error.value)
    context.setPositions(atoms.positions / 10)
    energy, forces = energy_and_forces(context)
    assert energy == expected[0]
    assert np.array_equal(forces, expected[1])


def test_a_message_says_how_atoms_are_counted():
    atoms = STRUCTURES["molecule"]
    force = force_for(atoms, small_model(), particles=[3, 4, 5])
    atoms = atoms.copy()
    atoms.positions[4] = atoms.positions[3]
    context = context_of(system_of(atoms, force), atoms)
    with pytest.raises(openmm.OpenMMException, match=r"atoms 0 and 1 .*\(.*within particles\)"):
        context.getState(energy=True)


def test_a_system_of_other_size_is_said():
    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, create_openmm_force([8, 1, 1], device="cpu")), atoms)
    with pytest.raises(openmm.OpenMMException, match=r"9 particles, .* for 3 atoms"):
        context.getState(energy=True)


def test_ctrl_c_is_said(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, force_for(atoms, small_model())), atoms)
    monkeypatch.setattr(EngineForce, "compute", interrupted)
    with pytest.raises(openmm.OpenMMException, match="interrupted from the keyboard"):
        context.getState(energy=True)


# Without OpenMM


def printed_by(code: str) -> str:
    done = subprocess.run(  # noqa: S603 - the code is below
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_calculators_load_what_is_asked_for():
    code = """
import sys
import mlff_triton.calculators
print(*sorted({"torch", "ase", "openmm"} & sys.modules.keys()))
"""
    assert printed_by(code) == ""


def test_missing_openmm_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "openmm", None)  # importing it raises ImportError
    with pytest.raises(BackendError) as raised:
        create_openmm_force([8, 1, 1])
    line = str(raised.value)
    assert install("openmm") in line
    assert "\n" not in line
