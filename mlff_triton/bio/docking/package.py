"""DiffDock's own code and weights: models, their settings, and graphs of receptors and ligands."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mlff_triton._common.remedies import install
from mlff_triton._common.text import first_line, one_line
from mlff_triton.bio.docking.diffusion import Component, Diffusion
from mlff_triton.errors import CheckpointError, InputError

VARIABLE = "DIFFDOCK"
"""Environment variable with the path of a checkout."""
CONFIGURATION = "default_inference_args.yaml"
PARAMETERS = "model_parameters.yml"
CHECKPOINTS = (
    *("best_ema_inference_epoch_model.pt", "best_model_epoch75.pt", "best_model.pt"),
    "last_model.pt",
)
"""Names of weights in a folder, the best first."""
NEEDED = ("utils.utils", "utils.diffusion_utils", "utils.inference_utils", "datasets.process_mols")
COMPILED = {"torch_cluster": "torch-cluster", "torch_scatter": "torch-scatter"}
"""Modules that are compiled against PyTorch, and their packages."""
LANGUAGE = (
    *("esm_embeddings_path", "moad_esm_embeddings_path", "pdbbind_esm_embeddings_path"),
    *("pdbsidechain_esm_embeddings_path", "esm_embeddings_model"),
)
"""Settings of models that read residue embeddings from a language model."""


@dataclass(frozen=True)
class Loaded:
    """A model of DiffDock with its settings.

    Attributes
    ----------
    model : torch.nn.Module
        Score or confidence model in evaluation mode.
    settings : Namespace
        Settings that it was trained with.
    """

    model: nn.Module
    settings: Namespace

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting that older models may lack."""
        return getattr(self.settings, name, default)


def find_code(given: Path | None) -> Path:
    """Return the folder of DiffDock's code: the given one, or the one in the environment.

    Raises
    ------
    InputError
        If it is not named or not a checkout of DiffDock.
    """
    path = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    remedy = "clone gcorso/DiffDock, and name its folder by --code or the variable DIFFDOCK"
    if path is None:
        raise InputError(f"docking needs the code of DiffDock: {remedy}")
    for name in NEEDED:
        if not path.joinpath(*name.split(".")).with_suffix(".py").is_file():
            raise InputError(f"{path} has no {name.replace('.', '/')}.py: {remedy}")
    return path.absolute()


def find_models(model: Path, confidence: Path | None) -> tuple[Path, Path | None]:
    """Return the folders of the score model and of the confidence model, if there is one.

    Raises
    ------
    CheckpointError
        If a folder has no model.
    """
    scores, judge = model, confidence
    if not (model / PARAMETERS).is_file() and (model / "score_model").is_dir():
        scores = model / "score_model"
        if judge is None and (model / "confidence_model").is_dir():
            judge = model / "confidence_model"
    for folder in (scores, judge):
        if folder is not None:
            weights_in(folder)
    return scores.absolute(), None if judge is None else judge.absolute()


def weights_in(folder: Path) -> Path:
    """Return the file of the weights in a folder with a model.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    if not (folder / PARAMETERS).is_file():
        raise CheckpointError(f"{folder} has no {PARAMETERS}: name the folder of a DiffDock model")
    for name in CHECKPOINTS:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"{folder} has no weights: {CHECKPOINTS[0]} is missing")


def check_installed() -> None:
    """Raise an `InputError` if what the command itself imports is missing."""
    for name in ("rdkit", "torch_geometric", "yaml"):
        with needed():
            importlib.import_module(name)


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Raise an error that says what to install if a module is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name in COMPILED:
            remedy = f"pip install {COMPILED[name]} --no-build-isolation"
        else:
            remedy = install("dock")
        raise InputError(f"docking needs {name}, which is not installed: {remedy}") from error


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Keep the package's messages and warnings from the terminal, and yield them."""
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield said


class Package:
    """Code of DiffDock, which is imported from its folder.

    Tables that it computes on first use, for minutes, are written to this folder, as by its own
    scripts.

    Parameters
    ----------
    code : Path
        Folder of a checkout.

    Raises
    ------
    InputError
        If something that it imports is missing, or other modules have the names of its own.
    """

    def __init__(self, code: Path) -> None:
        self.code = code
        for name in ("utils", "datasets", "models"):
            module = sys.modules.get(name)
            where = [str(Path(p).absolute()) for p in getattr(module, "__path__", ())]
            if module is not None and str(code / name) not in where:
                raise InputError(f"another module {name} is imported: dock in a new process")
        if str(code) not in sys.path:
            sys.path.insert(0, str(code))
        before = Path.cwd()
        try:
            os.chdir(code)
            with needed(), quiet():
                utils, diffusion, inference, molecules = map(importlib.import_module, NEEDED)
        finally:
            os.chdir(before)
        self._get_model: Callable[..., nn.Module] = utils.get_model
        self._to_sigma = diffusion.t_to_sigma
        self._dataset = inference.InferenceDataset
        self._ligand_graph = molecules.get_lig_graph_with_matching

    def load(self, folder: Path, device: torch.device, *, confidence: bool = False) -> Loaded:
        """Load a score model, or a confidence model, from its folder.

        Raises
        ------
        CheckpointError
            If settings or weights cannot be read, or do not fit each other.
        """
        import yaml

        try:
            settings = Namespace(**yaml.full_load((folder / PARAMETERS).read_text()))
            weights = torch.load(weights_in(folder), map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(f"{folder} cannot be read: {first_line(error)}") from error
        problem: Exception | None = None
        for is_old in (False, True):
            try:
                with quiet():
                    model = self._get_model(
                        settings,
                        device,
                        t_to_sigma=partial(self._to_sigma, args=settings),
                        no_parallel=True,
                        confidence_mode=confidence,
                        old=is_old,
                    )
                model.load_state_dict(weights)
            except Exception as error:  # noqa: BLE001 - models raise many kinds
                problem = problem or error
                continue
            return Loaded(model.to(device).eval().requires_grad_(False), settings)
        assert problem is not None
        raise CheckpointError(
            f"the weights in {folder} do not fit its settings and this code of DiffDock: "
            f"{one_line(first_line(problem))[:200]}"
        ) from problem

    def receptor(self, path: Path, loaded: Loaded, embeddings: Any = None) -> tuple[Any, Any]:
        """Return the graph of a receptor in a model's form, and embeddings of its residues.

        Raises
        ------
        InputError
            If DiffDock cannot read the receptor.
        """
        reads = any(loaded.get(name) is not None for name in LANGUAGE)
        with needed(), quiet() as said, tempfile.TemporaryDirectory() as folder:
            try:
                made = self._dataset(
                    out_dir=folder,
                    complex_names=["receptor"],
                    protein_files=[str(path)],
                    ligand_descriptions=["CC"],
                    protein_sequences=[None],
                    lm_embeddings=reads,
                    receptor_radius=loaded.settings.receptor_radius,
                    c_alpha_max_neighbors=loaded.settings.c_alpha_max_neighbors,
                    precomputed_lm_embeddings=embeddings,
                    remove_hs=loaded.settings.remove_hs,
                    all_atoms=loaded.get("all_atoms", False),
                    atom_radius=loaded.get("atom_radius"),
                    atom_max_neighbors=loaded.get("atom_max_neighbors"),
                    knn_only_graph=not loaded.get("not_knn_only_graph", True),
                )
                data = made[0]
            except ModuleNotFoundError:
                raise
            except Exception as error:
                raise InputError(f"DiffDock cannot read {path}: {first_line(error)}") from error
        if not data["success"]:
            lines = said.getvalue().split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), "for no known reason")
            raise InputError(f"DiffDock cannot read {path}: {one_line(reason)}")
        return data, made.lm_embeddings if reads else None

    def complex(self, molecule: Any, receptor: Any, loaded: Loaded) -> Any:
        """Return the graph of a molecule of RDKit with a conformer, centered, and a receptor."""
        from torch_geometric.data import HeteroData

        data = HeteroData()
        with quiet():
            self._ligand_graph(
                molecule,
                data,
                popsize=None,
                maxiter=None,
                matching=False,
                keep_original=False,
                num_conformers=1,
                remove_hs=loaded.settings.remove_hs,
            )
        pos = data["ligand"].pos
        data["ligand"].pos = pos - pos.mean(0, keepdim=True)
        for store in (*receptor.node_stores, *receptor.edge_stores):
            if "ligand" not in (store._key if isinstance(store._key, tuple) else (store._key,)):
                for name, value in store.items():
                    data[store._key][name] = value
        return data


def diffusion_of(loaded: Loaded, configuration: Path | None, steps: int | None) -> Diffusion:
    """Return the diffusion of a model, with the settings of a file for DiffDock's inference.py.

    Raises
    ------
    InputError
        If the file cannot be read, or a number is invalid.
    """
    import yaml

    given: dict[str, Any] = {}
    if configuration is not None:
        try:
            given = dict(yaml.safe_load(configuration.read_text()))
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            raise InputError(f"{configuration} cannot be read: {first_line(error)}") from error
    translation, rotation, torsion = (
        Component(
            loaded.get(f"{kind}_sigma_min"),
            loaded.get(f"{kind}_sigma_max"),
            given.get(f"temp_sampling_{kind}", 1.0),
            given.get(f"temp_psi_{kind}", 0.0),
            given.get(f"temp_sigma_data_{kind}", 0.5),
        )
        for kind in ("tr", "rot", "tor")
    )
    return Diffusion(
        translation,
        rotation,
        torsion,
        steps=given.get("inference_steps", 20) if steps is None else steps,
        actual_steps=given.get("actual_steps") if steps is None else None,
        noisy_end=not given.get("no_final_step_noise", True),
        start=given.get("initial_noise_std_proportion", -1.0),
        crop=loaded.get("crop_beyond"),
        no_torsion=loaded.get("no_torsion", False),
    )
