"""A model's radial networks, and their derivatives in float64, without tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton.model.radial_basis import cosine_cutoff
from mlff_triton.model.tensornet import Interaction, TensorNet
from mlff_triton.model.tensornet2 import ChargedInteraction

CHUNK = 640  # distances per evaluation; their hidden values fit in the caches of a CPU

Function = Callable[[Tensor], Tensor]


def radial_functions(model: TensorNet) -> list[Function]:
    """Return functions from distances [n] to factors [n, 3 F], for the embedding and each layer.

    In a layer of a TensorNet2, only the first map of the network is a function of the distance
    alone. Its F values come first, without the cutoff, and all other values are zero.
    """

    def function(linears: Iterable[nn.Module], activation: Function | None) -> Function:
        def values(distance: Tensor) -> Tensor:
            x: Tensor = model.basis(distance)
            for linear in linears:
                x = linear(x) if activation is None else activation(linear(x))
            return x * _cutoff(model, distance)

        return values

    def first_map(layer: ChargedInteraction) -> Function:
        linear = map_of_distance(layer)
        return lambda distance: functional.pad(
            linear(model.basis(distance)), (0, 2 * linear.out_features)
        )

    layers = [
        first_map(layer)
        if isinstance(layer, ChargedInteraction)
        else function(layer.radial, layer.activation)
        for layer in model.interactions
    ]
    return [function([model.embedding.radial], None), *layers]


def map_of_distance(layer: ChargedInteraction) -> nn.Linear:
    """Return the part of a network's first map that acts on the basis, with the bias."""
    first = layer.radial[0]
    assert isinstance(first, nn.Linear)
    # "meta" draws no random weights
    linear = nn.Linear(layer.config.num_rbf, first.out_features, device="meta")
    linear.weight = nn.Parameter(first.weight[:, : layer.config.num_rbf], requires_grad=False)
    linear.bias = nn.Parameter(first.bias, requires_grad=False)
    return linear


@torch.no_grad()
def evaluate(model: TensorNet, distance: Tensor) -> Tensor:
    """Evaluate all radial functions and their derivatives.

    Parameters
    ----------
    model : TensorNet
        In float64.
    distance : float64 [n]
        Å.

    Returns
    -------
    float64 [T, n, 2, 3, F]
        Value and slope of each factor, cutoff included. The first of the T networks belongs to the
        embedding, and the others to the layers. See `radial_functions` for a TensorNet2.
    """
    channels = model.config.hidden_channels
    result = distance.new_empty(1 + len(model.interactions), len(distance), 2, 3, channels)
    for begin in range(0, len(distance), CHUNK):
        part = slice(begin, begin + CHUNK)
        basis = _differentiate(model.basis, distance[part])
        weight = _differentiate(lambda d: _cutoff(model, d), distance[part])
        _store(result[0, part], _propagate(basis, [model.embedding.radial]), weight)
        for rows, layer in zip(result[1:, part], model.interactions, strict=True):
            _store_layer(rows, layer, basis, weight)
    return result


def _store_layer(
    rows: Tensor, layer: Interaction, basis: tuple[Tensor, Tensor], weight: tuple[Tensor, Tensor]
) -> None:
    """Write values and slopes of a layer's functions to rows [n, 2, 3, F]."""
    if isinstance(layer, ChargedInteraction):
        rows.zero_()
        rows[:, :, 0] = torch.stack(_propagate(basis, [map_of_distance(layer)]), dim=1)
    else:
        _store(rows, _propagate(basis, layer.radial, layer.activation), weight)


def _cutoff(model: TensorNet, distance: Tensor) -> Tensor:
    """Return the cosine cutoff, [..., 1]."""
    config = model.config
    return cosine_cutoff(distance[..., None], config.cutoff_lower, config.cutoff_upper)


def _differentiate(function: Function, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and slopes, [n, m] each, of m functions of the distance.

    The gradient of a weighted sum is linear in the weights, so its derivatives by the weights are
    the slopes. PyTorch's forward differentiation would take seconds to import and compile.
    """
    with torch.enable_grad():
        distance = distance.detach().requires_grad_()
        value = function(distance)
        weights = torch.ones_like(value, requires_grad=True)
        (gradient,) = torch.autograd.grad((weights * value).sum(), distance, create_graph=True)
        (slope,) = torch.autograd.grad(gradient.sum(), weights)
    lost = slope.isnan().any(1)  # PyTorch's gradient of sinc cannot be differentiated at 0
    if lost.any():
        slope[lost] = _differentiate_apart(function, distance[lost], value.shape[1])
    return value.detach(), slope


def _differentiate_apart(function: Function, distance: Tensor, count: int) -> Tensor:
    """Return slopes [n, m], with a copy of the distance for each of m functions."""
    with torch.enable_grad():
        copies = distance.detach()[:, None].repeat(1, count).requires_grad_()
        total = function(copies).diagonal(dim1=1, dim2=2).sum()
        (slope,) = torch.autograd.grad(total, copies)
    return slope


def _propagate(
    basis: tuple[Tensor, Tensor], linears: Iterable[nn.Module], activation: Function | None = None
) -> tuple[Tensor, Tensor]:
    """Return values and slopes of a network [n, 3 F] from those of the basis [n, num_rbf]."""
    value, slope = basis
    for linear in linears:
        assert isinstance(linear, nn.Linear)
        value, slope = linear(value), slope @ linear.weight.T
        if activation is not None:
            value, slope = _activate(activation, value, slope)
    return value, slope


def _activate(activation: Function, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a function to each element."""
    with torch.enable_grad():
        value = value.detach().requires_grad_()
        result = activation(value)
        (slope,) = torch.autograd.grad((result * slope).sum(), value)
    return result.detach(), slope


def _store(rows: Tensor, factors: tuple[Tensor, Tensor], weight: tuple[Tensor, Tensor]) -> None:
    """Write values and slopes of factors times cutoff to rows [n, 2, 3, F]."""
    values, slopes = (part.flatten(1) for part in rows.unbind(1))  # views
    torch.mul(factors[0], weight[0], out=values)
    torch.mul(factors[1], weight[0], out=slopes).addcmul_(factors[0], weight[1])
