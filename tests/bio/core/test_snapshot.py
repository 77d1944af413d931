"""Snapshots of modules notice every change that matters, and no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

from mlff_triton.bio.core.snapshot import Samples, Snapshot, hides_changes


def network() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
    convolution = nn.Conv1d(4, 4, 3)
    convolution.resolutions = [1, 128]
    convolution.scaling = 0.25
    return nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), inner, nn.Sequential(), convolution
    ).eval()


def halve_and_back(model: nn.Sequential) -> None:
    model.half().float()


def add_in_place(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].bias.add_(1)


def load_others(model: nn.Sequential) -> None:
    model.load_state_dict(network().state_dict())


def replace_parameter(model: nn.Sequential) -> None:
    model[2][0].weight = nn.Parameter(model[2][0].weight.detach())


def replace_data(model: nn.Sequential) -> None:
    model[1].weight.data = torch.ones(4)


def replace_module(model: nn.Sequential) -> None:
    model[2][0] = nn.Linear(4, 2)


def hook(model: nn.Sequential) -> None:
    model[2].register_forward_hook(lambda *_: None)


def set_a_forward(model: nn.Sequential) -> None:
    model[0].forward = lambda x: x[..., :1].expand(-1, 4)


def train_the_dropout(model: nn.Sequential) -> None:
    model[2][1].train()


def change_the_epsilon(model: nn.Sequential) -> None:
    model[1].eps = 1.0


def change_the_class(model: nn.Sequential) -> None:
    model[0].__class__ = type("Other", (nn.Linear,), {})


def add_to_an_empty_module(model: nn.Sequential) -> None:
    model[3].append(nn.Linear(4, 2))


def register_a_last_parameter(model: nn.Sequential) -> None:
    model[4].register_parameter("extra", nn.Parameter(torch.ones(4)))


def register_a_buffer(model: nn.Sequential) -> None:
    model[0].register_buffer("mask", torch.ones(4))


def widen_the_dilation(model: nn.Sequential) -> None:
    model[4].dilation = (2,)


def drop_a_resolution(model: nn.Sequential) -> None:
    model[4].resolutions.remove(1)


def merge_as_peft_does(model: nn.Sequential) -> None:
    model.requires_grad_(False)
    model[0].weight.data += 1


def merge_into_transposed_data(model: nn.Sequential) -> None:
    model[0].weight.data.T.add_(1)


def change_an_attribute_that_no_adapter_knows(model: nn.Sequential) -> None:
    model[4].scaling = 0.5


def make_a_scale_a_tensor(model: nn.Sequential) -> None:
    model[4].scaling = torch.ones(2)


def delete_an_attribute(model: nn.Sequential) -> None:
    del model[4].scaling


OBSTACLES = (hook, set_a_forward, train_the_dropout)
CHANGES = (
    *(halve_and_back, add_in_place, load_others, replace_parameter),
    *(replace_data, replace_module, change_the_epsilon, change_the_class, *OBSTACLES),
    *(add_to_an_empty_module, register_a_last_parameter, register_a_buffer),
    *(widen_the_dilation, drop_a_resolution, merge_as_peft_does, merge_into_transposed_data),
    *(change_an_attribute_that_no_adapter_knows, make_a_scale_a_tensor, delete_an_attribute),
)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change: Callable[[nn.Sequential], None]):
    model = network()
    snapshot = Snapshot(model)
    assert snapshot.is_current()
    change(model)
    assert not snapshot.is_current()
    assert Snapshot(model).is_current() == (change not in OBSTACLES)
    assert (Snapshot(model).obstacle is None) == (change not in OBSTACLES)


def test_what_changes_nothing_is_not_seen():
    model = network()
    snapshot = Snapshot(model)
    model.eval()
    model[0].forward = model[0].forward  # as transformers 5.0 leaves it
    model[:3](torch.ones(3))
    model[2][1].p = 0.9  # of a dropout in evaluation mode
    model[2]._table = [1, 2]
    model.state_dict()
    model.register_forward_hook(lambda *_: None)  # of the module itself, which is still called
    assert snapshot.is_current()


def test_parameters_made_for_inference():
    with torch.inference_mode():
        model = network()
    snapshot = Snapshot(model)
    assert snapshot.is_current()
    with torch.inference_mode():
        model[0].weight.zero_()  # which PyTorch does not count
    assert not snapshot.is_current()
    snapshot = Snapshot(model)
    model[0] = nn.Linear(3, 4)
    assert not snapshot.is_current()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_samples_of_all_dtypes_and_strides(dtype):
    values = torch.arange(60).to(dtype).reshape(3, 4, 5)
    for x in (values, values[1].T, values[::2, :, 1:3], values[0, 0, :1], values[0, 0, 0]):
        samples = Samples([x])
        assert samples.are_current()
        x.add_(1)
        assert not samples.are_current()
    empty = Samples([values[:0], torch.zeros(3, dtype=torch.complex128)])
    assert empty.are_current()
    assert Samples([]).are_current()


@pytest.mark.parametrize("package", ["peft", "torch.distributed.fsdp"])
def test_packages_that_change_weights_uncounted_are_known(package, monkeypatch):
    for name in ("peft", "torch.distributed.fsdp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not hides_changes()
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    assert hides_changes()


@pytest.mark.gpu
@pytest.mark.parametrize("is_imported", [False, True])
def test_samples_on_a_gpu_are_compared_if_peft_is_imported(is_imported, monkeypatch):
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    if is_imported:
        monkeypatch.setitem(sys.modules, "peft", ModuleType("peft"))
    model = network().cuda()
    snapshot = Snapshot(model)
    assert snapshot.is_current()
    model[0].weight.data += 1
    assert snapshot.is_current() != is_imported
