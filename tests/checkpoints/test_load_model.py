"""Loading by name and by content, and refusal of hostile and damaged files."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton import (
    TensorNet,
    load_model,
    save_model,
)
from mlff_triton.checkpoints import shipped_models
from mlff_triton.errors import CheckpointError, UnsupportedModelError
from tests.support.checkpoints import (
    MAX_Z,
    assert_refused,
    energy_of,
    lightning,
    native,
    save,
    zipped,
)


def test_names_in_a_zip_cannot_escape(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    names = ("../escaped", "/escaped", "..\\escaped", "a/../../escaped", "C:\\escaped")
    path = zipped(folder / "ensemble.zip", **{name: lightning() for name in names})
    assert len(load_model(path).members) == len(names)
    assert [p.name for p in tmp_path.rglob("*")] == ["inner", "ensemble.zip"]
    assert not Path("/escaped.ckpt").exists()


def test_default_model_is_shipped_and_found_by_both_its_names():
    models = shipped_models()
    assert models
    default = load_model("default")
    assert any(
        torch.equal(default.readout.linear.weight, load_model(name).readout.linear.weight)
        for name in models
    )
    for path in models.values():
        assert isinstance(load_model(path), TensorNet)


def test_paths_are_strings_objects_and_may_start_at_home(file, monkeypatch):
    monkeypatch.setenv("HOME", str(file.parent))
    monkeypatch.chdir(file.parent)
    expected = energy_of(file)
    for path in (str(file), file.name, Path(file.name), f"~/{file.name}"):
        assert energy_of(path) == expected


@pytest.mark.parametrize("name", ["tensornet-9", "missing.ckpt", "a/b/c.zip", ""])
def test_unknown_names_are_refused_with_what_there_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as refusal:
        load_model(name)
    if name:
        assert repr(name) in str(refusal.value)
        for known in ("default", *shipped_models()):
            assert known in str(refusal.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt", ".zip", ".pt", ".json", ""])
def test_content_decides_and_not_the_suffix(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    save_model(native(), path)
    assert load_model(path).config.elements == (1, 6, 7, 8)
    save(lightning(), path)
    assert load_model(path).config.elements == tuple(range(MAX_Z))
    zipped(path, a=lightning(), b=lightning(1))
    assert len(load_model(path).members) == 2


class Runs:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda marker: Runs(os.system, f"touch {marker}"),
    "eval": lambda marker: Runs(eval, f"open({str(marker)!r}, 'w').close()"),
    "exec": lambda marker: Runs(exec, f"open({str(marker)!r}, 'w').close()"),
    "open": lambda marker: Runs(open, str(marker), "w"),
    "Path.touch": lambda marker: Runs(Path.touch, marker),
    "torch.save": lambda marker: Runs(torch.save, 1, str(marker)),
}
HIDING_PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda attack: attack,
    "as a hyper-parameter": lambda attack: {
        **lightning(),
        "hyper_parameters": lightning()["hyper_parameters"] | {"dataset": attack},
    },
    "as a weight": lambda attack: {**lightning(), "state_dict": {"model.std": attack}},
}


@pytest.mark.parametrize("place", HIDING_PLACES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_pickles_run_nothing(tmp_path, attack, place):
    marker = tmp_path / "marker"
    content = HIDING_PLACES[place](ATTACKS[attack](marker))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # `open` leaves its file open
        pickle.loads(pickle.dumps(content))
    assert marker.exists(), "the attack must work on an unsafe loader"
    marker.unlink()

    files = [save(content, tmp_path / name) for name in ("model.ckpt", "model.safetensors")]
    old = tmp_path / "old.ckpt"
    torch.save(content, old, _use_new_zipfile_serialization=False)
    bare = tmp_path / "bare.pkl"
    bare.write_bytes(pickle.dumps(content))
    matgl = tmp_path / "matgl"
    matgl.mkdir()
    (matgl / "model.json").write_text("{}")
    save(content, matgl / "state.pt")
    archive = zipped(tmp_path / "ensemble.zip", good=lightning(), hostile=content)
    for path in (*files, old, bare, matgl, archive):
        assert_refused(path)
        assert not marker.exists(), path


def cuts(size: int) -> list[int]:
    """List lengths to truncate a file to: the shortest, the longest, and some between."""
    ends = [*range(20), *range(size - 20, size)]
    return sorted({n for n in (*ends, *range(0, size, max(1, size // 40))) if 0 <= n < size})


def assert_every_cut_is_refused(path: Path, loaded: Path | None = None) -> None:
    content = path.read_bytes()
    load_model(loaded or path)
    for length in cuts(len(content)):
        path.write_bytes(content[:length])
        assert_refused(loaded or path)


def test_truncated_checkpoints_are_refused(tmp_path):
    assert_every_cut_is_refused(save(lightning(), tmp_path / "model.ckpt"))


def test_checkpoints_of_old_torch_are_refused_as_they_have_no_checksums(tmp_path):
    path = tmp_path / "model.ckpt"
    torch.save(lightning(), path, _use_new_zipfile_serialization=False)
    assert "PyTorch before 1.6" in assert_refused(path)


def test_truncated_safetensors_are_refused(file):
    assert_every_cut_is_refused(file)


def test_truncated_zips_are_refused(tmp_path):
    assert_every_cut_is_refused(zipped(tmp_path / "ensemble.zip", a=lightning(), b=lightning()))


def test_damaged_and_encrypted_members_of_a_zip_are_refused(tmp_path):
    path = tmp_path / "ensemble.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.ckpt", save(lightning(), tmp_path / "a.ckpt").read_bytes())
    content = path.read_bytes()
    for position in range(100, len(content) - 100, len(content) // 20):
        damaged = bytearray(content)
        damaged[position : position + 8] = b"\xff" * 8
        path.write_bytes(damaged)
        assert_refused(path)
    header, entry = content.index(b"PK\x03\x04"), content.index(b"PK\x01\x02")
    encrypted = bytearray(content)
    encrypted[header + 6] |= 1
    encrypted[entry + 8] |= 1
    path.write_bytes(encrypted)
    assert_refused(path)


def test_zips_without_checkpoints_are_refused(tmp_path):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("photo.jpg", b"...")
    assert_refused(path)
    with zipfile.ZipFile(path, "w"):
        pass
    assert_refused(path)


def test_other_things_that_torch_saves_are_refused(tmp_path):
    for content in (torch.zeros(3), {}, [], None, 5, {"state_dict": {}}, {"a": torch.zeros(1)}):
        message = assert_refused(save(content, tmp_path / "model.pt"), UnsupportedModelError)
        assert "supported are" in message
    content = torch.nn.Linear(2, 2)
    assert_refused(save(content, tmp_path / "model.pt"))


HEADS = [
    b"",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x80\x02",
    b"\x80\x04\x95",
    b"\x40\x00\x00\x00\x00\x00\x00\x00{",
    b"\xff\xff\xff\xff\xff\xff\xff\xff{",
    b"\x08\x00\x00\x00\x00\x00\x00\x00{}",
    b"\x89HDF\r\n",
    b"ustar",
]


@given(st.sampled_from(HEADS), st.binary(max_size=80))
def test_random_bytes_are_refused(tmp_path_factory, head, tail):
    path = tmp_path_factory.getbasetemp() / "random.bin"
    path.write_bytes(head + tail)
    assert_refused(path)


@given(st.text(max_size=60))
def test_text_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "text.bin"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert_refused(path)


def test_empty_files_and_folders_are_refused(tmp_path):
    (tmp_path / "empty").touch()
    assert_refused(tmp_path / "empty")
    (tmp_path / "folder").mkdir()
    assert "supported are" in assert_refused(tmp_path / "folder")


def test_a_link_to_nowhere_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert_refused(tmp_path / "link")


def test_truncated_matgl_files_are_refused(tmp_path, data_folder):
    for name in ("model.json", "state.pt"):
        shutil.copyfile(data_folder / "matgl-tensornet-matpes-pbe" / name, tmp_path / name)
    description = tmp_path / "model.json"
    description.write_text(description.read_text().rstrip())
    assert_every_cut_is_refused(description, tmp_path)
