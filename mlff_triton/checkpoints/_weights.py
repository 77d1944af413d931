"""Helpers of the checkpoint readers: tensor order, and models made from checked weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from mlff_triton.checkpoints._reading import MAX_FILE_BYTES
from mlff_triton.errors import CheckpointError
from mlff_triton.model.config import MAX_CHANNELS, TensorNetConfig
from mlff_triton.model.prediction import members_of
from mlff_triton.model.tensornet import UNCERTAINTY, TensorNet
from mlff_triton.model.tensornet2 import model_of, with_coulomb
from mlff_triton.neighbors.graph import Graph

SCALE = ("std", "mean", "references")


class ForeignWeights(dict[str, Tensor]):
    """Weights by their original names; those that are never read are tracked."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        for key, value in weights.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_complex():
                raise CheckpointError(f"{name}: {key!r} is not a tensor of real numbers")
            if value.nbytes > value.untyped_storage().nbytes():
                raise CheckpointError(f"{name}: {key!r} repeats one number to look large")
        if sum(value.nbytes for value in weights.values()) > MAX_FILE_BYTES:
            raise CheckpointError(
                f"{name} repeats its tensors until they are too large for a model"
            )
        super().__init__({key: value.detach() for key, value in weights.items()})
        self.unread = set(weights)

    def __getitem__(self, key: str) -> Tensor:
        self.unread.discard(key)
        return super().__getitem__(key)

    def check_all_read(self, ignored: str, name: str) -> None:
        """Raise `CheckpointError` if a weight was not read and does not match ``ignored``."""
        extra = [key for key in self.unread if not re.fullmatch(ignored, key)]
        if extra:
            raise CheckpointError(
                f"{name} contains weights that its model does not have: {_listed(extra)}"
            )


def interleaved_to_blocks(weight: Tensor) -> Tensor:
    """Reorder the rows of a weight [3 F, K] or a bias [3 F] from [F, 3] to [3, F]."""
    return weight.reshape(-1, 3, *weight.shape[1:]).transpose(0, 1).reshape(weight.shape)


def stack_linears(theirs: Mapping[str, Tensor], block: str, indices: tuple[int, ...]) -> Tensor:
    """Stack the weights of three ``linears_tensor`` into one `IrrepLinear` weight [3, F, F]."""
    return torch.stack([theirs[f"{block}.linears_tensor.{m}.weight"] for m in indices])


def build_model(
    config: TensorNetConfig, state: Mapping[str, Tensor], scale: Mapping[str, Tensor], name: str
) -> TensorNet:
    """Build a model from the given weights, in evaluation mode.

    The shapes that decide the model's size are checked before its memory is allocated.

    Parameters
    ----------
    config : TensorNetConfig
        The architecture; a `TensorNet2Config` makes a `TensorNet2`.
    state : mapping of str to Tensor
        All weights by their names in `TensorNet`, without the energy scale. Those of the model's
        uncertainty may be missing.
    scale : mapping of str to Tensor
        The energy scale in eV: ``std``, ``mean`` and ``references``.
    name : str
        Name of the file in error messages.

    Returns
    -------
    TensorNet
        In float64 if the weights are in float64, otherwise in float32, which represents lower
        precisions exactly.

    Raises
    ------
    CheckpointError
        If names or shapes do not match exactly, or a weight or energy is not finite in float32.
    """
    channels = config.hidden_channels
    sizes: dict[str, tuple[int, ...]] = {
        "embedding.pair.weight": (channels, 2 * channels),
        "embedding.radial.weight": (3 * channels, config.num_rbf),
    }
    for k in range(config.num_layers):
        sizes[f"layers.{k}.tensor_in.weight"] = (3, channels, channels)
        sizes[f"layers.{k}.radial.0.weight"] = (channels, config.edge_features)
    for key, shape in sizes.items():
        _check_shape(state[key], shape, key, name)
    dtype = torch.promote_types(state["embedding.pair.weight"].dtype, torch.float32)
    model = model_of(config).to(dtype)
    _allocate_uncertainty(model, state, name)
    _load_weights(model, state, name)
    for key in SCALE:
        value, own = scale[key], getattr(model, key)
        if value.numel() != own.numel():
            raise CheckpointError(
                f"{name}: {key} must be {own.numel()} numbers, not {value.numel()}"
            )
        _check_numbers(value, key, name)
        setattr(model, key, value.double().reshape(own.shape))
    _check_energies(model, name)
    return model.eval()


def _allocate_uncertainty(model: TensorNet, state: Mapping[str, Tensor], name: str) -> None:
    """Give a model the buffers of its uncertainty, if the weights have them."""
    key, limit = UNCERTAINTY
    if key not in state:
        return
    readout, given = model.readout, state[key]
    n_rows = len(given) if given.ndim == 2 else 0
    if not 0 < n_rows <= MAX_CHANNELS:
        raise CheckpointError(
            f"{name}: {key} has shape {list(given.shape)}, expected 1 to {MAX_CHANNELS} rows"
        )
    readout.uncertainty = torch.zeros(n_rows, readout.head.last_channels, dtype=model.dtype)
    if limit in state:
        _check_shape(state[limit], (), limit, name)
        _check_numbers(state[limit], limit, name)
        if not float(state[limit]) > 0:
            raise CheckpointError(f"{name}: {limit} must be above 0, not {float(state[limit]):g}")
        readout.uncertainty_limit = torch.zeros((), dtype=model.dtype)


def _load_weights(model: TensorNet, state: Mapping[str, Tensor], name: str) -> None:
    expected = {key: v.shape for key, v in model.state_dict().items() if key not in SCALE}
    missing, extra = expected.keys() - state.keys(), state.keys() - expected.keys()
    if missing or extra:
        raise CheckpointError(
            f"{name} does not match its own description: missing {_listed(missing)}, "
            f"unexpected {_listed(extra)}"
        )
    for key, shape in expected.items():
        _check_shape(state[key], shape, key, name)
        _check_numbers(state[key], key, name)
    model.load_state_dict(dict(state), strict=False)


def _check_energies(model: TensorNet, name: str) -> None:
    """Compute a chain of all elements in float32, because finite weights may still overflow."""
    elements = model.config.elements
    numbers = torch.tensor((*elements, elements[0]))
    atoms = torch.arange(len(numbers))
    ends = torch.cat([atoms[1:], atoms[:-1]]), torch.cat([atoms[:-1], atoms[1:]])
    graph = Graph.from_pairs(*ends, torch.zeros(len(ends[0]), 3, dtype=torch.int64), len(numbers))
    positions = atoms[:, None] * torch.tensor([min(1.5, model.cutoff / 2), 0.0, 0.0])
    single = model if model.dtype == torch.float32 else copy.deepcopy(model).float()
    if single.uses_mesh:  # the same network and charges, without a cell
        (single,) = members_of(with_coulomb(single, "reaction-field"))
    with torch.no_grad():
        vectors = graph.vectors(positions, None, None).float()
        found = single.atom_results(numbers, vectors, graph, torch.zeros(len(numbers)))
    results = {"energies": found.energies, "uncertainties": found.uncertainty}
    for kind, values in results.items():
        if values is not None and not torch.isfinite(values).all():
            raise CheckpointError(f"{name}: the {kind} of its model are not finite in float32")


def _check_shape(value: Tensor, shape: tuple[int, ...], key: str, name: str) -> None:
    if value.shape != shape:
        raise CheckpointError(
            f"{name}: {key} has shape {list(value.shape)}, expected {list(shape)}"
        )


def _check_numbers(value: Tensor, key: str, name: str) -> None:
    if not value.is_floating_point():
        raise CheckpointError(f"{name}: {key} is {value.dtype}, not a floating-point tensor")
    if not torch.isfinite(value.float()).all():
        raise CheckpointError(
            f"{name}: {key} contains NaN, infinity, or a number too large for float32"
        )


def _listed(names: Iterable[str]) -> str:
    """List names in a message, at most five of them."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return ", ".join(repr(name) for name in ordered[:5]) + more or "nothing"
