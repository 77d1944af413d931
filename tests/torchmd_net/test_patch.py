"""Accelerated TorchMD-NET models against the original ones, on PyTorch operators.

`tests/torchmd_net/fused/test_patched_tensornet.py` tests the kernels.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton.errors import BackendError, InputError, UnsupportedModelError
from mlff_triton.testing import assert_close, assert_within
from mlff_triton.torchmd_net.patch import accelerate, accelerated, restore
from tests.support.torchmd_net import (
    CUTOFF,
    OPTIONS,
    RELATIVE,
    STRUCTURES,
    arguments,
    charged_arguments,
    crystal,
    loss,
    molecules,
    tensors_of,
    their_prediction,
)

SMALL = {"embedding_dimension": 8, "num_rbf": 4}


CHARGED: dict[str, dict[str, Any]] = {
    "O(3)": {},
    "SO(3)": {"equivariance_invariance_group": "SO(3)"},
    "no layers": {"num_layers": 0, "q_weights": [1.0]},
    "static shapes": {"static_shapes": True},
    "repulsion": {"repulsion": True},
    "repulsion, static shapes": {"repulsion": True, "static_shapes": True},
    "ssp": {"activation": "ssp"},
    "without Coulomb": {"output_model": "Scalar"},
}


@pytest.fixture
def make_model(torchmdnet):
    """Function that makes random TorchMD-NET models without any weight of 0 or 1."""

    def make(arguments: Any = arguments, **changes: Any) -> nn.Module:
        precision = torch.get_default_dtype()
        model = torchmdnet.models.model.create_model(arguments(precision, **changes)).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        return model

    return make


def energy_and_forces(model: nn.Module) -> tuple[Tensor, Tensor]:
    return their_prediction(model, molecules(None), torch.get_default_dtype())


def training_step(
    model: nn.Module, images: list[Any], precision: torch.dtype
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Compute energies, forces, and the gradients of a loss on both."""
    model.train().zero_grad()
    energy, forces = their_prediction(model, images, precision)
    loss(energy[:, 0], forces).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return energy.detach(), forces.detach(), gradients


def assert_same_training(
    model: nn.Module, images: list[Any], precision: torch.dtype, backend: str = "torch"
) -> None:
    expected = training_step(model, images, precision)
    with accelerated(model, backend):
        energy, forces, gradients = training_step(model, images, precision)
    assert expected[1].abs().max() > 0.01, "the test needs a model with forces"
    assert_within(energy, expected[0], RELATIVE[precision])
    assert_within(forces, expected[1], RELATIVE[precision])
    assert gradients.keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert_within(gradients[name], gradient, 10 * RELATIVE[precision])


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("option", OPTIONS)
def test_training_is_that_of_torchmd_net(make_model, dtype, option):
    assert_same_training(make_model(**OPTIONS[option]), molecules(dtype), dtype)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("option", CHARGED)
def test_training_with_charges_is_that_of_torchmd_net(make_model, dtype, option):
    model = make_model(charged_arguments, **CHARGED[option])
    assert_same_training(model, molecules(dtype), dtype)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("static_shapes", [False, True])
def test_a_periodic_box_with_charges(make_model, dtype, static_shapes):
    model = make_model(charged_arguments, coulomb_cutoff=CUTOFF, static_shapes=static_shapes)
    assert_same_training(model, crystal("triclinic", dtype), dtype)


def test_the_head_with_a_coulomb_energy_is_replaced_too(make_model):
    model = make_model(charged_arguments)
    head = model.output_model
    kind, attributes = type(head), dict(head.__dict__)
    accelerate(model, "torch")
    assert type(head).__name__ == "PatchedCoulomb"
    with accelerated(model, "torch"):
        pass
    assert type(head).__name__ == "PatchedCoulomb", "as before"
    assert type(restore(model).output_model) is kind
    assert head.__dict__ == attributes


def test_a_head_in_another_solvent_stays_as_it_is(make_model):
    model = make_model(charged_arguments, coulomb_cutoff=CUTOFF)
    model.output_model.epsilon_solvent = 4.0
    kind = type(model.output_model)
    assert type(accelerate(model, "torch").output_model) is kind


@pytest.mark.usefixtures("plain")
def test_a_head_that_lacks_a_cutoff_refuses_boxes_as_before(make_model):
    model = make_model(charged_arguments)
    for change in (lambda m: m, lambda m: accelerate(m, "torch")):
        with pytest.raises(ValueError, match="PBC is not supported"):
            their_prediction(change(model), crystal("cubic", None), torch.get_default_dtype())


@pytest.mark.usefixtures("plain")
def test_a_network_with_charges_on_its_own_without_a_total_charge(torchmdnet):
    kind = torchmdnet.models.tensornet2.TensorNet2
    network = kind(hidden_channels=8, num_rbf=4, q_dim=2, output_charges=True).double()
    inputs = tensors_of(molecules(None), torch.float64)
    del inputs["q"]
    expected = network(**inputs)[0]
    with accelerated(network, "torch"):
        assert_close(network(**inputs)[0], expected, 0)
    assert type(network) is kind


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
@pytest.mark.parametrize("structure", ["cubic", "triclinic"])
def test_periodic_boxes(make_model, dtype, structure, group):
    model = make_model(equivariance_invariance_group=group)
    assert_same_training(model, crystal(structure, dtype), dtype)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_static_shapes(make_model, dtype, structure):
    model = make_model(static_shapes=True)
    assert_same_training(model, STRUCTURES[structure](dtype), dtype)


@pytest.mark.usefixtures("plain")
def test_a_network_on_its_own_without_a_charge(torchmdnet):
    network = torchmdnet.models.tensornet.TensorNet(hidden_channels=8, num_rbf=4).double()
    inputs = tensors_of(molecules(None), torch.float64)
    del inputs["q"]
    expected = network(**inputs)
    with accelerated(network, "torch"):
        found = network(**inputs)
    assert_close(found[0], expected[0], 0)
    assert found[1] is None
    assert all(a is b for a, b in zip(found[2:], expected[2:], strict=True))


def test_results_do_not_depend_on_the_order_of_atomics(make_model):
    """Unlike those of the original, whose neighbor list has the order in which threads finish."""
    model = accelerate(make_model(), "torch")
    first = energy_and_forces(model)
    assert all(torch.equal(*pair) for pair in zip(first, energy_and_forces(model), strict=True))


def test_a_user_s_own_head_and_loop(make_model):
    network = make_model(**SMALL).representation_model
    head = nn.Linear(8, 1)
    model = accelerate(nn.ModuleDict({"network": network, "head": head}), "torch")
    optimizer = torch.optim.Adam(model.parameters())
    inputs = tensors_of(molecules(None), torch.float32)
    inputs["pos"].requires_grad_()
    losses = []
    for _ in range(5):
        energy = head(network(**inputs)[0]).sum()
        (forces,) = torch.autograd.grad(-energy, inputs["pos"], create_graph=True)
        losses.append(forces.square().sum())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]


def test_restore_undoes_it_exactly(make_model):
    model = make_model(**SMALL)
    network = model.representation_model
    kind, attributes = type(network), dict(network.__dict__)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = energy_and_forces(model)
    assert accelerate(model, "torch") is model
    assert type(network) is not kind
    assert accelerate(model, "torch") is model
    assert restore(restore(model)) is model
    assert type(network) is kind
    assert network.__dict__ == attributes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    for pair in zip(energy_and_forces(model), expected, strict=True):
        assert_close(*pair, 1, torch.float32)  # the original varies from call to call


def test_only_this_instance_is_touched(make_model, torchmdnet):
    module = torchmdnet.models.tensornet
    before = {name: dict(vars(getattr(module, name))) for name in module.__all__}
    names = dict(vars(module))
    model, other = make_model(**SMALL), make_model(**SMALL)
    accelerate(model, "torch")
    energy_and_forces(model)
    assert type(other.representation_model) is module.TensorNet
    assert {name: dict(vars(getattr(module, name))) for name in module.__all__} == before
    assert dict(vars(module)) == names
    assert all(type(layer) is module.Interaction for layer in model.representation_model.layers)


def test_with_leaves_the_model_as_it_was(make_model):
    model = make_model(**SMALL)
    network = model.representation_model
    kind = type(network)
    with pytest.raises(TypeError), accelerated(model, "torch") as entered:
        entered("not atomic numbers")
    assert type(network) is kind
    accelerate(model, "torch")
    with accelerated(model, "torch"):
        pass
    assert type(network) is not kind
    assert network.mlff_triton_backend == "torch"


def test_copies_states_and_casts(make_model):
    model = make_model(**SMALL)
    plain_copy = copy.deepcopy(model)
    accelerate(model, "torch")
    expected = energy_and_forces(model)

    twin = copy.deepcopy(model)
    with torch.no_grad():
        next(twin.parameters()).zero_()
    for copied in (copy.deepcopy(model), twin):
        assert type(copied.representation_model) is type(model.representation_model)
    assert torch.equal(energy_and_forces(model)[0], expected[0]), "the copy must not share weights"

    assert model.state_dict().keys() == plain_copy.state_dict().keys()
    plain_copy.load_state_dict(model.state_dict())
    twin.load_state_dict(plain_copy.state_dict())
    assert torch.equal(energy_and_forces(twin)[0], expected[0])

    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(energy_and_forces(loaded)[0], expected[0])

    energy = model.to(torch.float64)(**tensors_of(molecules(None), torch.float64))[0]
    assert energy.dtype == torch.float64
    assert_close(expected[0], energy, 1, torch.float32)


def test_all_networks_of_an_ensemble(make_model, torchmdnet):
    models = [make_model(**SMALL) for _ in range(2)]
    ensemble = accelerate(torchmdnet.models.model.Ensemble(models), "torch")
    assert all(hasattr(m.representation_model, "mlff_triton_backend") for m in ensemble)
    restore(ensemble)
    assert not any(hasattr(m.representation_model, "mlff_triton_backend") for m in ensemble)


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_on_a_cpu_kernels_are_refused(make_model, monkeypatch, backend):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = make_model(**SMALL)
    with pytest.raises(BackendError, match=r"need a GPU.*; use backend='torch'"):
        accelerate(model, backend)
    assert type(model.representation_model).__name__ == "TensorNet"
    with pytest.raises(BackendError), accelerated(model, backend):
        pytest.fail("nothing is accelerated")


def test_an_automatic_model_moved_to_the_cpu_uses_pytorch(make_model):
    model = make_model(**SMALL)
    expected = energy_and_forces(accelerate(model, "torch"))
    model.representation_model.mlff_triton_backend = "auto"
    assert torch.equal(energy_and_forces(model)[1], expected[1])


def test_unknown_backend(make_model):
    with pytest.raises(InputError, match="'cuda' is unknown: use one of auto, triton, torch"):
        accelerate(make_model(**SMALL), "cuda")


@pytest.mark.parametrize("kind", ["equivariant-transformer", "graph-network"])
def test_other_architectures_are_refused(make_model, kind):
    others = {
        "num_heads": 2,
        "attn_activation": "silu",
        "aggr": "add",
        "neighbor_embedding": True,
        "distance_influence": "both",
    }
    model = make_model(**others, model=kind)
    with pytest.raises(UnsupportedModelError, match=r"is not TorchMD-NET's TensorNet.*as it is"):
        accelerate(model, "torch")
    assert restore(model) is model


def test_any_other_module_is_refused():
    with pytest.raises(UnsupportedModelError, match="Linear is not TorchMD-NET's TensorNet"):
        accelerate(nn.Linear(1, 1), "torch")


def test_a_path_is_no_model():
    with pytest.raises(InputError, match="a model of TorchMD-NET that is loaded, not a str"):
        accelerate("model.ckpt", "torch")


def test_changed_networks_are_refused(make_model, torchmdnet):
    class Own(torchmdnet.models.tensornet.TensorNet):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    with pytest.raises(UnsupportedModelError, match="Own overrides TensorNet"):
        accelerate(Own(hidden_channels=8), "torch")
    model = make_model(**SMALL)
    model.representation_model.layers[1].act = nn.ELU()
    with pytest.raises(UnsupportedModelError, match=r"replaced by ELU\(alpha=1.0\)"):
        accelerate(model, "torch")
    model = make_model(charged_arguments, **SMALL)
    model.representation_model.charge_predict_0.q_mlp.layers[1] = nn.ELU()
    with pytest.raises(UnsupportedModelError, match=r"replaced by ELU\(alpha=1.0\)"):
        accelerate(model, "torch")
    with pytest.raises(UnsupportedModelError, match=r"torch\.float16: use model\.float"):
        accelerate(make_model(**SMALL).half(), "torch")
