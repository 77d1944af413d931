"""Fixtures with TorchMD-NET, the reference of these tests."""

from tests.support.torchmd_net import dtype, plain, torchmdnet

__all__ = ["dtype", "plain", "torchmdnet"]
