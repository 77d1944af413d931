"""Record the launches of Triton kernels without a GPU, and compile them for any GPU.

Arguments, types, alignments and options come from the launchers, so the code compiled here is the
code that runs on the GPU. ``TRITON_INTERPRET`` must not be set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from mlff_triton._common import availability
from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.alignment import lanes
from mlff_triton.kernels.common import early_launch, hardware
from mlff_triton.kernels.numerics import rounding

KIB = 1024
TARGETS: dict[str, tuple[GPUTarget, int]] = {
    # target, and shared memory per program in bytes
    "sm_80": (GPUTarget("cuda", 80, 32), 163 * KIB),
    "sm_89": (GPUTarget("cuda", 89, 32), 99 * KIB),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * KIB),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 * KIB),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * KIB),
    "gfx950": (GPUTarget("hip", "gfx950", 64), 160 * KIB),
}


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, with its positional and keyword arguments."""

    kernel: JITFunction[Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return str(self.kernel.fn.__name__)


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Collect launches with tensors on any device instead of running them.

    Launches of all threads are collected, so no other thread may need results during this.

    Yields
    ------
    list of Launch
        Filled as launchers are called. The outputs of launchers stay uninitialized.

    Raises
    ------
    BackendError
        If ``TRITON_INTERPRET`` is set, which makes kernels that cannot be compiled.

    Examples
    --------
    >>> import torch
    >>> from mlff_triton.kernels.ops.irrep_norms import irrep_norms
    >>> with recorded_launches() as launches:
    ...     _ = irrep_norms(torch.ones(9, 2, 8))
    >>> [launch.name for launch in launches]
    ['_irrep_norms_fwd_kernel']
    """
    if triton.knobs.runtime.interpret:
        raise BackendError("kernels cannot be recorded under TRITON_INTERPRET=1: unset it")
    launches: list[Launch] = []

    def record(
        kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any
    ) -> None:
        del grid, warmup
        launches.append(Launch(kernel, args, options))

    with (
        mock.patch.object(JITFunction, "run", record),
        mock.patch.object(availability, "launch_anywhere", new=True),
    ):
        yield launches


def compile_launch(launch: Launch, target: str) -> triton.compiler.CompiledKernel:
    """Compile a recorded launch to machine code, as its first run on the GPU would.

    Parameters
    ----------
    launch : Launch
        From `recorded_launches`.
    target : {"sm_80", "sm_89", "sm_90", "sm_100", "gfx942", "gfx950"}
        Architecture of the GPU.

    Raises
    ------
    InputError
        If the target is unknown.
    BackendError
        If the kernel needs more shared memory than the target has.
    """
    return _compiled(*_source(launch, target), target)


def compile_distinct(
    cases: Mapping[str, Callable[[], object]], target: str, *, largest: bool = False
) -> Iterator[tuple[str, str, str | None]]:
    """Record all cases, and compile each distinct kernel once.

    Parameters
    ----------
    cases : mapping of str to callable
        Functions that call operators, by name.
    target : str
        As for `compile_launch`.
    largest : bool
        Compile the largest source of each kernel, and the largest with each type of
        floating-point values and each option that is a word, such as a precision. Only translate
        the others to Triton's intermediate representation, which takes a tenth of the time. It
        checks types and shapes of all sources; shared memory and machine code are checked for the
        largest, but not for each combination of options.

    Yields
    ------
    tuple of str, str and (str or None)
        Names of the case and the kernel, and the error if the kernel did not compile.
    """
    found: dict[tuple[str, str], tuple[str, ASTSource, dict[str, Any]]] = {}
    for case, call in cases.items():
        with _choices_for(target), recorded_launches() as launches:
            call()
        for launch in launches:
            source, options = _source(launch, target)
            found.setdefault((source.hash(), str(options)), (case, source, options))
    sources = [source for _, source, _ in found.values()]
    compiled = {id(source) for source in (_largest(sources) if largest else sources)}
    for case, source, options in found.values():
        error = _error(source, options, target, to_machine_code=id(source) in compiled)
        yield case, source.fn.fn.__name__, error


def _largest(sources: list[ASTSource]) -> Iterable[ASTSource]:
    """Return the largest source of each kernel, and of its sources that share a type or word."""
    chosen: dict[tuple[object, ...], ASTSource] = {}
    for source in sorted(sources, key=_size):
        types = re.findall(r"\b(?:fp|bf)\d+\w*", " ".join(map(str, source.signature.values())))
        words = [each for each in source.constants.items() if isinstance(each[1], str)]
        chosen |= dict.fromkeys([(source.fn, each) for each in (None, *types, *words)], source)
    return {id(source): source for source in chosen.values()}.values()


def _size(source: ASTSource) -> int:
    return math.prod(abs(n) for n in source.constants.values() if isinstance(n, int) and n)


@contextmanager
def _choices_for(target: str) -> Iterator[None]:
    """Make launchers choose as on a given GPU, by vendor, shared memory and capabilities."""
    gpu, shared_memory = TARGETS[target]
    hip = "6" if gpu.backend == "hip" else None
    early = gpu.backend == "cuda" and gpu.arch >= 90
    with (
        mock.patch("torch.version.hip", hip),
        mock.patch.object(hardware, "shared_memory", return_value=shared_memory),
        mock.patch.object(rounding, "architecture", return_value=target),
        mock.patch.object(hardware, "has_tensor_memory", return_value=gpu.arch == 100),
        mock.patch.object(early_launch, "launches_early", return_value=early),
        mock.patch.object(lanes, "packs", return_value=early or hip is not None),
    ):
        yield


def _source(launch: Launch, target: str) -> tuple[ASTSource, dict[str, Any]]:
    """Return the source and options that `JITFunction.run` would compile for a target."""
    if target not in TARGETS:
        raise InputError(f"target={target!r} is unknown: use one of {', '.join(TARGETS)}")
    kernel = launch.kernel
    backend = make_backend(TARGETS[target][0])
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, given = bind(*launch.args, debug=False, **launch.options)
    options, signature, constants, attributes = kernel._pack_args(
        backend, launch.options, bound, specialization, given
    )
    return ASTSource(kernel, signature, constants, attributes), options.__dict__


def _compiled(
    source: ASTSource, options: dict[str, Any], target: str
) -> triton.compiler.CompiledKernel:
    gpu, shared_memory = TARGETS[target]
    compiled = triton.compile(source, target=gpu, options=options)
    if compiled.metadata.shared > shared_memory:
        raise BackendError(
            f"{source.fn.fn.__name__} needs {compiled.metadata.shared} bytes of shared memory, "
            f"but {target} has {shared_memory}: use smaller blocks or fewer stages"
        )
    return compiled


def _translate(source: ASTSource, options: dict[str, Any], target: str) -> None:
    """Translate a kernel to Triton's intermediate representation, the first step of compilation."""
    gpu, _ = TARGETS[target]
    backend, context = make_backend(gpu), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    parsed = backend.parse_options(options)
    functions = backend.get_codegen_implementation(parsed)
    source.make_ir(gpu, parsed, functions, backend.get_module_map(), context)


def _error(
    source: ASTSource, options: dict[str, Any], target: str, *, to_machine_code: bool
) -> str | None:
    """Return the error that compiling a kernel raises, or what is wrong with its code, or None."""
    try:
        if not to_machine_code:
            _translate(source, options, target)
            return None
        compiled = _compiled(source, options, target)
    except Exception as error:  # noqa: BLE001 - compilers raise many types, and all are reported
        return f"{type(error).__name__}: {error}"
    return early_access(compiled.asm.get("ptx", ""))


def early_access(ptx: str) -> str | None:
    """Return the first access to global memory before the wait for the previous kernel, or None."""
    before, wait, _ = ptx.partition("griddepcontrol.wait")
    found = re.search(r"\b(ld|st|atom|red|cp|prefetch)\.\S*global.*", before)
    return f"before the wait for the previous kernel: {found.group()}" if wait and found else None
