"""Plain attributes of modules that adapters watch, and those that they do not."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from mlff_triton.bio.core import settings, weights
from mlff_triton.bio.models.families import FAMILIES, Adapter

ADAPTERS = [adapter for family in FAMILIES for adapter in (*family.models, *family.parts)]
SHARED = {"structure": ("boltz", "openfold3", "protenix")}


def sources(adapter: Adapter) -> str:
    """Return the code of an adapter's package, and of what it shares with others."""
    room = Path(inspect.getfile(adapter)).parent
    rooms = [room, *(room.parent / name for name, users in SHARED.items() if room.name in users)]
    files = [
        Path(inspect.getfile(weights)),
        *(path for each in rooms for path in each.glob("*.py")),
    ]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_watched_attributes_are_read(adapter):
    """A change of an attribute that nobody reads would not be followed."""
    code = sources(adapter)
    reads = r"\.{0}\b|get(attr)?\([^)]*\"{0}\""
    unread = [name for name in adapter.watches if not re.search(reads.format(name), code)]
    assert not unread


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_attributes_are_declared(adapter):
    assert adapter.watches_all or adapter.watches
    assert not {*adapter.watches} & {*settings.UNREAD}
