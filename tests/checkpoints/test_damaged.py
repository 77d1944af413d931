"""Damaged checkpoints: any flipped bit is found, and any error names the file."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from mlff_triton import Ensemble, TensorNet, load_model, save_model
from mlff_triton.checkpoints import shipped_models
from mlff_triton.checkpoints._reading import interpreting
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError
from mlff_triton.model.prediction import members_of
from tests.checkpoints.test_matgl import description, init_args, random_weights, write
from tests.support.checkpoints import assert_refused, lightning, native, save, zipped


def write_native(folder: Path) -> tuple[Path, Path]:
    path = folder / "model.safetensors"
    save_model(native(), path, "A card.")
    return path, path


def write_lightning(folder: Path) -> tuple[Path, Path]:
    path = save(lightning(), folder / "model.ckpt")
    return path, path


def write_ensemble(folder: Path) -> tuple[Path, Path]:
    path = zipped(folder / "ensemble.zip", a=lightning(0), b=lightning(1))
    return path, path


def write_matgl(folder: Path) -> tuple[Path, Path]:
    content = description()
    write(folder, content, random_weights(init_args(content)))
    return folder / "state.pt", folder


WRITERS = [write_native, write_lightning, write_ensemble, write_matgl]


def is_same(model: TensorNet | Ensemble, expected: TensorNet | Ensemble) -> bool:
    pairs = list(zip(members_of(model), members_of(expected), strict=True))
    weights = [(a.state_dict(), b.state_dict()) for a, b in pairs]
    return all(a.config == b.config for a, b in pairs) and all(
        torch.equal(value, theirs[name]) for ours, theirs in weights for name, value in ours.items()
    )


@pytest.mark.parametrize("write_files", WRITERS)
def test_no_flipped_bit_changes_a_model(tmp_path, rng, write_files):
    """Bits that no reader needs, such as those of time stamps, may flip."""
    file, path = write_files(tmp_path)
    expected, content = load_model(path), file.read_bytes()
    directory = range(len(content) - 80, len(content))
    refused = 0
    for position in [*rng.integers(len(content), size=40), *directory]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        try:
            model = load_model(path)
        except CheckpointError as error:
            refused += 1
            assert str(path) in str(error)  # noqa: PT017 - most flips are errors, not all
            assert "weights_only" not in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert is_same(model, expected), position
    assert refused > 50


def test_native_files_without_a_digest_load_and_those_with_another_do_not(file):
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])

    def rewrite() -> None:
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    expected = load_model(file)
    digest = header["__metadata__"].pop("digest")
    rewrite()
    assert is_same(load_model(file), expected)
    header["__metadata__"]["digest"] = digest[::-1]
    rewrite()
    assert "is damaged, as its digest shows" in assert_refused(file)


def test_shipped_models_have_a_digest():
    for path in shipped_models().values():
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        assert len(header["__metadata__"]["digest"]) == 64


FOREIGN = [
    EOFError("at the end"),
    MemoryError(),
    NotImplementedError("compression type 99"),
    OSError(36, "File name too long"),
    OverflowError("math range error"),
    RecursionError("maximum recursion depth exceeded"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ValueError("line one\nline two \x1b[2J"),
    zipfile.BadZipFile("Bad CRC-32"),
    zlib.error("invalid stored block lengths"),
    KeyError("std"),
]


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
def test_foreign_errors_become_one_line_that_names_the_file(error):
    with (
        pytest.raises(CheckpointError, match=r"model\.ckpt") as refusal,
        interpreting("model.ckpt"),
    ):
        raise error
    assert str(refusal.value).isprintable()


def test_wrong_options_in_a_file_are_unsupported_models():
    with pytest.raises(UnsupportedModelError, match="odd"), interpreting("model.ckpt"):
        raise InputError("odd")
