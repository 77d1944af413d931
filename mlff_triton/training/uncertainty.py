"""Uncertainties of a trained model, learned from its training set and calibrated on other data.

    U^T U = alpha^2 (sum h h^T + s^2)^-1      u = |U h|

The sum runs over the last hidden values h of the readout, of all atoms of the training set. This is
the Laplace approximation of the last layer, whose prior s^2 and scale alpha are fitted to the
errors of forces in the validation set (https://doi.org/10.1088/2632-2153/ad805f). The error of a
force counts as a vector of three normally distributed components, whose standard deviation is a
multiple of u: s^2 is the most likely one, or a larger one that is hardly less likely, with which
rounding errors are smaller. Then alpha makes the mean of u that of the errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlff_triton.model.fused import fused
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph
from mlff_triton.training.batches import LISTED, GraphData
from mlff_triton.training.evaluation import Errors, batches_of
from mlff_triton.training.frames import Array

BAD = 0.22
"""Error of a force in eV/Å, 5 kcal/mol/Å, above which a structure counts as badly described."""
FALSE_ALARMS = 0.1
"""Share of the well described structures of the validation set that exceed the limit."""
PRIORS = 10.0 ** np.arange(-6, 2.1, 0.5)
"""Values of s^2 to choose from, relative to the mean eigenvalue of the sum.

With smaller ones, hidden values that hardly vary in the training set would be multiplied by more
than their digits in float32 allow.
"""
AS_LIKELY = 1e-3
"""Difference of logarithms of likelihoods per atom up to which priors count as equally likely."""


@dataclass(frozen=True)
class Reliability:
    """Predicted and actual errors of the forces on N atoms of C structures.

    Attributes
    ----------
    predicted, actual : float64 [N]
        eV/Å.
    start : int64 [C + 1]
        First atom of each structure, with the total at the end.
    """

    predicted: Array
    actual: Array
    start: Array

    @property
    def largest(self) -> tuple[Array, Array]:
        """The largest predicted and actual error of each structure, float64 [C] each."""
        first = self.start[:-1]
        return np.maximum.reduceat(self.predicted, first), np.maximum.reduceat(self.actual, first)

    def limit(self) -> float:
        """Return the predicted error in eV/Å that few of the well described structures exceed.

        If all are badly described, it is one that few of them exceed.
        """
        predicted, actual = self.largest
        is_good = actual <= BAD
        chosen = predicted[is_good] if is_good.any() else predicted
        return float(np.quantile(chosen, 1 - FALSE_ALARMS))

    def flagged(self, limit: float) -> tuple[tuple[int, int], tuple[int, int]]:
        """Count structures that exceed a limit, and all, of the badly and of the well described."""
        predicted, actual = self.largest
        is_bad, above = actual > BAD, predicted > limit
        bad, good = ((int((above & kind).sum()), int(kind.sum())) for kind in (is_bad, ~is_bad))
        return bad, good

    def deciles(self) -> list[tuple[Array, Array]]:
        """Return predicted and actual errors of ten groups of atoms, in the order of the former."""
        order = np.argsort(self.predicted, kind="stable")
        groups = np.array_split(order, min(10, len(order)))
        return [(self.predicted[some], self.actual[some]) for some in groups]


@dataclass(frozen=True)
class Judgement:
    """Comparison of the errors that a model predicts for some structures with those it has.

    Attributes
    ----------
    part : str
        Name of the structures: "test", or "valid" without a test set.
    reliability : Reliability
        Predicted and actual errors.
    limit : float
        Predicted error in eV/Å above which atoms are unlike those of the training set.
    """

    part: str
    reliability: Reliability
    limit: float


def learn_and_judge(
    model: TensorNet,
    data: GraphData,
    parts: tuple[Tensor, Tensor, Tensor],
    errors: Mapping[str, Errors],
) -> Judgement | None:
    """Give a model its uncertainty, and compare it with the errors in the test set.

    Parameters
    ----------
    model : TensorNet
        The trained model. Modified in place.
    data : GraphData
        The structures.
    parts : int64 [n], int64 [n], int64 [n]
        Indices of those to train on, to validate with, and to test with, if there are any.
    errors : dict of Errors
        Errors of the model by "valid" and "test".

    Returns
    -------
    Judgement or None
        None if the model has no uncertainty, see `learn_uncertainty`.
    """
    train, valid, test = parts
    moments = _moments(model, data, train)
    hidden = _kept(model, data, valid)
    if not _learn(model, moments, hidden, errors["valid"]):
        return None
    part = "test" if len(test) else "valid"
    predicted = _predicted(model, _hidden(model, data, test) if len(test) else hidden)
    found = Reliability(predicted, lengths_of(errors[part]), errors[part].frames.start)
    limit = model.uncertainty_limit
    assert limit is not None
    return Judgement(part, found, limit)


def learn_uncertainty(
    model: TensorNet, data: GraphData, train: Tensor, valid: Tensor, errors: Errors
) -> bool:
    """Give a model the map to its uncertainties, and their limit.

    Parameters
    ----------
    model : TensorNet
        The trained model. Modified in place.
    data : GraphData
        The structures.
    train, valid : int64 [n]
        Indices of the structures that the model was trained on, and of others to calibrate with.
    errors : Errors
        Errors of the model on those to calibrate with.

    Returns
    -------
    bool
        False if the errors do not determine a scale, as those of lone atoms, which are all 0. The
        model then has no uncertainty.
    """
    return _learn(model, _moments(model, data, train), _kept(model, data, valid), errors)


def _learn(
    model: TensorNet, moments: tuple[Array, Array], hidden: list[Tensor], errors: Errors
) -> bool:
    """Give a model its uncertainty by the last hidden values of those to calibrate with."""
    forget_uncertainty(model)
    values, vectors = moments
    lengths = lengths_of(errors)
    priors = np.maximum(values.mean(), np.finfo(float).tiny) * PRIORS
    prior = _most_likely(hidden, lengths, (values, vectors, priors))
    if prior is None:
        return False
    weight = vectors.T / np.sqrt(values + prior)[:, None]
    readout = model.readout
    readout.uncertainty = _like(weight, model)
    found = _predicted(model, hidden)
    readout.uncertainty = _like(weight * (lengths.mean() / found.mean()), model)
    calibrated = Reliability(found * (lengths.mean() / found.mean()), lengths, errors.frames.start)
    readout.uncertainty_limit = _like(np.asarray(calibrated.limit()), model)
    return True


def forget_uncertainty(model: TensorNet) -> None:
    """Remove the uncertainty of a model whose weights will change."""
    model.readout.uncertainty = model.readout.uncertainty_limit = None


def lengths_of(errors: Errors) -> Array:
    """Return the sizes of errors of forces in eV/Å, float64 [N]."""
    return np.asarray(np.linalg.norm(errors.forces, axis=1))


def predicted_errors(model: TensorNet, data: GraphData, chosen: Tensor) -> Array:
    """Return the uncertainties of the atoms of some structures in eV/Å, float64 [N]."""
    return _predicted(model, _hidden(model, data, chosen))


def _predicted(model: TensorNet, hidden: Iterable[Tensor]) -> Array:
    """Return the uncertainties of atoms in eV/Å, float64 [N], by batches of last hidden values."""
    device = model.std.device
    found = [model.readout.uncertainty_of(some.to(device)) for some in hidden]
    known = [part.double().cpu() for part in found if part is not None]
    return np.asarray(torch.cat(known).numpy())


def _moments(model: TensorNet, data: GraphData, train: Tensor) -> tuple[Array, Array]:
    """Return eigenvalues [H] and eigenvectors (columns) [H, H] of the sum of h h^T, float64."""
    n_hidden = model.readout.head.last_channels
    total = torch.zeros(n_hidden, n_hidden, dtype=torch.float64, device=model.std.device)
    for hidden in _hidden(model, data, train):
        total += hidden.double().T @ hidden.double()
    values, vectors = np.linalg.eigh(total.cpu().numpy())
    return np.maximum(values, 0), vectors


def _most_likely(
    hidden: list[Tensor], lengths: Array, spectrum: tuple[Array, Array, Array]
) -> float | None:
    """Return the largest of the most likely priors, or None if none has a likelihood."""
    values, vectors, priors = spectrum
    logs, squares = np.zeros(len(priors)), np.zeros(len(priors))
    first = 0
    for some in hidden:
        along = np.square(some.double().numpy() @ vectors)  # [n, H]
        variances = along @ (1 / (values[:, None] + priors))  # [n, priors], up to alpha^2
        errors = lengths[first : first + len(along)]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs += np.log(variances).sum(0)
            squares += (np.square(errors)[:, None] / variances).sum(0)
        first += len(along)
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihoods = -1.5 * (logs + first * np.log(squares))  # for the most likely alpha
    known = np.isfinite(likelihoods)
    if not known.any():
        return None
    least = likelihoods[known].max() - AS_LIKELY * first
    return float(priors[known & (likelihoods >= least)].max())


def _kept(model: TensorNet, data: GraphData, chosen: Tensor) -> list[Tensor]:
    """Return the last hidden values [n, H] of each batch of structures, in memory of the host.

    They are used several times, and fill 4 H bytes per atom in float32.
    """
    return [hidden.cpu() for hidden in _hidden(model, data, chosen)]


def _hidden(model: TensorNet, data: GraphData, chosen: Tensor) -> Iterator[Tensor]:
    """Yield the last hidden values [n, H] of the atoms of each batch of structures."""
    seen: list[Tensor] = []
    handle = model.readout.register_forward_hook(lambda _, __, found: seen.append(found[1]))
    network = fused(model)
    try:
        for some, batch in batches_of(model, data, chosen):
            graph = Graph(**{name: batch[name] for name in LISTED})
            system = batch["batch"]
            vectors = graph.vectors(batch["pos"], batch["cell"], system).to(model.dtype)
            with torch.no_grad():
                network.atom_results(batch["z"], vectors, graph, batch["q"][system], system)
            yield seen.pop()[: data.n_atoms(some)]
    finally:
        handle.remove()


def _like(values: Array, model: TensorNet) -> Tensor:
    """Return values on the device and in the precision of a model."""
    return torch.from_numpy(values).to(model.std.device, model.dtype)
