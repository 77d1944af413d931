"""Accelerated language models that are changed, wrapped and called in every way.

The oracle is the model's own forward after the same changes, in the same context.
"""

from __future__ import annotations

import copy
import functools
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mlff_triton import bio
from mlff_triton.testing.settings import CALLER_SETTINGS
from tests.fuzz.damage import STRINGS, choice
from tests.fuzz.kind import Facts, Finding, Kind

NAMES = ("EsmForMaskedLM", "EsmForMaskedLM, ESM-1b", "BertForMaskedLM", "EsmModel", "BertModel")
CONTEXTS = [name for name in CALLER_SETTINGS if name != "default device"]  # where models fail
LAYER = "encoder.layer.1.output.dense"
TOLERANCE = {False: 1e-4, True: 0.1}  # of the largest value, without half precision and with it


class Marked(Tensor):
    """Subclass that no kernel knows."""


class Twice(nn.Module):
    """Parametrization of a weight."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def encoder_of(model: Any) -> Any:
    model = model.module if isinstance(model, nn.DataParallel) else model
    return getattr(model, model.base_model_prefix, model)


def linear_of(model: Any) -> Any:
    return encoder_of(model).get_submodule(LAYER)


def halve_in_place(model: Any) -> Any:
    with torch.no_grad():
        linear_of(model).weight.mul_(0.5)
    return model


def replace_weight(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    def replace(model: Any) -> Any:
        linear = linear_of(model)
        if parametrize.is_parametrized(linear):  # whose weight cannot be replaced
            return model
        linear.weight = nn.Parameter(change(linear.weight.detach()), requires_grad=False)
        return model

    return replace


def hook(model: Any) -> Any:
    linear_of(model).register_forward_hook(lambda _, __, y: 2 * y)
    return model


def parametrized(model: Any) -> Any:
    if parametrize.is_parametrized(linear_of(model)):
        return model
    parametrize.register_parametrization(linear_of(model), "weight", Twice().eval())
    return model


def own_forward(model: Any) -> Any:
    linear = linear_of(model)
    linear.forward = lambda x: nn.functional.linear(x, linear.weight)
    return model


def swap_layers(model: Any) -> Any:
    layers = encoder_of(model).encoder.layer
    layers[0], layers[1] = layers[1], layers[0]
    return model


def other_epsilon(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.1
    return model


def saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def hooked(model: Any) -> Any:
    """Wrap ``forward`` as hooks of Accelerate do."""
    model._old_forward = model.forward

    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module._old_forward(*args, **kwargs)

    model.forward = functools.update_wrapper(functools.partial(forward, model), model._old_forward)
    return model


def prepared(model: Any) -> Any:
    """Wrap ``forward`` as ``Accelerator.prepare`` does."""
    decorate = torch.autocast("cpu", torch.bfloat16)
    model.forward = MethodType(decorate(model.forward.__func__), model)
    return model


def replica(model: Any) -> Any:
    """Copy as `torch.nn.DataParallel` does."""
    made = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, own in made.items():
        for name, child in module._modules.items():
            own._modules[name] = child and made[child]
        for name, parameter in module._parameters.items():
            own._parameters.pop(name, None)
            setattr(own, name, None if parameter is None else parameter.detach() * 0.5)
    return made[model]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "halve in place": halve_in_place,
    "subclass": replace_weight(lambda x: x.as_subclass(Marked)),
    "sparse": replace_weight(lambda x: x.to_sparse()),
    "transposed": replace_weight(lambda x: x.T.contiguous().T),
    "other weight": replace_weight(lambda x: x.flip(0)),
    "hook": hook,
    "parametrized": parametrized,
    "own forward": own_forward,
    "swapped layers": swap_layers,
    "other epsilon": other_epsilon,
    "bfloat16": lambda model: model.bfloat16(),
    "bfloat16 and back": lambda model: model.bfloat16().float(),
    "shared": lambda model: model.share_memory(),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "copied": copy.deepcopy,
    "copied in part": copy.copy,
    "saved": saved,
    "hooked": hooked,
    "prepared": prepared,
    "DataParallel": nn.DataParallel,
    "replica": replica,
}


def facts(
    rng: np.random.Generator, before: Sequence[str] = (), after: Sequence[str] = (), **more: Any
) -> Facts:
    """Draw a model and its inputs, in addition to what is done to it."""
    return {
        "model": choice(rng, NAMES),
        "seed": int(rng.integers(2**31)),
        "before": list(before),
        "after": list(after),
        "context": "no gradients",
        "options": {"precision": choice(rng, (None, None, "fp32", "bf16"))},
        "odd": [],
        **more,
    }


def some(rng: np.random.Generator, names: Any, most: int) -> list[str]:
    return [choice(rng, names) for _ in range(int(rng.integers(most + 1)))]


def changed(rng: np.random.Generator, _: Path) -> Facts:
    """Change a model before and after it is accelerated."""
    return facts(rng, some(rng, CHANGES, 1), some(rng, CHANGES, 2))


def wrapped(rng: np.random.Generator, _: Path) -> Facts:
    """Wrap and copy an accelerated model, and change it in between."""
    steps = some(rng, WRAPPERS, 2) + some(rng, CHANGES, 1)
    return facts(rng, (), [steps[k] for k in rng.permutation(len(steps))])


def in_context(rng: np.random.Generator, _: Path) -> Facts:
    """Call it in settings of PyTorch."""
    return facts(rng, (), some(rng, CHANGES, 1), context=choice(rng, CONTEXTS))


def odd_inputs(rng: np.random.Generator, _: Path) -> Facts:
    """Call it with masks, types, labels and positions of odd shapes and values."""
    return facts(rng, odd=some(rng, ODD_INPUTS, 2))


def odd_options(rng: np.random.Generator, _: Path) -> Facts:
    """Accelerate it with options that do not exist."""
    name = choice(rng, ("precision", "backend", "cuda_graph"))
    return facts(rng, options={name: choice(rng, (*STRINGS[:6], "fp8", 16, -1, "cuda"))})


def inputs_of(facts: Facts, seeds: np.random.Generator) -> dict[str, Any]:
    """Draw a padded batch, and what is odd about it."""
    batch, length = int(seeds.integers(1, 4)), int(seeds.integers(1, 12))
    ids = torch.from_numpy(seeds.integers(5, 24, (batch, length)))
    sizes = seeds.integers(1, length + 1, batch)
    mask = torch.from_numpy((np.arange(length) < sizes[:, None]).astype(np.int64))
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    for name in facts["odd"]:
        ODD_INPUTS[name](inputs, seeds)
    return inputs


def setting(name: str, make: Callable[[dict[str, Any], np.random.Generator], Any]) -> Any:
    def change(inputs: dict[str, Any], rng: np.random.Generator) -> None:
        inputs[name] = make(inputs, rng)

    return change


def types(inputs: dict[str, Any], rng: np.random.Generator) -> Tensor:
    batch, length = inputs["input_ids"].shape
    shape = choice(rng, ((1, length), (batch, length), (batch, 1), (length,), (batch + 1, length)))
    return torch.from_numpy(rng.integers(0, 2, shape))


def labels(inputs: dict[str, Any], rng: np.random.Generator) -> Tensor:
    ids = inputs["input_ids"]
    return ids.flatten() if rng.random() < 0.5 else ids


ODD_INPUTS = {
    "no mask": setting("attention_mask", lambda *_: None),
    "flags": setting("attention_mask", lambda inputs, _: inputs["input_ids"] % 3 > 0),
    "twos": setting("attention_mask", lambda inputs, _: inputs["input_ids"] % 3),
    "floats": setting("attention_mask", lambda inputs, _: (inputs["input_ids"] % 2) * 1.0),
    "a mask for all": setting("attention_mask", lambda inputs, _: inputs["input_ids"][:1] * 0 + 1),
    "types": setting("token_type_ids", types),
    "labels": setting("labels", labels),
    "positions": setting("position_ids", lambda inputs, _: inputs["input_ids"] % 7),
    "unknown tokens": setting("input_ids", lambda inputs, _: inputs["input_ids"] + 20),
    "masked": setting(
        "input_ids",
        lambda inputs, _: inputs["input_ids"].where(inputs["input_ids"] % 4 > 0, torch.tensor(29)),
    ),
    "attentions": setting("output_attentions", lambda *_: True),
    "hidden states": setting("output_hidden_states", lambda *_: True),
    "a tuple": setting("return_dict", lambda *_: False),
}


def attempt(model: Any, inputs: dict[str, Any], context: str) -> list[Tensor] | Exception:
    """Return the outputs without those of padding, or the exception that was raised."""
    torch.manual_seed(0)
    try:
        with CALLER_SETTINGS[context](), torch.no_grad():
            found = model(**inputs)
        values = found if isinstance(found, tuple) else found.values()
        mask = inputs.get("attention_mask")
        return [
            x[mask != 0] if mask is not None and x.shape[:2] == mask.shape else x
            for x in values
            if isinstance(x, Tensor)
        ]
    except Exception as error:  # noqa: BLE001 - models raise many kinds
        return error


def take(step: Callable[[Any], Any], own: Any, model: Any) -> tuple[Any, Any]:
    """Do the same to both models; what the untouched one does not allow raises for both."""
    expected, found = result_of(step, own), result_of(step, model)
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if type(found) is not type(expected):
            raise Finding(f"{found!r:.300} instead of {expected!r:.300}")
        return own, model
    return expected, found


def result_of(step: Callable[[Any], Any], model: Any) -> Any:
    """Return the changed model, or the exception that was raised."""
    try:
        return step(model)
    except Exception as error:  # noqa: BLE001 - PyTorch raises many kinds
        return error


def check(_: Path, facts: Facts) -> None:
    """Compare an accelerated model with its own forward, and the restored one bit for bit."""
    from tests.support.huggingface import make

    warnings.simplefilter("ignore")
    own, model = (make(facts["model"], "cpu", torch.float32) for _ in range(2))
    steps = CHANGES | WRAPPERS
    for name in facts["before"]:
        own, model = take(steps[name], own, model)
    state = torch.get_rng_state()
    bio.accelerate(model, **{"backend": "torch"} | facts["options"])
    if not torch.equal(torch.get_rng_state(), state):
        raise Finding("accelerate drew from the global random stream")
    inputs = inputs_of(facts, np.random.default_rng(facts["seed"]))
    attempt(model, inputs, facts["context"])  # so that weights were read before they change
    accelerated = [model]  # hooks of a shallow copy call the original, too
    for name in facts["after"]:
        own, model = take(steps[name], own, model)
        accelerated.append(model)
    expected = attempt(own, inputs, facts["context"])
    in_half = "bf16" in facts["options"].values() or "autocast" in facts["context"]
    in_half |= not {"bfloat16", "prepared"}.isdisjoint(facts["before"] + facts["after"])
    for _ in range(2):
        compare(attempt(model, inputs, facts["context"]), expected, TOLERANCE[in_half])
    for each in accelerated:
        bio.restore(each)
    if any(map(bio.report, accelerated)):
        raise Finding("a restored model has a report")
    compare(attempt(model, inputs, facts["context"]), expected, 0.0)


def compare(found: Any, expected: Any, tolerance: float) -> None:
    """Raise `Finding` unless outputs agree, or both calls raised exceptions of one class."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if type(expected) is not type(found):
            raise Finding(f"{found!r:.300} instead of {expected!r:.300}")
        return
    if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in expected]:
        raise Finding("outputs have other shapes or dtypes")
    for x, wanted in zip(found, expected, strict=True):
        error, scale = (x.double() - wanted.double()).abs(), wanted.double().abs()
        if x.numel() and not torch.equal(x.isnan(), wanted.isnan()):
            raise Finding("outputs are NaN elsewhere")
        largest = float(scale.nan_to_num().max()) if x.numel() else 0.0
        worst = float(error.nan_to_num().max()) if x.numel() else 0.0
        if worst > tolerance * max(1.0, largest):
            raise Finding(f"outputs are off by {worst:.2g} of {largest:.2g}")


KIND = Kind(
    {
        "changed": changed,
        "wrapped": wrapped,
        "in contexts": in_context,
        "odd inputs": odd_inputs,
        "odd options": odd_options,
    },
    check,
)
