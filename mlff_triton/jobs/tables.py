"""Results as tables: the columns of tasks, and the Parquet or HDF5 file made from them.

Columns are arrays with one row per result. Those whose names end with ``[]`` have a row per item of
a result, such as an atom. The results of a task are packed by NumPy, so that workers need no other
library.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlff_triton._common.files import LenientFile
from mlff_triton._common.remedies import install
from mlff_triton.errors import InputError

PARQUET, HDF5 = (".parquet", ".pq"), (".h5", ".hdf5")
LIBRARIES = {**dict.fromkeys(PARQUET, "pyarrow"), **dict.fromkeys(HDF5, "h5py")}
OF_ITEMS = "[]"  # end of the names of columns with a row per item
TASKS_PER_GROUP = 16  # of rows in a Parquet file
CHUNK = 1 << 18  # bytes of a chunk in an HDF5 file, about

Columns = dict[str, NDArray[Any]]
Write = Callable[[Iterator[bytes], Path], None]
Format = Callable[[str, Iterator[bytes], LenientFile], None]


def pack(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Return columns as bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **columns)
    return buffer.getvalue()


def unpack(payload: bytes) -> Columns:
    """Return the columns that `pack` has packed."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        return dict(arrays)


def concatenated(payloads: Sequence[bytes]) -> bytes:
    """Return the rows of packed columns one after another."""
    tables = list(map(unpack, payloads))
    return pack({name: np.concatenate([table[name] for table in tables]) for name in tables[0]})


def writer_of(path: Path, counts: str, others: Sequence[str] = ()) -> Write:
    """Return the function that writes packed columns to a file.

    Parameters
    ----------
    path : Path
        Its suffix selects the format.
    counts : str
        Name of the column with the number of items of each result.
    others : sequence of str
        Suffixes of formats that the caller writes itself, for the message.

    Raises
    ------
    InputError
        If the suffix is unknown, or the library of the format is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in LIBRARIES:
        raise InputError(f"the suffix of {path} is unknown: use {', '.join((*others, *LIBRARIES))}")
    if find_spec(LIBRARIES[suffix]) is None:
        raise InputError(f"{suffix} files need {LIBRARIES[suffix]}: {install('tables')}")
    return partial(_write, _write_parquet if suffix in PARQUET else _write_hdf5, counts)


def _write(format_: Format, counts: str, payloads: Iterator[bytes], path: Path) -> None:
    """Write a file in a format, or raise the error of the operating system."""
    with LenientFile(path) as file:

        def until_error() -> Iterator[bytes]:
            for payload in payloads:
                yield payload
                file.check()

        try:
            format_(counts, until_error(), file)
        except Exception:
            file.check()
            raise
        file.check()


def _write_parquet(counts: str, payloads: Iterator[bytes], out: LenientFile) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (_arrow_table(pa, unpack(payload), counts) for payload in payloads)
    first = next(tables)
    with pq.ParquetWriter(out, first.schema) as writer:
        all_tables = chain([first], tables)
        while group := list(islice(all_tables, TASKS_PER_GROUP)):
            table = pa.concat_tables(group)
            writer.write_table(table, row_group_size=max(1, len(table)))


def _arrow_table(pa: Any, columns: Columns, counts: str) -> Any:
    n_items = columns[counts]
    ends = np.concatenate([[0], np.cumsum(n_items)]).astype(np.int64)
    arrays = {}
    for name, values in columns.items():
        if name.endswith(OF_ITEMS):
            arrays[name] = pa.LargeListArray.from_arrays(pa.array(ends), _arrow_array(pa, values))
        else:
            arrays[name] = _arrow_array(pa, values)
    return pa.table({name.removesuffix(OF_ITEMS): array for name, array in arrays.items()})


def _arrow_array(pa: Any, values: NDArray[Any]) -> Any:
    """Return an array [n, ...] whose further dimensions are lists of fixed length."""
    if values.ndim == 1:
        return pa.array(values)
    inner = _arrow_array(pa, values.reshape(-1, *values.shape[2:]))
    return pa.FixedSizeListArray.from_arrays(inner, values.shape[1])


def _write_hdf5(counts: str, payloads: Iterator[bytes], out: LenientFile) -> None:
    import h5py

    with h5py.File(out, "w") as file:
        file.attrs["items"] = counts
        for payload in payloads:
            for name, values in unpack(payload).items():
                _append(h5py, file, name.removesuffix(OF_ITEMS), values)


def _append(h5py: Any, file: Any, name: str, values: NDArray[Any]) -> None:
    """Append rows to a dataset, which the first rows create."""
    text = values.dtype.kind == "U"
    if name not in file:
        row = 16 if text else max(1, values.itemsize * math.prod(values.shape[1:]))
        file.create_dataset(
            name,
            shape=(0, *values.shape[1:]),
            maxshape=(None, *values.shape[1:]),
            chunks=(max(1, CHUNK // row), *values.shape[1:]),
            dtype=h5py.string_dtype() if text else values.dtype,
        )
    dataset = file[name]
    before = len(dataset)
    dataset.resize(before + len(values), axis=0)
    dataset[before:] = values.astype(object) if text else values
