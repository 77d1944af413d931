"""Irreps, and tensor products of a node's irreps with the spherical harmonics of an edge.

Rows are laid out as in e3nn: one irrep after another, each as [multiplicity, 2 l + 1]. Weights of a
product are stored path after path, in the order of its instructions: [u, v, w] in the mode "uvw",
which connects all channels u of the input, v of the harmonics and w of the output, and [u, v] in
the mode "uvu", which keeps the channels of the input.

Source: M. Geiger, T. Smidt, "e3nn: Euclidean neural networks", https://arxiv.org/abs/2207.09453.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from mlff_triton.errors import InputError

NODE, HARMONICS, HIDDEN, WEIGHT, BIAS = range(5)
"""Positions of the inputs of `edge_convolution` that get gradients."""

MODES = ("uvw", "uvu")
MAX_DEGREE = 3
"""Largest degree l of an irrep that a path may connect."""

_IRREP = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)([eo])")
_IRREP_NORMS = ("component", "norm", "none")
_PATH_NORMS = ("element", "path", "none")

Instruction = tuple[int, int, int, str, bool] | tuple[int, int, int, str, bool, float]
"""Indices of node, harmonics and output, mode, has weights, and path weight (1 by default)."""


class Irrep(NamedTuple):
    """Several copies of an irreducible representation of O(3).

    Attributes
    ----------
    count : int
        Multiplicity.
    degree : int
        Degree l.
    parity : {1, -1}
        1 if even under inversion.
    """

    count: int  # type: ignore[assignment]
    degree: int
    parity: int

    @property
    def width(self) -> int:
        """Number of components, 2 l + 1."""
        return 2 * self.degree + 1

    @property
    def columns(self) -> int:
        """Number of columns of all copies."""
        return self.count * self.width

    def __str__(self) -> str:
        """Return the name in e3nn's notation, such as 48x0e."""
        return f"{self.count}x{self.degree}{'e' if self.parity == 1 else 'o'}"


Irreps = tuple[Irrep, ...]


def read_irreps(text: str) -> Irreps:
    """Read irreps in e3nn's notation, such as ``"48x0e + 10x1o"``.

    Raises
    ------
    InputError
        If a term is not an irrep, or its multiplicity is 0.
    """
    found = []
    for term in text.split("+") if text.strip() else []:
        match = _IRREP.fullmatch(term.strip())
        if match is None:
            raise InputError(
                f"{term.strip()!r} is not an irrep: write, for example, '48x0e + 10x1o'"
            )
        count, degree, parity = match.groups()
        if count is not None and int(count) == 0:
            raise InputError(f"{term.strip()!r} has the multiplicity 0, which is not supported")
        found.append(Irrep(int(count or 1), int(degree), 1 if parity == "e" else -1))
    return tuple(found)


def columns_of(irreps: Irreps) -> int:
    """Return the number of columns of rows with these irreps."""
    return sum(irrep.columns for irrep in irreps)


def first_column(irreps: Irreps, index: int) -> int:
    """Return the first column of the irrep with this index."""
    return columns_of(irreps[:index])


class Path(NamedTuple):
    """One term of a tensor product.

    Attributes
    ----------
    node, harmonic, output : int
        Indices of the irreps.
    factor : float
        Factor of the Wigner 3j symbol, from the normalization.
    """

    node: int
    harmonic: int
    output: int
    factor: float


@dataclass(frozen=True)
class TensorProduct:
    """Tensor product of a node's irreps with the spherical harmonics of an edge.

    Attributes
    ----------
    node, harmonics, output : tuple of Irrep
        Irreps of the nodes, of the edges and of the result.
    mode : {"uvw", "uvu"}
        Connection of channels, which all paths share.
    paths : tuple of Path
        Terms, in the order of their weights.
    """

    node: Irreps
    harmonics: Irreps
    output: Irreps
    mode: str
    paths: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        node: str,
        harmonics: str,
        output: str,
        instructions: Sequence[Instruction] | None = None,
        *,
        irrep_normalization: str = "component",
        path_normalization: str = "element",
    ) -> TensorProduct:
        """Describe a tensor product as ``e3nn.o3.TensorProduct`` does.

        Parameters
        ----------
        node, harmonics, output : str
            Irreps in e3nn's notation.
        instructions : sequence of tuple, optional
            ``(node, harmonic, output, mode, has_weight[, path_weight])``, with the indices of
            irreps. Default: all paths, fully connected.
        irrep_normalization : {"component", "norm", "none"}
            Normalization that inputs and outputs are assumed to have.
        path_normalization : {"element", "path", "none"}
            Normalization of sums over elements and paths.

        Raises
        ------
        InputError
            If irreps, instructions or a normalization are wrong or not supported; the message names
            them.

        Examples
        --------
        >>> TensorProduct.of("48x0e", "1x0e + 1x1o", "48x0e + 10x1o").n_weights
        2784
        """
        _choice("irrep_normalization", irrep_normalization, _IRREP_NORMS)
        _choice("path_normalization", path_normalization, _PATH_NORMS)
        irreps = read_irreps(node), read_irreps(harmonics), read_irreps(output)
        if instructions is None:
            instructions = _all_paths(*irreps)
        mode = _common_mode(instructions)
        paths = [
            _checked(index, instruction, *irreps) for index, instruction in enumerate(instructions)
        ]
        factors = _factors(paths, irreps, mode, irrep_normalization, path_normalization)
        scaled = (path._replace(factor=f) for path, f in zip(paths, factors, strict=True))
        return cls(*irreps, mode, tuple(scaled))

    @classmethod
    def parse(cls, text: str) -> TensorProduct:
        """Return the product that a string in the format of `text` describes."""
        return _parse(text)

    @cached_property
    def text(self) -> str:
        """The product as text, with all digits of its factors."""
        irreps = (" + ".join(map(str, each)) for each in (self.node, self.harmonics, self.output))
        paths = (f"{p.node} {p.harmonic} {p.output} {p.factor!r}" for p in self.paths)
        return " | ".join((*irreps, self.mode, ", ".join(paths)))

    def __hash__(self) -> int:
        """Return the hash of the text, which is computed once."""
        return hash(self.text)

    @cached_property
    def reaches_all(self) -> bool:
        """True if each irrep of the output has a path."""
        return {path.output for path in self.paths} == set(range(len(self.output)))

    @cached_property
    def n_matrix(self) -> int:
        """Number of elements of the coupling matrices of an edge."""
        return sum(
            self.harmonics[p.harmonic].count * self.node[p.node].width * self.output[p.output].width
            for p in self.paths
        )

    @cached_property
    def n_node(self) -> int:
        """Number of columns of a node."""
        return columns_of(self.node)

    @cached_property
    def n_harmonics(self) -> int:
        """Number of columns of the harmonics."""
        return columns_of(self.harmonics)

    @cached_property
    def n_outputs(self) -> int:
        """Number of columns of the output."""
        return columns_of(self.output)

    @cached_property
    def n_weights(self) -> int:
        """Number of weights per edge."""
        return sum(self.weights_of(path) for path in self.paths)

    def weights_of(self, path: Path) -> int:
        """Return the number of weights of a path."""
        channels = self.node[path.node].count * self.harmonics[path.harmonic].count
        return channels * self.output[path.output].count if self.mode == "uvw" else channels


@cache
def _parse(text: str) -> TensorProduct:
    node, harmonics, output, mode, paths = text.split(" | ")
    found = []
    for path in paths.split(", ") if paths else []:
        i, j, k, factor = path.split()
        found.append(Path(int(i), int(j), int(k), float(factor)))
    irreps = read_irreps(node), read_irreps(harmonics), read_irreps(output)
    return TensorProduct(*irreps, mode, tuple(found))


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name}={value!r} is unknown: use {', '.join(known)}")


def _couples(first: Irrep, second: Irrep, third: Irrep) -> bool:
    """Return True if the product of two irreps contains the third."""
    low, high = abs(first.degree - second.degree), first.degree + second.degree
    return low <= third.degree <= high and first.parity * second.parity == third.parity


def _all_paths(node: Irreps, harmonics: Irreps, output: Irreps) -> list[Instruction]:
    return [
        (i, j, k, "uvw", True)
        for i, first in enumerate(node)
        for j, second in enumerate(harmonics)
        for k, third in enumerate(output)
        if _couples(first, second, third)
    ]


def _common_mode(instructions: Sequence[Instruction]) -> str:
    modes = sorted({instruction[3] for instruction in instructions})
    for mode in modes:
        if mode not in MODES:
            raise InputError(f"instructions of mode {mode!r} are not supported: use uvw or uvu")
    if len(modes) > 1:
        raise InputError(
            "a product with both uvw and uvu is not supported: split it into two products"
        )
    return modes[0] if modes else "uvw"


def _checked(
    index: int, instruction: Instruction, node: Irreps, harmonics: Irreps, output: Irreps
) -> Path:
    """Return the path of an instruction, with its path weight as the factor."""
    name = f"instruction {index}"
    i, j, k, mode, has_weight, *rest = instruction
    for which, irreps, at in (
        ("node", node, i),
        ("harmonics", harmonics, j),
        ("output", output, k),
    ):
        if not 0 <= at < len(irreps):
            raise InputError(f"{name} names irrep {at} of {which}, which has {len(irreps)}")
    first, second, third = node[i], harmonics[j], output[k]
    if not has_weight:
        raise InputError(f"{name} has no weights, which is not supported: set has_weight to True")
    if not _couples(first, second, third):
        raise InputError(f"{name} is impossible: {first} times {second} does not contain {third}")
    if max(first.degree, second.degree, third.degree) > MAX_DEGREE:
        raise InputError(
            f"{name} connects {first}, {second} and {third}: degrees above {MAX_DEGREE} are not "
            "supported"
        )
    if mode == "uvu" and first.count != third.count:
        raise InputError(f"{name} is uvu: {first} and {third} need the same multiplicity")
    weight = float(rest[0]) if rest else 1.0
    if not (math.isfinite(weight) and weight >= 0):
        raise InputError(f"{name} has the path weight {weight}: use a finite one of at least 0")
    return Path(i, j, k, weight)


def _factors(
    paths: Sequence[Path],
    irreps: tuple[Irreps, Irreps, Irreps],
    mode: str,
    irrep_normalization: str,
    path_normalization: str,
) -> list[float]:
    """Return the factors of paths by e3nn's normalization, for inputs of variance 1."""
    node, harmonics, output = irreps

    def elements(path: Path) -> int:
        return harmonics[path.harmonic].count * (node[path.node].count if mode == "uvw" else 1)

    def widths(path: Path) -> int:
        if irrep_normalization == "component":
            return output[path.output].width
        if irrep_normalization == "norm":
            return node[path.node].width * harmonics[path.harmonic].width
        return 1

    def terms(path: Path) -> int:
        same = [other for other in paths if other.output == path.output]
        if path_normalization == "element":
            return sum(map(elements, same))
        return elements(path) * len(same) if path_normalization == "path" else 1

    return [math.sqrt(widths(p) * p.factor / (terms(p) or 1)) for p in paths]
