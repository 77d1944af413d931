"""Accelerated ESM and BERT of Hugging Face's transformers against the original models."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.errors import InputError
from mlff_triton.testing import assert_within
from tests.support.huggingface import (
    MODELS,
    SIZES,
    make,
)
from tests.support.language_models import (
    LENGTH,
    NAMES,
    SEQUENCES,
    assert_same,
    assert_same_first,
    mask_of,
    tokens_of,
    valid,
)

OF_TOKENS = ("last_hidden_state", "logits")
MASKS = ["no mask", "all ones", "padding right", "padding left", "one token"]


def inputs_of(model: nn.Module, mask: str) -> dict[str, Tensor]:
    """Make a batch for a model, on its device."""
    device = str(next(model.parameters()).device)
    config = model.config
    masked = getattr(config, "mask_token_id", None) is not None
    tokens = {"input_ids": tokens_of(mask, device, config.pad_token_id, masked)}
    found = mask_of(mask, device)
    return tokens if found is None else tokens | {"attention_mask": found}


@torch.inference_mode()
def outputs(model: nn.Module, inputs: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """Return a model's outputs without those of padding."""
    mask = inputs.get("attention_mask")
    found = {
        name: valid(x, mask) if name in OF_TOKENS and x.dim() == 3 else x
        for name, x in model(**inputs, **options).items()
    }
    if mask is not None and bool((mask[:, 0] == 0).any()):
        # The pooler and the classes read the first token, which is padding here.
        found.pop("pooler_output", None)
        found = {name: x for name, x in found.items() if len(x) != SEQUENCES}
    return found


def check(model: nn.Module, inputs: dict[str, Any], agreement: str, **options: Any) -> None:
    """Compare the accelerated model, called twice, and then the restored one with the original."""
    expected = outputs(model, inputs)
    with bio.accelerated(model, **options):
        found, again = outputs(model, inputs), outputs(model, inputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert_same(found[name], values, agreement)
        assert_same(again[name], values, agreement)
    if "logits" in expected:
        in_half = None
        if agreement == "fp16":
            in_half = outputs(deepcopy(model).half(), inputs)["logits"]
        assert_same_first(found["logits"], expected["logits"], in_half)
    for name, values in outputs(model, inputs).items():
        assert torch.equal(values, expected[name])


@pytest.mark.filterwarnings("ignore:.* begins with padding")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_model(name, mask, device):
    model = make(name, device)
    check(model, inputs_of(model, mask), "fp64", backend="torch")


@pytest.mark.parametrize("mask", MASKS)
def test_without_factors_in_float32_float64_is_exact(mask, device):
    """BERT has no factors in float32, so every difference comes from our code."""
    model = make("BertForMaskedLM", device)
    inputs = inputs_of(model, mask)
    expected = outputs(model, inputs)
    with bio.accelerated(model, backend="torch"):
        found = outputs(model, inputs)
    for key, values in expected.items():
        assert_within(found[key], values, 1e-12)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["EsmForMaskedLM", "EsmModel", "BertForMaskedLM"])
def test_precisions_in_pytorch(name, precision, device):
    model = make(name, device, torch.float32)
    expected = outputs(model, inputs := inputs_of(model, "padding right"))
    with bio.accelerated(model, precision=precision, backend="torch"):
        found = outputs(model, inputs)
    for key, values in expected.items():
        assert_same(found[key], values, precision)


@pytest.mark.parametrize(
    ("name", "mask", "precision"),
    [
        ("EsmForMaskedLM", "no mask", "fp16"),
        ("EsmForMaskedLM", "padding right", "fp32"),
        ("EsmForMaskedLM", "padding left", "fp32"),
        ("EsmModel", "one token", "fp32"),
        ("EsmModel, ESM-1b", "padding right", "fp32"),
        ("EsmForSequenceClassification", "padding right", "fp32"),
        ("EsmForTokenClassification", "one token", "fp16"),
        ("BertModel", "padding right", "fp16"),
        ("BertForMaskedLM", "all ones", "fp32"),
        ("BertForMaskedLM", "padding left", "fp32"),
    ],
)
def test_kernels(name, mask, precision, device):
    model = make(name, device, torch.float32)
    check(model, inputs_of(model, mask), precision, precision=precision, backend="triton")


@pytest.mark.parametrize("name", NAMES)
def test_kernels_in_the_dtype_of_the_model(name, device):
    """Compare a float16 model with its float32 original, whose errors are smaller."""
    model = make(name, device, torch.float32)
    inputs = inputs_of(model, "padding right")
    expected = outputs(model, inputs)["logits"]
    found = outputs(bio.accelerate(model.half(), backend="triton"), inputs)["logits"]
    assert found.dtype == torch.float16
    assert_same(found.float(), expected, "fp16")


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("name", ["EsmModel", "BertModel"])
def test_batches_of_any_shape(name, backend, device):
    """Alternate and repeat shapes: a graph captured for one must not be replayed for another."""
    model = make(name, device, torch.float32)
    interpreted = backend == "triton" and device == "cpu"  # and therefore slow
    shapes = [(1, 1), (2, 5)] if interpreted else [(1, 1), (1, 17), (3, 8), (2, 33), (17, 1)]
    batches = [{"input_ids": torch.randint(5, 24, shape, device=device)} for shape in shapes]
    expected = [outputs(model, batch)["last_hidden_state"] for batch in batches]
    bio.accelerate(model, backend=backend)
    for _ in range(1 if interpreted else 3):
        for batch, values in zip(batches, expected, strict=True):
            assert_same(outputs(model, batch)["last_hidden_state"], values, "fp32")


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("name", ["EsmModel", "BertModel", "EsmForMaskedLM", "BertForMaskedLM"])
def test_batches_of_nothing(name, backend, device):
    """The original models fail on empty batches."""
    model = bio.accelerate(make(name, device, torch.float32), backend=backend)
    ids = torch.zeros(0, 5, dtype=torch.int64, device=device)
    with torch.inference_mode():
        assert model(ids)[0].shape[:2] == (0, 5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int32])
@pytest.mark.parametrize("name", ["EsmModel", "BertModel"])
def test_dtypes_of_masks(name, dtype, device):
    model = make(name, device)
    inputs = inputs_of(model, "padding right")
    expected = outputs(model, inputs)["last_hidden_state"]
    with bio.accelerated(model, backend="torch"):
        inputs["attention_mask"] = inputs["attention_mask"].to(dtype)
        assert_same(outputs(model, inputs)["last_hidden_state"], expected, "fp64")


@pytest.mark.parametrize("name", ["EsmModel", "BertModel", "EsmForSequenceClassification"])
def test_what_is_pooled_from_padding_is_pooled_as_before(name, device):
    """Poolers and classifiers read the hidden state of a first token even if it is padding."""
    model = make(name, device)
    inputs = inputs_of(model, "padding left")
    key = "logits" if "For" in name else "pooler_output"
    with torch.inference_mode():
        expected = model(**inputs)[key]
        with (
            bio.accelerated(model, backend="torch"),
            pytest.warns(bio.FallbackWarning, match="begins with padding"),
        ):
            found = model(**inputs)[key]
    assert_same(found, expected, "fp64")


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_types_of_tokens(backend, device):
    model = make("BertForMaskedLM", device, torch.float32)
    inputs = inputs_of(model, "padding right")
    ones = torch.zeros_like(inputs["input_ids"])
    ones[:, 4:9] = 1
    plain = outputs(model, inputs)["logits"]
    inputs["token_type_ids"] = ones
    assert not torch.equal(outputs(model, inputs)["logits"], plain)
    check(model, inputs, "fp32", backend=backend)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("rows", [slice(1), slice(None)], ids=["one", "all"])
def test_types_of_tokens_of_one_sequence_hold_for_all(rows, backend, device):
    model = make("BertForMaskedLM", device, torch.float32)
    inputs = inputs_of(model, "padding right")
    types = torch.zeros_like(inputs["input_ids"])
    types[:, 4:9] = 1
    inputs["token_type_ids"] = types[rows]
    check(model, inputs, "fp32", backend=backend)


@pytest.mark.parametrize("shape", [(SEQUENCES, 1), (LENGTH,), (1, 1), (2, LENGTH)])
def test_types_of_tokens_of_other_shapes_fall_back(shape, device):
    """The model itself broadcasts them or raises."""
    model = make("BertForMaskedLM", device, torch.float32)
    ids = tokens_of("no mask", device, 0)
    types = torch.ones(shape, dtype=torch.int64, device=device)

    def attempt() -> Any:
        try:
            return model(ids, token_type_ids=types).logits
        except (RuntimeError, IndexError) as error:
            return str(error)

    expected = attempt()
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match=r"token_type_ids of shape \[.*\] are not supp"):
        found = attempt()
    if isinstance(expected, str):
        assert found == expected
    else:
        assert_same(found.flatten(0, 1), expected.flatten(0, 1), "fp32")


@pytest.mark.parametrize("padding", [slice(8, None), slice(3)], ids=["right", "left"])
@pytest.mark.parametrize("name", ["EsmModel without a pooler", "EsmForMaskedLM, ESM-1b"])
def test_masked_residues_in_padded_batches(name, padding, device):
    """Versions of transformers differ in the scale that padding gives to masked sequences."""
    model = make(name, device)
    ids = tokens_of("no mask", device, 1, masked=True)
    mask = torch.ones_like(ids)
    mask[1, padding] = 0
    inputs = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    check(model, inputs, "fp64", backend="torch")
    check(model.float(), inputs, "fp32", backend="triton")


@pytest.mark.parametrize("name", MODELS)
def test_classes_of_outputs(name, device):
    model = make(name, device)
    inputs = inputs_of(model, "padding right")
    with torch.inference_mode():
        expected = model(**inputs), model(**inputs, return_dict=False)
        with bio.accelerated(model, backend="torch"):
            found = model(**inputs), model(**inputs, return_dict=False)
            by_position = model(inputs["input_ids"], inputs["attention_mask"])
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        assert len(one) == len(other)
    assert list(found[0]) == list(expected[0])
    present = [x for x in found[1] if x is not None]  # some versions keep a missing pooler's place
    assert all(torch.equal(a, b) for a, b in zip(present, found[0].values(), strict=True))
    assert torch.equal(by_position[0], found[0][0])


@pytest.mark.parametrize("name", ["EsmModel", "BertModel", "BertForMaskedLM"])
def test_configurations_that_ask_for_tuples(name, device):
    model = make(name, device)
    model.config.return_dict = False
    inputs = inputs_of(model, "padding right")
    with torch.inference_mode():
        expected = model(**inputs)
        with bio.accelerated(model, backend="torch"):
            found = model(**inputs)
    assert type(found) is type(expected) is tuple
    assert [x.shape for x in found] == [x.shape for x in expected]


@pytest.mark.parametrize("name", NAMES)
def test_losses(name, device):
    model = make(name, device)
    inputs = inputs_of(model, "padding right")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    with torch.inference_mode():
        expected = model(**inputs, labels=labels).loss
        with bio.accelerated(model, backend="torch"):
            assert_within(model(**inputs, labels=labels).loss, expected, 1e-6)


def test_outputs_belong_to_the_caller(device):
    model = bio.accelerate(make("EsmForMaskedLM", device, torch.float32), backend="triton")
    inputs = inputs_of(model, "padding right")
    first = outputs(model, inputs)["logits"]
    kept = first.clone()
    inputs["input_ids"] = inputs["input_ids"].flip(0)
    for _ in range(3):
        outputs(model, inputs)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("wrong", [-1, 33])
@pytest.mark.parametrize("name", ["EsmModel", "BertModel"])
def test_tokens_that_do_not_exist(name, wrong):
    model = make(name, "cpu")
    ids = torch.full((2, 5), 7)
    ids[1, 2] = wrong
    with torch.inference_mode():
        with pytest.raises(IndexError):
            model(ids)
        bio.accelerate(model, backend="torch")
        with pytest.warns(bio.FallbackWarning, match="from 0 to"), pytest.raises(IndexError):
            model(ids)
        ids[1, 2] = 7
        padded, mask = ids.clone(), torch.ones_like(ids)
        padded[1, 4], mask[1, 4] = wrong, 0  # which the fast forward does not look up
        with pytest.raises(IndexError):
            model(padded, attention_mask=mask)


OUTSIDE = {
    "token": ("input_ids", 33),
    "negative token": ("input_ids", -1),
    "type of a token": ("token_type_ids", 2),
}


@pytest.mark.parametrize("name", ["EsmModel", "BertModel", "EsmForMaskedLM"])
@pytest.mark.parametrize("kind", OUTSIDE)
def test_kernels_refuse_indices_outside_of_tables(name, kind, device):
    """Kernels would give NaN. On a GPU, the original forward would end all use of the GPU."""
    key, value = OUTSIDE[kind]
    if key == "token_type_ids" and name != "BertModel":
        pytest.skip("ESM has no types of tokens")
    model = bio.accelerate(make(name, device, torch.float32), backend="triton")
    ids = tokens_of("no mask", device, 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids, dtype=torch.bool)}
    if key != "input_ids":
        inputs[key] = torch.zeros_like(ids)
    expected = outputs(model, inputs)
    for _ in range(2):  # also after a graph was captured
        outputs(model, inputs)
    inputs[key][1, 2] = value
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        with pytest.raises(InputError if device == "cuda" else IndexError) as refusal:
            model(**inputs)
    assert device == "cpu" or f"{key} is not from 0 to" in str(refusal.value)
    inputs[key][1, 2] = 0 if key == "token_type_ids" else tokens_of("no mask", device, 1)[1, 2]
    for found, values in zip(outputs(model, inputs).values(), expected.values(), strict=True):
        assert_same(found, values, "fp32")


@pytest.mark.parametrize("name", ["EsmModel, ESM-1b", "BertModel"])
def test_kernels_leave_positions_outside_of_tables_to_the_model(name, device):
    model = bio.accelerate(make(name, device, torch.float32), backend="triton")
    longest = SIZES["max_position_embeddings"] - 2 * name.startswith("Esm")
    with torch.inference_mode():
        assert torch.isfinite(model(torch.full((1, longest), 7, device=device))[0]).all()
        if device == "cuda":  # the model's own forward would end all use of the GPU
            return
        with (
            pytest.warns(bio.FallbackWarning, match=f"has positions for {longest} tokens at most"),
            pytest.raises((IndexError, RuntimeError)),
        ):
            model(torch.full((1, longest + 1), 7))


def test_padding_has_no_position_in_tables(device):
    """ESM takes longer sequences if what is longer is padding."""
    model = make("EsmModel, ESM-1b", device, torch.float32)
    ids = torch.full((1, SIZES["max_position_embeddings"] - 1), 7, device=device)
    ids[0, -1] = model.config.pad_token_id
    with torch.inference_mode():
        expected = model(ids)[0]
        bio.accelerate(model, backend="triton")
        with pytest.warns(bio.FallbackWarning, match="tokens at most"):
            assert_same(model(ids)[0], expected, "fp32")


@pytest.mark.parametrize("name", ["EsmModel, ESM-1b", "BertModel"])
def test_sequences_that_are_too_long(name):
    model = make(name, "cpu")
    ids = torch.full((1, LENGTH + SIZES["max_position_embeddings"]), 7)
    with torch.inference_mode():
        with pytest.raises((IndexError, RuntimeError)):
            model(ids)
        bio.accelerate(model, backend="torch")
        with (
            pytest.warns(bio.FallbackWarning, match="tokens at most"),
            pytest.raises((IndexError, RuntimeError)),
        ):
            model(ids)
