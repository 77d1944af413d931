"""Fixtures to run kernels on a GPU if there is one, else under Triton's interpreter."""

from tests.support.kernel_fixtures import device, dtype, loops, poisoned, unchecked_sums

__all__ = ["device", "dtype", "loops", "poisoned", "unchecked_sums"]
