"""The cache folder: hits, misses, damage, limits, and folders that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlff_triton._common import cache

KIND, KEY = "numbers", "a1b2"
CONTENT = bytes(range(200))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_empty_cache_has_nothing(folder):
    assert cache.read(KIND, KEY) is None
    assert not folder.exists()


def test_content_is_read_as_it_was_written():
    cache.write(KIND, KEY, CONTENT)
    cache.write(KIND, "empty", b"")
    assert cache.read(KIND, KEY) == CONTENT
    assert cache.read(KIND, "empty") == b""
    assert cache.read("others", KEY) is None


def test_content_is_replaced():
    cache.write(KIND, KEY, CONTENT)
    cache.write(KIND, KEY, b"new")
    assert cache.read(KIND, KEY) == b"new"


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored[:0],
        lambda stored: stored[:20],
        lambda stored: stored[:-1],
        lambda stored: stored + b"\0",
        lambda stored: stored[:100] + bytes([stored[100] ^ 1]) + stored[101:],
        lambda stored: bytes(len(stored)),
    ],
)
def test_damaged_files_count_as_absent_and_are_replaced(folder, damage):
    cache.write(KIND, KEY, CONTENT)
    file = folder / KIND / KEY
    file.write_bytes(damage(file.read_bytes()))
    assert cache.read(KIND, KEY) is None
    cache.write(KIND, KEY, CONTENT)
    assert cache.read(KIND, KEY) == CONTENT


def test_files_under_a_wrong_name_count_as_absent(folder):
    cache.write(KIND, KEY, CONTENT)
    (folder / KIND / KEY).rename(folder / KIND / "other")
    assert cache.read(KIND, "other") is None


def test_folders_in_place_of_files_are_left_alone(folder):
    (folder / KIND / KEY).mkdir(parents=True)
    cache.write(KIND, KEY, CONTENT)
    assert cache.read(KIND, KEY) is None
    assert list((folder / KIND).iterdir()) == [folder / KIND / KEY]


def test_folders_that_cannot_be_made_are_no_error(folder):
    folder.write_text("a file where the folder should be")
    cache.write(KIND, KEY, CONTENT)
    assert cache.read(KIND, KEY) is None


def test_full_disks_are_no_error(monkeypatch):
    cache.write(KIND, KEY, CONTENT)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.open", full)
        cache.write(KIND, KEY, b"new")
    assert cache.read(KIND, KEY) == CONTENT


def test_users_without_a_home_have_no_cache(monkeypatch, tmp_path):
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as Python does without a home
    monkeypatch.chdir(tmp_path)
    cache.write(KIND, KEY, CONTENT)
    assert cache.read(KIND, KEY) is None
    assert not list(tmp_path.iterdir())


def test_the_oldest_files_make_way(folder, monkeypatch):
    monkeypatch.setattr(cache, "LARGEST", 1000)
    for k in range(5):
        cache.write(KIND, str(k), CONTENT)  # 232 bytes each with their hash
        os.utime(folder / KIND / str(k), (k, k))
    cache.write(KIND, "5", CONTENT)
    assert sorted(file.name for file in (folder / KIND).iterdir()) == ["2", "3", "4", "5"]


def test_content_beyond_the_limit_is_not_stored(monkeypatch):
    monkeypatch.setattr(cache, "LARGEST", 150)
    cache.write(KIND, KEY, CONTENT)
    assert cache.read(KIND, KEY) is None


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/mlff_triton")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "mlff_triton"


WRITER = """
from mlff_triton._common import cache
for _ in range(200):
    cache.write("numbers", "a1b2", {content!r} * 1000)
    assert cache.read("numbers", "a1b2") in (b"x" * 1000, b"y" * 1000)
"""


def test_processes_write_at_the_same_time(folder):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER.format(content=content)])  # noqa: S603
        for content in (b"x", b"y")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert cache.read(KIND, KEY) in (b"x" * 1000, b"y" * 1000)
    assert [file.name for file in (folder / KIND).iterdir()] == [KEY]
