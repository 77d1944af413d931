"""Tables of results."""

from __future__ import annotations

import numpy as np
import pytest

from mlff_triton.jobs.tables import CHUNK, pack, writer_of


def test_chunks_are_small_even_if_the_first_task_has_no_items(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is an optional extra")
    wide = np.ones((3, 5000), dtype=np.float32)
    tasks = [pack({"n": np.array([len(rows)]), "embedding[]": rows}) for rows in (wide[:0], wide)]
    writer_of(tmp_path / "out.h5", "n")(iter(tasks), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["embedding"], wide)
        assert np.prod(file["embedding"].chunks) * 4 <= CHUNK
