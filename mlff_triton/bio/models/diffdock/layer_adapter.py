"""Adapter for the convolutions of DiffDock, of all its models and releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.core.operators import convolution_operators
from mlff_triton.bio.models.diffdock.convolution import Group, convolve
from mlff_triton.bio.models.diffdock.edges import Edges, mean_factors
from mlff_triton.bio.models.diffdock.structure import ARGUMENTS, is_layer
from mlff_triton.bio.models.diffdock.weights import Convolution
from mlff_triton.kernels.convolution.protocol import ConvolutionOperators

WATCHED = ("eps",)
"""Attributes of normalizations, which may change."""

PRECISION = "other precisions than that of the parameters are not supported"


class Layer(NamedTuple):
    """A convolution for a backend."""

    weights: Convolution
    operators: ConvolutionOperators


class ConvolutionForward(FastForward[Layer]):
    """A convolution of DiffDock: network of the edges, product, mean, normalization and residual.

    No weight of an edge is ever stored. Indices that are out of range give NaN.
    """

    supported = "convolutions of DiffDock"
    watches = WATCHED

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a convolution with its own classes and products of known irreps."""
        return is_layer(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's original ``forward`` would return."""
        given = dict(zip(self._names, args, strict=False)) | kwargs
        features = given.get("edge_attr")
        if not isinstance(features, list):
            return super().__call__(*args, **kwargs)
        named = {f"edge_attr {i}": x for i, x in enumerate(features)}  # so that tensors are seen
        return self.serve(
            lambda _, begun: self.compute(given, begun),
            lambda *_, **__: self.original(*args, **kwargs),
            (),
            given | named,
        )

    def read(self) -> Layer:
        """Read the present weights."""
        return Layer(Convolution.of(self.module, self.dtype), convolution_operators(self.backend))

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse precisions other than the parameters', and arguments of other kinds."""
        if self.parameter.dtype != self.dtype:
            return PRECISION
        given: list[Any] = [arguments.get(name) for name in ARGUMENTS[:4]]
        node, index, features, harmonics = given
        groups = features if isinstance(features, list) else [features]
        if isinstance(features, list) != (getattr(self.module, "edge_groups", 1) > 1):
            return "features of edges are not one tensor for each group of edges"
        rows = (node, harmonics, *groups)
        if not all(isinstance(x, Tensor) and x.ndim == 2 for x in (*rows, index)):
            return "an argument is not a tensor with two axes"
        if any(x.dtype != self.dtype for x in rows) or index.dtype != torch.int64:
            return "arguments are not of the dtype of the parameters, or indices are not int64"
        if any(x.device != self.parameter.device for x in (*rows, index)):
            return "arguments are on other devices than the parameters"
        return self._misfit(arguments, [len(x) for x in groups])

    def _misfit(self, arguments: Mapping[str, Any], sizes: list[int]) -> str | None:
        """Return what does not fit together, if anything."""
        n_edges = sum(sizes)
        if len(arguments["edge_index"]) != 2 or n_edges != arguments["edge_index"].shape[1]:
            return "the numbers of edges do not agree"
        if n_edges != len(arguments["edge_sh"]):
            return "the numbers of edges do not agree"
        if not len(arguments["node_attr"]):
            return "there are no nodes"
        if not n_edges and type(self.module).__name__ == "OldTensorProductConvLayer":
            return "there are no edges"
        weight = arguments.get("edge_weight", 1.0)
        if isinstance(weight, Tensor):
            if weight.shape not in ((n_edges, 1), (1, 1), ()):
                return "weights of edges are not of the shape [edges, 1]"
        elif not isinstance(weight, int | float):
            return "weights of edges are not a tensor or a number"
        if arguments.get("reduce", "mean") not in ("mean", "sum"):
            return "only means and sums over edges are supported"
        return None

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Tensor:
        """Return the nodes after the convolution, [receivers, columns]."""
        del begun
        layer, ops = self.weights
        node, index, features, harmonics = (arguments[name] for name in ARGUMENTS[:4])
        groups = features if isinstance(features, list) else [features]
        sizes = [len(each) for each in groups]
        any_edges = sum(sizes) > 0
        n_out = int(arguments.get("out_nodes") or len(node))
        if not any_edges and layer.skips_norm:
            n_out = len(node)  # as in the original
        weighted = harmonics * arguments.get("edge_weight", 1.0)
        edges = [Edges.of(p[0], p[1], n_out, len(node)) for p in index.split(sizes, 1)]
        factors = mean_factors(edges, node.dtype, mean=arguments.get("reduce", "mean") == "mean")
        parts = zip(edges, weighted.split(sizes), factors, groups, strict=True)
        found = [Group(e, h[e.order] * f, node, x[e.order]) for e, h, f, x in parts]
        return layer.finish(convolve(ops, layer, found), node, any_edges=any_edges)
