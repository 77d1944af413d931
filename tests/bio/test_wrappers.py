"""Accelerated models in the hands of other packages: replicas, wrappers, exports, odd weights."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertForMaskedLM

from mlff_triton import bio
from mlff_triton.bio.core.labels import LabelGuard
from mlff_triton.errors import UnsupportedModelError
from tests.support.huggingface import make
from tests.support.language_models import assert_same, attributes


@torch.inference_mode()
def logits(model: nn.Module, ids: Tensor, **inputs: Any) -> Tensor:
    return model(ids, **inputs).logits


def reasons(model: nn.Module) -> str:
    """Return the states of all parts that are not fast throughout."""
    return "; ".join({part.state for part in bio.report(model)} - {"fast"})


def replicate(model: nn.Module, scale: float) -> nn.Module:
    """Copy a model as `torch.nn.parallel.replicate` does, with weights times a number."""
    made = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in made.items():
        for name, child in module._modules.items():
            replica._modules[name] = child and made[child]
        for name, parameter in module._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                setattr(replica, name, parameter.detach() * scale)
        for name, buffer in module._buffers.items():
            setattr(replica, name, buffer)
    return made[model]


def test_replicas_compute_with_their_own_weights(model, ids):
    expected = logits(replicate(model, 0.5), ids)
    whole, before = logits(model, ids), attributes(model)
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match="DataParallel makes new replicas") as caught:
        replica = replicate(model, 0.5)
    assert len(caught) == 1
    replicate(model, 2)  # gives no second warning
    assert torch.equal(logits(replica, ids), expected)
    labels = torch.where(ids > 9, ids, -100)  # LabelGuard is a replacement, too
    with torch.inference_mode():
        loss = replica(ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    own = nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, own)
    assert_same(logits(model, ids), whole, "fp32")
    assert "DataParallel makes new replicas" in reasons(model)
    assert attributes(bio.restore(model)) == before


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_data_parallel_on_two_gpus(model, ids):
    ids = ids.repeat(2, 1)
    expected = logits(model, ids)
    bio.accelerate(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        found = nn.DataParallel(model)(ids).logits
    assert_same(found, expected, "fp32")


def test_shared_memory_and_shallow_copies(model, ids):
    bio.accelerate(model, backend="torch")
    expected = logits(model, ids)
    assert torch.equal(logits(model.share_memory(), ids), expected)
    assert torch.equal(logits(copy.copy(model), ids), expected)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """Join a group of one process."""
    store = f"file://{tmp_path / 'store'}"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("is_wrapped_first", [False, True])
def test_data_parallel_processes_stay_accelerated(is_wrapped_first, model, ids):
    expected = logits(model.requires_grad_(), ids)
    if not is_wrapped_first:
        bio.accelerate(model, backend="torch")
    wrapped = nn.parallel.DistributedDataParallel(model)
    if is_wrapped_first:
        bio.accelerate(wrapped, backend="torch")
    assert_same(logits(wrapped, ids), expected, "fp32")
    assert not reasons(wrapped)
    bio.restore(wrapped)
    assert not bio.report(model)
    assert torch.equal(logits(model, ids), expected)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("shards_layers", [False, True])
def test_sharded_models_follow_their_weights(shards_layers, model, ids):
    """Weights that are gathered around the whole model are read; those of layers are not."""
    mesh = init_device_mesh(model.device.type, (1,))
    bio.accelerate(model, backend="torch")
    layers = next(part for part in model.modules() if isinstance(part, nn.ModuleList))
    for part in [*layers, model] if shards_layers else [model]:
        fully_shard(part, mesh=mesh)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        model(ids)
        for weight in model.parameters():
            weight.mul_(1.1)
        found = model(ids).logits
        assert ("DTensor" in reasons(model)) == shards_layers
        bio.restore(model)
        assert_same(found, model(ids).logits, "fp32")


class Hook:
    """Wraps ``forward`` as hooks of Accelerate do."""

    def __init__(self, module: Any) -> None:
        self.calls = 0
        module._old_forward = module.forward

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return module._old_forward(*args, **kwargs)

        module.forward = functools.update_wrapper(
            functools.partial(forward, module), module._old_forward
        )

    @staticmethod
    def remove(module: Any) -> None:
        module.forward = module._old_forward
        del module._old_forward


def prepared(module: Any) -> None:
    """Wrap ``forward`` as ``Accelerator.prepare`` does with mixed precision."""
    module._original_forward = module.forward
    decorate = torch.autocast("cpu", torch.bfloat16)
    if hasattr(module.forward, "__func__"):
        module.forward = MethodType(decorate(module.forward.__func__), module)
    else:
        module.forward = decorate(module.forward)


def test_wrappers_hide_nothing_from_report_and_restore(model, ids):
    expected = logits(model, ids)
    encoder = model.base_model
    bio.accelerate(model, backend="torch")
    paths = [part.path for part in bio.report(model)]
    hooks = [Hook(encoder), Hook(model)]
    found = logits(model, ids)
    assert_same(found, expected, "fp32")
    assert not torch.equal(found, expected)
    assert [part.path for part in bio.report(model)] == paths
    assert not reasons(model)
    with pytest.raises(UnsupportedModelError, match="unwrap it before you accelerate it again"):
        bio.accelerate(model, backend="torch", precision="bf16")
    assert torch.equal(logits(model, ids), found)
    bio.restore(model)
    assert torch.equal(logits(model, ids), expected)
    assert not bio.report(model)
    assert [hook.calls for hook in hooks] == [3, 3]
    for module in (encoder, model):
        Hook.remove(module)
    assert torch.equal(logits(model, ids), expected)
    bio.accelerate(model, backend="torch")
    assert torch.equal(logits(model, ids), found)


def test_hooked_copies_are_restored_after_the_original(model, ids):
    """Hooks of a shallow copy call the original."""
    expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    Hook(model)
    copied: Any = copy.copy(model)
    for each in (model, copied):
        bio.restore(each)
        assert not bio.report(each)
    assert copied._old_forward.is_undone
    assert torch.equal(logits(model, ids), expected)
    assert torch.equal(logits(copied, ids), expected)


def test_a_hook_that_is_removed_leaves_the_model_fast(model, ids):
    bio.accelerate(model, backend="torch")
    found, before = logits(model, ids), attributes(model)
    Hook(model.base_model)
    Hook.remove(model.base_model)
    assert attributes(model) == before
    assert torch.equal(logits(model, ids), found)
    assert not reasons(model)


def test_prepared_models_and_their_copies_compute_under_autocast(model, ids):
    with torch.autocast("cpu", torch.bfloat16):
        expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    prepared(model.base_model)
    prepared(model)
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.zero_()  # which the copy must not notice
    for each in (twin, copy.deepcopy(twin)):
        with pytest.warns(bio.FallbackWarning, match="autocast is enabled"):
            assert_same(logits(each, ids).float(), expected.float(), "bf16")
        assert [part.path for part in bio.report(each)] == [p.path for p in bio.report(model)]
        bio.restore(each)
        assert_same(logits(each, ids).float(), expected.float(), "bf16")
        assert not bio.report(each)


def test_accelerate_s_own_wrappers(model, ids, device):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    found = logits(model, ids)
    accelerate.hooks.add_hook_to_module(model.base_model, accelerate.hooks.ModelHook())
    assert torch.equal(logits(model, ids), found)
    wrapped = accelerate.Accelerator(cpu=device == "cpu", mixed_precision="bf16").prepare(model)
    assert bio.report(wrapped)
    with pytest.warns(bio.FallbackWarning, match="autocast is enabled"):
        logits(wrapped, ids)
    bio.restore(wrapped)
    assert not bio.report(model)
    accelerate.hooks.remove_hook_from_module(model.base_model)
    own = model.__dict__.pop("_original_forward")
    model.forward = own
    assert torch.equal(logits(model, ids), expected)


@pytest.mark.parametrize("is_trainable", [True, False])  # as loaded, and frozen
def test_adapters_of_peft_that_were_merged(is_trainable, model, ids):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model.requires_grad_(is_trainable)
    before = logits(bio.accelerate(model, backend="torch"), ids)
    targets = ["query", "output.dense"]
    config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    merged = peft.get_peft_model(model, config).merge_and_unload()
    found = logits(merged, ids)
    assert not reasons(merged)
    assert not torch.allclose(found, before)
    assert_same(found, logits(bio.restore(merged), ids), "fp32")


def on_one_device(model: nn.Module) -> nn.DataParallel:
    return nn.DataParallel(model, [0] if model.device.type == "cuda" else None)


WRAPPERS = {
    "DataParallel": on_one_device,
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_modules_around_the_model(name, model, ids):
    expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    wrapper = WRAPPERS[name](model)
    assert_same(logits(wrapper, ids), expected, "fp32")
    assert len(bio.report(wrapper)) == len(bio.report(model)) > 0
    bio.restore(wrapper)
    assert not bio.report(model)
    assert torch.equal(logits(model, ids), expected)


def test_signatures_stay(model):
    """Of all replaced modules, which are also callable as functions bound to a module are."""
    before = {path: inspect.signature(m.forward) for path, m in model.named_modules()}
    bio.accelerate(model, backend="torch")
    for path, module in model.named_modules():
        assert inspect.signature(module.forward) == before[path]
        assert module.forward.__code__ is type(module).forward.__code__
        assert module.forward.__self__ is module
        assert inspect.unwrap(module.forward.__func__) is inspect.unwrap(type(module).forward)


@pytest.mark.filterwarnings("ignore:While compiling, we found", "ignore:The tensor attributes")
@pytest.mark.parametrize("strict", [False, True])
def test_exports_are_those_of_the_model(strict, model, ids):
    def exported() -> Any:
        with torch.no_grad():
            return torch.export.export(model, (ids,), strict=strict)

    expected = logits(model, ids)  # some versions keep tables for the next call
    before = exported()
    bio.accelerate(model, backend="torch")
    after = exported()
    operators = [
        [node.target for node in each.graph.nodes if node.op == "call_function"]
        for each in (before, after)
    ]
    assert operators[0] == operators[1]
    assert after.graph_signature.parameters == before.graph_signature.parameters
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    if strict and isinstance(model, BertForMaskedLM) and (4, 51) <= version < (5, 0):
        # PyTorch looks for a constant of these versions under the path of the replacement
        with pytest.raises(RuntimeError, match="nonexistent attribute"):
            after.module()
        return
    with torch.no_grad():
        own, found = (each.module()(ids).logits for each in (before, after))
    assert torch.equal(found, own)
    assert_same(found, expected, "fp32")  # on a GPU, exports round otherwise than the model


def test_compiled_graphs_are_those_of_the_model(model, ids):
    expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_same(compiled(ids).logits, expected, "fp32")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traces_are_those_of_the_model(model, ids):
    expected = model(ids).logits
    bio.accelerate(model, backend="torch")
    traced = torch.jit.trace(model, (ids,), strict=False)
    assert_same(traced(ids)["logits"], expected, "fp32")
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    assert_same(torch.jit.load(file)(ids)["logits"], expected, "fp32")


def test_symbolic_traces_work_as_before():
    own = nn.Sequential(nn.TransformerEncoderLayer(64, 4, 64), nn.Linear(64, 64)).eval()
    own.requires_grad_(requires_grad=False)
    x = torch.randn(2, 5, 64)
    expected = torch.fx.symbolic_trace(own)(x)
    bio.accelerate(own, backend="torch")
    torch.testing.assert_close(torch.fx.symbolic_trace(own)(x), expected)


class Marked(Tensor):
    """Subclass that no kernel knows."""


def subclass(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().as_subclass(Marked), requires_grad=False)


def sparse(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().to_sparse(), requires_grad=False)


def integers(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().to(torch.int8), requires_grad=False)


def without_values(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().to("meta"), requires_grad=False)


ODD = {
    subclass: "is of the class Marked",
    sparse: "of the layout torch.sparse_coo",
    integers: "is of torch.int8",
    without_values: "on the meta device|on several devices",
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_odd_weights_run_the_model_s_own_forward(odd, when, model, ids):
    """Whatever the own forward does with them: it returns the same, or raises the same."""
    linear = model.base_model.encoder.layer[1].output.dense
    plain = linear.weight
    if when == "after":
        bio.accelerate(model, backend="torch")
        logits(model, ids)
        bio.restore(model)
    linear.weight = odd(plain)
    expected = attempt(model, ids)
    if when == "after":
        linear.weight = plain
        bio.accelerate(model, backend="torch")
        logits(model, ids)
        linear.weight = odd(plain)
    else:
        bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match=ODD[odd]):
        found = attempt(model, ids)
    if isinstance(expected, Exception):
        assert (type(found), str(found)) == (type(expected), str(expected))
    elif odd is not without_values:  # PyTorch then returns uninitialized memory
        assert_same(found, expected, "fp32")
    linear.weight = plain
    fast = logits(model, ids)
    with bio.accelerated(copy.deepcopy(bio.restore(model)), backend="torch") as fresh:
        assert torch.equal(logits(fresh, ids), fast)


def attempt(model: nn.Module, ids: Tensor) -> Tensor | Exception:
    try:
        return logits(model, ids)
    except Exception as error:  # noqa: BLE001 - models raise many kinds
        return error


def test_quantized_linear_maps(model, ids):
    """PyTorch replaces modules, torchao their weights."""
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match="is of the class"):
        assert torch.equal(logits(model, ids), expected)


@pytest.mark.parametrize("path", ["base_model.encoder.layer.0.attention.self.query", "head"])
def test_parametrized_weights(path, model, ids):
    from torch.nn.utils import parametrize

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    head = model.lm_head.dense if hasattr(model, "lm_head") else model.cls.predictions.transform
    linear = getattr(head, "dense", head) if path == "head" else operator(model, path)
    bio.accelerate(model, backend="torch")
    before = logits(model, ids)
    parametrize.register_parametrization(linear, "weight", Twice().eval())
    expected = logits(bio.restore(copy.deepcopy(model)), ids)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bio.FallbackWarning)
        found = logits(model, ids)
    assert not torch.allclose(found, before)
    assert_same(found, expected, "fp32")


def operator(model: nn.Module, path: str) -> nn.Module:
    return functools.reduce(getattr, path.split("."), model)


def test_parameters_swapped_by_torch_func(model, ids):
    """`torch.func` calls a module with other parameters, or with those of many models at once."""
    twice = {name: 2 * parameter for name, parameter in model.named_parameters()}
    expected = logits(model, ids), torch.func.functional_call(model, twice, (ids,)).logits
    bio.accelerate(model, backend="torch")
    logits(model, ids)
    found = torch.func.functional_call(model, twice, (ids,)).logits
    torch.testing.assert_close(found, expected[1], rtol=1e-4, atol=1e-4)
    assert_same(logits(model, ids), expected[0], "fp32")
    stacked = {n: torch.stack([p, twice[n]]) for n, p in model.named_parameters()}

    def call(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (ids,)).logits

    try:
        own = torch.func.vmap(call)(stacked)
    except Exception:  # noqa: BLE001 - not all versions of transformers support it
        return
    torch.testing.assert_close(own, torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert "torch.func" in reasons(model)


@pytest.mark.parametrize(
    "register", [register_module_forward_hook, register_module_forward_pre_hook]
)
def test_global_hooks_are_called_for_all_modules(register, model, ids):
    seen: list[str] = []
    handle = register(lambda module, *_: seen.append(type(module).__name__))
    try:
        logits(model, ids)
        expected = seen.copy()
        bio.accelerate(model, backend="torch")
        seen.clear()
        with pytest.warns(bio.FallbackWarning, match="global hooks of modules"):
            logits(model, ids)
    finally:
        handle.remove()
    assert seen == expected
    logits(model, ids)
    assert len(seen) == len(expected)


class Watch(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def test_modes_that_watch_operations_see_those_of_the_model(model, ids):
    def count() -> Counter[str]:
        with Watch() as watch:
            logits(model, ids)
        return watch.counts

    count()  # some versions keep tables for the next call
    expected = count()
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match="a mode of PyTorch watches its operations"):
        assert count() == expected


def test_inputs_of_other_classes(model, ids):
    expected = logits(model, ids)
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match="an input is a Marked"):
        found = model(ids.as_subclass(Marked)).logits
    assert isinstance(found, Marked)
    torch.testing.assert_close(found.as_subclass(Tensor), expected, rtol=1e-5, atol=1e-5)


def test_models_without_parameters_of_their_own(model, ids):
    """As PyTorch's sharding keeps them elsewhere."""
    bio.accelerate(model, backend="torch")
    expected = logits(model, ids)
    for module in list(model.modules()):
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                delattr(module, name)
                setattr(module, name, parameter.detach())
    with pytest.warns(bio.FallbackWarning, match="no parameters of its own"):
        assert_same(logits(model, ids), expected, "fp32")


def test_a_guard_is_undone_under_a_wrapper():
    """The guard of labels is not in reports, but restored as well."""
    model = bio.accelerate(make("EsmForMaskedLM", "cpu", torch.float32), backend="torch")
    guard = model.forward
    assert isinstance(guard, LabelGuard)
    Hook(model)
    bio.restore(model)
    assert guard.is_undone
    Hook.remove(model)
    ids = torch.randint(5, 24, (2, 9))
    assert torch.equal(model(ids).logits, logits(bio.restore(model), ids))
