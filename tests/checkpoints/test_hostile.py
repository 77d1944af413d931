"""Checkpoints that would hang, fill the memory, or make a model of NaN."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mlff_triton import Engine, load_model, save_model
from mlff_triton.checkpoints import _weights, model_card, resolve_path
from mlff_triton.checkpoints._pickles import unpickle
from mlff_triton.dynamics import load_restart
from mlff_triton.errors import CheckpointError, InputError
from tests.checkpoints.test_matgl import description, init_args, random_weights, write
from tests.checkpoints.test_native import configure, rewrite
from tests.support.checkpoints import (
    ZBL,
    F,
    add_atomref,
    assert_refused,
    lightning,
    native,
    priors_by_list,
    save,
    zipped,
)


def hyper(folder: Path, **changes: Any) -> Path:
    """Write a TorchMD-NET checkpoint with other hyperparameters."""
    content = lightning()
    content["hyper_parameters"] |= changes
    return save(content, folder / "model.ckpt")


def weighted(folder: Path, **changes: Any) -> Path:
    """Write a TorchMD-NET checkpoint with other weights."""
    content = lightning()
    content["state_dict"] |= {f"model.{name}": value for name, value in changes.items()}
    return save(content, folder / "model.ckpt")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("embedding_dimension", 20_000, "hidden_channels=20000 must lie in"),
        ("num_layers", 10**9, "num_layers=1000000000 must lie in"),
        ("num_rbf", 10**8, "num_rbf=100000000 must lie in"),
        ("cutoff_upper", 1e5, "upper <= 100 Å"),
        ("cutoff_upper", 10**400, "too large"),
        ("cutoff_upper", float("nan"), "upper <= 100 Å"),
        ("trainable_rbf", [[]], "trainable_rbf=[[]] must be True or False"),
    ],
)
def test_sizes_have_limits(tmp_path, name, value, message):
    assert message in assert_refused(hyper(tmp_path, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("units", 20_000, "hidden_channels=20000 must lie in"),
        ("nblocks", 10**9, "num_layers=1000000000 must lie in"),
        ("max_n", 20_000, "num_rbf=20000 must lie in"),
        ("cutoff", 1e6, "upper <= 100 Å"),
        ("element_types", ["H", "C", "H", "O"], "elements must differ: H occurs"),
    ],
)
def test_sizes_of_matgl_have_limits(tmp_path, name, value, message):
    args = {"rbf_type": "SphericalBessel", "use_smooth": True, "max_n": 5}
    content = description(**args)
    weights = random_weights(init_args(content))
    path = write(tmp_path, description(**args | {name: value}), weights)
    assert message in assert_refused(path)


def test_shapes_are_compared_before_memory_is_allocated(file, monkeypatch):
    monkeypatch.setattr(_weights, "TensorNet", lambda config: pytest.fail(f"builds {config}"))
    for changes, message in (
        ({"hidden_channels": 2048}, "has shape [6, 12], expected [2048, 4096]"),
        ({"num_rbf": 1000}, "has shape [18, 5], expected [18, 1000]"),
        ({"num_layers": 64}, "lacks 'layers.1.tensor_in.weight'"),
    ):
        save_model(native(), file)
        rewrite(file, metadata=configure(**changes))
        assert message in assert_refused(file)


def laughs() -> list[Any]:
    """Return a list whose ``repr`` has 10^40 characters."""
    many: list[Any] = ["ha"]
    for _ in range(40):
        many = [many] * 10
    return many


@pytest.mark.parametrize(
    "name",
    ["model", "activation", "rbf_type", "num_layers", "cutoff_upper", "prior_model", "max_z"],
)
def test_lists_that_contain_themselves_many_times_are_not_shown(tmp_path, name):
    assert len(assert_refused(hyper(tmp_path, **{name: laughs()}))) < 600


NESTED = b"X\x01\x00\x00\x00a" + b"".join(
    b"q%ch%c\x86" % (k, k) for k in range(60)
)  # the string "a", then a tuple of it and itself, a tuple of that and itself, ...
HASHES = {
    "key": b"}" + NESTED + b"Ns",
    "keys": b"}(" + NESTED + b"Nu",
    "set": b"cbuiltins\nset\n](" + NESTED + b"e\x85R",
}


@pytest.mark.parametrize("name", HASHES)
def test_tuples_within_tuples_are_not_visited(name):
    members = {"archive/data.pkl": b"\x80\x02" + HASHES[name] + b".", "archive/version": b"3\n"}
    with pytest.raises(CheckpointError, match="tuples within tuples") as refusal:
        unpickle(members, "model.ckpt")
    assert len(str(refusal.value)) < 200


def test_tuples_may_be_used_again(tmp_path):
    betas = (0.9, 0.999)
    model = load_model(hyper(tmp_path, betas=betas, more=[betas] * 1000, pairs={(1, 2): (betas,)}))
    assert model.config.hidden_channels == F


def test_tensors_cannot_look_larger_than_they_are(tmp_path, monkeypatch):
    huge = torch.zeros(1).expand(10**8)
    for name in ("std", "representation_model.linear.bias", "more"):
        assert "to look large" in assert_refused(weighted(tmp_path, **{name: huge}))
    priors = {"prior_model": ["ZBL"], "prior_args": [{**ZBL, "atomic_number": huge}]}
    assert load_model(hyper(tmp_path, **priors)).config.zbl
    monkeypatch.setattr(_weights, "MAX_FILE_BYTES", 4 << 20)
    one = torch.zeros(2**18)
    many = {f"copy{k}": one for k in range(5)}
    assert "repeats its tensors" in assert_refused(weighted(tmp_path, **many))


@pytest.mark.parametrize(
    "hostile",
    [(bytearray, (10**11,)), (torch.Tensor, (10**6, 10**5)), (complex, (1, 2))],
    ids=["bytearray", "tensor", "complex"],
)
def test_calls_that_allocate_are_refused(tmp_path, hostile):
    class Allocates:
        def __reduce__(self) -> Any:
            return hostile

    assert "would run" in assert_refused(hyper(tmp_path, lr=Allocates()))


def test_pickles_without_tensors_have_a_limit(tmp_path):
    assert "besides its tensors" in assert_refused(hyper(tmp_path, notes="a" * 3_000_000))


def test_zips_may_not_inflate(tmp_path):
    plain = save(lightning(), tmp_path / "model.ckpt")
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.ckpt", bytes(20_000_000))
    assert "inflates to more than" in assert_refused(bomb)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        with zipfile.ZipFile(plain) as members:
            for name in members.namelist():
                archive.writestr(name, members.read(name))
        archive.writestr("archive/data/more", bytes(20_000_000))
    assert "inflates to more than" in assert_refused(bomb)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(plain, "a.ckpt")
    assert "neither stored nor deflated" in assert_refused(bomb)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "a.ckpt")
    assert len(load_model(bomb).members) == 1
    with gzip.open(bomb, "w") as file:
        file.write(bytes(10_000_000))
    assert "not a checkpoint" in assert_refused(bomb)


def test_ensembles_have_a_limit(tmp_path):
    path = tmp_path / "ensemble.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(1000):
            archive.writestr(f"{k}.ckpt", b"")
    assert "contains 1000 checkpoints: an ensemble has at most 64" in assert_refused(path)


def test_names_in_a_zip_are_shown_short_and_cannot_change_a_terminal(tmp_path):
    message = assert_refused(zipped(tmp_path / "ensemble.zip", **{"\x1b[2Jname": {}}))
    assert r"\x1b[2Jname.ckpt" in message
    assert len(assert_refused(zipped(tmp_path / "ensemble.zip", **{"a" * 5000: {}}))) < 600


def test_only_regular_files_of_a_models_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    assert "not a regular file" in assert_refused(tmp_path / "pipe")
    assert "not a regular file" in assert_refused(Path("/dev/zero"))
    assert "has 10.7 GB: a model has at most 1.1 GB" in assert_refused(tmp_path / "sparse")
    for name in ("pipe", "sparse"):
        assert not model_card(tmp_path / name)
    content = description()
    write(tmp_path, content, random_weights(init_args(content)))
    for name in ("model.json", "state.pt"):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to("/dev/zero")
        assert "not a regular file" in assert_refused(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(kept)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000], ids=["[", "{", "1"]
)
def test_json_of_any_depth_and_length_is_refused(tmp_path, file, text):
    (tmp_path / "model.json").write_text(text)
    save({}, tmp_path / "state.pt")
    assert "not JSON" in assert_refused(tmp_path)
    rewrite(file, metadata=lambda m: m.update(config=text))
    assert "not JSON" in assert_refused(file)
    header = f'{{"__metadata__":{text}}}'.encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "not JSON" in assert_refused(file)


def test_headers_and_cards_have_a_limit(tmp_path, file):
    file.write_bytes((20 << 20).to_bytes(8, "little") + b"{" + b" " * (20 << 20))
    assert "header is too large" in assert_refused(file)
    with pytest.raises(InputError, match="at most 1048576"):
        save_model(native(), tmp_path / "new.safetensors", card="a" * 2_000_000)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a" * 300, "File name too long"),
        ("~nosuchuser/model.ckpt", "home directory"),
        ("a\0b", r"a\\x00b"),
    ],
)
def test_impossible_paths_are_one_line(path, message):
    with pytest.raises(CheckpointError, match=message) as refusal:
        load_model(path)
    assert "there is no model" in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("model", [5, None, b"model.ckpt", ["default"], torch.zeros(1)])
def test_models_are_named_by_text_or_a_path(model):
    for function in (load_model, resolve_path, Engine):
        with pytest.raises(InputError, match="by its name or path, not by a"):
            function(model)


@pytest.mark.parametrize("path", [5, None, b"model.safetensors"])
def test_files_are_named_by_a_path(path):
    with pytest.raises(InputError, match="a file is given by its path, not by a"):
        save_model(native(), path)
    with pytest.raises(InputError, match="a file is given by its path, not by a"):
        load_restart(path)


def test_text_is_refused_without_unsafe_advice(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("A long text, which is not a model.\n" * 100)
    message = assert_refused(path)
    assert "weights_only" not in message
    assert "torch.load" not in message
    assert "not a checkpoint" in message


@pytest.mark.parametrize("name", ["mean", "std"])
def test_energy_scale_is_needed(tmp_path, name):
    content = lightning()
    del content["state_dict"][f"model.{name}"]
    assert f"lacks '{name}'" in assert_refused(save(content, tmp_path / "model.ckpt"))


def test_references_are_needed_where_the_description_has_them(tmp_path):
    content = description()
    weights = random_weights(init_args(content))
    del weights["element_refs.property_offset"]
    content["kwargs"]["element_refs"] = {"@class": "ndarray"}
    message = assert_refused(write(tmp_path, content, weights))
    assert "lacks 'element_refs.property_offset'" in message


BIAS = "representation_model.linear.bias"


def test_numbers_that_float32_cannot_hold_are_refused(tmp_path):
    for value in (torch.full((F,), 1e300, dtype=torch.float64), torch.full((F,), 1e6).half()):
        message = assert_refused(weighted(tmp_path, **{BIAS: value}))
        assert "too large for float32" in message
    for name in ("mean", "std"):
        value = torch.tensor(1e300, dtype=torch.float64)
        assert "too large for float32" in assert_refused(weighted(tmp_path, **{name: value}))


def test_models_whose_energies_overflow_are_refused(tmp_path, file):
    signs = 1.0 - 2 * (torch.arange(F) % 2)
    huge = {
        "representation_model.linear.weight": 1e30 * signs[:, None].repeat(1, 3 * F),
        "output_model.output_network.layers.0.weight": torch.full((F // 2, F), 1e30),
    }
    assert "energies of its model are not finite" in assert_refused(weighted(tmp_path, **huge))
    save_model(native(rbf_type="gauss"), file)
    rewrite(file, tensors=lambda t: t["basis.coeff"].fill_(1e4))
    assert "energies of its model are not finite" in assert_refused(file)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_weight_of_low_precision_does_not_narrow_the_others(tmp_path, dtype):
    content = lightning()
    name = "model.representation_model.tensor_embedding.emb2.weight"
    content["state_dict"][name] = content["state_dict"][name].to(dtype)
    content["state_dict"][f"model.{BIAS}"] = torch.full((F,), 1e6).double()
    model = load_model(save(content, tmp_path / "model.ckpt"))
    assert model.dtype == torch.float32
    assert torch.equal(model.embedding.pair.weight, content["state_dict"][name].float())
    assert torch.equal(model.readout.linear.bias, torch.full((F,), 1e6))


@pytest.mark.parametrize("name", [BIAS, "mean", "std", "prior_model.0.atomref.weight"])
def test_complex_numbers_are_refused(tmp_path, name):
    content = lightning(prior_model="Atomref")
    add_atomref(content, 0)
    weight = content["state_dict"][f"model.{name}"]
    content["state_dict"][f"model.{name}"] = weight.to(torch.complex128)
    assert "not a tensor of real numbers" in assert_refused(save(content, tmp_path / "model.ckpt"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("name", ["cutoff_distance", "distance_scale", "energy_scale"])
def test_constants_of_the_repulsion_are_checked(tmp_path, name, value):
    content = lightning()
    priors_by_list(content)
    content["hyper_parameters"]["prior_args"][0] = {**ZBL, name: value}
    assert "zbl" in assert_refused(save(content, tmp_path / "model.ckpt")).lower()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_charges_of_the_repulsion_are_checked(tmp_path, value):
    content = lightning()
    priors_by_list(content)
    charges = [0.0, value, *ZBL["atomic_number"][2:]]
    content["hyper_parameters"]["prior_args"][0] = {**ZBL, "atomic_number": charges}
    assert "charges of zbl" in assert_refused(save(content, tmp_path / "model.ckpt"))


def test_constants_of_native_files_are_checked(file):
    for zbl in ({"cutoff": 2.0, "prefactor": -14.4}, {"cutoff": 1e6, "prefactor": 14.4}):
        save_model(native(), file)
        rewrite(file, metadata=configure(zbl={**zbl, "charges": None}))
        assert "of zbl must be" in assert_refused(file)
    save_model(native(), file)
    rewrite(file, metadata=configure(elements=[1, 6, 7, 7]))
    assert "elements must differ: N occurs" in assert_refused(file)
