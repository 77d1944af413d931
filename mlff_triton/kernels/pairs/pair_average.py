"""Averages of the rows of an alignment, weighted by pairs of tokens.

    x = norm(m)      v = V x      w_ij = softmax_j(B norm'(z_ij))
    m_si <- m_si + O ((sum_j w_ij v_sj) sigmoid(G x_si))

The averages of all sequences are one product of matrices per head, which a library computes. The
kernel before it normalizes the alignment and writes its values token by token. The kernel after it
computes the gates and adds the update in place.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 10 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.pairs.arguments import check_rows, head_width
from mlff_triton.kernels.pairs.gated_update import gated_update_
from mlff_triton.kernels.pairs.projections import Projection, project_rows
from mlff_triton.kernels.pairs.types import AverageWeights


def pair_average_(
    msa: Tensor, z: Tensor, weights: AverageWeights, mask: Tensor | None = None
) -> Tensor:
    """Update an alignment by averages weighted by pairs in place, without gradients.

    Parameters
    ----------
    msa : [B, S, N, C]
        Alignment of S sequences, contiguous; float32, or of the dtype of the weights. C is at most
        512.
    z : [B, N, N, P]
        Pairs with contiguous channels; float32, or of the dtype of the weights. P is at most 512.
    weights : AverageWeights
        Weights, float16, bfloat16 or float32. Products have this precision, and sums float32.
    mask : [B, N, N], optional
        Nonzero for pairs whose second token is averaged; all by default. Tokens without such pairs
        get the average over all tokens.

    Returns
    -------
    [B, S, N, C]
        ``msa``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or ``msa`` is not contiguous.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> msa, z = torch.randn(1, 5, 7, 16, device="cuda"), torch.randn(1, 7, 7, 32, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> pair_norm = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda"), 1e-5
    >>> value, gate, out = torch.randn(3, 16, 16, device="cuda") / 4
    >>> bias = torch.randn(2, 32, device="cuda") / 4
    >>> weights = AverageWeights(norm, pair_norm, value, gate, bias, out)
    >>> pair_average_(msa, z, weights).shape
    torch.Size([1, 5, 7, 16])
    """
    heads, dim = _check(msa, z, weights, mask)
    if not msa.numel():
        return msa
    batches, depth, n, _ = msa.shape
    norm, pair_norm, value, gate, bias, out = weights
    # Logits are float32, because half precision would make the softmax inaccurate.
    logits = torch.empty(batches, heads, n, n, dtype=torch.float32, device=z.device)
    project_rows(z, pair_norm, [Projection(bias, logits.movedim(1, 3)[..., None])])
    if mask is not None:
        logits.masked_fill_((mask == 0)[:, None], torch.finfo(torch.float32).min)
    shares = logits.softmax(-1).to(value.dtype)
    values = value.new_empty(batches, heads, n, depth, dim)
    project_rows(msa, norm, [Projection(value, values.permute(0, 3, 2, 1, 4))])
    averages = (shares @ values.flatten(3)).view_as(values).permute(0, 3, 2, 1, 4)
    return gated_update_(msa, averages, norm, gate, out)


def _check(msa: Tensor, z: Tensor, weights: AverageWeights, mask: Tensor | None) -> tuple[int, int]:
    """Return the numbers of heads and of their channels, or raise unless all tensors fit."""
    check_shape("msa", msa, ("B", "S", "N", "C"))
    batches, _, n, _ = msa.shape
    check_shape("z", z, (batches, n, n, "P"))
    check_rows("msa", msa, weights.value)
    check_device(msa, z)
    if mask is not None:
        check_device(msa, mask)
        check_shape("mask", mask, (batches, n, n))
    heads = len(weights.bias)
    return heads, head_width("values", len(weights.value), heads)
