"""Labeled structures in arrays: NumPy's ``.npz`` files and HDF5."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mlff_triton._common.remedies import install
from mlff_triton._common.text import first_line, printable
from mlff_triton.errors import InputError
from mlff_triton.training.frames import Array
from mlff_triton.training.labels import Labels, unread_charge

NPZ, HDF5 = (".npz",), (".h5", ".hdf5")
OF_ATOMS = {"numbers", "positions", "forces", "charges"}
OF_FRAMES = {"energy", "stress", "charge", "dipole", "cell", "pbc"}
OF_FRAMES |= {"group", "split", "series", "weight"}
LAYOUTS = "[C, N, 3] for C structures of the same size, or [N, 3] with the numbers n_atoms [C]"


@dataclass(frozen=True)
class Table:
    """The arrays of C structures in a file, in its units.

    Attributes
    ----------
    start : int64 [C + 1]
        First atom of each structure, with the total at the end.
    arrays : dict of arrays
        Labels by the names in `NAMES`: those in `OF_ATOMS` have a row per atom, all others have one
        per structure.
    found : frozenset of str
        Labels that the file itself has; others in ``arrays`` are defaults.
    forces_key : str or None
        Name of the forces in the file, see `Labels.key_of`.
    """

    start: Array
    arrays: dict[str, Array]
    found: frozenset[str] = frozenset()
    forces_key: str | None = None

    def __len__(self) -> int:
        return len(self.start) - 1

    def frame(self, k: int) -> dict[str, Any]:
        """Return the labels of one structure."""
        atoms = slice(self.start[k], self.start[k + 1])
        rows = {label: a[atoms if label in OF_ATOMS else k] for label, a in self.arrays.items()}
        return {**rows, "forces_key": self.forces_key}


def array_tables(path: Path, labels: Labels) -> Iterator[Table]:
    """Yield the structures of a file of arrays.

    Raises
    ------
    InputError
        If the file cannot be read, an array is missing, or their lengths differ.
    """
    tables = _npz_tables if path.suffix.lower() in NPZ else _hdf5_tables
    name = printable(path)
    try:
        for group, found, forces_key in tables(path, labels):
            yield _table_of(found, group, forces_key)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except Exception as error:
        raise InputError(f"{name} cannot be read: {first_line(error)}") from error


Group = tuple[str, dict[str, Any], str | None]
"""Name and labels of a group of arrays, and the key of its forces."""


def _npz_tables(path: Path, labels: Labels) -> Iterator[Group]:
    with np.load(path, allow_pickle=False) as arrays:
        found = labels.find(arrays)
        _check_charges(found, {name: arrays[name] for name in labels.unread_charges(arrays)})
        yield "", found, labels.key_of("forces", arrays)


def _hdf5_tables(path: Path, labels: Labels) -> Iterator[Group]:
    """Yield each group that has positions. Other datasets are not read."""
    if find_spec("h5py") is None:
        raise InputError(f"{path.suffix} files need h5py: {install('tables')}")
    import h5py

    with h5py.File(path, "r") as file:
        nodes: list[Any] = [file]
        file.visititems(lambda _, node: nodes.append(node))
        groups = [node for node in nodes if isinstance(node, h5py.Group)]
        for group in groups:
            data = {name: node for name, node in group.items() if isinstance(node, h5py.Dataset)}
            found = labels.find(data)
            if "positions" in found:
                arrays = {label: _read(h5py, node) for label, node in found.items()}
                if "charge" not in arrays and "info" in data:
                    arrays |= _charge_of(_read(h5py, data["info"]))
                unread = labels.unread_charges(data)
                _check_charges(arrays, {name: _read(h5py, data[name]) for name in unread})
                yield group.name.strip("/"), arrays, labels.key_of("forces", data)


def _check_charges(found: Mapping[str, Any], unread: Mapping[str, Array]) -> None:
    """Raise an error if an array that is not read may hold total charges that differ."""
    count = np.size(found.get("energy", ()))
    charge = np.ravel(found.get("charge", 0))
    for name, array in unread.items():
        is_one_per_frame = array.size in (1, count) and charge.size in (1, count)
        if not is_one_per_frame or array.dtype.kind not in "iuf":
            continue
        differs = array.ravel() != charge
        if differs.any():
            raise InputError(unread_charge(name, array.flat[int(np.argmax(differs))]))


def _charge_of(info: Array) -> dict[str, Array]:
    """Return total charges as ``mlff-triton predict`` stores them in JSON strings, or nothing."""
    try:
        noted = [json.loads(text) if text else {} for text in info.ravel().tolist()]
        return {"charge": np.array([each.get("charge", 0) for each in noted])}
    except (AttributeError, TypeError, ValueError):  # not texts of predict
        return {}


def _read(h5py: Any, node: Any) -> Array:
    """Return the content of a dataset, unless its negative has been read already."""
    is_text = h5py.check_string_dtype(node.dtype) is not None
    return np.asarray(node.asstr()[()] if is_text else node[()])


def _table_of(found: dict[str, Any], group: str, forces_key: str | None) -> Table:
    """Return the structures of one set of arrays, which belong to a group."""
    for label in ("numbers", "positions"):
        if label not in found:
            raise InputError(f"it has no array of {label}: name it with --key {label}=NAME")
    arrays = {label: np.asarray(array) for label, array in found.items()}
    start = _starts(arrays)
    count = len(start) - 1
    for label in OF_ATOMS & arrays.keys():
        arrays[label] = _per_atom(arrays[label], label, start)
    for label in OF_FRAMES & arrays.keys():
        arrays[label] = _per_frame(arrays[label], label, count)
    if "cell" in arrays and arrays["cell"].size != 9 * count:
        shape = list(found["cell"].shape)
        raise InputError(f"cell has shape {shape}, expected [3, 3] or [C, 3, 3]")
    if "cell" in arrays and "pbc" not in arrays:
        arrays["pbc"] = np.any(arrays["cell"].reshape(count, 3, 3) != 0, axis=2)
    arrays.setdefault("cell", np.zeros((count, 3, 3)))
    arrays.setdefault("pbc", np.zeros((count, 3), dtype=bool))
    arrays.pop("n_atoms", None)
    arrays.setdefault("group", np.full(count, group, dtype=object))
    return Table(start, arrays, frozenset(found), forces_key)


def _starts(arrays: Mapping[str, Array]) -> Array:
    """Return the first atom of each structure, and the number of all atoms."""
    shape = arrays["positions"].shape
    if 0 in shape:
        raise InputError("it has no structures, or no atoms")
    if len(shape) == 3:
        if (np.asarray(arrays.get("n_atoms", shape[1])) != shape[1]).any():
            raise InputError(
                f"positions have {shape[1]} atoms in each structure, and n_atoms has other "
                f"numbers: use {LAYOUTS}"
            )
        return np.asarray(np.arange(shape[0] + 1) * shape[1])
    if len(shape) == 2 and "n_atoms" in arrays:
        start = np.concatenate([[0], np.cumsum(arrays["n_atoms"].astype(np.int64))])
        if start[-1] == shape[0] and (np.diff(start) > 0).all():
            return start
    raise InputError(f"positions have shape {list(shape)}, expected {LAYOUTS}")


def _per_atom(array: Array, label: str, start: Array) -> Array:
    """Return an array with a row per atom of all structures."""
    width = 1 if label in ("numbers", "charges") else 3
    count, n_atoms, sizes = len(start) - 1, int(start[-1]), np.diff(start)
    shapes = {(n_atoms * width,), (n_atoms, width)}
    if (sizes == sizes[0]).all():
        shapes |= {(count, int(sizes[0]), width), (count, int(sizes[0]) * width)}
    if array.shape in shapes:  # the same number of values may be transposed
        flat = array.reshape(n_atoms, -1)
        return flat[:, 0] if width == 1 else flat
    if label == "numbers" and array.size * count == n_atoms:  # the same in all structures
        return np.tile(array.reshape(-1), count)
    raise InputError(
        f"{label} have shape {list(array.shape)}, for {n_atoms} atoms in {count} structures: "
        f"expected {LAYOUTS if width == 3 else LAYOUTS.replace(', 3]', ']')}"
    )


def _per_frame(array: Array, label: str, count: int) -> Array:
    """Return an array with a row per structure; one value, cell or triple may serve all."""
    if array.ndim and len(array) == count and array.shape not in ((3, 3), (3,)):
        return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    shared = {"cell": (3, 3), "pbc": (3,), "charge": ()}
    if array.shape == shared.get(label):
        return np.broadcast_to(array, (count, *array.shape))
    if array.ndim and len(array) == count:
        return array
    raise InputError(f"{label} has shape {list(array.shape)}, for {count} structures")
