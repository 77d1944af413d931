"""Models by name: fetched once from a hub on the loopback address, checked, and refused."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from mlff_triton import TensorNetCalculator, create_openmm_force, load_model, save_model
from mlff_triton._common.remedies import install
from mlff_triton.checkpoints import hub as models
from mlff_triton.checkpoints import lasting_name, resolve_path
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import CheckpointError
from tests.checkpoints.test_load_model import Runs
from tests.checkpoints.test_matgl import description, init_args, random_weights
from tests.support.checkpoints import ATOMS, energy_and_forces, lightning, native
from tests.support.hub import COMMIT, Hub, Reply, serving, use
from tests.support.torch_sim_double import doubled

ADDRESS = f"hf:Acellera/AceFF-1.1@{COMMIT}/aceff_v1.1.ckpt"
TOKEN = "hf_secret"  # noqa: S105 - of the tests' own hub
CARD = b"---\nlibrary_name: torchmd-net\nlicense: apache-2.0\n---\n\nlicense: none of this\n"


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def matgl_files() -> dict[str, bytes]:
    torch.manual_seed(3)
    content = description()
    weights = random_weights(init_args(content))
    return {"model.json": json.dumps(content).encode(), "state.pt": saved(weights)}


def add_named(hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, bytes]:
    """Serve random files for a name, with their hashes in the table, and return them."""
    model = models.NAMED[name]
    is_matgl = model.file == "model.json"
    files = matgl_files() if is_matgl else {model.file: saved(lightning())}
    hub.add(model.repo, files, COMMIT if model.revision == "main" else model.revision)
    hashes = {file: hashlib.sha256(files[file]).hexdigest() for file in model.sha256}
    monkeypatch.setitem(models.NAMED, name, dataclasses.replace(model, sha256=hashes))
    return files


def refusal(name: str) -> str:
    """Return the one line that says why a model cannot be loaded."""
    with pytest.raises(CheckpointError) as error:
        load_model(name)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def aceff(hub) -> Hub:
    files = {"aceff_v1.1.ckpt": saved(lightning()), "README.md": CARD}
    hub.add("Acellera/AceFF-1.1", files)
    return hub


@pytest.mark.parametrize("name", models.NAMED)
def test_names_load_the_same_as_their_files(hub, monkeypatch, tmp_path, name):
    files = add_named(hub, monkeypatch, name)
    folder = tmp_path / "files"
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    energy, forces = energy_and_forces(load_model(name))
    expected_energy, expected_forces = energy_and_forces(load_model(folder / next(iter(files))))
    assert energy == expected_energy
    assert (forces == expected_forces).all()
    assert hub.downloads() == list(files)


def test_a_model_is_fetched_once_and_then_needs_no_network(aceff):
    energy = energy_and_forces(load_model("aceff-1.1"))[0]
    assert aceff.downloads() == ["aceff_v1.1.ckpt", "README.md"]
    aceff.requests.clear()
    aceff.repositories.clear()
    assert energy_and_forces(load_model("aceff-1.1"))[0] == energy
    assert aceff.requests == []


def test_nothing_is_fetched_that_was_not_asked_for(aceff, file, monkeypatch):
    load_model("default")
    load_model(file)
    assert not any(models.is_cached(model) for model in models.NAMED.values())
    refusal("aceff-9")
    monkeypatch.chdir(file.parent)
    (file.parent / "aceff-1.1").write_bytes(file.read_bytes())
    load_model("./aceff-1.1")  # a path, not the name
    assert aceff.requests == []


def test_only_files_of_the_model_are_fetched(hub):
    hub.add("a/b", {**matgl_files(), "model.pt": b"not wanted", "more.bin": b"not wanted"})
    load_model("hf:a/b/model.json")
    assert hub.downloads() == ["model.json", "state.pt"]


@pytest.mark.parametrize("folder", ["", "sub/folder/"])
@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_addresses_give_any_file_of_any_revision(hub, tmp_path, revision, folder):
    model = native()
    save_model(model, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    files = {"ours.safetensors": content, **matgl_files()}
    hub.add("owner/re.po-1", {folder + name: content for name, content in files.items()})
    loaded = load_model(f"hf:owner/re.po-1{revision}/{folder}ours.safetensors")
    assert energy_and_forces(loaded)[0] == energy_and_forces(model)[0]
    matgl = load_model(f"hf:owner/re.po-1{revision}/{folder}model.json")
    assert matgl.config.head == "gated"


def test_both_files_of_a_matgl_model_are_of_one_commit(hub):
    """The branch may move on in between."""
    hub.add("a/b", matgl_files())
    load_model("hf:a/b/model.json")
    revisions = {path.split("/")[-1]: path.split("/")[4] for _, _, path in hub.requests}
    assert revisions == {"model.json": "main", "state.pt": COMMIT, "README.md": COMMIT}


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (CARD, "license: apache-2.0"),
        (b'---\nlicense: "cc-by-4.0"\n---', "license: cc-by-4.0"),
        (b"---\r\nlicense: mit\r\n---\r\n", "license: mit"),
        (b"---\nlicense: \x1b[2J\n---\n", r"license: \x1b[2J"),
        (b"---\ntags: []\n---\nlicense: mit", "license: not stated"),
        (b"# License: MIT\n", "license: not stated"),
        (b"\xff\xfe", "license: not stated"),
        (None, "license: not stated"),
    ],
)
def test_the_license_is_said_once(hub, caplog, card, expected):
    hub.add("a/b", {"m.ckpt": saved(lightning()), **({"README.md": card} if card else {})})
    load_model("hf:a/b/m.ckpt")
    (record,) = caplog.records
    assert f"fetched hf:a/b/m.ckpt from {hub.url}/a/b, {expected}" in record.message
    load_model("hf:a/b/m.ckpt")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf:no/such/m.ckpt", "/no/such does not exist or is private: check the name, or set HF"),
        ("hf:a/gated/m.ckpt", "/a/gated, and set HF_TOKEN"),
        ("hf:a/down/m.ckpt", "500 Internal Server Error"),
        ("hf:a/b/none.ckpt", "a/b has no none.ckpt: see "),
        ("hf:a/b/model.json", "a/b has no model.json with state.pt: see "),
        ("hf:a/b@v9/m.ckpt", "a/b has no revision 'v9': see "),
        ("hf:a/b@" + 40 * "1" + "/m.ckpt", "a/b has no revision '1111"),
    ],
)
def test_what_the_hub_does_not_have_takes_one_line(hub, name, expected):
    hub.add("a/b", {"m.ckpt": b"...", "model.json": b"{}"})
    hub.add("a/gated", {}).error = Reply(403, headers={"X-Error-Code": "GatedRepo"})
    hub.add("a/down", {}).error = Reply(500)
    assert expected in refusal(name)
    assert hub.url in refusal(name)


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:a",
        "hf:a/b",
        "hf:a/b/",
        "hf:a//b",
        "hf:a/b/../c",
        "hf:a/b/../../../../c",
        "hf:a/b//c",
        "hf:a/b@/c",
        "hf:a/b@../c",
        "hf:a@b/c/d",
        "hf:-a-/b--c/d",
        "hf:a b/c/d",
        "hf:a/b/c\nd",
        "hf:a/b/\x1b[2J",
    ],
)
def test_malformed_addresses_are_refused_without_a_request(hub, name):
    message = refusal(name)
    assert "is not an address of a file: give hf:owner/repository/file" in message
    assert message.isprintable()
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("aceff2", "aceff-2.0"),
        ("AceFF-2.0", "aceff-2.0"),
        ("tensornet-matpes", "tensornet-matpes-pbe"),
        ("TensorNet-MatPES-r2SCAN", "tensornet-matpes-r2scan"),
    ],
)
def test_unknown_names_are_refused_with_similar_ones(hub, tmp_path, monkeypatch, name, near):
    monkeypatch.chdir(tmp_path)
    message = refusal(name)
    assert f"there is no model {name!r}: did you mean {near}" in message
    assert all(known in message for known in models.NAMED)
    assert hub.requests == []


def test_a_name_like_no_other_gets_no_guess(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "'zzz': give a path, hf:owner/repository/file, or one of default" in refusal("zzz")


def test_a_hub_out_of_reach_is_refused_at_once(aceff, tmp_path, caplog):
    load_model("aceff-1.1")
    with serving() as closed:
        pass
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        use(closed, tmp_path / "cache", patch)
        message = refusal("hf:a/b/m.ckpt")
        load_model("aceff-1.1")
    assert f"hf:a/b/m.ckpt is not in the cache, and cannot be fetched from {closed.url}" in message
    assert "Connection refused" in message
    assert "check the network" in message
    assert caplog.records == []  # no retries
    aceff.requests.clear()
    load_model("aceff-1.1")
    assert aceff.requests == []


def test_without_huggingface_hub_only_names_on_the_hub_are_refused(file, monkeypatch):
    monkeypatch.setattr(models, "is_installed", lambda: False)
    for name in ("aceff-2.0", "hf:a/b/c.ckpt"):
        assert install("hub") in refusal(name)
    load_model(file)
    load_model("default")


def test_files_that_are_damaged_on_the_way_are_refused(hub):
    content = saved(lightning())
    hub.add("a/b", {"m.ckpt": content})
    hub.is_damaging = True
    message = refusal("hf:a/b/m.ckpt")
    digest = hashlib.sha256(content).hexdigest()
    assert f"does not have its published SHA-256 hash {digest}: delete it" in message
    assert refusal("hf:a/b/m.ckpt") == message

    hub.is_damaging = False
    Path(message.split(" does not have")[0]).unlink()
    load_model("hf:a/b/m.ckpt")


@pytest.mark.usefixtures("aceff")
def test_files_that_are_changed_in_the_cache_are_refused():
    path = resolve_path("aceff-1.1")
    other = saved(lightning(1))
    path.resolve().write_bytes(other)
    load_model(path)
    assert str(path.resolve()) in refusal("aceff-1.1")


def test_files_that_are_changed_on_the_hub_are_refused(hub):
    """Published hashes are in the table, and these files have others."""
    for name in ("aceff-2.0", "tensornet-matpes-pbe"):
        model = models.NAMED[name]
        files = matgl_files() if model.file == "model.json" else {model.file: saved(lightning())}
        hub.add(model.repo, files, model.revision)
        ((file, digest),) = model.sha256.items()
        assert file in files
        assert f"does not have its published SHA-256 hash {digest}" in refusal(name)
        address = f"hf:{model.repo}@{model.revision}/{model.file}"
        assert digest in refusal(address)


def test_files_too_large_for_a_model_are_not_downloaded(hub):
    hub.add("a/b", {"m.ckpt": b"..."})
    hub.announced_size = 10**10
    assert "m.ckpt of a/b has 10.0 GB: a model has at most" in refusal("hf:a/b/m.ckpt")
    assert hub.downloads() == []


def test_lasting_names_are_addresses_with_the_commit(aceff):
    assert lasting_name("aceff-1.1") == ADDRESS
    assert lasting_name("hf:Acellera/AceFF-1.1/aceff_v1.1.ckpt") == ADDRESS
    assert lasting_name(ADDRESS) == ADDRESS
    assert energy_and_forces(load_model(ADDRESS)) is not None
    assert aceff.downloads() == ["aceff_v1.1.ckpt", "README.md"]


def test_lasting_names_of_matgl_models_are_those_of_the_description(hub, monkeypatch):
    add_named(hub, monkeypatch, "tensornet-matpes-pbe")
    model = models.NAMED["tensornet-matpes-pbe"]
    address = lasting_name("tensornet-matpes-pbe")
    assert address == f"hf:{model.repo}@{model.revision}/model.json"
    assert models.find(address) == model


@pytest.mark.usefixtures("aceff")
def test_front_ends_take_names():
    calculator = TensorNetCalculator("aceff-1.1", device="cpu", dtype="float64")
    energy = calculator.get_potential_energy(ATOMS)
    assert energy == energy_and_forces(load_model("aceff-1.1"))[0]
    engine = pickle.loads(pickle.dumps(Engine("aceff-1.1", "cpu", "float64")))
    prediction = engine.compute(ATOMS.numbers, ATOMS.positions)
    assert float(prediction.energy) == pytest.approx(energy, rel=1e-12)


@pytest.mark.usefixtures("aceff")
def test_openmm_forces_are_written_with_the_commit():
    openmm = pytest.importorskip("openmm")
    from mlff_triton.calculators.openmm.recipe import lasting_model
    from tests.support.openmm_systems import EV, system_of

    force = create_openmm_force(ATOMS.numbers, "aceff-1.1", device="cpu", dtype="float64")
    written = openmm.XmlSerializer.serialize(system_of(ATOMS, force))
    context = openmm.Context(
        openmm.XmlSerializer.deserialize(written),
        openmm.VerletIntegrator(0.001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    context.setPositions(ATOMS.positions / 10)
    energy = context.getState(energy=True).getPotentialEnergy()._value / EV
    assert energy == pytest.approx(energy_and_forces(load_model("aceff-1.1"))[0], rel=1e-9)
    assert lasting_model("aceff-1.1") == ADDRESS


def test_torch_sim_takes_names(aceff):
    has_torch_sim = find_spec("torch_sim") is not None
    with nullcontext() if has_torch_sim else doubled():
        home = importlib.import_module("mlff_triton.calculators.torch_sim_model")
        home.TorchSimModel("aceff-1.1", device="cpu", dtype="float64")
    assert aceff.downloads() == ["aceff_v1.1.ckpt", "README.md"]


def test_hostile_files_of_the_hub_run_nothing(hub, tmp_path):
    marker = tmp_path / "marker"
    attack = Runs(os.system, f"touch {marker}")
    hub.add("a/b", {"m.ckpt": saved(attack), "model.json": b"{}", "state.pt": saved(attack)})
    for file in ("m.ckpt", "model.json"):
        assert str(tmp_path / "cache") in refusal(f"hf:a/b/{file}")
    assert not marker.exists()


def in_new_process(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command line with the environment variables of huggingface_hub."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(  # noqa: S603 - the command is this package
        [sys.executable, "-c", "from mlff_triton.cli.main import main; main()", *arguments],
        env={**inherited, "HF_HOME": str(folder), "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_environment_variables_of_the_hub_apply(tmp_path):
    pytest.importorskip("huggingface_hub")
    with serving() as hub:
        hub.add("Acellera/AceFF-1.1", {"aceff_v1.1.ckpt": saved(lightning()), "README.md": CARD})
        offline = in_new_process(
            tmp_path, "info", "aceff-1.1", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1"
        )
        assert hub.requests == []
        first = in_new_process(tmp_path, "info", "aceff-1.1", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
        assert hub.tokens["127.0.0.1"] == f"Bearer {TOKEN}"
        assert hub.tokens["localhost"] is None
    again = in_new_process(tmp_path, "info", "aceff-1.1", HF_HUB_OFFLINE="1")
    assert (offline[0], offline[1], offline[2].count("\n")) == (2, "", 1)
    assert "as HF_HUB_OFFLINE is set: unset it once" in offline[2]
    assert first[0] == 0
    assert f"fetched aceff-1.1 from {hub.url}/Acellera/AceFF-1.1, license: apache-2.0" in first[2]
    assert again == (0, first[1], "")


def test_proxies_are_used(tmp_path):
    pytest.importorskip("huggingface_hub")
    with serving() as hub:
        hub.add("Acellera/AceFF-1.1", {"aceff_v1.1.ckpt": saved(lightning())})
        proxies = {"HTTP_PROXY": hub.url, "http_proxy": hub.url, "NO_PROXY": "", "no_proxy": ""}
        endpoint = "http://hub.example"
        code, out, _ = in_new_process(
            tmp_path, "info", "aceff-1.1", HF_ENDPOINT=endpoint, **proxies
        )
        assert code == 0
        assert "aceff_v1.1.ckpt" in out
        assert {host for _, host, _ in hub.requests} == {"hub.example", "localhost"}
