"""TorchMD-NET as the oracle."""

from tests.support.torchmd_net import dtype, plain, torchmdnet

__all__ = ["dtype", "plain", "torchmdnet"]
