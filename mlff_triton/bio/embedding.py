"""Embeddings of proteins by a Transformer encoder, from a FASTA file to a table."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlff_triton._common.devices import made_current
from mlff_triton._common.files import fingerprint, path_of
from mlff_triton._common.remedies import install
from mlff_triton._common.text import first_line
from mlff_triton._common.torch_settings import kept_random_state, with_own_settings
from mlff_triton._common.version import __version__
from mlff_triton.bio.alignment.files import Record, read_records
from mlff_triton.bio.core.fast_forward import PRECISIONS
from mlff_triton.bio.patch import accelerate
from mlff_triton.bio.tokens import Encode, Tokenizer
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.jobs.job import Job, Progress, Task, Workers, run
from mlff_triton.jobs.tables import OF_ITEMS, concatenated, pack, writer_of
from mlff_triton.jobs.workers import Done

SEQUENCES = 1024  # per task, at most
RESIDUES = 1 << 18  # per task, about
TOKENS = 1 << 14  # per batch, with padding
UNUSED = ("pooler.", "contact_head.")  # parts that hidden states do not depend on
POSITIONS = ("position_embeddings", "embed_positions", "wpe")  # names of tables, by their ends
PROBES = b"MKV", b"MKVMKV"  # proteins that show whether padding matters
LEAK = 0.02  # relative difference that padding explains, but not rounding
COUNTS = "n_residues"


def embed_files(
    fasta: str | Path,
    out: str | Path,
    *,
    model: str | Path,
    per_residue: bool = False,
    precision: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    scheduler: str | None = None,
    overwrite: bool = False,
    show: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Compute embeddings of all proteins in a FASTA file by a model of Hugging Face's transformers.

    The model is accelerated in place. Its last hidden states are averaged over residues, without
    start and end tokens, or written for each residue. Files may be of any size. Results have the
    order of the input. A sequence that is empty, too long for the model or for the GPU, or that has
    a symbol that the tokenizer does not know, has an error. If a call is interrupted, even by
    SIGKILL, an equal call continues it.

    Parameters
    ----------
    fasta : str or path
        FASTA or FASTQ file, gzipped or not.
    out : str or path
        File to write: HDF5 (.h5, .hdf5) or Parquet (.parquet, .pq). It appears when it is complete.
        Its columns are ``name``, ``n_residues`` L, ``error``, and ``embedding``: float32 [n, C], of
        NaN where there is an error, or [sum L, C] per residue, with L = 0 where there is an error.
    model : str or path
        Folder or name on the hub of an encoder with its tokenizer, such as
        "facebook/esm2_t33_650M_UR50D".
    per_residue : bool
        If True, write the embedding of each residue; otherwise their mean.
    precision : {"fp16", "bf16", "fp32"}, optional
        Dtype of the computation on a GPU; by default that of the parameters.
    workers : int, optional
        Number of processes, which share the GPUs; by default, one per GPU, or this process if there
        is at most one.
    device, scheduler, overwrite, show, stop
        As for `mlff_triton.predict_files`.

    Returns
    -------
    Progress
        Numbers of sequences and errors, and whether the output is complete.

    Raises
    ------
    InputError
        If an option is invalid, or the file cannot be read.
    CheckpointError
        If the model or its tokenizer cannot be loaded, or the checkpoint lacks weights.
    BackendError
        If the device or the scheduler is unavailable, or workers die repeatedly.
    OutputError
        If the output exists or cannot be written, or was begun with other options or input.

    Examples
    --------
    >>> embed_files("proteins.fasta", "embeddings.h5", model="facebook/esm2_t6_8M_UR50D")
    """
    if precision not in (None, *PRECISIONS):
        raise InputError(f"precision={precision!r} is unknown: use one of {', '.join(PRECISIONS)}")
    path, source = path_of(out), path_of(fasta)
    finish = writer_of(path, COUNTS)
    folder = path_of(model)
    name = str(folder.absolute()) if folder.is_dir() else str(model)
    settings: dict[str, str | int | None] = {
        "job": "embed",
        "version": __version__,
        "model": name,
        "files": fingerprint(folder),
        "precision": precision,
        "per_residue": per_residue,
    }
    if find_spec("transformers") is None:
        raise InputError(f"embeddings need transformers: {install('bio')}")
    next(
        read_records(source, allow_empty=True)
    )  # files that cannot be read are refused before a model is loaded
    job = Job(
        lambda: tasks_of(source),
        Embedding(name, precision, per_residue),
        path,
        settings,
        finish=finish,
    )
    place = Workers(device, workers, scheduler)
    return run(job, place, overwrite=overwrite, show=show, stop=stop)


def tasks_of(path: Path) -> Iterator[Task]:
    """Yield the tasks of a FASTA file, whose contents are lists of records."""
    records: list[Record] = []
    size = position = 0
    for record in read_records(path, allow_empty=True):
        if records and (len(records) == SEQUENCES or size + len(record.seq) > RESIDUES):
            yield _task(records, position)
            records, size = [], 0
        records.append(record)
        size += len(record.seq)
        position += len(record.seq) + len(record.id) + 2
    yield _task(records, position)


def _task(records: list[Record], position: int) -> Task:
    check = 0
    for record in records:
        check = zlib.crc32(f"{record.id}\n".encode() + record.seq, check)
    return Task(records, check, position, f"record {records[0].id}")


@dataclass(frozen=True)
class Embedding:
    """The computation of `embed_files`; its attributes are arguments of that function."""

    model: str
    precision: str | None
    per_residue: bool

    def start(self, device: str) -> Callable[[list[Record]], Done]:
        """Load the model, and return the function that embeds records."""
        encoder = Encoder.load(self.model, self.precision, device)

        def compute(records: list[Record]) -> Done:
            sequences = [record.seq for record in records]
            found, errors = encoder.embed(sequences, per_residue=self.per_residue)
            return self._done(records, found, errors, encoder.width)

        return compute

    def nothing(self) -> list[Record]:
        """Return no records."""
        return []

    def parts(self, records: list[Record]) -> list[list[Record]]:
        """Return two halves of a list of records, or the list itself if it has one record."""
        middle = len(records) // 2
        return [records[:middle], records[middle:]] if middle else [records]

    def lost(self, records: list[Record], reason: str) -> Done:
        """Return an error for each record."""
        from transformers import AutoConfig

        width = AutoConfig.from_pretrained(self.model).hidden_size
        return self._done(records, [None] * len(records), [reason] * len(records), width)

    def merged(self, payloads: Sequence[bytes]) -> bytes:
        """Join the embeddings of parts into those of their task."""
        return concatenated(payloads)

    def _done(
        self,
        records: list[Record],
        found: list[NDArray[np.float32] | None],
        errors: list[str],
        width: int,
    ) -> Done:
        if not records:
            return Done(b"", 0)
        wrong = [k for k, error in enumerate(errors) if error]
        first = f"record {records[wrong[0]].id}: {errors[wrong[0]]}" if wrong else ""
        payload = pack(self._columns(records, found, errors, width))
        return Done(payload, len(records), len(wrong), first)

    def _columns(
        self,
        records: list[Record],
        found: list[NDArray[np.float32] | None],
        errors: list[str],
        width: int,
    ) -> dict[str, NDArray[Any]]:
        nothing = np.full((0 if self.per_residue else 1, width), np.nan, dtype=np.float32)
        rows = [nothing if x is None else x for x in found]
        lengths = list(map(len, rows if self.per_residue else (record.seq for record in records)))
        return {
            "name": np.array([record.id for record in records], dtype=str),
            COUNTS: np.array(lengths, dtype=np.int64),
            "error": np.array(errors, dtype=str),
            "embedding" + OF_ITEMS * self.per_residue: np.concatenate(rows),
        }


class Batch(NamedTuple):
    """Embeddings of some sequences.

    Attributes
    ----------
    members : list of int
        Indices of the sequences.
    lengths : list of int
        Number of tokens of each sequence that are residues.
    rows : float32 [n, C] or [sum L, C]
        Mean embedding of each sequence, or embeddings of its residues.
    is_finite : bool [n] or [sum L]
        True for rows whose numbers are all finite.
    """

    members: list[int]
    lengths: list[int]
    rows: Tensor
    is_finite: Tensor

    def on_host(self) -> Batch:
        """Return the batch with its tensors on the CPU."""
        return self._replace(rows=self.rows.cpu(), is_finite=self.is_finite.cpu())


class Encoder(NamedTuple):
    """A model with its tokenizer.

    Attributes
    ----------
    model : nn.Module
        Encoder of transformers, accelerated if possible.
    encode : callable
        Function that returns the tokens of sequences.
    device : torch.device
        Device of the model.
    symbols : str
        Letters that the tokenizer knows as residues.
    longest : int or None
        Largest number of tokens of a sequence, if positions have a table.
    width : int
        Channels C of an embedding.
    ignores_padding : bool
        True if padding behind a sequence does not change its embedding.
    """

    model: nn.Module
    encode: Encode
    device: torch.device
    symbols: str
    longest: int | None
    width: int
    ignores_padding: bool = True

    @classmethod
    @with_own_settings
    def load(cls, name: str, precision: str | None, device: str) -> Encoder:
        """Load a model and accelerate it.

        Raises
        ------
        CheckpointError
            If the model or its tokenizer cannot be loaded, or the checkpoint lacks weights.
        """
        from transformers import AutoModel, AutoTokenizer

        try:
            with kept_random_state(), _without_reports():  # of a pooler, whose weights may be new
                tokenizer = Tokenizer(AutoTokenizer.from_pretrained(name))
                model, found = AutoModel.from_pretrained(name, output_loading_info=True)
        except Exception as error:
            raise CheckpointError(
                f"{name} cannot be loaded as a model of transformers with its tokenizer: "
                f"{first_line(error)}"
            ) from error
        _check_complete(name, model, found["missing_keys"])
        place = torch.device(device)
        with made_current(place):
            model = model.eval().requires_grad_(False).to(place)
            if place.type == "cuda":
                try:
                    accelerate(model, precision=precision)
                except UnsupportedModelError:
                    model = model.to(_dtype_of(precision, model.dtype))
        width = model.config.hidden_size
        encoder = cls(model, tokenizer, place, tokenizer.symbols, _longest(model), width)
        encoder.check(name)
        return encoder._replace(
            encode=tokenizer.fastest(), ignores_padding=encoder.finds_no_padding()
        )

    def check(self, name: str) -> None:
        """Check that the model embeds each residue of a short protein.

        Raises
        ------
        CheckpointError
            If it is not an encoder of proteins.
        """
        try:
            n_tokens = len(self._batch([0], [b"MKV"], per_residue=True).rows)
            problem = "" if n_tokens == len("MKV") else f"3 residues became {n_tokens} tokens"
            if not set(self.symbols).issuperset("MKV"):
                problem = "its tokenizer does not know residues"
        except Exception as error:  # noqa: BLE001 - models raise many kinds
            problem = first_line(error)
        if problem:
            raise CheckpointError(f"{name} is not an encoder of proteins: {problem}")

    def finds_no_padding(self) -> bool:
        """Return True if the embedding of a short protein is the same in a padded batch.

        Convolutions over tokens, for example, mix residues with the padding next to them.
        """
        short = len(PROBES[0])
        alone = self._batch([0], [PROBES[0]], per_residue=True).rows
        padded = self._batch([0, 1], list(PROBES), per_residue=True).rows[:short]
        return bool((padded - alone).abs().max() <= LEAK * alone.abs().max())

    @with_own_settings
    def embed(
        self, sequences: list[bytes], *, per_residue: bool
    ) -> tuple[list[NDArray[np.float32] | None], list[str]]:
        """Compute embeddings of proteins.

        Parameters
        ----------
        sequences : list of bytes
            Residues, in upper or lower case.
        per_residue : bool
            If True, return the embedding of each residue; otherwise their mean.

        Returns
        -------
        found : list of float32 [L, C] or [1, C], or None
            Embeddings of each sequence, or None where there is an error.
        errors : list of str
            Error of each sequence, or an empty text.
        """
        found: list[NDArray[np.float32] | None] = [None] * len(sequences)
        errors = list(map(self._refusal, sequences))
        order = [k for k, error in enumerate(errors) if not error]
        order.sort(key=lambda k: len(sequences[k]))
        batches: list[Batch] = []
        most = TOKENS if self.ignores_padding else 0
        for members in _batches(order, [len(sequence) + 2 for sequence in sequences], most):
            batches += self._embedded(members, sequences, errors, per_residue)
        if batches and not per_residue:
            batches = [_joined(batches).on_host()]
        for batch in batches:
            rows, is_finite = batch.rows.numpy(), batch.is_finite.numpy()
            end = 0
            for k, length in zip(batch.members, batch.lengths, strict=True):
                begin, end = end, end + (length if per_residue else 1)
                if length != len(sequences[k]):
                    errors[k] = f"its {len(sequences[k])} residues became {length} tokens"
                elif not is_finite[begin:end].all():
                    errors[k] = "its embedding is not finite: use another precision"
                else:
                    found[k] = rows[begin:end]
        return found, errors

    def _refusal(self, sequence: bytes) -> str:
        """Return why a sequence cannot be embedded, or an empty text."""
        if not sequence:
            return "the sequence is empty: is the file truncated?"
        unknown = sequence.upper().translate(None, self.symbols.encode())
        if not unknown:
            return ""
        position = sequence.upper().index(unknown[0])
        return (
            f"{chr(sequence[position])!r} at position {position + 1} is not a residue that the "
            "tokenizer knows: remove it, or replace it by X"
        )

    def _embedded(
        self, members: list[int], sequences: list[bytes], errors: list[str], per_residue: bool
    ) -> list[Batch]:
        """Embed some sequences; find those that do not fit by halving."""
        try:
            return [self._batch(members, [sequences[k] for k in members], per_residue)]
        except (InputError, IndexError, torch.OutOfMemoryError) as error:
            reason = first_line(error)
        if len(members) == 1:
            errors[members[0]] = reason
            return []
        half = len(members) // 2
        halves = members[:half], members[half:]
        return [x for half in halves for x in self._embedded(half, sequences, errors, per_residue)]

    def _batch(self, members: list[int], sequences: list[bytes], per_residue: bool) -> Batch:
        """Compute the embeddings of sequences: means on the device, or residues on the host.

        On a GPU, means are queued, and the host does not wait for them.
        """
        inputs, is_residue = self.encode(sequences)
        if is_residue.shape[1] > (self.longest or np.inf):
            raise InputError(f"the model takes {self.longest} tokens at most")
        lengths = is_residue.sum(dim=1).tolist()
        with made_current(self.device):
            inputs = {name: self._sent(tensor) for name, tensor in inputs.items()}
            is_residue = self._sent(is_residue)
            with torch.inference_mode():
                hidden: Tensor = self.model(**inputs).last_hidden_state
                rows = hidden[is_residue].float() if per_residue else _means(hidden, is_residue)
                batch = Batch(members, lengths, rows, rows.isfinite().all(dim=1))
            return batch.on_host() if per_residue else batch

    def _sent(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device, without waiting for what a GPU is computing."""
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def _means(hidden: Tensor, is_residue: Tensor) -> Tensor:
    """Average hidden states [B, L, C] over residues; return float32 [B, C].

    Sums are in float64. Tokens are added in pairs whose distance is a power of two, so that the
    order does not depend on padding behind a sequence, or on the other sequences of the batch.
    """
    sums = hidden.to(torch.float64, copy=True).masked_fill_(~is_residue[:, :, None], 0)
    distance = 1 << sums.shape[1].bit_length()
    while distance > 1:
        distance //= 2
        others = sums[:, distance : 2 * distance]
        sums[:, : others.shape[1]] += others
    return (sums[:, 0] / is_residue.sum(dim=1, keepdim=True)).float()


def _check_complete(name: str, model: nn.Module, missing: Collection[str]) -> None:
    """Raise `CheckpointError` if hidden states depend on weights that a checkpoint lacks.

    Transformers gives them random values.
    """
    lacking = [
        path
        for path, _ in model.named_parameters()
        if path in missing and not path.startswith(UNUSED)
    ]
    if lacking:
        raise CheckpointError(
            f"{name} lacks {len(lacking)} weights of {type(model).__name__}, such as {lacking[0]}: "
            "save the model by save_pretrained, or rename its weights"
        )


def _joined(batches: list[Batch]) -> Batch:
    """Return batches as one."""
    return Batch(
        [k for batch in batches for k in batch.members],
        [length for batch in batches for length in batch.lengths],
        torch.cat([batch.rows for batch in batches]),
        torch.cat([batch.is_finite for batch in batches]),
    )


@contextmanager
def _without_reports() -> Iterator[None]:
    """Keep transformers from reporting weights that a checkpoint lacks."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _batches(order: list[int], lengths: list[int], most: int) -> Iterator[list[int]]:
    """Yield groups of sequences in an order of ascending length, of ``most`` tokens or one each."""
    batch: list[int] = []
    for k in order:
        if batch and (len(batch) + 1) * lengths[k] > most:
            yield batch
            batch = []
        batch.append(k)
    if batch:
        yield batch


def _longest(model: nn.Module) -> int | None:
    """Return the number of tokens for which a model has positions, or None if it needs none."""
    for name, module in model.named_modules():
        if name.endswith(POSITIONS) and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            n_rows = module.num_embeddings - first  # of which some models never read the first
            return min(n_rows, getattr(model.config, "max_position_embeddings", n_rows))
    return None


def _dtype_of(precision: str | None, default: torch.dtype) -> torch.dtype:
    """Return the dtype of a precision."""
    return default if precision is None else PRECISIONS[precision]
