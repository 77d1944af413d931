"""Models of biology made faster in place, and put back exactly."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from mlff_triton.bio.encoders.fair_esm import ESM2Forward
from mlff_triton.bio.encoders.huggingface import EncoderForward, HeadForward
from mlff_triton.bio.encoders.motifs import MOTIFS, looks_like_encoder
from mlff_triton.bio.forward import BACKENDS, PRECISIONS, FastForward, Options, check_backend
from mlff_triton.errors import InputError, UnsupportedModelError

Adapter = type[FastForward[Any]]
ADAPTERS: tuple[Adapter, ...] = (EncoderForward, HeadForward, ESM2Forward)

Model = TypeVar("Model", bound=nn.Module)


def accelerate(
    model: Model,
    *,
    precision: str | None = None,
    cuda_graph: bool | str = "auto",
    backend: str = "auto",
    strict: bool = False,
) -> Model:
    """Let a model compute faster, this instance only, until `restore`.

    Its answers stay what they were, to rounding; padding comes out as zero. No class, no module
    and no other instance is touched, and parameters, ``state_dict``, ``to``, ``half``,
    ``deepcopy`` and ``torch.save`` stay as they are. Whatever a fast forward does not serve, such
    as gradients, training, hooks or ``output_attentions``, the model computes itself, and says so
    once by a `FallbackWarning`.

    Parameters
    ----------
    model : torch.nn.Module
        Holds something that is known: ESM-2, ESM-1b or BERT of Hugging Face's transformers (4.5x
        or 5.x) with any head, or ESM-2 of fair-esm. Changed in place.
    precision : {"fp16", "bf16", "fp32"}, optional
        What to compute in; by default in the dtype of the parameters, which stay as they are, as
        does the dtype of what comes out.
    cuda_graph : bool or "auto"
        Whether to replay a CUDA graph for every shape that comes again; "auto" leaves out batches
        so large that it would gain nothing.
    backend : {"auto", "triton", "torch"}
        "triton" for kernels, which need a GPU; "torch" for the same in PyTorch on any device;
        "auto" for kernels on a GPU, and the model itself on a CPU.
    strict : bool
        Of a model that is not known as a whole the known parts are replaced if it looks like a
        Transformer encoder: layers, attention, networks and normalizations. True refuses that.

    Returns
    -------
    torch.nn.Module
        The model itself. To call this again changes the options.

    Raises
    ------
    UnsupportedModelError
        If nothing in the model is known. It is left as it was.
    BackendError
        If kernels are asked for and there is no GPU, or no Triton.
    InputError
        If an option is unknown.

    Examples
    --------
    >>> model = EsmModel.from_pretrained("facebook/esm2_t33_650M_UR50D").eval().cuda()
    >>> bio.accelerate(model, precision="fp16")
    >>> with torch.inference_mode():
    ...     hidden = model(**tokens).last_hidden_state
    """
    _check("precision", precision, (None, *PRECISIONS))
    _check("cuda_graph", cuda_graph, ("auto", True, False))
    _check("backend", backend, BACKENDS)
    first = next(model.parameters(), torch.empty(0))
    check_backend(backend, first.device)
    looks = any(_looks_at_first_token(module) for module in model.modules())
    options = Options(precision, cuda_graph, backend, looks)
    parts = list(_parts(model, ADAPTERS, set()))
    if not parts and not strict and looks_like_encoder(model):
        parts = list(_parts(model, MOTIFS, set()))
    if not parts:
        known = ", ".join(adapter.supported for adapter in ADAPTERS)
        raise UnsupportedModelError(f"{type(model).__name__} holds nothing known: {known}")
    restore(model)
    for module, adapter in parts:
        module.forward = adapter(module, options)
    return model


def _looks_at_first_token(module: nn.Module) -> bool:
    """Whether a model of transformers classifies, or pools, by the first token of a sequence."""
    return hasattr(module, "classifier") or getattr(module, "pooler", None) is not None


def _check(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        names = ", ".join(map(repr, known))
        raise InputError(f"{name}={value!r} is unknown: use one of {names}")


def _parts(
    module: nn.Module, adapters: tuple[Adapter, ...], seen: set[nn.Module]
) -> Iterator[tuple[nn.Module, Adapter]]:
    """Modules that an adapter fits, each once, and nothing inside of them."""
    if module in seen:
        return
    seen.add(module)
    adapter = next((adapter for adapter in adapters if adapter.fits(module)), None)
    if adapter is not None:
        yield module, adapter
        return
    for child in module.children():
        yield from _parts(child, adapters, seen)


def restore(model: Model) -> Model:
    """Undo `accelerate`, bit for bit; does nothing to other models."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, FastForward):
            forward.undo()
    return model


@contextmanager
def accelerated(model: Model, **options: Any) -> Iterator[Model]:
    """Accelerate a model within a ``with`` statement; then it is again what it was before."""
    before = {m: vars(m)["forward"] for m in model.modules() if "forward" in vars(m)}
    accelerate(model, **options)
    try:
        yield model
    finally:
        restore(model)
        for module, forward in before.items():
            module.forward = forward


class Part(NamedTuple):
    """A part of a model that was replaced.

    Attributes
    ----------
    path : str
        Where it is in the model.
    module : str
        Its class.
    by : str
        What computes now.
    state : str
        Whether it does, or why its own ``forward`` was called last.
    """

    path: str
    module: str
    by: str
    state: str


class Report(list[Part]):
    """The parts of a model; prints as a table."""

    def __rich__(self) -> Table:
        table = Table(*(name.capitalize() for name in Part._fields))
        for part in self:
            table.add_row(*part)
        return table

    def __str__(self) -> str:
        page = io.StringIO()
        Console(width=120, file=page).print(self)
        return page.getvalue()


def report(model: nn.Module) -> Report:
    """What `accelerate` has replaced, by what, and why something computes as it is."""
    parts = Report()
    for path, module in model.named_modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, FastForward):
            state = forward.state
            parts.append(Part(path or ".", type(module).__name__, forward.describe(), state))
    return parts
