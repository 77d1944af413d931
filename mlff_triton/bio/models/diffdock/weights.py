"""Weights of DiffDock's convolutions, laid out for the operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.weights import converted, exact, exact_linear
from mlff_triton.kernels.convolution.clebsch_gordan import wigner_3j
from mlff_triton.kernels.convolution.types import (
    Irrep,
    Irreps,
    Path,
    TensorProduct,
    columns_of,
)
from mlff_triton.kernels.types.linear import Linear

ACTIVATIONS = {nn.ReLU: "relu", nn.SiLU: "silu"}
"""Names of the functions between the linear maps of a network."""


class Network(NamedTuple):
    """Network from the features of an edge to its weights.

    Attributes
    ----------
    layers : list of Linear
        All maps but the last; the activation follows each of them.
    last : Linear
        Map to the weights of the tensor product.
    activation : str
        Name of the activation.
    """

    layers: list[Linear]
    last: Linear
    activation: str


class Normalization(NamedTuple):
    """Batch normalization in evaluation mode, by columns: ``x scale + shift``.

    Attributes
    ----------
    scale, shift : [columns]
        Factors and terms.
    """

    scale: Tensor
    shift: Tensor


class Convolution(NamedTuple):
    """A convolution of DiffDock.

    Attributes
    ----------
    product : TensorProduct
        Product of nodes and harmonics.
    networks : list of Network
        Networks of the groups of edges, or one for all.
    mix : [product columns, columns] or None
        Map that follows a product without sums over channels.
    norm : Normalization or None
        Normalization of the result.
    is_residual : bool
        True if nodes are added to the result.
    adds_first : bool
        True if nodes are added before the normalization, not after it.
    skips_norm : bool
        True if the result is not normalized where there are no edges at all.
    """

    product: TensorProduct
    networks: list[Network]
    mix: Tensor | None
    norm: Normalization | None
    is_residual: bool
    adds_first: bool
    skips_norm: bool

    @classmethod
    def of(cls, layer: Any, dtype: torch.dtype) -> Convolution:
        """Read a layer's weights, in a dtype."""
        fc = layer.fc
        is_new = hasattr(layer, "edge_groups")
        found = cls(
            product=read_product(layer.tp),
            networks=[_network(each) for each in (fc if isinstance(fc, nn.ModuleList) else [fc])],
            mix=_mix(layer.linear_2) if getattr(layer, "depthwise", False) else None,
            norm=None if layer.batch_norm is None else _normalization(layer.batch_norm),
            is_residual=layer.residual,
            adds_first=not is_new,
            skips_norm=is_new,
        )
        return converted(found, dtype)

    @property
    def columns(self) -> int:
        """Number of columns of the product."""
        return columns_of(self.product.output)

    def finish(self, sums: Tensor, node: Tensor, *, any_edges: bool = True) -> Tensor:
        """Return the result [N, columns] from the means over edges, and the nodes of the layer."""
        if self.mix is not None:
            sums = sums @ self.mix
        norm = self.norm if any_edges or not self.skips_norm else None
        if self.is_residual and self.adds_first:
            sums = added(sums, node)
        if norm is not None:
            sums = torch.addcmul(norm.shift, sums, norm.scale)
        if self.is_residual and not self.adds_first:
            sums = added(sums, node)
        return sums


def read_irreps(irreps: Any) -> Irreps:
    """Convert e3nn's irreps to ours."""
    return tuple(Irrep(count, irrep.l, irrep.p) for count, irrep in irreps)


def read_product(module: Any) -> TensorProduct:
    """Return the tensor product of e3nn or of DiffDock that a module computes."""
    if hasattr(module, "weight_shapes"):
        return _faster_product(module)
    instructions = module.instructions
    modes = {each.connection_mode for each in instructions}
    return TensorProduct(
        read_irreps(module.irreps_in1),
        read_irreps(module.irreps_in2),
        read_irreps(module.irreps_out),
        modes.pop() if modes else "uvw",
        tuple(Path(i.i_in1, i.i_in2, i.i_out, float(i.path_weight)) for i in instructions),
    )


TERMS = {
    "0e": (("0e", 0), ("1o", 1)),
    "1o": (("0e", 1), ("1o", 0), ("1e", 1)),
    "1e": (("1o", 1), ("1e", 0), ("0o", 1)),
    "0o": (("1e", 1), ("0o", 0)),
}
"""Terms of DiffDock's own product by its output: input, and degree of the harmonic."""


def _faster_product(module: Any) -> TensorProduct:
    """Return DiffDock's own product of degree 1, with weights in the order of outputs."""
    node, output = read_irreps(module.in_irreps), read_irreps(module.out_irreps)
    harmonics = (Irrep(1, 0, 1), Irrep(1, 1, -1))
    at = {str(irrep).partition("x")[2]: i for i, irrep in enumerate(node)}
    to = {str(irrep).partition("x")[2]: i for i, irrep in enumerate(output)}
    paths = [
        Path(at[first], degree, to[out], _factor(module, output[to[out]], out))
        for out, terms in TERMS.items()
        for first, degree in terms
        if out in to and first in at
    ]
    return TensorProduct(node, harmonics, output, "uvw", tuple(paths))


def _factor(module: Any, output: Irrep, name: str) -> float:
    n_terms: int = module.weight_shapes[name][0]
    return float((output.width / n_terms) ** 0.5)


def bond_product(module: Any) -> Tensor:
    """Return the product of two harmonics without weights as a table [S, 5, outputs], float64."""
    first, second, out = map(read_irreps, (module.irreps_in1, module.irreps_in2, module.irreps_out))
    starts = [_starts(irreps) for irreps in (first, second, out)]
    table = torch.zeros([each[-1] for each in starts], dtype=torch.float64)
    for i in module.instructions:
        chosen = first[i.i_in1], second[i.i_in2], out[i.i_out]
        ends = [
            slice(start[at], start[at] + irrep.columns)
            for start, at, irrep in zip(starts, i[:3], chosen, strict=True)
        ]
        symbols = wigner_3j(*(irrep.degree for irrep in chosen))
        table[tuple(ends)] += i.path_weight * symbols
    return table


def _network(sequence: Any) -> Network:
    maps = [exact_linear(part) for part in sequence if isinstance(part, nn.Linear)]
    return Network(maps[:-1], maps[-1], ACTIVATIONS[type(sequence[1])])


def _mix(linear: Any) -> Tensor:
    """Return e3nn's linear map as one matrix [inputs, outputs], in float64."""
    inputs, outputs = read_irreps(linear.irreps_in), read_irreps(linear.irreps_out)
    starts_in, starts_out = _starts(inputs), _starts(outputs)
    weight = exact(linear.weight)
    mix = weight.new_zeros(starts_in[-1], starts_out[-1])
    start = 0
    for instruction in linear.instructions:
        first, second = inputs[instruction.i_in], outputs[instruction.i_out]
        size = first.count * second.count
        own = weight[start : start + size].view(first.count, second.count)
        block = torch.kron(own * instruction.path_weight, torch.eye(first.width).to(own))
        row, column = starts_in[instruction.i_in], starts_out[instruction.i_out]
        mix[row : row + first.columns, column : column + second.columns] += block
        start += size
    return mix


def _starts(irreps: Irreps) -> list[int]:
    starts = [0]
    for irrep in irreps:
        starts.append(starts[-1] + irrep.columns)
    return starts


def _normalization(norm: Any) -> Normalization:
    """Return e3nn's batch normalization; its even scalars have a mean and a bias."""
    scale = exact(norm.weight) * (exact(norm.running_var) + norm.eps).rsqrt()
    widths, is_scalar = [], []
    for count, width, scalar in norm.irs:
        widths += [width] * count
        is_scalar += [scalar] * count
    shift = torch.zeros_like(scale)
    scalars = torch.tensor(is_scalar, device=scale.device)
    shift[scalars] = exact(norm.bias) - exact(norm.running_mean) * scale[scalars]
    repeats = torch.tensor(widths, device=scale.device)
    return Normalization(*(x.repeat_interleave(repeats) for x in (scale, shift)))


def added(sums: Tensor, node: Tensor) -> Tensor:
    """Add nodes [N, ...], which may have fewer columns."""
    missing = sums.shape[-1] - node.shape[-1]
    return sums + (nn.functional.pad(node, (0, missing)) if missing else node)
