"""Checkpoints that are damaged, hostile, or describe models that nobody means."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from mlff_triton import load_model, save_model
from tests.checkpoints.test_matgl import description, random_weights
from tests.fuzz import oracle
from tests.fuzz.damage import (
    SPECIAL_FILES,
    choice,
    damaged,
    deflated_zeros,
    extreme,
    make_special,
    places,
    replace_one,
)
from tests.fuzz.kind import Facts, Finding, Kind
from tests.fuzz.tensors import other_tensor
from tests.support.charged import charged_model
from tests.support.checkpoints import ATOMS, lightning, native, priors_by_list, zipped

NATIVE = {
    "model.safetensors": native,
    "tensornet2.safetensors": partial(charged_model, torch.float32, repulsion=True),
}
"""Functions that make the models of the package's own files, by the names of the files."""
FORMATS = (*NATIVE, "model.ckpt", "ensemble.zip", "matgl")
MARKER = "marker"  # written by hostile checkpoints whose code runs


def write(name: str, folder: Path, config: Any = None, weights: Any = None) -> Path:
    """Write a checkpoint with this config and these weights, by default those of `parts`."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    if config is None or weights is None:
        config, weights = parts(name)
    if name == "matgl":
        path.mkdir()
        (path / "model.json").write_text(json.dumps(config))
        torch.save(weights, path / "state.pt")
    elif name in NATIVE:
        metadata = {
            **native_metadata(name, folder),
            "config": json.dumps(config),
            "card": "A card.",
        }
        safetensors.torch.save_file(weights, path, metadata)
    else:
        content = {"hyper_parameters": config, "state_dict": weights}
        if name == "model.ckpt":
            torch.save(content, path)
        else:
            zipped(path, a=content, b=lightning(1))
    return path


def native_metadata(name: str, folder: Path) -> dict[str, str]:
    """Return the metadata of a file of the package, without a digest of its weights."""
    whole = folder / "whole.safetensors"
    save_model(NATIVE[name](), whole)
    with safetensors.safe_open(whole, "pt") as file:
        metadata = dict(file.metadata())
    whole.unlink()
    return {key: value for key, value in metadata.items() if key in ("format", "config", "card")}


def sort_header(file: Path) -> None:
    """Sort the header of a safetensors file, whose metadata come in random order."""
    content = file.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:size]), sort_keys=True, separators=(",", ":"))
    file.write_bytes(content[:8] + header.encode().ljust(size - 8) + content[size:])


def parts(name: str) -> tuple[Any, Any]:
    """Return the description and the weights of the undamaged model of a format."""
    if name == "matgl":
        content = description()
        return content, random_weights(content["kwargs"]["model"]["init_args"])
    if name in NATIVE:
        model = NATIVE[name]()
        weights = {key: value.contiguous() for key, value in model.state_dict().items()}
        return json.loads(json.dumps(vars(model.config))), weights
    content = lightning()
    priors_by_list(content)
    return content["hyper_parameters"], content["state_dict"]


def bytes_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Damage bytes. A model that loads must be the undamaged one."""
    name = choice(rng, FORMATS)
    torch.manual_seed(0)
    if name in NATIVE:
        (folder / "whole").mkdir()
        save_model(NATIVE[name](), folder / "whole" / name, "A card.")
        sort_header(folder / "whole" / name)
    else:
        write(name, folder / "whole")
    path = folder / name
    shutil.copytree(folder / "whole", folder, dirs_exist_ok=True)
    file = path / choice(rng, ("state.pt", "model.json")) if name == "matgl" else path
    file.write_bytes(damaged(rng, file.read_bytes()))
    return {"path": name, "same": file.name != "model.json"}  # numbers in a text may change


def value_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace or remove a hyperparameter."""
    name = choice(rng, FORMATS)
    config, weights = parts(name)
    for _ in range(rng.geometric(0.7)):
        replace_one(rng, config, extreme(rng))
    write(name, folder, config, weights)
    return {"path": name}


def tensor_changed(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace a weight by one of another shape, dtype or stride, or with other values."""
    name = choice(rng, FORMATS)
    config, weights = parts(name)
    key = choice(rng, weights)
    weights[key] = other_tensor(rng, weights[key], only_dense=name in NATIVE)
    write(name, folder, config, weights)
    return {"path": name}


def deep_json(rng: np.random.Generator, folder: Path) -> Facts:
    """Nest JSON deeply, or write numbers of many digits, repeated keys and other encodings."""
    name = choice(rng, (*NATIVE, "matgl"))
    path = write(name, folder)
    depth = int(10 ** rng.uniform(1, 5.5))
    text = choice(
        rng,
        (
            "[" * depth + "]" * depth,
            '{"a":' * depth + "0" + "}" * depth,
            "[" * depth,
            "9" * depth,
            '{"a": ' + "9" * depth + "}",
            '{"@class": "Potential", "@class": 1}',
            '"' + "\\u0000" * depth + '"',
            "null",
        ),
    )
    if name == "matgl":
        encoding = choice(rng, ("utf-8", "utf-16", "utf-32", "utf-8-sig"))
        (path / "model.json").write_bytes(text.encode(encoding))
    else:
        weights = safetensors.torch.load_file(path)
        metadata = {**native_metadata(name, folder), "config": text}
        safetensors.torch.save_file(weights, path, metadata)
    return {"path": name}


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile_pickle(rng: np.random.Generator, folder: Path) -> Facts:
    """Hide a call, or an object of a class that is not a tensor, in a pickle."""
    hostile = choice(
        rng,
        (
            Runs(os.system, f"touch {MARKER}"),
            Runs(eval, f"open({MARKER!r}, 'w').close()"),
            Runs(open, MARKER, "w"),
            Runs(Path.touch, Path(MARKER)),
            Runs(shutil.copy, __file__, MARKER),
            Runs(os.mkdir, MARKER),
            Runs(bytearray, 10**11),
            Runs(np.zeros, 10**11),
            Path("x"),
            np.zeros(3),
            np.float64(1),
            torch.nn.Linear(2, 2),
            range(10**9),
        ),
    )
    config, weights = parts("model.ckpt")
    content: Any = {"hyper_parameters": config, "state_dict": weights}
    container, key = choice(rng, places({"content": content}))
    container[key] = hostile
    path = folder / "model.ckpt"
    old = bool(rng.random() < 0.3)
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    if rng.random() < 0.1:
        path.write_bytes(pickle.dumps(content))
    return {"path": path.name}


def nested_tuples(rng: np.random.Generator, folder: Path) -> Facts:
    """Add tuples that contain one another several times to a pickle, as a value or a key."""
    path = write("model.ckpt", folder)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in members if name.endswith("data.pkl"))
    nested = b"N"
    for k in range(int(rng.integers(1, 100))):
        copies = int(rng.integers(3))
        nested += b"q%c" % k + b"h%c" % k * copies + (b"\x85", b"\x86", b"\x87")[copies]
    item = choice(rng, (b"K\x01" + nested, nested + b"K\x01"))
    members[pickled] = members[pickled][:-1] + item + b"s."
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return {"path": path.name}


def strange_zip(rng: np.random.Generator, folder: Path) -> Facts:
    """Write a zip of many members, of members that inflate to gigabytes, or with odd names."""
    path = folder / "ensemble.zip"
    kind = choice(rng, ("many", "bomb", "names", "twice", "nested", "method"))
    good = write("model.ckpt", folder).read_bytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if kind == "many":
            for k in range(int(10 ** rng.uniform(1, 3.5))):
                archive.writestr(f"{k}.ckpt", choice(rng, (b"", b"x", bytes(1000))))
        elif kind == "names":
            for name in ("../a", "/a", "\x1b[31m", "é", "a" * 5000, "a\nb"):
                archive.writestr(f"{name}.ckpt", good if rng.random() < 0.7 else b"x")
        elif kind == "nested":
            archive.writestr("a.ckpt/b.ckpt", good)
            archive.writestr("a.ckpt/", b"")
        elif kind == "method":
            archive.writestr("a.ckpt", good, choice(rng, (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
        else:
            archive.writestr("a.ckpt", good)
    if kind == "bomb":
        size = int(2 ** rng.uniform(26, 31.5)) >> 20 << 20
        path.write_bytes(zip_of_zeros("a.ckpt", size))
    elif kind == "twice":
        path.write_bytes(path.read_bytes() * 2)
    return {"path": path.name, "hint": kind}


def zip_of_zeros(name: str, size: int) -> bytes:
    """Return a zip of one member of zeros, with a wrong checksum."""
    data, encoded = deflated_zeros(size), name.encode()
    common = b"\x14\0\0\0\x08\0" + bytes(4) + bytes(4)
    sizes = len(data).to_bytes(4, "little") + size.to_bytes(4, "little")
    sizes += len(encoded).to_bytes(2, "little") + bytes(2)
    local = b"PK\3\4" + common + sizes + encoded + data
    entry = b"PK\1\2\x14\0" + common + sizes + bytes(14) + encoded
    counts = b"\1\0\1\0" + len(entry).to_bytes(4, "little") + len(local).to_bytes(4, "little")
    return local + entry + b"PK\5\6" + bytes(4) + counts + bytes(2)


def special_file(rng: np.random.Generator, folder: Path) -> Facts:  # noqa: ARG001 - empty folder
    """Name something that is not an ordinary file, or no path at all."""
    if rng.random() < 0.5:
        return {"path": "model.ckpt", "special": choice(rng, SPECIAL_FILES)}
    return {"path": choice(rng, ("~nosuchuser/x", "a" * 300, "a/" * 3000, "\0", "\x1b[31m", ""))}


def check(folder: Path, facts: Facts) -> None:
    """Load the checkpoint, and compare energies and forces."""
    if facts.get("special"):
        make_special(facts["special"], folder / facts["path"])
    try:
        model = load_model(facts["path"])
        oracle.check_results(model, ATOMS)
    finally:
        if (folder / MARKER).exists():
            raise Finding("code in the checkpoint was executed")
    if facts.get("same"):
        whole = oracle.evaluate(load_model(folder / "whole" / facts["path"]), ATOMS)
        energy, forces = oracle.evaluate(load_model(facts["path"]), ATOMS)
        if energy != whole[0] or not np.array_equal(forces, whole[1]):
            raise Finding(f"a damaged checkpoint loads, with {energy:.9g} eV, not {whole[0]:.9g}")


KIND = Kind(
    {
        "bytes changed": bytes_changed,
        "value changed": value_changed,
        "tensor changed": tensor_changed,
        "deep JSON": deep_json,
        "hostile pickle": hostile_pickle,
        "nested tuples": nested_tuples,
        "strange zip": strange_zip,
        "special file": special_file,
    },
    check,
)
