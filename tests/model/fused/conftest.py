"""Fixtures to run kernels on a GPU if there is one, else under Triton's interpreter."""

from tests.support.kernel_fixtures import bounded, device, dtype, loops, poisoned, unchecked_sums
from tests.support.quick_interpreter import quick_interpreter

__all__ = ["bounded", "device", "dtype", "loops", "poisoned", "quick_interpreter", "unchecked_sums"]
