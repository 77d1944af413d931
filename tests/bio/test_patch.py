"""Acceleration of a language model, its reversal, and changes to the model in between."""

from __future__ import annotations

import copy
import io
import re
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FastForward, _on_gpu
from mlff_triton.errors import BackendError, InputError, UnsupportedModelError
from tests.support.huggingface import make, transformers
from tests.support.language_models import NAMES, assert_same, attributes, randomize

# Parts of warnings
GRADIENTS, ATTENTIONS = "gradients are required", "output_attentions is not supported"


@torch.inference_mode()
def logits(model: nn.Module, ids: Tensor, **inputs: Any) -> Tensor:
    return model(ids, **inputs).logits


def parts(model: nn.Module) -> list[str]:
    """Return the paths of the replaced modules."""
    forwards = ((path, vars(m).get("forward")) for path, m in model.named_modules())
    return [path for path, forward in forwards if isinstance(forward, FastForward)]


def fallbacks(model: nn.Module, *args: Any, **inputs: Any) -> list[str]:
    """Return the fallback warnings of a forward pass."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(*args, **inputs)
    return [str(w.message) for w in caught if issubclass(w.category, bio.FallbackWarning)]


def assert_fast(model: nn.Module) -> None:
    """Assert that no part of the model has fallen back."""
    assert {part.state for part in bio.report(model)} == {"fast"}


def test_restore_undoes_it_exactly(model, ids):
    expected = logits(model, ids)
    before = attributes(model)  # includes the angles that rotary embeddings may cache
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert bio.accelerate(model, backend="torch") is model
    assert parts(model)
    assert_same(logits(model, ids), expected, "fp32")
    assert bio.restore(bio.restore(model)) is model
    assert attributes(model) == before
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(logits(model, ids), expected)


def test_a_second_time_changes_the_options_at_most(model, ids):
    before = attributes(model)
    bio.accelerate(model, backend="torch")
    found, replaced = logits(model, ids), parts(model)
    bio.accelerate(model, backend="torch")
    assert parts(model) == replaced
    assert torch.equal(logits(model, ids), found)
    bio.accelerate(model, precision="bf16", backend="torch")
    assert not torch.equal(logits(model, ids), found)
    assert attributes(bio.restore(model)) == before


def test_only_this_instance_is_touched(ids, device):
    kinds = [
        kind
        for name in ("esm", "bert")
        for module in [sys.modules[f"transformers.models.{name}.modeling_{name}"]]
        for kind in [module, *(x for x in vars(module).values() if isinstance(x, type))]
    ]
    for name in NAMES:
        model, other = make(name, device, torch.float32), make(name, device, torch.float32)
        expected = logits(other, ids)
        modules, finders = dict(vars(torch.nn.Module)), list(sys.meta_path)
        before = [dict(vars(kind)) for kind in kinds]
        bio.accelerate(model, backend="torch")
        logits(model, ids)
        assert [dict(vars(kind)) for kind in kinds] == before
        assert dict(vars(torch.nn.Module)) == modules
        assert sys.meta_path == finders
        assert not parts(other)
        assert torch.equal(logits(other, ids), expected)


@pytest.mark.filterwarnings("ignore::mlff_triton.bio.PartsWarning")  # the head alone is fast
def test_a_forward_that_the_user_has_set_comes_back(model, ids):
    own = model.get_submodule("esm" if hasattr(model, "esm") else "bert")
    original, calls = own.forward, []

    def counted(*args: Any, **inputs: Any) -> Any:
        calls.append(args)
        return original(*args, **inputs)

    own.forward = counted
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    bio.restore(model)
    assert own.forward is counted
    logits(model, ids)
    assert len(calls) == 2


def test_with_leaves_the_model_as_it_was(model, ids):
    before = attributes(model)
    with bio.accelerated(model, backend="torch") as entered:
        assert entered is model
        assert parts(entered)
    assert attributes(model) == before
    with (
        pytest.raises((AttributeError, TypeError)),
        bio.accelerated(model, backend="torch") as entered,
    ):
        entered("no tokens")
    assert attributes(model) == before
    bio.accelerate(model, precision="bf16", backend="torch")
    found = logits(model, ids)
    with bio.accelerated(model, backend="torch"):
        assert not torch.equal(logits(model, ids), found)
    assert parts(model)
    assert torch.equal(logits(model, ids), found)


def test_copies_and_files(model, ids):
    bio.accelerate(model, backend="torch")
    expected = logits(model, ids)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert parts(twin) == parts(model)
        assert torch.equal(logits(twin, ids), expected)
        assert_fast(twin)
        for parameter in twin.parameters():
            parameter.zero_()
        assert not torch.equal(logits(twin, ids), expected)
        assert not parts(bio.restore(twin))
    assert parts(model)
    assert torch.equal(logits(model, ids), expected), "copies share no weights"


def test_states(model, ids):
    plain = copy.deepcopy(model)
    bio.accelerate(model, backend="torch")
    expected = logits(model, ids)
    assert list(model.state_dict()) == list(plain.state_dict())
    for parameter in plain.parameters():
        parameter.mul_(0.5)
    changed = logits(plain, ids)
    original = copy.deepcopy(model.state_dict())
    model.load_state_dict(plain.state_dict())
    assert_same(logits(model, ids), changed, "fp32")
    model.load_state_dict(original)
    assert torch.equal(logits(model, ids), expected)
    model.load_state_dict(plain.state_dict(), assign=True)
    assert_same(logits(model, ids), changed, "fp32")


def test_casts(model, ids):
    plain = copy.deepcopy(model)
    bio.accelerate(model, backend="torch")
    expected = logits(model, ids)
    assert logits(model.to(torch.float64), ids).dtype == torch.float64
    assert_same(logits(model, ids).float(), expected, "fp32")
    half = logits(model.half(), ids)
    assert half.dtype == torch.float16
    assert_same(half.float(), expected, "fp16")
    rounded = logits(plain.half().float(), ids)
    assert_same(logits(model.float(), ids), rounded, "fp32")


def test_casts_to_and_fro_are_noticed(model, ids):
    """Even if new weights have the addresses of old ones and nothing was computed in between."""
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    for dtype in (torch.float16, torch.bfloat16):
        model.to(dtype).float()
        expected = logits(bio.restore(copy.deepcopy(model)), ids)
        assert_same(logits(model, ids), expected, "fp32")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_training_is_noticed(model, ids, precision):
    model.requires_grad_(True)
    bio.accelerate(model, precision=precision, backend="torch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = logits(model, ids)
    for _ in range(2):
        with pytest.warns(bio.FallbackWarning, match=GRADIENTS):
            loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = logits(model, ids)
        assert not torch.equal(found, before)
        before = found
        with bio.accelerated(copy.deepcopy(bio.restore(model)), backend="torch") as fresh:
            assert_same(found, logits(fresh, ids), precision)
        bio.accelerate(model, precision=precision, backend="torch")


def test_exchanged_parameters_are_noticed(model, ids):
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    head = model.lm_head if hasattr(model, "lm_head") else model.cls.predictions
    dense = head.dense if hasattr(head, "dense") else head.transform.dense
    dense.weight = nn.Parameter(-dense.weight, requires_grad=False)
    found = logits(model, ids)
    assert_same(found, logits(bio.restore(model), ids), "fp32")


def test_a_part_of_the_user_s_own_model(model, ids):
    own = nn.ModuleDict({"language": model, "other": nn.Linear(3, 3)})
    expected = logits(model, ids)
    assert bio.accelerate(own, backend="torch") is own
    assert_same(logits(model, ids), expected, "fp32")
    assert_fast(own)
    assert not parts(bio.restore(own))


CAUSES = {
    "training": "the module is in training mode",
    "gradients": GRADIENTS,
    "autocast": "autocast is enabled",
    "hook": "a submodule has hooks",
    "pre-hook": "a submodule has hooks",
    "attentions": ATTENTIONS,
    "hidden states": "output_hidden_states is not supported",
    "inputs_embeds": "inputs_embeds is not supported",
    "position_ids": "position_ids is not supported",
    "mask of pairs": r"attention_mask has shape \[2, .*\] instead of \[B, L\]",
    "configuration": ATTENTIONS,
}


ASKED = {"attentions": {"output_attentions": True}, "hidden states": {"output_hidden_states": True}}


@pytest.mark.parametrize(
    ("name", "cause"),
    [(n, c) for n in NAMES for c in CAUSES if n.startswith("Bert") or "mask" not in c],
)
def test_what_is_not_served_falls_back(name, cause, ids, device):
    """Outputs are the original ones, and repeated fallbacks give one warning with the reason."""
    kind = "sdpa" if "mask" in cause else "eager"  # neither implementation supports all cases
    options = {"attn_implementation": kind, "token_dropout": False}
    model = make(name, device, torch.float32, **options)
    inputs, calls, layer = {"input_ids": ids} | ASKED.get(cause, {}), [], model.base_model.encoder
    if cause == "training":
        model.train()
    elif cause == "hook":
        layer.layer[1].register_forward_hook(lambda *_: calls.append(cause))
    elif cause == "pre-hook":
        layer.layer[1].register_forward_pre_hook(lambda *_: calls.append(cause))
    elif cause == "inputs_embeds":
        inputs = {"inputs_embeds": torch.randn(*ids.shape, 64, device=device)}
    elif cause == "position_ids":
        inputs["position_ids"] = torch.arange(ids.shape[1], device=device).flip(0)[None]
    elif cause == "mask of pairs":
        mask = torch.ones(len(ids), ids.shape[1], ids.shape[1], device=device)
        inputs["attention_mask"] = mask if transformers.__version__ < "5" else mask[:, None]
    model.config.output_attentions = cause == "configuration"
    model.requires_grad_(cause == "gradients")
    context = torch.autocast(device, torch.bfloat16, enabled=cause == "autocast")
    with context:
        torch.manual_seed(1)  # for dropout
        expected = model(**inputs)
        n_calls = len(calls)
        bio.accelerate(model, backend="torch")
        torch.manual_seed(1)
        with pytest.warns(bio.FallbackWarning, match=CAUSES[cause]) as caught:
            found = model(**inputs)
        assert len(caught) == 1
        assert not fallbacks(model, **inputs)
    assert_same(found.logits, expected.logits, "fp32")  # the head may still be accelerated
    assert list(found) == list(expected)
    assert len(calls) == 3 * n_calls
    assert any(re.search(CAUSES[cause], part.state) for part in bio.report(model))


def test_a_fallback_leaves_no_trace(model, ids):
    """Not even after transformers has hooked the model to record its hidden states."""
    bio.accelerate(model, backend="torch")
    before = logits(model, ids)
    with torch.inference_mode(), pytest.warns(bio.FallbackWarning):
        assert len(model(ids, output_hidden_states=True).hidden_states) == 3
    assert torch.equal(logits(model, ids), before)


def test_every_cause_is_announced_once(model, ids):
    bio.accelerate(model, backend="torch")
    with torch.inference_mode():
        first = fallbacks(model, ids, output_hidden_states=True)
        second = fallbacks(model.train(), ids)
        assert len(first) == len(second) == 1
        assert not fallbacks(model.eval(), ids, output_hidden_states=True)
        assert not fallbacks(model.train(), ids)


def test_gradients_are_the_model_s(model, ids):
    model.requires_grad_(True)
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match=GRADIENTS):
        model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        if expected[name] is not None:
            assert torch.equal(parameter.grad, expected[name]), name


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_where_no_gradient_is_wanted_nothing_falls_back(model, ids, mode):
    """With gradients enabled, because no parameter requires one."""
    bio.accelerate(model, backend="torch")
    with mode():
        model(ids)
    assert_fast(model)


def test_hooks_of_the_model_itself_are_called(model, ids):
    calls = []
    model.register_forward_hook(lambda *_: calls.append("model"))
    model.base_model.register_forward_hook(lambda *_: calls.append("encoder"))
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    assert calls == ["encoder", "model"]
    assert_fast(model)


@pytest.mark.parametrize("name", NAMES)
def test_on_a_cpu_an_automatic_model_computes_as_it_is(name):
    """Without a warning, which would be an error here."""
    model, ids = make(name, "cpu", torch.float32), torch.randint(5, 24, (2, 9))
    expected = logits(model, ids)
    bio.accelerate(model)
    assert torch.equal(logits(model, ids), expected)


@pytest.mark.parametrize("name", NAMES)
def test_on_a_cpu_kernels_are_refused(name, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model, ids = make(name, "cpu", torch.float32), torch.randint(5, 24, (2, 9))
    with pytest.raises(BackendError, match=r"need a GPU.*backend='torch'"):
        logits(bio.accelerate(model, backend="triton"), ids)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "half"}, "precision='half' is unknown: use one of"),
        ({"precision": torch.float16}, "precision=torch.float16 is unknown"),
        ({"backend": "cuda"}, "backend='cuda' is unknown: use one of"),
        ({"cuda_graph": "always"}, "cuda_graph='always' is unknown"),
        ({"cuda_graph": 3}, "cuda_graph=3 is unknown"),
    ],
)
def test_wrong_options_leave_the_model_as_it_is(model, wrong, message):
    before = attributes(model)
    with pytest.raises(InputError, match=message):
        bio.accelerate(model, **wrong)
    with pytest.raises(InputError), bio.accelerated(model, **wrong):
        pytest.fail("a wrong option was accepted")
    assert attributes(model) == before
    bio.accelerate(model, backend="torch")
    replaced = attributes(model)
    with pytest.raises(InputError):
        bio.accelerate(model, **wrong)
    assert attributes(model) == replaced


@pytest.mark.parametrize("right", [{"cuda_graph": True}, {"cuda_graph": False}, {"strict": True}])
def test_other_options(model, ids, right, device):
    expected = logits(model, ids)
    with bio.accelerated(model, backend="auto" if device == "cuda" else "torch", **right):
        assert_same(logits(model, ids), expected, "fp32")


@pytest.mark.parametrize("strict", [True, False])
def test_unknown_models_are_refused(strict):
    headless = nn.Module()  # resembles an encoder, but has no embedding
    headless.config, headless.encoder = object(), nn.Module()
    headless.encoder.layer = nn.ModuleList([nn.Identity()])
    convolution = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ReLU())
    for model in (nn.Linear(3, 3), convolution, nn.ModuleList(), headless):
        before = attributes(model)
        with pytest.raises(UnsupportedModelError) as caught:
            bio.accelerate(model, strict=strict)
        message = str(caught.value)
        assert "contains no module that can be accelerated" in message
        assert message.endswith("without classes or forward methods of your own inside")
        assert message.startswith(type(model).__name__)
        assert all(known in message for known in ("ESM-2", "BERT", "fair-esm"))
        assert attributes(model) == before
        assert bio.restore(model) is model
        assert not bio.report(model)


def test_other_architectures_are_refused():
    """As a whole, at least: they may have the same submodules and compute something else."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "vocab_size": 30, "pad_token_id": 1}
    decoder = transformers.BertModel(transformers.BertConfig(**sizes, is_decoder=True))
    gpt = transformers.GPT2Model(transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4))
    for model in (decoder, gpt, nn.TransformerEncoderLayer(8, 2)):
        with pytest.raises(UnsupportedModelError):
            bio.accelerate(model, backend="torch", strict=True)


@pytest.mark.filterwarnings("ignore::mlff_triton.bio.PartsWarning")  # of layer norms alone
@pytest.mark.parametrize("name", ["RobertaModel", "ElectraModel", "LayoutLMModel"])
def test_relatives_of_bert_are_refused_or_right(name):
    """They have about the same submodules as BERT, but count positions differently."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "vocab_size": 30, "pad_token_id": 1}
    config = getattr(transformers, name.removesuffix("Model") + "Config")(**sizes)
    model = randomize(getattr(transformers, name)(config), "cpu")
    ids = torch.randint(5, 24, (2, 9))
    ids[1, 6:] = 1
    mask = (ids != 1).long()
    with torch.inference_mode():
        expected = model(ids, attention_mask=mask)[0][mask > 0]
        try:
            bio.accelerate(model, backend="torch")
        except UnsupportedModelError:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bio.FallbackWarning)
            found = model(ids, attention_mask=mask)[0][mask > 0]
    assert_same(found, expected, "fp64")


def test_reports(model, ids):
    assert not bio.report(model)
    bio.accelerate(model, precision="fp16", backend="torch")
    report = bio.report(model)
    assert [part.path for part in report] == parts(model)
    logits(model, ids)
    text = str(bio.report(model))
    for part in report:
        assert part.path in text
        assert part.module == type(model.get_submodule(part.path)).__name__
        assert part.module in text
        assert "float16" in part.by
    assert "fast" in text
    with torch.inference_mode(), pytest.warns(bio.FallbackWarning):
        model(ids, output_hidden_states=True)
    assert "output_hidden_states" in str(bio.report(model))
    assert not bio.report(bio.restore(model))


def test_reports_are_tables():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120)
    console.print(bio.report(bio.accelerate(make("EsmForMaskedLM", "cpu"), backend="torch")))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "EsmLMHead" in text
    assert "float64" in text


def test_reports_are_text_in_notebooks(monkeypatch):
    """There, rich displays what it prints, unless told otherwise."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does
    text = str(bio.report(bio.accelerate(make("EsmForMaskedLM", "cpu"), backend="torch")))
    assert "EsmLMHead" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("home", [False, True])
def test_calls_without_tensors_run_where_the_model_is(home):
    """Tensors decide if there are any; strings do not count."""
    module = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=home)]))
    assert _on_gpu([["ACGT"], None], module) == home
    assert not _on_gpu([torch.zeros(1), None], module)
