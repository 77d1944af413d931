"""Base class of adapters for blocks of trunks, which update pairs and tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import Options
from mlff_triton.bio.core.first_launch import before_first_launch
from mlff_triton.bio.core.graph_cache import GraphCache
from mlff_triton.bio.core.recognition import Children, has_structure, is_unmodified
from mlff_triton.bio.models.structure.autocast import AutocastForward
from mlff_triton.bio.models.structure.block_update import (
    BlockUpdate,
    begin_block,
    can_begin,
    graphs_on,
    is_small,
    update_block,
)
from mlff_triton.bio.models.structure.mask_check import MaskCheck, WholeMaskCheck
from mlff_triton.bio.models.structure.packed import Packed
from mlff_triton.bio.models.structure.updates import BlockWeights, check_sizes, prepared, row_dtype
from mlff_triton.kernels.common.hardware import allows_tf32

ROWS = (torch.float32, torch.bfloat16, torch.float16)
Results = tuple[Tensor | None, Tensor]


class Inputs(NamedTuple):
    """Inputs of a block.

    Attributes
    ----------
    s : [..., N, C], [..., S, N, C] or None
        Tokens, or an alignment of S sequences of tokens.
    z : [..., N, N, P]
        Pairs.
    mask : [..., N], [..., S, N] or None
        1 for tokens, 0 for padding.
    pair_mask : [..., N, N] or None
        1 for pairs, 0 for padding.
    in_place : bool
        True if the pairs may be overwritten.
    """

    s: Any
    z: Any
    mask: Any
    pair_mask: Any
    in_place: bool = False


class Names(NamedTuple):
    """Names of the `Inputs` among the arguments of ``forward``; None for those it does not take."""

    s: str = "s"
    z: str = "z"
    mask: str | None = None
    pair_mask: str = "pair_mask"
    in_place: str | None = None


class BlockForward(AutocastForward[Packed]):
    """Block that updates pairs, and tokens or an alignment if it has any.

    Results of pairs with padding differ from those of the original forward. Where other results
    depend on padding, the original forward runs. Chunk sizes and choices of kernels among the
    arguments have no effect. Blocks of few tokens run as CUDA graphs, which blocks of the same
    shapes share.
    """

    sources: ClassVar[tuple[str, ...]]
    """Python modules and packages that the classes come from, as for `is_unmodified`."""

    blocks: ClassVar[tuple[str, ...]]
    """Names of the classes of blocks."""

    known: ClassVar[tuple[Mapping[str, Children], ...]]
    """Submodules of classes of the package, one mapping for each of its versions."""

    names: ClassVar[Names] = Names()
    """Names of arguments."""

    token_axes: ClassVar[int] = 1
    """Number of axes of tokens: 1, or 2 for an alignment."""

    skips_padding: ClassVar[bool] = True
    """If False, tokens depend on padding in the package, so that its pairs must be right, too."""

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._check, self._pair_check = MaskCheck(), MaskCheck()
        self._whole_check = WholeMaskCheck()
        self._graphs: GraphCache | None = None  # kept while there are blocks

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of the package with its own classes throughout."""
        if type(module).__name__ not in cls.blocks or not is_unmodified(module, *cls.sources):
            return False
        return any(has_structure(module, known) for known in cls.known)

    @property
    @abstractmethod
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""

    @abstractmethod
    def collect(self) -> BlockWeights:
        """Read the weights in float64."""

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Find the inputs by name. They may be of any type and may be missing."""
        s, z, mask, pair_mask, in_place = (name and arguments.get(name) for name in self.names)
        return Inputs(s, z, mask, pair_mask, bool(in_place))

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return tokens and pairs as ``forward`` does."""
        return s, z

    @property
    def token_dtype(self) -> torch.dtype:
        """Dtype of the products of tokens."""
        return self.dtype

    def read(self) -> Packed:
        """Read the present weights."""
        weights = self.collect()
        pairs, tokens = weights
        if self.backend == "triton":
            check_sizes(weights)
        return Packed.of(
            BlockWeights(
                prepared(pairs, self.dtype, self.backend),
                None if tokens is None else prepared(tokens, self.token_dtype, self.backend),
            )
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs of unexpected shapes, dtypes or devices, and masks of other values."""
        given = self.inputs(arguments)
        reason = self._shape_refusal(given)
        for check, mask in self._checks(given):
            reason = reason or check.refusal(mask)
        return reason

    def _checks(self, given: Inputs) -> list[tuple[MaskCheck, Tensor]]:
        """Return the masks that are given, each with its check."""
        depends = not self.skips_padding or (self.updates_tokens and given.mask is None)
        checks = self._check, self._whole_check if depends else self._pair_check
        pairs = zip(checks, (given.mask, given.pair_mask), strict=True)
        return [(check, mask) for check, mask in pairs if mask is not None]

    def _shape_refusal(self, given: Inputs) -> str | None:
        s, z, mask, pair_mask, _ = given
        if not isinstance(z, Tensor) or z.dim() < 3 or z.shape[-3] != z.shape[-2]:
            return "pairs are not a tensor [..., N, N, C]"
        if self.updates_tokens and s is None:
            return "there are no tokens"
        tokens = (*z.shape[:-3], *(None,) * (self.token_axes - 1), z.shape[-2])
        shapes = {"tokens": (s, (*tokens, None)), "the mask": (mask, tokens)}
        shapes["the mask of pairs"] = pair_mask, z.shape[:-1]
        for name, (x, shape) in shapes.items():
            if x is None:
                continue
            if not isinstance(x, Tensor) or x.dim() != len(shape):
                return f"{name} are not a tensor of {len(shape)} axes"
            if any(n not in (None, found) for n, found in zip(shape, x.shape, strict=True)):
                return f"{name} and the pairs are of different sizes"
        given_tensors = [x for x in (s, z, mask, pair_mask) if x is not None]
        if any(x.device != self.parameter.device for x in given_tensors):
            return "inputs and parameters are on different devices"
        if any(x is not None and x.dtype not in (*ROWS, self.parameter.dtype) for x in (s, z)):
            return "tokens or pairs are not of a floating dtype"
        return None if z.numel() else "its inputs are empty"

    def begin(self, arguments: Mapping[str, Any]) -> Results | None:
        """Queue the checks of the masks and the computation, unless it overwrites its inputs."""
        given = self.inputs(arguments)
        if given.in_place or self._shape_refusal(given) is not None:
            return None
        if self._reading is None or not self._is_current(self._reading):
            return None
        for check, mask in self._checks(given):
            check.queue(mask)
        return self._run(given)

    def compute(self, arguments: Mapping[str, Any], begun: Results | None) -> Any:
        """Return updated tokens and pairs."""
        s, z = self._run(self.inputs(arguments)) if begun is None else begun
        return self.outputs(s, z)

    def _run(self, given: Inputs) -> Results:
        s, z, mask, pair_mask, in_place = given
        if not self.updates_tokens:
            s = mask = None
        packed, masks, captures = self.weights, (mask, pair_mask), self._is_captured(s, z)
        tokens, pairs = self.result_dtype(z if s is None else s), self.result_dtype(z)
        pair_rows = row_dtype(self.backend, pairs, self.dtype)
        how = BlockUpdate(
            self.backend,
            self.token_axes,
            token_rows=row_dtype(self.backend, tokens, self.token_dtype),
            pair_rows=pair_rows,
            tokens=tokens,
            pairs=pairs,
            places=packed.places,
            tf32=allows_tf32(),
            keeps_pairs=not (captures or in_place),
            begun=captures and can_begin(packed.weights, z, pair_rows),
        )
        if s is not None and not captures:
            s = s.to(how.token_rows, copy=True)
        inputs = [s, z, *masks]

        def launch() -> None:
            """Update a buffer, because PyTorch would add to wide tokens in place."""
            others = None if s is None else torch.empty_like(s)
            update_block(packed.weights, [others, z, *masks], how)

        with self.without_autocast():
            key = how, z.shape, None if s is None else s.shape
            before_first_launch(self.backend, key, z, launch)
            if captures:
                self._graphs = graphs_on(z.device)
                fill = partial(begin_block, packed.weights, inputs, how) if how.begun else None
                found = self._graphs(inputs, how, packed.tensors, fill)
            else:
                found = update_block(packed.weights, inputs, how)
        return (found[0] if len(found) > 1 else given.s), found[-1]

    def _is_captured(self, s: Tensor | None, z: Tensor) -> bool:
        """Return True if a graph is to compute the update."""
        may_be = self.options.captures(self.backend, self.module)
        return may_be and (self.options.cuda_graph is True or is_small(s, z))

    def result_dtype(self, x: Tensor) -> torch.dtype:
        """Return the dtype of a result, for the input that it updates."""
        return x.dtype

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_graphs": None}


class MSABlockForward(BlockForward):
    """Block of an MSA module, which updates an alignment and pairs."""

    token_axes = 2

    @property
    def updates_tokens(self) -> bool:
        """True, for the alignment."""
        return True
