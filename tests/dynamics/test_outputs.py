"""Output files, which grow by complete records."""

from __future__ import annotations

import resource

import pytest

from mlff_triton.dynamics.outputs import RecordFile
from mlff_triton.errors import OutputError


def test_a_record_that_does_not_fit_leaves_nothing(tmp_path):
    file = RecordFile(tmp_path / "log", 0)
    file.append("whole\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OutputError, match="the disk is full"):
            file.append("too long a record\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.path.read_text() == "whole\n"
    file.append("next\n")
    assert file.path.read_text() == "whole\nnext\n"
