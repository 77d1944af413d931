"""Acceleration of models in place, its exact reversal, and reports."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from mlff_triton._common.availability import check_triton
from mlff_triton._common.text import shortened
from mlff_triton.bio.core.fast_forward import PRECISIONS, FastForward, Options
from mlff_triton.bio.core.labels import LabelGuard
from mlff_triton.bio.core.replacement import Replacement, replacement_of
from mlff_triton.bio.models.families import FAMILIES, Adapter
from mlff_triton.errors import InputError, UnsupportedModelError

BACKENDS = ("auto", "triton", "torch")

_SMALL_REST = 0.25  # share of weights in modules that are not replaced, of which nobody is told
_MOST_NAMES = 8

Model = TypeVar("Model", bound=nn.Module)


class PartsWarning(UserWarning):
    """Only parts of a model are accelerated; the message names the others."""


def accelerate(
    model: Model,
    *,
    precision: str | None = None,
    cuda_graph: bool | str = "auto",
    backend: str = "auto",
    strict: bool = False,
) -> Model:
    """Make one model instance compute faster, until `restore` is called.

    Outputs stay the same up to rounding, except that padding comes out as zero. Classes, modules
    and other instances are not touched, and parameters, ``state_dict``, ``to``, ``half``,
    ``deepcopy`` and ``torch.save`` work as before. Where the fast forward does not apply, for
    example with gradients, training, hooks, a submodule with a ``forward`` of its own, masks with
    values other than 0 and 1, labels that count at padding, or ``output_attentions``, the model
    runs its original forward and gives one `FallbackWarning` with the reason.

    Quantized, sharded and offloaded weights, global hooks, and transforms of `torch.func` have the
    same effect. `torch.export`, `torch.compile` and `torch.jit.trace` record the original forward.

    Changed weights and settings are noticed, except those written to ``parameter.data`` in place
    or within ``torch.inference_mode()`` to parameters that were made there: call `refresh` after
    these.

    Parameters
    ----------
    model : torch.nn.Module
        Model that is or contains ESM-2, ESM-1b or BERT of Hugging Face's transformers (4.50 or
        later), with any head, ESM-2 of fair-esm, Enformer, AlphaGenome, ProteinMPNN, DiffDock,
        DualBind or the blocks of Boltz, OpenFold3 or Protenix. Changed in place.
    precision : {"fp16", "bf16", "fp32"}, optional
        Dtype of the computation; by default, the dtype of the parameters. The dtypes of the
        parameters and of the outputs do not change.
    cuda_graph : bool or "auto"
        If True, capture a CUDA graph for every shape that occurs again, and replay it. "auto"
        excludes batches that are too large to gain anything.
    backend : {"auto", "triton", "torch"}
        "triton" runs Triton kernels, which need a GPU. "torch" runs the same computation in
        PyTorch on any device. "auto" runs kernels on a GPU and the original forward on a CPU.
    strict : bool
        If False, a model that is not supported as a whole but looks like a Transformer encoder
        gets its supported parts replaced: layers, attention, MLPs and layer norms. If True, it is
        refused. Wherever more than a quarter of the weights stay in modules that are not replaced,
        such as the folding trunk of ESMFold, one `PartsWarning` names these modules.

    Returns
    -------
    torch.nn.Module
        The same model. Calling the function again changes the options.

    Raises
    ------
    UnsupportedModelError
        If the model contains nothing that can be accelerated. It is left unchanged.
    BackendError
        If ``backend="triton"`` and there is no GPU, or Triton is not installed.
    InputError
        If an option is unknown, or ``model`` is not a module, such as the name of a model.

    Examples
    --------
    >>> model = EsmModel.from_pretrained("facebook/esm2_t33_650M_UR50D").eval().cuda()
    >>> bio.accelerate(model, precision="fp16")
    >>> with torch.inference_mode():
    ...     hidden = model(**tokens).last_hidden_state
    """
    _check_model(model)
    _check_option("precision", precision, (None, *PRECISIONS))
    _check_option("cuda_graph", cuda_graph, ("auto", True, False))
    _check_option("backend", backend, BACKENDS)
    first = next(model.parameters(), torch.empty(0))
    if backend == "triton" or (backend == "auto" and first.is_cuda):
        check_triton(first.device)
    _refuse_wrapped(model)
    options = Options(precision, cuda_graph, backend)
    matches = _find(model, [adapter for family in FAMILIES for adapter in family.models])
    if not matches and not strict:
        alike = [family for family in FAMILIES if family.resembles(model)]
        matches = _find(model, [adapter for family in alike for adapter in family.parts])
    if not matches:
        _refuse_torchscript(model)
        known = ", ".join(adapter.supported for family in FAMILIES for adapter in family.models)
        raise UnsupportedModelError(
            f"{type(model).__name__} contains no module that can be accelerated: use {known}, "
            "without classes or forward methods of your own inside"
        )
    restore(model)
    for module, adapter in matches:
        adapter(module, options, model).install()
    _guard_labels(model)
    _warn_of_rest(model)
    return model


def _warn_of_rest(model: nn.Module) -> None:
    """Warn if a large part of the computation is not accelerated."""
    rest = _rest(model)
    share = sum(rest.values()) / max(_n_weights(model), 1)
    if share > _SMALL_REST:
        message = (
            f"only parts of {type(model).__name__} are accelerated: the original forward computes "
            f"{_listed(rest)}, which have {share:.0%} of the weights; see bio.report"
        )
        warnings.warn(message, PartsWarning, stacklevel=3)


def _rest(model: nn.Module) -> dict[str, int]:
    """Return the outermost modules in which nothing is replaced, with their numbers of weights."""

    def is_replaced(module: nn.Module) -> bool:
        return isinstance(replacement_of(module), FastForward)

    def search(path: str, module: nn.Module) -> Iterator[tuple[str, int]]:
        if is_replaced(module):
            return
        if not any(map(is_replaced, module.modules())):
            yield path, _n_weights(module)
            return
        for name, child in module.named_children():
            yield from search(f"{path}.{name}".strip("."), child)

    return {path: size for path, size in search("", model) if size}


def _n_weights(module: nn.Module) -> int:
    """Return the number of weights, without those of embeddings, which are only looked up."""
    looked_up = {m.weight for m in module.modules() if isinstance(m, nn.Embedding)}
    return sum(p.numel() for p in module.parameters() if p not in looked_up)


def _listed(rest: Mapping[str, int]) -> str:
    """Name modules, the largest first."""
    paths = sorted(rest, key=lambda path: -rest[path])
    more = len(paths) - _MOST_NAMES
    return ", ".join(paths[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _refuse_wrapped(model: nn.Module) -> None:
    for replacement in _replacements(model):
        if replacement.is_wrapped:
            raise UnsupportedModelError(
                f"the forward of {type(replacement.module).__name__} was wrapped since "
                "bio.accelerate was called, which can still be undone by bio.restore: unwrap it "
                "before you accelerate it again"
            )


def _replacements(model: nn.Module) -> list[Replacement]:
    """Return the replacements of all modules, including those that others have wrapped since."""
    return [found for found in map(replacement_of, model.modules()) if found is not None]


def _refuse_torchscript(model: nn.Module) -> None:
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} is TorchScript, such as the models of chai-lab, whose modules "
            "cannot be replaced: give a model of Python modules"
        )


def _check_model(model: object) -> None:
    if isinstance(model, nn.Module):
        return
    loaded = f"AutoModel.from_pretrained({model!r})" if isinstance(model, str) else "a model"
    raise InputError(
        f"the model must be a torch.nn.Module, not of type {type(model).__name__}: give {loaded}"
    )


def _guard_labels(model: nn.Module) -> None:
    """Guard the modules that compute a loss from the output of an accelerated encoder."""
    for module in model.modules():
        forwards = list(map(replacement_of, module.children()))
        encoders = [f for f in forwards if isinstance(f, FastForward) and f.zeroes_padding]
        if encoders and LabelGuard.is_needed(module):
            LabelGuard(module, encoders[0]).install()


def _check_option(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        names = ", ".join(map(repr, known))
        raise InputError(f"{name}={shortened(repr(value))} is unknown: use one of {names}")


def _find(model: nn.Module, adapters: Sequence[Adapter]) -> list[tuple[nn.Module, Adapter]]:
    """Find the outermost modules that an adapter fits, each with its first such adapter."""
    seen: set[nn.Module] = set()

    def search(module: nn.Module) -> Iterator[tuple[nn.Module, Adapter]]:
        if module in seen:
            return
        seen.add(module)
        adapter = next((adapter for adapter in adapters if adapter.fits(module)), None)
        if adapter is not None:
            yield module, adapter
            return
        for child in module.children():
            yield from search(child)

    return list(search(model))


def restore(model: Model) -> Model:
    """Undo `accelerate` exactly; do nothing to a model that is not accelerated."""
    _check_model(model)
    for module in model.modules():
        replacement = replacement_of(module)
        if replacement is not None:
            replacement.undo(module)
    return model


def refresh(model: Model) -> Model:
    """Make an accelerated model read its weights again at the next call.

    This is needed after changes that PyTorch does not count: changes of ``parameter.data`` in
    place, and changes within ``torch.inference_mode()`` of parameters that were made there.
    `accelerate` notices all others.

    Parameters
    ----------
    model : torch.nn.Module
        Model that `accelerate` has changed; others stay as they are.

    Returns
    -------
    torch.nn.Module
        The same model.

    Examples
    --------
    >>> for parameter, average in zip(model.parameters(), averages):
    ...     parameter.data.copy_(average)
    >>> bio.refresh(model)
    """
    _check_model(model)
    for replacement in _replacements(model):
        if isinstance(replacement, FastForward):
            replacement.refresh()
    return model


@contextmanager
def accelerated(
    model: Model,
    *,
    precision: str | None = None,
    cuda_graph: bool | str = "auto",
    backend: str = "auto",
    strict: bool = False,
) -> Iterator[Model]:
    """Accelerate a model within a ``with`` statement, then return it to its previous state.

    Parameters and errors are those of `accelerate`.
    """
    _check_model(model)
    before = _replacements(model)
    accelerate(model, precision=precision, cuda_graph=cuda_graph, backend=backend, strict=strict)
    try:
        yield model
    finally:
        restore(model)
        for replacement in before:
            replacement.install()


class Part(NamedTuple):
    """One replaced module of a model.

    Attributes
    ----------
    path : str
        Path of the module in the model.
    module : str
        Class of the module.
    by : str
        Backend and dtype that compute instead.
    state : str
        "fast", or the reasons why the module's original ``forward`` ran.
    """

    path: str
    module: str
    by: str
    state: str


class Report(list[Part]):
    """List of the replaced modules of a model; prints as a table, with the rest below.

    Attributes
    ----------
    rest : dict of str to int
        Paths of the outermost modules in which nothing is replaced, and their numbers of weights
        other than embeddings. Modules without such weights are left out.
    """

    def __init__(self, rest: Mapping[str, int]) -> None:
        super().__init__()
        self.rest = dict(rest)

    def __rich__(self) -> Table:
        caption = f"Original forward: {_listed(self.rest)}" if self and self.rest else None
        table = Table(*(name.capitalize() for name in Part._fields), caption=caption)
        for part in self:
            table.add_row(*part)
        return table

    def __str__(self) -> str:
        page = io.StringIO()
        Console(width=120, file=page, force_jupyter=False, force_terminal=False).print(self)
        return page.getvalue()


def report(model: nn.Module) -> Report:
    """List the modules that `accelerate` replaced, their replacements, and any fallbacks.

    Modules that it did not replace are the ``rest`` of the `Report`.
    """
    _check_model(model)
    parts = Report(_rest(model))
    for path, module in model.named_modules():
        forward = replacement_of(module)
        if isinstance(forward, FastForward):
            state = forward.state
            parts.append(Part(path or ".", type(module).__name__, forward.describe(), state))
    return parts
