"""Captured training steps against ordinary ones, and ordinary ones against PyTorch's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from mlff_triton.errors import InputError
from mlff_triton.testing import assert_within, random_cluster
from mlff_triton.torchmd_net.patch import accelerate
from mlff_triton.training.step import TrainingStep
from tests.support.torchmd_net import (
    arguments,
    charged_arguments,
    import_torchmdnet,
    tensors_of,
    use_plain_operations,
)

STEPS = 6


def batches(device: str, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """Make batches of two molecules whose atoms move, and one of another shape."""
    made = []
    for sizes in ((7, 5), (7, 5), (7, 5), (7, 7)):
        images = [random_cluster(n, seed=n) for n in sizes]
        for atoms, charge in zip(images, (1, 0), strict=True):
            atoms.rattle(0.05, seed=len(made))
            atoms.info["charge"] = charge
        made.append({name: t.to(device) for name, t in tensors_of(images, dtype).items()})
    return made


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Compute a loss on energies and forces of a model of TorchMD-NET."""
    energy, forces = model(**batch)
    target = torch.linspace(-1, 1, forces.numel(), device=forces.device, dtype=forces.dtype)
    return (forces - target.view_as(forces)).square().mean() + (energy - 1.0).square().mean()


def new_model(kind: str, dtype: torch.dtype, device: str) -> nn.Module:
    changes = {"static_shapes": True, "max_num_neighbors": 12}
    if kind == "tensornet2":
        made = charged_arguments(dtype, coulomb_cutoff=5.0, **changes)
    else:
        made = arguments(dtype, **changes)
    torch.manual_seed(0)
    return import_torchmdnet().models.model.create_model(made).to(device).train()


def plain_steps(
    model: nn.Module, data: list[dict[str, Tensor]], average: list[Tensor], rates: list[float]
) -> list[Tensor]:
    """Take steps as PyTorch's documentation writes them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rates[0])
    losses = []
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        inputs = {name: tensor.detach() for name, tensor in data[step % len(data)].items()}
        value = loss_of(model, inputs)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.1)
        losses.append(value.detach())
    return losses


def assert_same_steps(model: nn.Module, device: str, dtype: torch.dtype) -> TrainingStep:
    data = batches(device, dtype)
    twin = copy.deepcopy(model)
    rates = [1e-3 / (1 + step) for step in range(STEPS)]
    expected_average = [p.detach().clone() for p in twin.parameters()]
    average = [p.detach().clone() for p in model.parameters()]
    expected = plain_steps(twin, data, expected_average, rates)

    parameters = [p.detach() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rates[0])
    step = TrainingStep(
        model,
        loss_of,
        optimizer,
        max_gradient_norm=0.5,
        after_step=lambda: torch._foreach_lerp_(average, parameters, 0.1),
    )
    found = []
    for k, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        found.append(step(data[k % len(data)]))
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}[dtype]
    assert_within(torch.stack(found), torch.stack(expected), tolerance)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert_within(ours.detach(), theirs.detach(), tolerance)
    for ours, theirs in zip(average, expected_average, strict=True):
        assert_within(ours, theirs, tolerance)
    return step


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """Use TorchMD-NET's PyTorch operations, and float64 for its constants."""
    use_plain_operations(import_torchmdnet(), monkeypatch)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["tensornet", "tensornet2"])
def test_on_a_cpu_steps_are_those_of_pytorch(kind):
    step = assert_same_steps(new_model(kind, torch.float64, "cpu"), "cpu", torch.float64)
    assert not step.captures


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tensornet", "tensornet2"])
def test_captured_steps_are_those_of_pytorch(kind):
    model = accelerate(new_model(kind, torch.float64, "cuda"), "triton")
    step = assert_same_steps(model, "cuda", torch.float64)
    assert step.captures
    assert len(step._graphs) == 2, "one for each shape"


@pytest.mark.gpu
def test_schedules_change_the_rate_of_a_captured_step():
    model = nn.Linear(3, 1).cuda()
    twin = copy.deepcopy(model)
    x = torch.randn(5, 3, device="cuda")
    results = []
    for each, capture in ((model, True), (twin, False)):
        optimizer = torch.optim.Adam(each.parameters(), lr=0.1)
        step = TrainingStep(
            each, lambda m, b: m(b["x"]).square().mean(), optimizer, capture=capture
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(5):
            step({"x": x})
            schedule.step()
        results.append(each.weight.detach())
    assert_within(results[0], results[1], 1e-12)


@pytest.mark.gpu
def test_a_loss_that_waits_for_the_gpu_is_refused():
    model = nn.Linear(3, 1).cuda()

    def waiting(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        value = model(batch["x"]).square().mean()
        return value * float(value.detach())

    step = TrainingStep(model, waiting, torch.optim.Adam(model.parameters()))
    with pytest.raises(InputError, match="waits for the GPU, so it cannot be captured"):
        step({"x": torch.randn(5, 3, device="cuda")})


@pytest.mark.gpu
def test_bad_input_on_a_gpu():
    model = nn.Linear(3, 1).cuda()
    with pytest.raises(InputError, match="SGD cannot be captured: use AdamW"):
        TrainingStep(model, loss_of, torch.optim.SGD(model.parameters()))
    step = TrainingStep(model, loss_of, torch.optim.Adam(model.parameters()))
    with pytest.raises(InputError, match=r"batch\['x'\] is on cpu, the model on cuda:0"):
        step({"x": torch.ones(2, 3)})
    theirs = import_torchmdnet().models.model.create_model(arguments(torch.float64)).cuda()
    with pytest.raises(InputError, match="create it with static_shapes=True"):
        TrainingStep(theirs, loss_of, torch.optim.Adam(theirs.parameters()))
