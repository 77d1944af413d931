"""A coupling in one process: units, everything that scripts do between runs, and bad input."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from mlff_triton import Engine, Ensemble, TensorNet, TensorNetCalculator, load_model
from mlff_triton.errors import (
    BackendError,
    CheckpointError,
    InputError,
    MlffTritonError,
    UnknownElementError,
)
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.units import EV_TO_KCAL_PER_MOL
from tests.calculators.lammps.systems import (
    OUTPUT,
    REACH,
    TYPES,
    gathered,
    needs_lammps,
    of_engine,
    single_point,
    small_model,
    start,
    water,
)
from tests.support.charged import charged_model
from tests.support.tensornets import uncertain

pytestmark = needs_lammps
MODEL = small_model()
ATOMS = water((2, 2, 2))


def coupled(lmp: Any, **options: Any) -> Any:
    from mlff_triton.calculators.lammps import couple

    given = {"model": MODEL, "elements": TYPES, "device": "cpu", "dtype": "float64"}
    return couple(lmp, **(given | options))


def single_point_of(model: TensorNet, atoms: Atoms) -> np.ndarray:
    """Return the uncertainties of atoms in eV/Å by ASE."""
    calculator = TensorNetCalculator(model, device="cpu", dtype="float64")
    return np.asarray(calculator.get_property("uncertainty", atoms))


def in_lammps(lmp: Any) -> Atoms:
    """Return the present atoms of LAMMPS in its present box."""
    (x0, y0, z0), (x1, y1, z1), xy, yz, xz, pbc, _ = lmp.extract_box()
    cell = [[x1 - x0, 0, 0], [xy, y1 - y0, 0], [xz, yz, z1 - z0]]
    numbers = np.array([0, 1, 8])[in_order(lmp, "type")]
    return Atoms(numbers, in_order(lmp, "x"), cell=cell, pbc=np.array(pbc, dtype=bool))


def in_order(lmp: Any, name: str) -> np.ndarray:
    """Return a property of all atoms, in order of their IDs, some of which may be missing."""
    n_atoms = lmp.extract_setting("nlocal")
    order = np.argsort(lmp.numpy.extract_atom("id")[:n_atoms])
    return lmp.numpy.extract_atom(name)[:n_atoms][order]


def check_forces(lmp: Any) -> None:
    """Compare forces and energy of the present atoms with the exact module."""
    expected = of_engine(MODEL, in_lammps(lmp))
    np.testing.assert_allclose(in_order(lmp, "f"), expected["forces"], atol=1e-8)
    np.testing.assert_allclose(lmp.get_thermo("pe"), expected["energy"], rtol=1e-10)


def test_results_depend_on_the_farthest_ghosts() -> None:
    """Otherwise, no comparison would show that they are there."""
    atoms = water()
    lmp = start(atoms)
    coupled(lmp)
    lmp.commands_list([f"comm_modify cutoff {REACH / 5}", *OUTPUT])
    with mock.patch("mlff_triton.calculators.lammps.coupling.check_coverage"):
        found = single_point(lmp)
    error = np.abs(found["forces"] - of_engine(MODEL, atoms)["forces"]).max()
    assert error > 1e-8  # comparisons allow 1e-10


def test_units_real() -> None:
    lmp = start(ATOMS, units="real")
    coupled(lmp)
    lmp.command("run 0")
    expected = of_engine(MODEL, ATOMS)
    energy = expected["energy"] * EV_TO_KCAL_PER_MOL
    np.testing.assert_allclose(lmp.get_thermo("pe"), energy, rtol=1e-9)
    forces = expected["forces"] * EV_TO_KCAL_PER_MOL
    np.testing.assert_allclose(gathered(lmp, "f", 3), forces, atol=1e-7)
    atmosphere = 1.01325 / 1.602176634e6  # eV/Å^3
    pressure = -expected["virial"][:3].mean() / ATOMS.get_volume() / atmosphere
    np.testing.assert_allclose(lmp.get_thermo("press"), pressure, rtol=1e-5)


def test_an_ensemble_gives_the_mean_of_its_members() -> None:
    other = small_model()
    other.mean.fill_(-1.5)
    lmp = start(ATOMS)
    coupled(lmp, model=Ensemble([MODEL, other]))
    lmp.command("run 0")
    expected = of_engine(MODEL, ATOMS)["energy"] - 2.5
    np.testing.assert_allclose(lmp.get_thermo("pe"), expected, rtol=1e-10)


def minimize(lmp: Any) -> None:
    lmp.command("run 0")
    before = lmp.get_thermo("pe")
    lmp.command("minimize 0 1e-3 20 100")
    assert lmp.get_thermo("pe") < before


def change_box(lmp: Any) -> None:
    lmp.command("change_box all x scale 1.05 xy final 0.4 remap units box")


def delete_and_create(lmp: Any) -> None:
    lmp.commands_list(
        ["group gone id 1 2 3", "delete_atoms group gone", "create_atoms 1 single 0.1 0.1 0.1"]
    )


def swap_types(lmp: Any) -> None:
    lmp.commands_list(["run 0", "set atom 1 type 1", "set atom 2 type 2"])


def restart(lmp: Any) -> None:
    path = Path("state.restart")
    lmp.commands_list(["run 5", f"write_restart {path}", "clear", f"read_restart {path}"])
    coupled(lmp)
    lmp.command("fix move all nve")
    path.unlink()


def couple_again(lmp: Any) -> None:
    other = small_model()
    other.mean.fill_(100.0)
    coupled(lmp, model=other)
    lmp.command("run 1")
    coupled(lmp)


BETWEEN_RUNS: dict[str, Callable[[Any], None]] = {
    "several runs": lambda lmp: lmp.commands_list(["run 3", "run 0", "run 4 pre no", "run 2"]),
    "reset_timestep": lambda lmp: lmp.commands_list(["run 3", "reset_timestep 0"]),
    "minimize": minimize,
    "change_box": change_box,
    "delete and create atoms": delete_and_create,
    "set type": swap_types,
    "displace_atoms": lambda lmp: lmp.command("displace_atoms all random 0.05 0.05 0.05 7"),
    "replicate": lambda lmp: (
        lmp.commands_list(["unfix mlff_triton", "replicate 2 1 1"]) or coupled(lmp)
    ),
    "restart": restart,
    "another coupling": couple_again,
    "box/relax": lambda lmp: lmp.commands_list(
        ["fix relax all box/relax iso 0.0", "minimize 0 1e-3 10 50", "unfix relax"]
    ),
    "npt": lambda lmp: lmp.commands_list(
        ["unfix move", "fix npt all npt temp 300 300 0.02 tri 0 0 0.2", "run 10", "unfix npt"]
    ),
}


@pytest.mark.parametrize("name", BETWEEN_RUNS)
def test_scripts_do_what_they_do_with_a_pair_style(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lmp = start(water((2, 2, 2), tilt=0.05))
    coupled(lmp)
    lmp.commands_list(
        ["fix move all nve", "timestep 0.0005", "velocity all create 300 1 loop geom"]
    )
    BETWEEN_RUNS[name](lmp)
    lmp.command("run 2")
    check_forces(lmp)


def swap_types_in_a_run(lmp: Any) -> None:
    """Change types in a step in which LAMMPS exchanges no ghosts, as its fix sgcmc does."""

    def swap(_caller: Any, step: int, n_own: int, *_arrays: np.ndarray) -> None:
        n_atoms = n_own + lmp.extract_setting("nghost")
        types, tags = (lmp.numpy.extract_atom(name, nelem=n_atoms) for name in ("type", "id"))
        if step == 3:
            assert lmp.extract_setting("neigh_ago") > 0
            types[tags == 1], types[tags == 2] = 1, 2

    lmp.command("fix swap all external pf/callback 1 1")
    lmp.set_fix_external_callback("swap", swap, None)
    coupled(lmp)  # again, so that its fix is the later one


IN_A_RUN: dict[str, Callable[[Any], None]] = {
    "types change": swap_types_in_a_run,
    "atoms vanish": lambda lmp: lmp.commands_list(
        ["region all block EDGE EDGE EDGE EDGE EDGE EDGE", "fix gone all evaporate 2 1 all 7"]
    ),
    "atoms come": lambda lmp: lmp.commands_list(
        [
            "region gap block 1.2 1.4 1.2 1.4 1.2 1.4",
            "fix more all deposit 1 1 2 7 region gap near 0.1",
        ]
    ),
}


@pytest.mark.parametrize("virials", [False, True])
@pytest.mark.parametrize("name", IN_A_RUN)
def test_atoms_change_in_a_run(name: str, *, virials: bool) -> None:
    lmp = start(water((2, 2, 2), tilt=0.05))
    coupled(lmp)
    IN_A_RUN[name](lmp)
    if virials:  # for which ghosts count
        lmp.commands_list([*OUTPUT, "compute s all reduce sum c_v[1]"])
        lmp.commands_list(["thermo_style custom step pe c_s", "thermo 1"])
    before = in_order(lmp, "type").tolist()
    lmp.commands_list(["fix move all nve", "timestep 0.0001", "run 6"])
    assert in_order(lmp, "type").tolist() != before
    check_forces(lmp)


def test_virials_of_atoms_have_the_ghosts_of_their_step() -> None:
    """LAMMPS exchanges ghosts in steps without virials, too, in which they do not matter."""
    lmp = start(ATOMS)
    coupling = coupled(lmp, skin=0.3)
    lmp.commands_list(
        [
            "compute v all stress/atom NULL virial",
            "compute s all reduce sum c_v[1] c_v[4]",
            "thermo_style custom step pe c_s[1] c_s[2]",
            "thermo 4",
            "fix move all nve/noforce",
            "velocity all set 40 30 20",
            "timestep 0.0005",
        ]
    )
    expected = of_engine(MODEL, ATOMS)["virial"][[0, 3]]  # does not depend on the drift
    with mock.patch.object(coupling._part, "set_atoms", wraps=coupling._part.set_atoms) as renew:
        for _ in range(6):
            lmp.command("run 4 pre no")
            found = [lmp.extract_compute("s", 0, 1)[k] for k in range(2)]
            found = np.array(found) / lmp.extract_global("nktv2p")
            np.testing.assert_allclose(found, expected, rtol=1e-7)
    assert 1 < renew.call_count < 9


def test_dumps_hold_energies_and_stresses_of_atoms(tmp_path: Path) -> None:
    lmp = start(ATOMS)
    coupled(lmp)
    path = tmp_path / "atoms.dump"
    lmp.commands_list(
        [*OUTPUT, f"dump d all custom 2 {path} id c_e c_v[1]", "fix move all nve", "run 4"]
    )
    single = single_point(lmp)
    last = np.array([line.split() for line in path.read_text().split("c_v[1]\n")[-1].splitlines()])
    rows = last[last[:, 0].astype(int).argsort(), 1:].astype(float)
    np.testing.assert_allclose(rows[:, 0], single["atom_energies"], rtol=1e-4)
    assert np.abs(rows[:, 1]).min() > 0


def test_virials_of_atoms_are_computed_only_when_they_are_needed() -> None:
    lmp = start(ATOMS)
    coupling = coupled(lmp)
    lmp.commands_list(["fix move all nve", "thermo 100", "run 1"])
    with mock.patch.object(coupling._part, "step", wraps=coupling._part.step) as step:
        lmp.command("run 4 pre no")
    assert [call.kwargs["per_atom"] for call in step.call_args_list] == [False] * 4


def test_virials_of_atoms_are_computed_in_the_first_step_only_when_they_are_needed() -> None:
    for output in (), OUTPUT:
        lmp = start(ATOMS)
        coupling = coupled(lmp)
        lmp.commands_list(output)
        with mock.patch.object(coupling._part, "step", wraps=coupling._part.step) as step:
            lmp.command("run 0")
        assert step.call_args.kwargs["per_atom"] == bool(output)


def test_one_rank_without_virials_of_atoms_needs_no_ghosts() -> None:
    lmp = start(ATOMS)
    coupled(lmp)
    lmp.commands_list(["comm_modify cutoff 1.0", "fix move all nve", "run 2"])
    check_forces(lmp)


def test_one_rank_computes_no_images() -> None:
    lmp = start(ATOMS)
    coupling = coupled(lmp)
    lmp.commands_list(["fix move all nve", "run 1"])
    with mock.patch.object(coupling._part._part, "step", side_effect=AssertionError):
        lmp.command("run 3 pre no")
    check_forces(lmp)
    lmp.commands_list([*OUTPUT, "velocity all set 0 0 0"])
    both = single_point(lmp)  # with virials of atoms, for which images count
    np.testing.assert_allclose(both["virial"], both["virial_of_atoms"], rtol=1e-9)


def test_atoms_are_set_only_when_ghosts_change() -> None:
    lmp = start(ATOMS)
    coupling = coupled(lmp)
    lmp.commands_list(["fix move all nve", "timestep 0.0005", "run 1"])
    with mock.patch.object(coupling._part, "set_atoms", wraps=coupling._part.set_atoms) as renew:
        lmp.command("run 10 pre no")
    assert not renew.called


def test_atoms_that_vanish_elsewhere_change_the_share_of_the_mean() -> None:
    lmp = start(ATOMS)
    coupling = coupled(lmp)
    lmp.command("run 0")
    with (
        mock.patch.object(lmp, "get_natoms", return_value=30.0),
        mock.patch.object(coupling._part, "set_atoms", wraps=coupling._part.set_atoms) as renew,
    ):
        lmp.command(cmd="run 0")
    assert [call.args[2] for call in renew.call_args_list] == [30]


def test_unknown_chemistry_is_warned_of_once() -> None:
    atoms = Atoms("O2", [[1, 1, 1], [1, 1, 2.21]], cell=[20] * 3, pbc=True)
    lmp = start(atoms)
    coupled(lmp, model="tensornet-gfn2")
    with pytest.warns(UnknownChemistryWarning, match="atoms 1 and 2, O bonded to O") as caught:
        lmp.command("run 0")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lmp.command("run 0")


def test_radicals_are_warned_of() -> None:
    lmp = start(molecule_in_a_box("OH"))
    coupled(lmp, model="default")
    with pytest.warns(UnknownChemistryWarning, match="9 electrons, an odd number"):
        lmp.command("run 0")


def test_molecules_that_the_model_gets_wrong_are_warned_of() -> None:
    lmp = start(molecule_in_a_box("O2"))
    coupled(lmp, model="default")
    with pytest.warns(UnknownChemistryWarning, match="wrong for O-O by itself") as caught:
        lmp.command("run 0")
    assert len(caught) == 1


@pytest.mark.parametrize("charge", [-4, -4.0])
def test_total_charges_that_the_model_does_not_know_are_warned_of(charge: Any) -> None:
    lmp = start(molecule_in_a_box("H2O"))
    coupled(lmp, model=load_model("default-charged", coulomb_cutoff=9.0), charge=charge)
    with pytest.warns(UnknownChemistryWarning, match="a total charge of -4") as caught:
        lmp.command("run 0")
    assert len(caught) == 1


@pytest.mark.parametrize("units", ["metal", "real"])
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_atoms_above_the_limit_of_uncertainty_are_warned_of_once(units: str, share: float) -> None:
    atoms = water()
    model = uncertain(small_model(), 5, 1e6)
    lmp = start(atoms, units=units)
    known = single_point_of(model, atoms)
    model.readout.uncertainty_limit = torch.tensor(share * known.max())
    coupled(lmp, model=model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnknownChemistryWarning)
        lmp.commands_list(["run 0", "run 0"])
    found = [str(w.message) for w in caught if w.category is UnknownChemistryWarning]
    assert len(found) == (share < 1)
    assert all(
        f"{known.max():.3g} eV/Å in the force on atom {known.argmax() + 1} " in text
        for text in found
    )


def test_bonds_across_faces_are_whole() -> None:
    """Water is known, wherever the box begins; ghosts of its atoms may lack neighbors."""
    atoms = water()
    atoms.positions += 1.0
    atoms.wrap()
    lmp = start(atoms)
    coupled(lmp, model="tensornet-gfn2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lmp.command("run 0")


def molecule_in_a_box(name: str) -> Atoms:
    atoms = molecule(name, cell=[20] * 3, pbc=True)
    atoms.center()
    return atoms


def test_masses_that_are_missing_are_those_of_elements() -> None:
    lmp = start(ATOMS)
    lmp.command("mass 1 2.014")
    coupled(lmp)
    assert [lmp.extract_atom("mass")[k] for k in (1, 2)] == [2.014, pytest.approx(15.999)]


EXACT = {"backend": "exact"}
BAD_INPUT: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "too few elements": (InputError, "2 atom types, but 1 elements", {"elements": ["H"]}),
    "no elements": (InputError, "0 elements were given .none", {"elements": []}),
    "unknown symbol": (InputError, "'Q'", {"elements": ["H", "Q"]}),
    "text": (InputError, "must be a list", {"elements": "HO"}),
    "not in model": (UnknownElementError, "26|Fe", {"elements": ["H", "Fe"]}),
    "skin": (InputError, "skin", {"skin": 0.0}),
    "charge": (InputError, "charge", {"charge": 0.5}),
    "backend": (BackendError, "triton", {"backend": "triton"}),
    "dtype": (InputError, "dtype", {"dtype": "float16"}),
    "charges": (BackendError, "charges .* not local", {"model": charged_model(), **EXACT}),
    "model": (CheckpointError, "nothing.ckpt", {"model": "nothing.ckpt"}),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused_in_one_line(name: str) -> None:
    kind, text, options = BAD_INPUT[name]
    with pytest.raises(kind, match=text) as caught:
        coupled(start(ATOMS), **options)
    assert "\n" not in str(caught.value)


def test_other_units_are_refused() -> None:
    with pytest.raises(InputError, match="units lj: use `units metal` or `units real`"):
        coupled(start(ATOMS, units="lj"))


def test_a_box_is_needed() -> None:
    lmp = start(ATOMS)
    lmp.command("clear")
    with pytest.raises(InputError, match="no simulation box"):
        coupled(lmp)


def test_elements_in_another_order_than_masses_are_refused() -> None:
    lmp = start(ATOMS)
    lmp.commands_list(["mass 1 1.008", "mass 2 15.999"])
    with pytest.raises(InputError, match="type 1 is to be O, but has the mass of H"):
        coupled(lmp, elements=["O", "H"])


def test_a_missing_mpi4py_is_named() -> None:
    lmp = start(ATOMS)
    with (
        mock.patch.dict(sys.modules, {"mpi4py": None}),
        pytest.raises(BackendError, match="mpi4py"),
    ):
        coupled(lmp)


def test_another_mpi_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(BackendError, match="4 processes do not see one another"):
        coupled(start(ATOMS))


def overlapping() -> Atoms:
    atoms = ATOMS.copy()
    atoms.positions[1] = atoms.positions[0] + 0.01
    return atoms


FAILURES: dict[str, tuple[Callable[[], Atoms], list[str], str]] = {
    "atoms far too close": (overlapping, [], r"atoms [12] \(.\) and [12] \(.\) are only"),
    "time step of other units": (lambda: ATOMS, ["timestep 0.5"], "500 fs in units metal"),
    "ghosts not far enough": (
        lambda: water((5, 5, 5), tilt=0.1),
        ["comm_modify cutoff 1.5", *OUTPUT],
        r"an atom \S+ Å from the edge of a rank's domain has no ghost, and .* up to 2.5 Å",
    ),
    "ghosts not far enough in an open box": (
        lambda: water((5, 5, 5)),
        ["comm_modify cutoff 1.5", "change_box all boundary f p f", *OUTPUT],
        "has no ghost",
    ),
    "ghosts that no longer cover": (
        lambda: ATOMS,
        ["timestep 0.001", "neighbor 3.0 bin", "velocity all set 300 0 0", *OUTPUT, "thermo 1"],
        "moved by .* set `neigh_modify",
    ),
}


@pytest.mark.parametrize("method", ["command", "commands_string", "commands_list", "file"])
def test_methods_raise_failures_and_lammps_continues(method: str, tmp_path: Path) -> None:
    lmp = start(ATOMS)
    coupled(lmp)
    lmp.commands_list(["fix move all nve", "timestep 0.5"])
    script = tmp_path / "in.lammps"
    script.write_text("run 1\nrun 2\n")
    argument = {"file": str(script), "commands_list": ["run 1"]}.get(method, "run 1")
    with pytest.raises(InputError, match="500 fs"):
        getattr(lmp, method)(argument)
    lmp.command("timestep 0.0005")
    lmp.command("run 2")
    check_forces(lmp)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_run_raises_in_python(name: str) -> None:
    make, commands, text = FAILURES[name]
    lmp = start(make())
    coupled(lmp)
    lmp.commands_list(["fix move all nve", *commands])
    with pytest.raises(MlffTritonError, match=text) as caught:
        lmp.command("run 20")
    assert "\n" not in str(caught.value)


def test_ctrl_c_stops_a_run() -> None:
    lmp = start(ATOMS)
    coupling = coupled(lmp)
    lmp.command("fix move all nve")
    interrupt = mock.patch.object(coupling._part, "step", side_effect=KeyboardInterrupt)
    with interrupt, pytest.raises(KeyboardInterrupt):
        lmp.command("run 5")
    lmp.command("run 2")
    check_forces(lmp)


def test_ghosts_are_not_computed_in_full_by_default() -> None:
    from mlff_triton.calculators.lammps.start import is_best

    assert coupled(start(ATOMS)).engine.backend == "cpu"
    for backend in ("cpu", "torch", "exact"):
        engine = Engine(MODEL, "cpu", "float64", backend)
        assert is_best(engine, 1)
        assert is_best(engine, 2) == (backend != "exact")
        engine = Engine(charged_model(), "cpu", "float64", backend)
        assert is_best(engine, 1) == (backend != "exact")


def test_a_closed_or_replaced_coupling_leaves_no_memory_behind() -> None:
    gc.disable()
    try:
        lmp = start(ATOMS)
        engines = []
        for _ in range(2):
            engines.append(weakref.ref(coupled(lmp).engine))
            lmp.command("run 0 post no")
        assert [engine() is None for engine in engines] == [True, False]
        lmp.close()
        assert engines[1]() is None
        lmp.close()  # as LAMMPS allows
    finally:
        gc.enable()


def test_the_engine_is_that_of_the_options() -> None:
    coupling = coupled(start(ATOMS), dtype="float32", backend="torch")
    assert isinstance(coupling.engine, Engine)
    assert coupling.engine.backend == "torch"
    assert str(coupling.engine.dtype) == "torch.float32"
