"""Models that are not quite the library's, and models changed after their first fast forward."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.errors import InputError
from tests.support.huggingface import bert, make
from tests.support.language_models import NAMES, assert_same, attributes, randomize

# Where the changed module is the encoder, the head alone is accelerated.
pytestmark = pytest.mark.filterwarnings("ignore::mlff_triton.bio.PartsWarning")

PATHS = ("", "embeddings", "encoder", "encoder.layer.0", "encoder.layer.0.attention")
LINEAR = "encoder.layer.0.intermediate.dense"


@torch.inference_mode()
def logits(model: nn.Module, ids: Tensor, **inputs: Any) -> Tensor:
    torch.manual_seed(0)  # for dropout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        return model(ids, **inputs).logits


def doubled(output: Any) -> Any:
    """Double the first output of a module, whatever the form of its outputs."""
    if isinstance(output, Tensor):
        return 2 * output
    if isinstance(output, tuple):
        return (2 * output[0], *output[1:])
    return type(output)(last_hidden_state=2 * output[0])


def own_class(path: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        module: Any = model.base_model.get_submodule(path)
        kind = type(module)
        forward = {"forward": lambda *args, **kwargs: doubled(kind.forward(*args, **kwargs))}
        module.__class__ = type("Doubled", (kind,), forward)

    return change


def own_forward(path: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        module: Any = model.base_model.get_submodule(path)
        original = module.forward
        module.forward = lambda *args, **kwargs: doubled(original(*args, **kwargs))

    return change


def own_head(model: Any) -> None:
    head = model.lm_head if hasattr(model, "lm_head") else model.cls.predictions
    kind = type(head)
    forward = {"forward": lambda self, x: 2 * kind.forward(self, x)}
    head.__class__ = type("Doubled", (kind,), forward)


def other_epsilon(model: Any) -> None:
    for module in model.base_model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.5


def dropout_in_training(model: Any) -> None:
    for module in model.base_model.encoder.modules():
        if isinstance(module, nn.Dropout):
            module.train()


def other_activation(model: Any) -> None:
    for layer in model.base_model.encoder.layer:
        if hasattr(layer.intermediate, "intermediate_act_fn"):
            layer.intermediate.intermediate_act_fn = nn.ReLU().eval()
        else:
            layer.intermediate.forward = lambda x, own=layer.intermediate.dense: own(x).relu()


def other_activation_of_one_layer(model: Any) -> None:
    other = copy.deepcopy(model)
    other_activation(other)
    model.base_model.encoder.layer[0] = other.base_model.encoder.layer[0]


def other_data(model: Any) -> None:
    for name in ("query", "key", "value"):
        getattr(model.base_model.encoder.layer[0].attention.self, name).weight.data.mul_(3)


CHANGES = {
    **{f"class of {path or 'model'}": own_class(path) for path in (*PATHS, LINEAR)},
    **{f"forward of {path or 'model'}": own_forward(path) for path in (*PATHS, LINEAR)},
    "class of head": own_head,
    "epsilon": other_epsilon,
    "dropout": dropout_in_training,
    "activation": other_activation,
    "activation of one layer": other_activation_of_one_layer,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_changed_models_compute_what_they_did(model, ids, change, when):
    plain = copy.deepcopy(model)
    CHANGES[change](plain)
    expected, before = logits(plain, ids), logits(model, ids)
    assert not torch.allclose(expected, before, atol=1e-3)
    if when == "before":
        CHANGES[change](model)
        bio.accelerate(model, backend="torch")
    else:
        bio.accelerate(model, backend="torch")
        assert_same(logits(model, ids), before, "fp32")
        CHANGES[change](model)
    assert_same(logits(model, ids), expected, "fp32")
    assert_same(logits(model, ids), expected, "fp32")


def test_fallbacks_of_changed_models_have_reasons(model, ids):
    bio.accelerate(model, backend="torch")
    own_forward(LINEAR)(model)
    with torch.inference_mode(), pytest.warns(bio.FallbackWarning, match="forward of its own"):
        model(ids)
    del model.base_model.get_submodule(LINEAR).forward
    dropout_in_training(model)
    with torch.inference_mode(), pytest.warns(bio.FallbackWarning, match="submodule is in train"):
        model(ids)


def other_scaling(model: Any) -> str:
    """Change the factor of attention scores, where the version of transformers has one."""
    own = model.base_model.encoder.layer[1].attention.self
    name = "scaling" if hasattr(own, "scaling") else "attention_head_size"
    setattr(own, name, 2 * getattr(own, name))
    return name


def test_attributes_that_are_not_read_have_reasons(model, ids):
    bio.accelerate(model, backend="torch")
    before = logits(model, ids)
    name = other_scaling(model)
    own = model.base_model.encoder.layer[1].attention.self
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        if name == "scaling":  # the other is that of a shape
            found = logits(model, ids)
            assert not torch.allclose(found, before)
            assert_same(found, logits(bio.restore(copy.deepcopy(model)), ids), "fp32")
            assert f"layer.1.attention.self.{name} has changed" in bio.report(model)[0].state
    setattr(
        own, name, getattr(own, name) / 2 if name == "scaling" else own.attention_head_size // 2
    )
    assert_same(logits(model, ids), before, "fp32")


def test_refresh_reads_data_again(model, ids):
    bio.accelerate(model, backend="torch")
    before = logits(model, ids)
    other_data(model)
    assert bio.refresh(model) is model
    found = logits(model, ids)
    assert not torch.allclose(found, before, atol=1e-3)
    expected = logits(bio.restore(model), ids)
    assert_same(found, expected, "fp32")
    assert bio.refresh(model) is model  # which is no longer accelerated
    assert torch.equal(logits(model, ids), expected)


def test_training_may_change_data(model, ids):
    bio.accelerate(model, backend="torch")
    before = logits(model, ids)
    logits(model.train(), ids)
    other_data(model)
    found = logits(model.eval(), ids)
    assert not torch.allclose(found, before, atol=1e-3)
    assert_same(found, logits(bio.restore(model), ids), "fp32")


MASKS = {
    "two": [[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 2, 2, 0, 0]],
    "half": [[1, 1, 1, 1, 0.5, 0.5, 1, 1, 1], [1, 1, 1, 0.25, 1, 1, 1, 0, 0]],
}


@pytest.mark.parametrize("values", MASKS)
def test_masks_with_other_values(model, ids, values, device):
    mask = torch.tensor(MASKS[values], device=device)
    binary = (mask != 0).long()
    kept = binary.bool()
    expected = logits(model, ids, attention_mask=mask)[kept]
    plain = logits(model, ids, attention_mask=binary)[kept]
    bio.accelerate(model, backend="torch")
    for _ in range(2):
        assert_same(logits(model, ids, attention_mask=mask)[kept], expected, "fp32")
    assert "other than 0 and 1" in bio.report(model)[0].state
    mask.copy_(binary)  # which is noticed, although it is the same tensor
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.inference_mode():
            found = model(ids, attention_mask=mask).logits[kept]
    assert_same(found, plain, "fp32")
    mask[0, 0] = 2
    with torch.inference_mode(), pytest.warns(bio.FallbackWarning, match="other than 0 and 1"):
        bio.accelerate(bio.restore(model), backend="torch")(ids, attention_mask=mask)


def test_masks_of_inference_mode_are_checked_in_every_call(model, ids, device):
    bio.accelerate(model, backend="torch")
    with torch.inference_mode():
        mask = torch.ones(2, 9, dtype=torch.int64, device=device)
        model(ids, attention_mask=mask)
        mask[0, 4] = 2
        with pytest.warns(bio.FallbackWarning, match="other than 0 and 1"):
            model(ids, attention_mask=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_results_of_graphs_are_dropped_if_the_mask_is_refused(name):
    model, ids = make(name, "cuda", torch.float32), torch.randint(5, 24, (2, 9), device="cuda")
    ones, other = torch.ones_like(ids), torch.ones_like(ids)
    other[1, 4:] = 2
    expected = logits(model, ids, attention_mask=other)
    bio.accelerate(model)
    first = [logits(model, ids, attention_mask=ones) for _ in range(3)]  # the second is captured
    torch.testing.assert_close(first[2], first[0], rtol=1e-5, atol=1e-5)
    head = model.lm_head if hasattr(model, "lm_head") else model.cls.predictions
    bio.restore(head)  # so that only the encoder could differ
    assert torch.equal(logits(model, ids, attention_mask=other), expected)
    ones.copy_(other)
    assert torch.equal(logits(model, ids, attention_mask=ones), expected)


@pytest.fixture
def batch(ids, device) -> dict[str, Tensor]:
    """Make a batch in which the labels of padding count."""
    mask = torch.ones(2, 9, dtype=torch.int64, device=device)
    mask[1, 5:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask, "labels": ids}


def test_losses_with_labels_at_padding(model, batch):
    with torch.inference_mode():
        expected = model(**batch).loss
        bio.accelerate(model, backend="torch")
        with pytest.warns(bio.FallbackWarning, match="labels at padding count in the loss"):
            found = model(**batch).loss
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        positional = [batch.get(name) for name in inspect.signature(model.forward).parameters]
        assert torch.equal(model(*positional[:-1]).loss, found)


@pytest.mark.parametrize("shape", [(18,), (18, 1), (1, 18)])
def test_flat_labels_at_padding(shape, model, batch):
    batch["labels"] = batch["labels"].reshape(shape)
    with torch.inference_mode():
        expected = model(**batch).loss
        bio.accelerate(model, backend="torch")
        with pytest.warns(bio.FallbackWarning, match="labels at padding count in the loss"):
            found = model(**batch).loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_losses_over_positions(batch, device):
    """Answers to questions compete with all positions, padding included."""
    model = randomize(bert("BertForQuestionAnswering")(), device, torch.float32)
    del batch["labels"]
    batch |= dict.fromkeys(
        ("start_positions", "end_positions"), torch.tensor([1, 2], device=device)
    )
    with torch.inference_mode():
        expected = model(**batch).loss
        bio.accelerate(model, backend="torch")
        with pytest.warns(bio.FallbackWarning, match="compares positions with those of padding"):
            torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_losses_of_the_next_token(side, ids, device):
    """Padding before a sequence predicts its first token."""
    model = randomize(bert("BertLMHeadModel")(), device, torch.float32)
    mask = torch.ones_like(ids)
    mask[1, slice(3) if side == "left" else slice(6, None)] = 0
    given = {"attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        expected = model(ids, **given).loss
        found = bio.accelerate(model, backend="torch")(ids, **given).loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    is_slow = "labels at padding" in bio.report(model)[0].state
    assert is_slow == (side == "left")


def test_losses_without_them_are_fast(model, batch):
    """Without a warning, which would be an error here."""
    batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.inference_mode():
        expected = model(**batch).loss
        found = bio.accelerate(model, backend="torch")(**batch).loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert {part.state for part in bio.report(model)} == {"fast"}


def test_a_model_with_labels_keeps_its_signature(model):
    before, signature = attributes(model), inspect.signature(model.forward)
    bio.accelerate(model, backend="torch")
    assert inspect.signature(model.forward) == signature
    assert attributes(bio.restore(model)) == before


def test_a_forward_around_the_encoder_is_called(model, batch):
    calls, original = [], model.forward

    def counted(*args: Any, **inputs: Any) -> Any:
        calls.append(args)
        return original(*args, **inputs)

    model.forward = counted
    bio.accelerate(model, backend="torch")
    logits(model, batch["input_ids"])
    with torch.inference_mode():
        bio.top_tokens(model, batch["input_ids"])
    assert len(calls) == 2
    assert bio.restore(model).forward is counted


@pytest.mark.parametrize("function", [bio.accelerate, bio.restore, bio.refresh, bio.report])
def test_names_are_not_models(function):
    message = r"not of type str: give AutoModel\.from_pretrained\('facebook/esm2_t6_8M_UR50D'\)"
    with pytest.raises(InputError, match=message):
        function("facebook/esm2_t6_8M_UR50D")
    with pytest.raises(InputError, match="not of type NoneType: give a model"):
        function(None)


def test_reports_name_the_dtype_that_is_computed():
    """On a CPU, an automatic model ignores the precision."""
    model = bio.accelerate(make("EsmForMaskedLM", "cpu", torch.float32), precision="fp16")
    assert {part.by for part in bio.report(model)} == {"original forward, float32"}
    bio.accelerate(model, precision="fp16", backend="torch")
    assert {part.by for part in bio.report(model)} == {"PyTorch, float16"}


def test_language_heads_with_a_decoder_of_the_user(model, ids):
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    old = model.get_output_embeddings()
    has_bias = old.bias is None  # unlike the model's own decoder
    new = nn.Linear(old.in_features, old.out_features, bias=has_bias)
    model.set_output_embeddings(new.to(old.weight.device))
    found = logits(model, ids)
    assert_same(found, logits(bio.restore(model), ids), "fp32")


def test_an_encoder_that_becomes_a_decoder(model, ids):
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    model.config.is_decoder = True
    found = logits(model, ids)
    assert "is_decoder is not supported" in str([part.state for part in bio.report(model)])
    assert_same(found, logits(bio.restore(model), ids), "fp32")
