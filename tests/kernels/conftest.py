"""Tests here run kernels: on the GPU if there is one, and otherwise under Triton's interpreter."""

from tests.support.kernel_fixtures import device, dtype, loops, poisoned, unchecked_sums

__all__ = ["device", "dtype", "loops", "poisoned", "unchecked_sums"]
