"""`bio.embed_files` and ``mlff-triton embed``: embeddings as transformers computes them."""

from __future__ import annotations

import json
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mlff_triton import bio
from mlff_triton.bio import embedding
from mlff_triton.bio.embedding import Encoder
from mlff_triton.cli import main as cli
from mlff_triton.errors import CheckpointError, InputError, OutputError
from mlff_triton.jobs.workers import OwnProcess
from mlff_triton.testing.settings import CALLER_SETTINGS
from tests.support.disks import largest_file
from tests.support.huggingface import MODELS, bert_tokenizer, esm_tokenizer, transformers
from tests.support.language_models import randomize

h5py = pytest.importorskip("h5py", reason="h5py is an optional extra")

# Of tokenizers, for how some versions of transformers read a vocabulary
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")

SEQUENCES = ["MKWVTFISLL", "ACDEFGHIK", "LLLLLLLLLLLLLLL", "MK", "WYVTSRQPNML"]


def save(name, folder):
    """Write a random model with its tokenizer."""
    (bert_tokenizer if name.startswith("Bert") else esm_tokenizer)(folder)
    model = randomize(MODELS[name](), "cpu", torch.float32)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["EsmModel", "EsmModel, ESM-1b", "BertModel"])
def model(request, tmp_path_factory):
    return save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    return save("EsmModel", tmp_path_factory.mktemp("esm"))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embedding, "SEQUENCES", 2)
    write(SEQUENCES)


def write(sequences, name="in.fasta"):
    Path(name).write_text("".join(f">p{k}\n{s}\n" for k, s in enumerate(sequences)))


def read(name):
    with h5py.File(name) as file:
        return {
            key: data.asstr()[:].tolist() if data.dtype.kind == "O" else data[:]
            for key, data in file.items()
        }


def one_by_one(model, sequences):
    """Compute the embedding of every residue without batches."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    encoder = transformers.AutoModel.from_pretrained(model).eval()
    spaced = isinstance(encoder, transformers.BertModel)
    found = []
    for sequence in sequences:
        text = " ".join(sequence) if spaced else sequence
        with torch.inference_mode():
            hidden = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state
        found.append(hidden[0, 1:-1].numpy())
        assert len(found[-1]) == len(sequence)
    return found


@pytest.mark.parametrize("suffix", ["h5", "parquet"])
def test_means_are_those_of_single_sequences(model, suffix):
    progress = bio.embed_files("in.fasta", f"out.{suffix}", model=model, device="cpu")
    assert (progress.items, progress.errors) == (5, 0)
    if suffix == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an optional extra")
        table = parquet.read_table("out.parquet").to_pydict()
    else:
        table = read("out.h5")
    assert table["name"] == [f"p{k}" for k in range(5)]
    assert list(table["n_residues"]) == [len(sequence) for sequence in SEQUENCES]
    expected = [rows.mean(0) for rows in one_by_one(model, SEQUENCES)]
    np.testing.assert_allclose(np.array(table["embedding"]), expected, atol=1e-5)


def test_residues(model):
    bio.embed_files("in.fasta", "out.h5", model=model, device="cpu", per_residue=True)
    table = read("out.h5")
    expected = np.concatenate(one_by_one(model, SEQUENCES))
    np.testing.assert_allclose(table["embedding"], expected, atol=1e-5)
    assert table["n_residues"].sum() == len(expected)


def test_two_devices_give_what_one_does(esm):
    bio.embed_files("in.fasta", "one.h5", model=esm, device="cpu")
    progress = bio.embed_files("in.fasta", "two.h5", model=esm, device="cpu,cpu")
    assert (progress.items, progress.errors) == (5, 0)
    one, two = read("one.h5"), read("two.h5")
    assert two["name"] == one["name"]
    np.testing.assert_array_equal(two["embedding"], one["embedding"])


@pytest.mark.parametrize("per_residue", [False, True])
def test_a_sequence_that_is_too_long_has_an_error(tmp_path_factory, per_residue):
    folder = save("EsmModel, ESM-1b", tmp_path_factory.mktemp("short"))
    write([*SEQUENCES[:3], "M" * 60, "MKW"])
    options = {"model": folder, "device": "cpu", "per_residue": per_residue}
    progress = bio.embed_files("in.fasta", "out.h5", **options)
    assert (progress.items, progress.errors) == (5, 1)
    assert progress.first_error.startswith("record p3: the model takes 38 tokens at most")
    table = read("out.h5")
    assert [bool(error) for error in table["error"]] == [False, False, False, True, False]
    if per_residue:
        assert table["n_residues"].tolist() == [10, 9, 15, 0, 3]
        assert np.isfinite(table["embedding"]).all()
    else:
        finite = np.isfinite(table["embedding"]).all(1)
        assert finite.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("per_residue", [False, True])
def test_a_record_at_which_workers_die_has_an_error(esm, monkeypatch, per_residue):
    """Rows of the others, and of the record itself, are as without a death."""
    submit = OwnProcess.submit

    def dies(self, records):
        if any(record.id == "p3" for record in records):
            future = Future()
            future.set_exception(BrokenExecutor("killed"))
            return future
        return submit(self, records)

    monkeypatch.setattr(OwnProcess, "submit", dies)
    options = {"model": esm, "device": "cpu", "per_residue": per_residue}
    progress = bio.embed_files("in.fasta", "out.h5", **options)
    assert (progress.items, progress.errors) == (5, 1)
    assert progress.first_error.startswith("record p3: workers die at it repeatedly")
    table = read("out.h5")
    assert table["name"] == [f"p{k}" for k in range(5)]
    assert [bool(error) for error in table["error"]] == [False, False, False, True, False]
    expected = one_by_one(esm, SEQUENCES)
    if per_residue:
        assert table["n_residues"].tolist() == [10, 9, 15, 0, 11]
        wanted = np.concatenate([*expected[:3], expected[4]])
    else:
        expected[3][:] = np.nan
        wanted = [rows.mean(0) for rows in expected]
    np.testing.assert_allclose(table["embedding"], wanted, atol=1e-5)


@pytest.mark.parametrize("suffix", ["h5", "parquet"])
def test_a_full_disk_is_one_line_that_names_the_file(esm, suffix):
    options = {"model": esm, "device": "cpu"}
    with largest_file(90), pytest.raises(OutputError, match=rf"cannot write out\.{suffix}: File"):
        bio.embed_files("in.fasta", f"out.{suffix}", **options)
    assert not list(Path().glob("*lock"))
    assert bio.embed_files("in.fasta", f"out.{suffix}", **options).errors == 0


WRONG = {
    "MKJV": "'J' at position 3 is not a residue that the tokenizer knows: remove it",
    "MK1V": "'1' at position 3",
    "JJJJ": "'J' at position 1",
    "mkv*": "'*' at position 4",
    "M-KV": "'-' at position 2",
    "M\u00e9KV": "'\u00c3' at position 2",
    "M<mask>K": "'<' at position 2",
    "": "the sequence is empty: is the file truncated?",
}


@pytest.mark.parametrize("per_residue", [False, True])
def test_records_that_are_no_proteins_cost_nothing_else(model, per_residue):
    write([*WRONG, *SEQUENCES, ""])
    options = {"model": model, "device": "cpu", "per_residue": per_residue}
    progress = bio.embed_files("in.fasta", "out.h5", **options)
    assert (progress.items, progress.errors) == (len(WRONG) + 6, len(WRONG) + 1)
    table = read("out.h5")
    for found, (text, expected) in zip(table["error"], WRONG.items(), strict=False):
        assert found.startswith(expected), text
    rows = table["embedding"][np.isfinite(table["embedding"]).all(1)]
    expected = one_by_one(model, SEQUENCES)
    wanted = np.concatenate(expected) if per_residue else [x.mean(0) for x in expected]
    np.testing.assert_allclose(rows, wanted, atol=1e-5)


def test_comments_are_no_proteins(esm):
    Path("in.fasta").write_text("; a comment\n>p0\n;MKV is not of this protein\nMKW\n; end\nVT\n")
    bio.embed_files("in.fasta", "out.h5", model=esm, device="cpu")
    table = read("out.h5")
    assert table["n_residues"].tolist() == [5]
    np.testing.assert_allclose(
        table["embedding"][0], one_by_one(esm, ["MKWVT"])[0].mean(0), atol=1e-5
    )


@pytest.mark.parametrize("name", CALLER_SETTINGS)
def test_settings_of_the_caller_change_nothing(name, esm):
    bio.embed_files("in.fasta", "first.h5", model=esm, device="cpu")
    state = torch.random.get_rng_state()
    with CALLER_SETTINGS[name]():
        bio.embed_files("in.fasta", "second.h5", model=esm, device="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)
    first, second = read("first.h5"), read("second.h5")
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_a_model_without_weights_of_a_pooler_is_no_report(tmp_path_factory, capfd):
    folder = save("EsmModel without a pooler", tmp_path_factory.mktemp("plain"))
    before = transformers.utils.logging.get_verbosity()
    bio.embed_files("in.fasta", "out.h5", model=folder, device="cpu")
    assert "pooler" not in "".join(capfd.readouterr())
    assert transformers.utils.logging.get_verbosity() == before


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        (lambda name: f"module.{name}", "lacks .* weights of EsmModel, such as embeddings.word"),
        (lambda name: name.replace("layer.1.", "layer.7."), "such as encoder.layer.1.attention"),
    ],
    ids=["prefix", "layer"],
)
def test_checkpoints_that_lack_weights_are_refused(tmp_path_factory, renamed, message):
    """Transformers would make them up."""
    folder = save("EsmModel", tmp_path_factory.mktemp("model"))
    file = folder / "model.safetensors"
    weights = {renamed(name): weight for name, weight in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message) as refusal:
        bio.embed_files("in.fasta", "out.h5", model=folder, device="cpu")
    assert "\n" not in str(refusal.value)
    assert [path.name for path in Path().iterdir()] == ["in.fasta"]


def test_checkpoints_of_language_models_are_complete(tmp_path_factory):
    """They have a head that is not used, and no pooler."""
    folder = save("EsmForMaskedLM", tmp_path_factory.mktemp("model"))
    progress = bio.embed_files("in.fasta", "out.h5", model=folder, device="cpu")
    assert progress.errors == 0


def test_an_interrupted_job_continues(esm):
    bio.embed_files("in.fasta", "whole.h5", model=esm, device="cpu")
    options = {"model": esm, "device": "cpu"}
    assert not bio.embed_files("in.fasta", "out.h5", stop=lambda: True, **options).is_complete
    assert bio.embed_files("in.fasta", "out.h5", **options).resumed == 2
    whole, found = read("whole.h5"), read("out.h5")
    assert all(np.array_equal(whole[key], found[key]) for key in whole)


def test_another_model_is_refused(tmp_path_factory):
    folder = save("EsmModel", tmp_path_factory.mktemp("changed"))
    assert not bio.embed_files(
        "in.fasta", "out.h5", model=folder, device="cpu", stop=lambda: True
    ).is_complete
    (folder / "vocab.txt").touch()
    with pytest.raises(OutputError, match="was begun with files="):
        bio.embed_files("in.fasta", "out.h5", model=folder, device="cpu")


def test_too_little_memory_is_survived(esm, monkeypatch):
    """Batches are halved until they fit; what never fits has an error."""
    original = Encoder._batch

    def batch(self, members, sequences, per_residue):
        if sum(map(len, sequences)) > 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return original(self, members, sequences, per_residue)

    monkeypatch.setattr(Encoder, "_batch", batch)
    monkeypatch.setattr(embedding, "SEQUENCES", 8)
    progress = bio.embed_files("in.fasta", "out.h5", model=esm, device="cpu")
    assert (progress.items, progress.errors) == (5, 1)
    assert "out of memory" in read("out.h5")["error"][2]


def spoil(model, places):
    """Make the last hidden states of a model NaN where a function of its inputs is True."""
    forward = model.forward

    def spoiled(**inputs):
        found = forward(**inputs)
        found.last_hidden_state[places(inputs)] = torch.nan
        return found

    model.forward = spoiled


def embed(encoder, per_residue=False):
    return encoder.embed([sequence.encode() for sequence in SEQUENCES], per_residue=per_residue)


@pytest.mark.parametrize("per_residue", [False, True])
def test_padding_and_special_tokens_do_not_matter(model, per_residue):
    encoder = Encoder.load(str(model), None, "cpu")
    expected, _ = embed(encoder, per_residue)
    special = [0, 1, 2, 3]  # of both tokenizers, and what they pad with
    spoil(encoder.model, lambda inputs: torch.isin(inputs["input_ids"], torch.tensor(special)))
    found, errors = embed(encoder, per_residue)
    assert not any(errors)
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("per_residue", [False, True])
def test_embeddings_that_are_not_finite_have_errors(esm, per_residue):
    encoder = Encoder.load(str(esm), None, "cpu")
    expected, _ = embed(encoder, per_residue)
    (tryptophan,) = encoder.encode([b"W"]).inputs["input_ids"][0, 1:2].tolist()
    spoil(encoder.model, lambda inputs: inputs["input_ids"] == tryptophan)
    found, errors = embed(encoder, per_residue)
    for sequence, error, rows, wanted in zip(SEQUENCES, errors, found, expected, strict=True):
        assert ("its embedding is not finite" in error) == ("W" in sequence)
        assert rows is None if "W" in sequence else np.array_equal(rows, wanted)


def test_only_means_are_copied_once(esm, monkeypatch):
    """Batches of a task are queued on the GPU, without waiting for one of them."""
    copied = []
    original = embedding.Batch.on_host
    monkeypatch.setattr(
        embedding.Batch, "on_host", lambda batch: [copied.append(batch), original(batch)][1]
    )
    monkeypatch.setattr(embedding, "TOKENS", 24)
    encoder = Encoder.load(str(esm), None, "cpu")
    copied.clear()
    embed(encoder)
    (batch,) = copied
    assert batch.rows.shape == (len(SEQUENCES), encoder.width)


@pytest.mark.parametrize("per_residue", [False, True])
def test_residues_that_are_not_a_token_each_are_an_error(tmp_path_factory, per_residue):
    folder = save("EsmModel", tmp_path_factory.mktemp("merged"))
    esm_tokenizer(folder, ["LAG"])
    write([*SEQUENCES, "MLAGW"])
    options = {"model": folder, "device": "cpu", "per_residue": per_residue}
    assert bio.embed_files("in.fasta", "out.h5", **options).errors == 1
    table = read("out.h5")
    assert table["error"][5] == "its 5 residues became 3 tokens"
    expected = one_by_one(folder, SEQUENCES)
    wanted = np.concatenate(expected) if per_residue else [x.mean(0) for x in expected]
    np.testing.assert_allclose(table["embedding"][: len(wanted)], wanted, atol=1e-5)


def states(dtype, length=61):
    """Return hidden states with NaN outside of residues, and a mask of these."""
    generator = torch.Generator().manual_seed(0)
    hidden = 3 * torch.randn(6, length, 40, generator=generator)
    is_residue = torch.zeros(6, length, dtype=torch.bool)
    for row, end in zip(is_residue, (2, 3, 17, 33, 34, length), strict=True):
        row[1:end] = True
    hidden[~is_residue] = torch.nan
    return hidden.to(dtype), is_residue


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_means_are_those_in_float64(dtype):
    hidden, is_residue = states(dtype)
    before = hidden.clone()
    found = embedding._means(hidden, is_residue)
    assert found.dtype == torch.float32
    assert torch.equal(hidden.nan_to_num(), before.nan_to_num())
    for row, x, mask in zip(found, hidden, is_residue, strict=True):
        expected = x[mask].double().mean(0)
        np.testing.assert_allclose(row, expected, rtol=2**-23, atol=1e-12)


@pytest.mark.parametrize("more", [1, 3, 67])
def test_means_do_not_depend_on_the_batch(more):
    hidden, is_residue = states(torch.float32)
    hidden[:, :, ::2] *= 1e12  # whose sums are rounded in float64, too
    expected = embedding._means(hidden, is_residue)
    padded = torch.nn.functional.pad(hidden, (0, 0, 0, more), value=torch.nan)
    mask = torch.nn.functional.pad(is_residue, (0, more))
    assert torch.equal(embedding._means(padded, mask), expected)
    for row, x, residues in zip(expected, hidden, is_residue, strict=True):
        size = int(residues.nonzero().max()) + 1
        alone = embedding._means(x[None, :size], residues[None, :size])
        assert torch.equal(alone[0], row)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_gpus(model, precision, tolerance):
    bio.embed_files("in.fasta", "cpu.h5", model=model, device="cpu")
    bio.embed_files("in.fasta", "gpu.h5", model=model, precision=precision, workers=2)
    expected, found = (read(name)["embedding"] for name in ("cpu.h5", "gpu.h5"))
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_batches_limit_tokens(monkeypatch):
    monkeypatch.setattr(embedding, "TOKENS", 12)
    batches = embedding._batches([0, 1, 2, 3], [3, 3, 6, 40], embedding.TOKENS)
    assert list(batches) == [[0, 1], [2], [3]]


def other(name, folder, **options):
    """Write a random model of another architecture, with the tokenizer of ProtBERT."""
    bert_tokenizer(folder)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=30,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=24,
        pad_token_id=0,
        **options,
    )
    model = randomize(getattr(transformers, f"{name}Model")(config), "cpu", torch.float32)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("per_residue", [False, True])
@pytest.mark.parametrize(
    ("name", "options"), [("FNet", {}), ("ConvBert", {"embedding_size": 64}), ("Bert", {})]
)
def test_embeddings_do_not_depend_on_padding(tmp_path_factory, name, options, per_residue):
    """Neither if a model mixes tokens with padding, nor if its tokenizer puts padding first."""
    folder = other(name, tmp_path_factory.mktemp(name), **options)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": "left"}))
    encoder = Encoder.load(str(folder), None, "cpu")
    assert encoder.ignores_padding == (name == "Bert")
    sequences = [sequence.encode() for sequence in SEQUENCES]
    found, errors = encoder.embed(sequences, per_residue=per_residue)
    assert not any(errors)
    for rows, sequence in zip(found, sequences, strict=True):
        (alone,), _ = encoder.embed([sequence], per_residue=per_residue)
        np.testing.assert_allclose(rows, alone, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"), [("GPT2", {}), ("RoFormer", {"embedding_size": 64}), ("Yoso", {})]
)
def test_positions_end_where_the_model_says(tmp_path_factory, name, options):
    folder = other(name, tmp_path_factory.mktemp(name), **options)
    encoder = Encoder.load(str(folder), None, "cpu")
    _, errors = encoder.embed([b"M" * 22, b"M" * 23, b"M" * 60], per_residue=False)
    assert errors == ["", *["the model takes 24 tokens at most"] * 2]


def test_a_position_without_a_row_is_the_error_of_its_sequence(tmp_path_factory):
    """For models that name their table of positions in an unknown way."""
    folder = other("GPT2", tmp_path_factory.mktemp("model"))
    encoder = Encoder.load(str(folder), None, "cpu")._replace(longest=None)
    found, errors = encoder.embed([b"MKV", b"M" * 60, b"W"], per_residue=False)
    assert [bool(error) for error in errors] == [False, True, False]
    assert [rows is None for rows in found] == [False, True, False]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "."}, CheckpointError, "cannot be loaded as a model of transformers"),
        ({"precision": "fp8"}, InputError, "precision='fp8' is unknown"),
        ({"out": "out.xyz"}, InputError, "the suffix of out.xyz is unknown"),
        ({"fasta": "absent.fasta"}, InputError, "absent.fasta cannot be read"),
    ],
)
def test_wrong_arguments_are_refused(esm, options, error, message):
    arguments = {"fasta": "in.fasta", "out": "out.h5", "model": esm, "device": "cpu"} | options
    with pytest.raises(error, match=message) as refusal:
        bio.embed_files(**arguments)
    assert "\n" not in str(refusal.value)
    assert [path.name for path in Path().iterdir()] == ["in.fasta"]


def test_models_that_are_not_encoders_of_proteins_are_refused(esm, tmp_path_factory):
    """A model with a decoder, and one whose tokenizer does not know residues."""
    t5, words = (tmp_path_factory.mktemp(name) for name in ("t5", "words"))
    transformers.AutoTokenizer.from_pretrained(esm).save_pretrained(t5)
    sizes = {"d_model": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4}
    transformers.T5Model(transformers.T5Config(vocab_size=40, **sizes)).save_pretrained(t5)
    save("BertModel", words)
    (words / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    (words / "tokenizer.json").unlink(missing_ok=True)
    for folder, message in ((t5, "You (must|have to)"), (words, "its tokenizer does")):
        with pytest.raises(
            CheckpointError, match=f"is not an encoder of proteins: {message}"
        ) as refusal:
            bio.embed_files("in.fasta", "out.h5", model=folder, device="cpu")
        assert "\n" not in str(refusal.value)
        assert [path.name for path in Path().iterdir()] == ["in.fasta"]


def test_the_command(esm, capsys):
    command = ["embed", "in.fasta", "--model", str(esm), "--out", "out.h5", "--device", "cpu"]
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command, "--per-residue"])
    assert exit_.value.code == 0
    assert "wrote out.h5: 5 sequences, " in capsys.readouterr().out
    assert len(read("out.h5")["embedding"]) == sum(map(len, SEQUENCES))
