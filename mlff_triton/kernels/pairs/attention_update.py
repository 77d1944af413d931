"""Updates of pairs and of tokens by gated attention with biases of pairs.

Triangle attention of pairs z, along rows (starting node) or columns (ending node):

    x = norm(z)      q, k, v, b = W x
    starting   o_ij = sum_k softmax_k(q_ij . k_ik / sqrt(D) + b_jk) v_ik
    ending     o_ij = sum_k softmax_k(q_ij . k_kj / sqrt(D) + b_ki) v_kj
    z_ij <- z_ij + O (o_ij sigmoid(G x_ij))

Attention of tokens s has the same equations, with one row of tokens per sample. Samples share
biases, which are given.

One kernel normalizes rows and writes queries, keys, values and biases so that the keys of a query
are contiguous, for columns of pairs, too. Another kernel computes the attention, and a third one
computes the gates and adds the update in place. Neither normalized rows nor gates are stored,
unless tokens are wide: then a library multiplies all of them by all maps at once.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 14, 15 and 24 of the
supplement.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.pairs.arguments import (
    FLOATS,
    check_norm,
    check_rows,
    head_width,
)
from mlff_triton.kernels.pairs.attention_vectors import empty_operands, empty_vectors
from mlff_triton.kernels.pairs.gated_update import gated_update_
from mlff_triton.kernels.pairs.pair_attention import attention_of_operands, score_unit
from mlff_triton.kernels.pairs.projections import Projection, project_rows
from mlff_triton.kernels.pairs.types import TokenAttentionWeights, TriangleAttentionWeights
from mlff_triton.kernels.pairs.wide_layers import is_wide, wide_attention_
from mlff_triton.kernels.types.norm import Norm


def triangle_attention_(
    z: Tensor,
    weights: TriangleAttentionWeights,
    mask: Tensor | None = None,
    *,
    ending: bool = False,
    bias_of_ending: Literal["key", "query"] = "key",
) -> Tensor:
    """Update pairs by triangle attention in place, without gradients.

    Parameters
    ----------
    z : [B, N, N, C]
        Pairs, contiguous; float32, or of the dtype of the weights. C is at most 512.
    weights : TriangleAttentionWeights
        Weights, float16, bfloat16 or float32. Products have this precision, and sums float32.
    mask : [B, N, N], optional
        Nonzero for pairs that are kept as keys; all by default. The output of queries without any
        is zero.
    ending : bool
        Attend along columns instead of rows.
    bias_of_ending : {"key", "query"}
        Pair whose bias is added at the ending node, for the query (i, j) and the key (k, j): (k, i)
        with "key", as in AlphaFold 3, Boltz and Protenix; (i, k) with "query", as in OpenFold3.

    Returns
    -------
    [B, N, N, C]
        ``z``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or ``z`` is not contiguous.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> z = torch.randn(1, 7, 7, 16, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> maps = [torch.randn(n, 16, device="cuda") / 4 for n in (16, 16, 16, 16, 2, 16)]
    >>> triangle_attention_(z, TriangleAttentionWeights(norm, *maps)).shape
    torch.Size([1, 7, 7, 16])
    """
    check_shape("z", z, ("B", "N", "N", "C"))
    batches, n, _, channels = z.shape
    check_shape("z", z, (batches, n, n, channels))
    check_rows("z", z, weights.query)
    if bias_of_ending not in ("key", "query"):
        raise InputError(f"bias_of_ending={bias_of_ending!r} is unknown: use 'key' or 'query'")
    if mask is not None:
        check_device(z, mask)
        check_shape("mask", mask, (batches, n, n))
    norm, query, key, value, gate, bias, out = weights
    check_shape("bias", bias, ("H", channels))
    biases = query.new_empty(batches, len(bias), n, n)
    pairs = biases.mT if ending and bias_of_ending == "query" else biases
    x = z.transpose(1, 2) if ending else z
    y = _attend(
        x,
        TokenAttentionWeights(norm, query, key, value, gate, out),
        biases,
        mask.transpose(1, 2) if mask is not None and ending else mask,
        Projection(bias, pairs.movedim(1, 3)[..., None], scale=score_unit(bias.dtype)),
    )
    gated_update_(x, y, norm, gate, out)
    return z


def token_attention_(
    s: Tensor, bias: Tensor, weights: TokenAttentionWeights, mask: Tensor | None = None
) -> Tensor:
    """Update tokens by attention with biases of pairs in place, without gradients.

    Parameters
    ----------
    s : [B, R, N, C]
        Tokens of R samples that share their biases, contiguous; float32, or of the dtype of the
        weights. C is at most 512.
    bias : [B, H, N, N]
        Biases of queries and keys, for example from `pair_biases`, finite, of a floating dtype.
    weights : TokenAttentionWeights
        Weights, float16, bfloat16 or float32. Products have this precision, and sums float32. In
        float32, linear maps of more than 128 channels follow PyTorch's setting of TF32.
    mask : [B, R, N], optional
        Nonzero for tokens that are kept as keys; all by default.

    Returns
    -------
    [B, R, N, C]
        ``s``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or ``s`` is not contiguous.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> s, bias = torch.randn(1, 5, 7, 16, device="cuda"), torch.randn(1, 2, 7, 7, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> maps = torch.randn(5, 16, 16, device="cuda") / 4
    >>> token_attention_(s, bias, TokenAttentionWeights(norm, *maps)).shape
    torch.Size([1, 5, 7, 16])
    """
    check_shape("s", s, ("B", "R", "N", "C"))
    check_rows("s", s, weights.query)
    check_shape("bias", bias, (len(s), "H", s.shape[2], s.shape[2]))
    _check_maps(s, weights)
    head_width("queries", len(weights.query), bias.shape[1])
    if is_wide(s, len(weights.query)):
        return wide_attention_(s, bias, weights, mask)
    y = _attend(s, weights, bias, mask)
    return gated_update_(s, y, weights.norm, weights.gate, weights.out)


def pair_biases(z: Tensor, norm: Norm, weight: Tensor, shift: Tensor | None = None) -> Tensor:
    """Compute biases of queries and keys from pairs, without gradients.

    Parameters
    ----------
    z : [B, N, N, C]
        Pairs with contiguous channels; float32, or of the dtype of the weight. C is at most 512.
    norm : Norm
        Normalization of the pairs.
    weight : [H, C]
        Map of normalized pairs to biases, float16, bfloat16 or float32. Heads of several layers
        can be computed together.
    shift : [H], optional
        Added to the biases.

    Returns
    -------
    [B, H, N, N]
        Biases, of the dtype of the weight.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    check_shape("z", z, ("B", "N", "N", "C"))
    batches, n, others, channels = z.shape
    check_shape("weight", weight, ("H", channels))
    biases = weight.new_empty(batches, len(weight), n, others)
    project_rows(z, norm, [Projection(weight, biases.movedim(1, 3)[..., None], shift)])
    return biases


def _check_maps(s: Tensor, weights: TokenAttentionWeights) -> None:
    """Check that the weights of `token_attention_` fit one another and the tokens."""
    norm, query, key, value, gate, out, query_bias = weights
    maps = {"query": query, "key": key, "value": value, "gate": gate}
    check_same(FLOATS, {**maps, "out": out})
    check_norm("norm", norm, s)
    check_shape("query", query, ("H D", s.shape[-1]))
    for name, weight in maps.items():
        check_shape(name, weight, query.shape)
    check_shape("out", out, query.shape[::-1])
    if query_bias is not None:
        check_shape("query_bias", query_bias, query.shape[:1])


def _attend(
    x: Tensor,
    weights: TokenAttentionWeights,
    bias: Tensor,
    mask: Tensor | None,
    bias_map: Projection | None = None,
) -> Tensor:
    """Return the attention outputs [B, R, S, H, D] of rows x [B, R, S, C].

    Biases are given, or written by ``bias_map`` in the unit of scores.
    """
    norm, query, key, value, _, _, query_bias = weights
    heads = bias.shape[1]
    dim = head_width("queries", len(query), heads)
    shape = (*x.shape[:3], heads, dim)
    unit = score_unit(query.dtype)
    q, k, v = empty_vectors(query, shape), empty_operands(key, shape), empty_operands(value, shape)
    maps = [
        Projection(query, q, query_bias, dim**-0.5 * unit),
        Projection(key, k.parts, unit=k.unit),
        Projection(value, v.parts, unit=v.unit),
    ]
    project_rows(x, norm, maps if bias_map is None else [*maps, bias_map])
    bias_scale = unit if bias_map is None else 1.0
    return attention_of_operands(q, k, v, bias, mask, scale=1.0, bias_scale=bias_scale)
