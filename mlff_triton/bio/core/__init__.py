"""Code that the adapters of all models share: recognition, replacement, fallbacks, and graphs.

- ``fast_forward``: base class of everything that replaces a module's ``forward``; fallbacks
- ``replacement``: a ``forward`` that is set on one instance, and its exact reversal
- ``recognition``: classes, sources and submodules of the modules that an adapter knows
- ``snapshot``: detection of changed parameters, submodules, settings and hooks
- ``settings``: plain attributes of modules, and changes of those that an adapter does not watch
- ``plain_tensors``, ``contexts``: weights and contexts that only the original forward supports
- ``value_check``: checks of tensors' values that do not keep the GPU waiting
- ``weights``: weights of modules, read in float64
- ``packing``: packing of padded batches, so that padding is not computed
- ``labels``: losses whose labels count at padding
- ``first_launch``: compilation of kernels side by side, before their first launch
- ``graph_cache``: CUDA graphs, one per combination of input shapes
- ``operators``: operators of a backend
"""
