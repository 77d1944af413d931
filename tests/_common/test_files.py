"""Files that are replaced: their permissions, and what is left after an error."""

from __future__ import annotations

import os
import stat

import pytest

from mlff_triton._common.files import LenientFile, replace_file
from mlff_triton._common.lock import FileLock
from mlff_triton.errors import OutputError
from tests.support.disks import largest_file


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    replace_file(tmp_path / "new", b"content")
    with FileLock(tmp_path / "lock", "is busy"):
        for name in ("new", "lock"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask


def test_an_error_leaves_the_old_content(tmp_path):
    replace_file(tmp_path / "file", b"old")
    with largest_file(2), pytest.raises(OutputError, match=r"cannot write .*file: File too large"):
        replace_file(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_lock_can_be_taken_and_freed_on_a_full_disk(tmp_path):
    with largest_file(0), FileLock(tmp_path / "lock", "is busy"):
        assert (tmp_path / "lock").exists()
    assert not list(tmp_path.iterdir())


def test_a_lenient_file_keeps_its_first_error(tmp_path):
    with largest_file(3), LenientFile(tmp_path / "file") as file:
        assert file.write(b"four") == 4
        assert file.write(b"more") == 4
        assert file.truncate(9) == 9
        with pytest.raises(OSError, match="File too large"):
            file.check()
    assert (tmp_path / "file").read_bytes() == b"fou"
