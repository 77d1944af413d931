"""TensorNet force fields, protein language models and sequence alignment on Triton kernels.

Public names, listed in ``__init__.pyi``, are imported on first use, so `import mlff_triton` is fast
and needs no GPU or Triton.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
