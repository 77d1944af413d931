"""``mlff-triton dock``, with a package that has the interface of DiffDock and random weights."""

from __future__ import annotations

import csv
import gzip
import runpy
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from mlff_triton.bio.docking import files
from mlff_triton.bio.docking.ligands import Record, molecule_of
from mlff_triton.cli import main as cli
from mlff_triton.errors import InputError

Chem = pytest.importorskip("rdkit.Chem", reason="RDKit is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TorchScript, which e3nn compiles when it is imported
    pytest.importorskip("e3nn", reason="e3nn is not installed")
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    from tests.bio.docking.complexes import make_model
    from tests.bio.models.diffdock.batches import SIGMAS
    from tests.bio.models.diffdock.conftest import quick_products


pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures(quick_products.__name__),
]

PACKAGE = Path(__file__).with_name("package")
SMILES = {"butanol": "CCCCO", "benzene": "c1ccccc1", "glycine": "NCC(=O)O"}
BROKEN = "broken\n\n\n  9  9  0\nnothing\nM  END\n"


def block(name: str, smiles: str) -> str:
    """Return a record of an SDF file, without positions."""
    molecule = Chem.MolFromSmiles(smiles, sanitize=False)
    molecule.SetProp("_Name", name)
    return str(Chem.MolToMolBlock(molecule, kekulize=False))


def write_model(folder: Path, kind: str, **options: Any) -> None:
    folder.mkdir(parents=True)
    torch.manual_seed(1)
    model = make_model(kind, **options)
    torch.save(model.state_dict(), folder / "best_model.pt")
    settings: dict[str, Any] = {"ns": 4, "receptor_radius": 15.0, "c_alpha_max_neighbors": 6}
    settings |= {"remove_hs": True, "all_atoms": False, "use_original_model_cache": True}
    for name, (low, high) in SIGMAS.items():
        settings |= {f"{name}_sigma_min": low, f"{name}_sigma_max": high}
    (folder / "model_parameters.yml").write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_model(folder / "score_model", "CGModel")
        write_model(folder / "confidence_model", "CGOldModel", confidence_mode=True)
    return folder


@pytest.fixture
def run(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run the command in a folder with a receptor and three ligands; return code and texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFDOCK", str(PACKAGE))
    rng = np.random.default_rng(0)
    lines = [
        f"ATOM  {k:5d}  CA  ALA A{k:4d}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00           C"
        for k, (x, y, z) in enumerate(8 * rng.normal(size=(9, 3)) + 20, 1)
    ]
    Path("receptor.pdb").write_text("\n".join(lines))
    Path("ligands.sdf").write_text("".join(f"{block(*each)}$$$$\n" for each in SMILES.items()))

    def command(
        *arguments: object, model: Path = models, ligands: str = "ligands.sdf"
    ) -> tuple[int, str, str]:
        given: list[object] = ["dock", "receptor.pdb", ligands, "--model", model]
        given += ["--device", "cpu", "--samples", 2, "--steps", 2, *arguments]
        with pytest.raises(SystemExit) as exit_:
            cli.main([str(argument) for argument in given])
        shown = capsys.readouterr()
        return int(str(exit_.value.code)), shown.out, shown.err

    modules, paths = dict(sys.modules), list(sys.path)
    yield command
    sys.path[:] = paths
    for name in sys.modules.keys() - modules.keys():
        if name.partition(".")[0] in ("utils", "datasets", "models"):
            del sys.modules[name]


def read(path: str = "poses.sdf") -> list[Any]:
    return list(Chem.SDMolSupplier(path, removeHs=False))


def test_poses_are_ranked(run: Any) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("wrote poses.sdf: 3 ligands, ")
    found = read()
    assert [m.GetProp("_Name") for m in found] == [name for name in SMILES for _ in range(2)]
    assert [m.GetIntProp("rank") for m in found] == [1, 2] * 3
    assert [m.GetIntProp("record") for m in found] == [1, 1, 2, 2, 3, 3]
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert first.GetDoubleProp("confidence") >= second.GetDoubleProp("confidence")
        one, two = (m.GetConformer().GetPositions() for m in (first, second))
        assert np.abs(one - two).max() > 0.5
        assert np.abs(one.mean(0) - 20).max() < 200
    smiles = [Chem.MolToSmiles(m) for m in found[::2]]
    assert smiles == [Chem.CanonSmiles(each) for each in SMILES.values()]


def test_bonds_keep_their_lengths(run: Any) -> None:
    run("--seed", 5)
    for molecule in read():
        pos = molecule.GetConformer().GetPositions()
        for bond in molecule.GetBonds():
            length = np.linalg.norm(pos[bond.GetBeginAtomIdx()] - pos[bond.GetEndAtomIdx()])
            assert 1.1 < length < 1.7


def test_seeds_and_batches(run: Any) -> None:
    """Poses depend on the seed and not on the batch."""
    run("--out", "a.sdf")
    run("--out", "b.sdf", "--batch", 1)
    run("--out", "c.sdf", "--seed", 1)
    first, same, other = (
        np.concatenate([m.GetConformer().GetPositions() for m in read(name)])
        for name in ("a.sdf", "b.sdf", "c.sdf")
    )
    assert np.abs(first - same).max() < 2e-3
    assert np.abs(first - other).max() > 0.5


WRONG_LIGANDS = {
    "broken": (BROKEN, "RDKit cannot read it"),
    "valence": (block("carbon", "CC(C)(C)(C)C"), "RDKit cannot read it"),
    "empty": ("nothing\n\n\n  0  0  0  0  0  0  0  0  0  0999 V2000\nM  END\n", "cannot read"),
    "salt": (block("salt", "CCC(=O)[O-].[Na+]"), "consists of 2 molecules"),
    "refused": (block("xenon", "F[Xe]F"), "xenon is not docked"),
}


@pytest.mark.filterwarnings("ignore::mlff_triton.bio.docking.files.LigandWarning")
def test_others_stay_in_one_batch_with_a_ligand_that_fails(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    dock = files.dock

    def counted(model: Any, complexes: Any, *arguments: Any, **options: Any) -> Any:
        batches.append(len(complexes))
        return dock(model, complexes, *arguments, **options)

    monkeypatch.setattr(files, "dock", counted)
    with Path("ligands.sdf").open("a") as file:
        file.write("".join(f"{text}$$$$\n" for text, _ in WRONG_LIGANDS.values()))
    assert run()[0] == 1
    assert batches == [len(SMILES)]


@pytest.mark.parametrize("case", WRONG_LIGANDS)
def test_a_ligand_that_fails_costs_that_ligand_only(run: Any, case: str) -> None:
    text, reason = WRONG_LIGANDS[case]
    with Path("ligands.sdf").open("a") as file:
        file.write(f"{text}$$$$\n{block('last', 'CCCO')}$$$$\n")
    name = text.partition("\n")[0]
    with pytest.warns(files.LigandWarning, match=reason) as warned:
        code, _, err = run()
    assert len(warned) == 1
    assert f"ligand 4 ({name})" in str(warned[0].message)
    assert (code, err.count("\n")) == (1, 1)
    assert f"errors instead of results: 1 of 5 ligands, the first of ligand 4 ({name}): " in err
    found = read()
    assert [m.GetIntProp("record") for m in found] == [1, 1, 2, 2, 3, 3, 4, 5, 5]
    assert found[6].GetNumAtoms() == 0
    assert reason in found[6].GetProp("error")


def test_an_interrupt_is_continued(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run("--out", "whole.sdf", "--batch", 1)
    calls, docked = [], files.Docker.docked

    def interrupted(self: Any, records: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return docked(self, records)

    monkeypatch.setattr(files.Docker, "docked", interrupted)
    code, _, err = run("--batch", 1)
    assert code == 130
    assert "stopped after 2 ligands: the same command continues" in err
    assert not Path("poses.sdf").exists()
    code, out, _ = run("--batch", 1)
    assert code == 0
    assert "continues after 2 ligands" in out
    assert Path("poses.sdf").read_bytes() == Path("whole.sdf").read_bytes()
    assert len(calls) == 3


def test_other_options_do_not_continue(run: Any) -> None:
    assert run()[0] == 0
    code, _, err = run("--seed", 3)
    assert (code, "use --overwrite" in err) == (2, True)
    assert run("--seed", 3, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("name", "what"), [("settings.yaml", "configuration"), ("receptor.pdb", "receptor")]
)
def test_files_that_changed_do_not_continue(
    run: Any, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    Path("settings.yaml").write_text("temp_sampling_tr: 2.0\n")
    docked = files.Docker.docked

    def interrupted(self: Any, records: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return docked(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(files.Docker, "docked", interrupted)
        assert run("--batch", 1, "--config", "settings.yaml")[0] == 130
    with Path(name).open("a") as file:
        file.write("\n")
    code, _, err = run("--batch", 1, "--config", "settings.yaml")
    assert code == 2
    assert f"was begun with {what} contents=" in err
    assert not Path("poses.sdf").exists()


def test_compressed_ligands_and_single_models(run: Any, models: Path) -> None:
    """Without a confidence model, poses have no confidence."""
    content = Path("ligands.sdf").read_bytes()
    Path("ligands.sdf").unlink()
    Path("ligands.sdf.gz").write_bytes(gzip.compress(content))
    assert run(model=models / "score_model", ligands="ligands.sdf.gz")[0] == 0
    assert not any(m.HasProp("confidence") for m in read())
    assert len(read()) == 6


@pytest.mark.filterwarnings("ignore::mlff_triton.bio.docking.files.LigandWarning")
def test_example_ranks_ligands(
    run: Any, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    del run  # which has written files
    example = Path(__file__).parents[3] / "examples" / "17_docking.py"
    with Path("ligands.sdf").open("a") as file:
        file.write(f"{BROKEN}$$$$\n")
    options = ["--device", "cpu", "--samples", "2", "--steps", "2", "--model", str(models)]
    monkeypatch.setattr(sys, "argv", [str(example), "receptor.pdb", "ligands.sdf", *options])
    runpy.run_path(str(example), run_name="__main__")
    rows = list(csv.DictReader(Path("ranking.csv").read_text().splitlines()))
    assert {row["ligand"] for row in rows[:3]} == set(SMILES)
    confidences = [float(row["confidence"]) for row in rows[:3]]
    assert confidences == sorted(confidences, reverse=True)
    assert (rows[3]["ligand"], rows[3]["error"]) == ("broken", "RDKit cannot read it")
    assert f"4 ligands, 1 errors; the best is {rows[0]['ligand']}" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [str(example), "absent.pdb", "ligands.sdf", *options])
    with pytest.raises(SystemExit, match=r"there is no file absent\.pdb"):
        runpy.run_path(str(example), run_name="__main__")


def test_settings_of_a_file_are_used(run: Any) -> None:
    Path("settings.yaml").write_text("temp_sampling_tr: 2.0\ntemp_psi_tr: 0.5\n")
    run("--out", "a.sdf")
    assert run("--out", "b.sdf", "--config", "settings.yaml")[0] == 0
    assert Path("a.sdf").read_bytes() != Path("b.sdf").read_bytes()


CASES: dict[str, tuple[Callable[[pytest.MonkeyPatch, Path], tuple[object, ...]], str]] = {
    "no code": (lambda patch, _: (patch.delenv("DIFFDOCK"), ())[1], "needs the code of DiffDock"),
    "other code": (lambda *_: ("--code", "."), "has no utils/utils.py"),
    "no model": (lambda *_: ("--model", "absent"), "has no model_parameters.yml"),
    "no weights": (
        lambda _, models: ("--model", _without_weights(models)),
        "has no weights: best_ema",
    ),
    "other weights": (
        lambda _, models: ("--model", _with_other_weights(models)),
        "do not fit its settings",
    ),
    "samples": (lambda *_: ("--samples", 0), "must be at least 1"),
    "seed": (lambda *_: ("--seed", -1), "seed=-1 is not valid"),
    "no residues": (
        lambda *_: (Path("receptor.pdb").write_text("END\n"), ())[1],
        "receptor.pdb: the receptor has no residues",
    ),
    "no ligands": (lambda *_: (Path("ligands.sdf").write_text(""), ())[1], "has no ligands"),
    "no receptor": (lambda *_: (Path("receptor.pdb").unlink(), ())[1], "there is no file"),
    "settings": (lambda *_: ("--config", "absent.yaml"), "absent.yaml cannot be read"),
    "missing package": (
        lambda patch, _: (patch.setitem(sys.modules, "torch_geometric", None), ())[1],
        "docking needs torch_geometric, which is not installed: pip install",
    ),
    "missing import of the package": (
        lambda *_: ("--code", _with_import("torch_cluster")),
        "needs torch_cluster, which is not installed: pip install torch-cluster",
    ),
}


def _without_weights(models: Path) -> Path:
    shutil.copytree(models / "score_model", "copy")
    Path("copy/best_model.pt").unlink()
    return Path("copy")


def _with_other_weights(models: Path) -> Path:
    shutil.copytree(models / "score_model", "copy")
    torch.save({"weight": torch.zeros(1)}, "copy/best_model.pt")
    return Path("copy")


def _with_import(name: str) -> Path:
    shutil.copytree(PACKAGE, "code")
    path = Path("code/datasets/process_mols.py")
    text = path.read_text().replace("import torch\n", f"import torch\nimport {name}\n")
    path.write_text(text)
    return Path("code")


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_takes_one_line(
    run: Any, models: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    change, message = CASES[case]
    options = change(monkeypatch, models)
    code, out, err = run(*options)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert not Path("poses.sdf").exists()


def test_names_of_the_package_that_others_have(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", sys.modules["signal"])
    code, _, err = run()
    assert (code, err.count("\n")) == (2, 1)
    assert "another module datasets is imported" in err


def test_conformers_follow_the_seed() -> None:
    record = Record(1, block("butanol", "CCCCO"))
    first, same, other = (molecule_of(record, seed) for seed in (1, 1, 2))
    pos = [m.GetConformer().GetPositions() for m in (first, same, other)]
    assert np.array_equal(pos[0], pos[1])
    assert not np.array_equal(pos[0], pos[2])
    with pytest.raises(InputError, match="RDKit cannot read it"):
        molecule_of(Record(1, BROKEN), 0)
