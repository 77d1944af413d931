"""Times of a kernel on pairs with other block sizes, under sustained load.

Usage: ``python -m benchmarks.bio.sweep transition 64,32,4,2,168 64,64,4,2 --tokens 1000``. A choice
has the values of the named tuple that the kernel's launcher asks for, in its order; the launcher's
own choice is measured, too. Times are those of the operator that launches the kernel, with pairs
and weights of one dtype.

A GPU that grows hot lowers its clocks, so that the first of several choices would seem the fastest.
Here they take turns, and each is held for a tenth of a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.bio.pairs import CHANNELS, DTYPES, HEADS, OPERATORS, OURS, Call
from mlff_triton._common.devices import find_device
from mlff_triton._common.timing import synchronize
from mlff_triton.errors import InputError, MlffTritonError
from mlff_triton.kernels.pairs.types import TriangleAttentionWeights

Choice = tuple[int, ...]


class Kernel(NamedTuple):
    """A kernel whose block sizes can be chosen.

    Attributes
    ----------
    module : str
        Module with its launcher, in `mlff_triton.kernels.pairs`.
    method : str
        Class method that chooses for the launcher.
    prepare : callable
        Prepares a call of an operator for a number of tokens, a device and a dtype.
    """

    module: str
    method: str
    prepare: Callable[[int, torch.device, torch.dtype], Call]

    @property
    def sizes(self) -> Any:
        """Named tuple of block sizes and options."""
        return import_module(f"mlff_triton.kernels.pairs.{self.module}").Tile


def _ours(name: str) -> Callable[[int, torch.device, torch.dtype], Call]:
    operator = OPERATORS[name]
    return lambda n, device, dtype: operator.ways[OURS](operator.setup(n, device), dtype)


def _attention_update(n: int, device: torch.device, dtype: torch.dtype) -> Call:
    from mlff_triton.kernels.pairs.attention_update import triangle_attention_  # imports Triton

    def weight(n_out: int) -> Tensor:
        return torch.randn(n_out, CHANNELS, device=device, dtype=dtype) * CHANNELS**-0.5

    norm = torch.ones(CHANNELS, device=device), torch.zeros(CHANNELS, device=device), 1e-5
    weights = TriangleAttentionWeights(
        norm, *(weight(width) for width in (*[CHANNELS] * 4, HEADS, CHANNELS))
    )
    z = torch.randn(1, n, n, CHANNELS, device=device, dtype=dtype)
    return lambda: triangle_attention_(z, weights)


KERNELS = {
    "factors": Kernel("triangle_multiplication", "of_factors", _ours("triangle-multiplication")),
    "update": Kernel("triangle_multiplication", "of_update", _ours("triangle-multiplication")),
    "projections": Kernel("projections", "of", _attention_update),
    "attention": Kernel("pair_attention", "of", _ours("triangle-attention")),
    "gated": Kernel("gated_update", "of", _attention_update),
    "transition": Kernel("transition", "of", _ours("transition")),
}


def parse(kernel: Kernel, text: str) -> Choice:
    """Read a choice, numbers between commas.

    Raises
    ------
    InputError
        If it is anything else, or has too few or too many numbers.
    """
    fields, optional = kernel.sizes._fields, len(kernel.sizes._field_defaults)
    values = text.split(",")
    if not all(value.isdecimal() for value in values) or not (
        len(fields) - optional <= len(values) <= len(fields)
    ):
        raise InputError(f"{text!r} is not a choice: give {', '.join(fields)}, with commas between")
    return tuple(map(int, values))


@contextmanager
def chosen(kernel: Kernel, choice: Choice | None) -> Iterator[None]:
    """Let a launcher take a choice; its own for None."""
    if choice is None:
        yield
    else:
        sizes = kernel.sizes(*choice)
        with patch.object(kernel.sizes, kernel.method, lambda *_: sizes):
            yield


def sweep(
    kernel: Kernel,
    call: Call,
    choices: Sequence[Choice],
    device: torch.device,
    rounds: int = 5,
    seconds: float = 0.1,
) -> dict[Choice | None, list[float]]:
    """Return the times of all choices that work, and of the launcher's own (None), in ms."""

    def call_all() -> None:
        for choice in choices:
            with chosen(kernel, choice):
                call()

    if device.type == "cuda":
        from mlff_triton.kernels.common.compilation import compile_ahead  # imports Triton

        compile_ahead(call_all)
    working = [choice for choice in choices if _works(kernel, call, choice)]
    times: dict[Choice | None, list[float]] = {choice: [] for choice in (None, *working)}
    for _ in range(rounds):
        for each, found in times.items():
            with chosen(kernel, each):
                found.append(_sustained(call, device, seconds))
    return times


def _works(kernel: Kernel, call: Call, choice: Choice) -> bool:
    """Return True if a call with a choice works; otherwise, say why not."""
    try:
        with chosen(kernel, choice):
            call()
    except Exception as problem:  # noqa: BLE001 - Triton has many, for blocks that do not fit
        print(f"{choice}: {str(problem).splitlines()[0]}", file=sys.stderr)
        return False
    return True


def _sustained(call: Call, device: torch.device, seconds: float) -> float:
    """Return the time of a call among others in a row, in ms."""

    def elapsed(count: int) -> float:
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(device)
        return (time.perf_counter() - begin) / count

    return elapsed(max(1, int(seconds / elapsed(1)))) * 1e3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times of choices named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bio.sweep", description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("choices", nargs="*", metavar="CHOICE", help="such as 64,32,4,2")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    kernel = KERNELS[given.kernel]
    try:
        choices = [parse(kernel, text) for text in given.choices]
        device = find_device(given.device)
        with torch.inference_mode():
            call = kernel.prepare(given.tokens, device, DTYPES[given.precision])
            times = sweep(kernel, call, choices, device)
    except MlffTritonError as error:
        parser.error(str(error))
    print(f"{'median ms':>10} {'least':>8} {'most':>8}  {', '.join(kernel.sizes._fields)}")
    for choice, found in sorted(times.items(), key=lambda each: median(each[1])):
        name = "the launcher's own" if choice is None else ", ".join(map(str, choice))
        print(f"{median(found):10.4f} {min(found):8.4f} {max(found):8.4f}  {name}")


if __name__ == "__main__":
    main()
