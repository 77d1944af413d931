from __future__ import annotations

import gc

import pytest

from mlff_triton._common.garbage import garbage_kept


@pytest.fixture(params=[True, False])
def enabled(request):
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_the_last_user_switches_collection_on_again(enabled):
    """The first one may end before, as in another thread."""
    for _ in range(2):
        garbage_kept.__enter__()
        assert not gc.isenabled()
    garbage_kept.__exit__()
    assert not gc.isenabled()
    garbage_kept.__exit__()
    assert gc.isenabled() == enabled
