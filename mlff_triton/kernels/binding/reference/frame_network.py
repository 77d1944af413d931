"""The part of a Transformer layer after attention, in all frames, in plain PyTorch.

x_f = x + sum_k s_kf y_k X_k
x_f <- norm(x_f + attended_f O + o)
x_f <- norm'(x_f + relu(x_f U + u) D + d)
out = mean_f(x_f)
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.binding.reference.frame_attention import in_frames
from mlff_triton.kernels.binding.types import FrameNetwork, Tokens
from mlff_triton.kernels.ops.reference.layer_norm import layer_norm


def frame_network(
    tokens: Tokens, attended: Tensor, n_tokens: Tensor, directions: Tensor, network: FrameNetwork
) -> Tensor:
    """Compute `mlff_triton.kernels.binding.frame_network.frame_network`, in any dtype.

    The weights of the network are [inputs, outputs].
    """
    del n_tokens
    x = in_frames(tokens.embedded, tokens.coordinates, directions[0])
    x = layer_norm(x + attended @ network.out.weight + network.out.bias, *network.norm)
    hidden = (x @ network.up.weight + network.up.bias).relu()
    x = layer_norm(x + hidden @ network.down.weight + network.down.bias, *network.last_norm)
    return x.mean(1)
