"""Models by name: files of the Hugging Face Hub, fetched once into its cache.

Nothing is fetched unless a name asks for it, and cached files are not looked up again. The
environment variables of huggingface_hub apply: ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``,
``HF_HUB_OFFLINE``, and the proxy variables.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from mlff_triton._common.remedies import install
from mlff_triton._common.text import first_line, printable, shortened
from mlff_triton.checkpoints._reading import MAX_FILE_BYTES, interpreting, read_file
from mlff_triton.errors import CheckpointError

ADDRESS = "hf:owner/repository/file"
MAX_CARD_CHARACTERS = 100_000

_LOG = logging.getLogger("mlff_triton")
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub.

    Attributes
    ----------
    repo : str
        Owner and name of the repository.
    file : str
        Path of the checkpoint in the repository; ``model.json`` for a MatGL folder.
    revision : str
        Commit, tag or branch.
    sha256 : mapping of str to str
        Published SHA-256 hashes of files in the repository.
    """

    repo: str
    file: str
    revision: str = "main"
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the model, starting with the one to load."""
        path = PurePosixPath(self.file)
        if path.name == "model.json":
            return self.file, str(path.with_name("state.pt"))
        return (self.file,)

    def commit_of(self, path: Path) -> str:
        """Return the commit of this model's file in the cache."""
        return path.parents[self.file.count("/")].name

    def address_of(self, path: Path) -> str:
        """Return the address of a file in the cache, which means the same everywhere."""
        return f"hf:{self.repo}@{self.commit_of(path)}/{self.file}"


NAMED = {
    "aceff-1.1": HubModel("Acellera/AceFF-1.1", "aceff_v1.1.ckpt"),
    "aceff-2.0": HubModel(
        "Acellera/AceFF-2.0",
        "aceff_v2.0.ckpt",
        "67ad6a3b06ee9b44cfbac3bc32117dd6276e9122",
        {"aceff_v2.0.ckpt": "877af6bf84cc69d6d5cbd377a61cfc19c45fb87a00583f7c867e2f9d244cc8fd"},
    ),
    "tensornet-matpes-pbe": HubModel(
        "materialyze/TensorNet-PES-MatPES-PBE-2025.2",
        "model.json",
        "7ac2b90400a87eca7f44c1e7956dca6b1c85e418",
        {"state.pt": "b9efa8c708014dd6c37e348f65dc1d8ae5c7bd5c7290de4d9f210e16c7fc3766"},
    ),
    "tensornet-matpes-r2scan": HubModel(
        "materialyze/TensorNet-PES-MatPES-r2SCAN-2025.2",
        "model.json",
        "a9934dd4311849373230c253c74c6eab2519f867",
    ),
}
"""Models by name. A hash is given where one has been published for the revision."""


def find(name: str) -> HubModel | None:
    """Return the model of a name or of an address, or None for other text.

    Parameters
    ----------
    name : str
        A name in `NAMED`, or ``hf:owner/repository/file``; ``hf:owner/repository@revision/file``
        for a revision other than ``main``.

    Raises
    ------
    CheckpointError
        If an address is malformed.
    """
    if name in NAMED or not name.startswith("hf:"):
        return NAMED.get(name)
    parts = re.fullmatch(r"hf:([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", name)
    repo, revision, file = parts.groups() if parts else ("", "", "")
    model = HubModel(repo, file, revision or "main")
    if {"", ".", ".."} & {model.revision, *file.split("/")} or not name.isprintable():
        raise CheckpointError(f"{shortened(name)!r} is not an address of a file: give {ADDRESS}")
    return next((known for known in NAMED.values() if known == model), model)


def is_installed() -> bool:
    """Return True if huggingface_hub is installed."""
    return find_spec("huggingface_hub") is not None


def is_cached(model: HubModel) -> bool:
    """Return True if all files of a model are in the cache."""
    with _explaining(model, model.repo):
        return _cached(model) is not None


def fetch(model: HubModel, name: str) -> Path:
    """Return the path of a model in the cache, and fetch it first if it is not there.

    The license in the model card is logged when a model is fetched.

    Parameters
    ----------
    model : HubModel
        Model to fetch.
    name : str
        Name of the model in messages.

    Raises
    ------
    CheckpointError
        If huggingface_hub is missing, the Hub cannot be reached or does not have the files, or a
        file does not have its published hash.
    """
    with _explaining(model, shortened(name)):
        path = _cached(model)
        if path is None:
            path = _download(model)
            _LOG.warning(f"fetched {name} from {_page(model)}, license: {_license(model, path)}")
    with interpreting(str(path)):
        for file in model.files:
            _check_hash(path.with_name(PurePosixPath(file).name), model.sha256.get(file), name)
    return path


def _cached(model: HubModel) -> Path | None:
    """Return the path of a model if all of its files are in the cache, without any request.

    Even a download with ``local_files_only`` may first request a list of agents.
    """
    from huggingface_hub import try_to_load_from_cache

    path, revision = None, model.revision
    for file in model.files:
        found = try_to_load_from_cache(model.repo, file, revision=revision)
        if not isinstance(found, str):
            return None
        path = path or Path(found)
        revision = model.commit_of(path)
    return path


def _download(model: HubModel) -> Path:
    """Fetch the files of a model, all from the commit of the first one, and return its path.

    The size is requested first. Without a network, this fails at once, while a download is retried.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    def download(file: str, revision: str) -> str:
        size = get_hf_file_metadata(hf_hub_url(model.repo, file, revision=revision)).size
        if size is not None and size > MAX_FILE_BYTES:
            raise CheckpointError(
                f"{file} of {model.repo} has {size / 1e9:.1f} GB: a model has at most "
                f"{MAX_FILE_BYTES / 1e9:.1f} GB"
            )
        return hf_hub_download(model.repo, file, revision=revision)

    path = Path(download(model.file, model.revision))
    for file in model.files[1:]:
        download(file, model.commit_of(path))
    return path


def _license(model: HubModel, path: Path) -> str:
    """Fetch the model card and return its license, or what to do without one."""
    from huggingface_hub import errors, hf_hub_download

    try:
        card = hf_hub_download(model.repo, "README.md", revision=model.commit_of(path))
        with Path(card).open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CARD_CHARACTERS)
    except (OSError, errors.EntryNotFoundError):
        text = ""
    front_matter = re.match(r"---\s*\n.*?\n---", text, re.DOTALL)
    header = front_matter[0] if front_matter else ""
    given = re.search(r"^license:[ \t]*(\S.*)$", header, re.MULTILINE)
    return shortened(printable(given[1].strip(" \"'"))) if given else "not stated, ask its authors"


def _check_hash(path: Path, known: str | None, name: str) -> None:
    """Compare a file in the cache with its hashes in `NAMED` and on the Hub.

    A file in the cache is a link to a file named by the Hub's hash, SHA-256 for large files.
    """
    target = path.readlink().name if path.is_symlink() else ""
    expected = {known, target if _SHA256.fullmatch(target) else None} - {None}
    if expected and expected != {hashlib.sha256(read_file(path)).hexdigest()}:
        raise CheckpointError(
            f"{path.resolve()} does not have its published SHA-256 hash {known or target}: delete "
            f"it, and load {shortened(name)} again"
        )


def _page(model: HubModel) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{model.repo}"


@contextmanager
def _explaining(model: HubModel, name: str) -> Iterator[None]:
    """Turn any error of huggingface_hub into a `CheckpointError` of one line."""
    if not is_installed():
        raise CheckpointError(
            f"{name} is on the Hugging Face Hub, which needs huggingface_hub: {install('hub')}"
        )
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(_explanation(error, model, name)) from error


def _explanation(error: Exception, model: HubModel, name: str) -> str:
    """Return one line that says what is wrong and what to do."""
    from huggingface_hub import errors

    page = _page(model)
    cannot = f"{name} is not in the cache, and cannot be fetched from {page}"
    unreachable = (
        f"{cannot} ({first_line(error.__cause__ or error)}): check the network, the proxy, "
        "HF_ENDPOINT and HF_TOKEN"
    )
    cases: tuple[tuple[type[Exception], str], ...] = (
        (errors.OfflineModeIsEnabled, f"{cannot}, as HF_HUB_OFFLINE is set: unset it once"),
        (errors.HFValidationError, f"{name!r} is not an address of a file: give {ADDRESS}"),
        (
            errors.GatedRepoError,
            f"{name} is gated: accept its conditions at {page}, and set HF_TOKEN",
        ),
        (
            errors.RepositoryNotFoundError,
            f"{page} does not exist or is private: check the name, or set HF_TOKEN",
        ),
        (
            errors.RevisionNotFoundError,
            f"{model.repo} has no revision {model.revision!r}: see {page}/commits/main",
        ),
        (errors.LocalEntryNotFoundError, unreachable),
        (
            errors.EntryNotFoundError,
            f"{model.repo} has no {' with '.join(model.files)}: see {page}/tree/{model.revision}",
        ),
    )
    return next((text for kind, text in cases if isinstance(error, kind)), unreachable)
