"""Reading the machine code of kernels."""

from __future__ import annotations

import pytest

from mlff_triton.testing.launches import early_access

WAIT = "griddepcontrol.wait;"


@pytest.mark.parametrize(
    "access",
    [
        "ld.global.b32 r1, [rd1];",
        "@p1 st.global.v4.b32 [rd1], r1;",
        "cp.async.ca.shared.global [r1], [rd1];",
    ],
)
def test_accesses_before_the_wait_are_found(access: str) -> None:
    found = early_access(f"{access}\n{WAIT}\n")
    assert found is not None
    assert access.split()[-1] in found
    assert early_access(f"{WAIT}\n{access}\n") is None


def test_kernels_that_do_not_wait_may_do_anything() -> None:
    assert early_access("ld.global.b32 r1, [rd1];") is None


def test_constants_in_global_memory_are_no_accesses() -> None:
    assert early_access(f".global .align 1 .b8 name[2] = {{95, 95}};\n{WAIT}") is None
