"""Accelerated protein language models, and sequence alignment.

``bio.accelerate(model)`` makes a model faster in place, ``bio.restore(model)`` undoes it, and
``bio.top_tokens(model, ...)`` returns the most likely tokens without writing all logits.
``bio.align(queries, targets)`` aligns pairs of sequences, and ``bio.embed_files(fasta, out,
model=...)`` embeds the proteins of a file. ``bio.dock(model, complexes, ...)`` docks many
ligands at once by DiffDock. All names, listed in ``__init__.pyi``, are loaded on first use.

- ``patch``: `accelerate`, `accelerated`, `restore`, `refresh` and `report`
- ``core``: parts that all adapters share
- ``models``: the models that `accelerate` recognizes, one package each
- ``alignment``: sequence alignment
- ``docking``: docking of many ligands at once
- ``embedding``: embeddings of all proteins in a file
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
