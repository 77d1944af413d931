"""Descriptions of tensor products, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.convolution.clebsch_gordan import coupling, wigner_3j
from mlff_triton.kernels.convolution.types import TensorProduct, read_irreps
from tests.kernels.convolution.cases import CHANNELWISE, MIXED, SCALARS

S, V = 48, 10  # channels of DiffDock


@pytest.mark.parametrize(
    ("node", "output", "n_weights"),
    [
        (f"{S}x0e", f"{S}x0e + {V}x1o", 2784),
        (
            f"{S}x0e + {V}x1o + {V}x1e + {S}x0o",
            f"{S}x0e + {V}x1o + {V}x1e + {S}x0o",
            7128,
        ),
    ],
)
def test_has_the_weights_of_diffdock(node, output, n_weights):
    assert TensorProduct.of(node, "1x0e + 1x1o + 1x2e", output).n_weights == n_weights


def test_irreps_are_read_as_e3nn_writes_them():
    assert read_irreps("48x0e+10x1o + 2e") == ((48, 0, 1), (10, 1, -1), (1, 2, 1))
    assert read_irreps("") == ()


@pytest.mark.parametrize("product", [MIXED, CHANNELWISE, SCALARS])
def test_text_describes_a_product_completely(product):
    again = TensorProduct.parse(product.text)
    assert (again, hash(again)) == (product, hash(product))
    assert len(coupling(product)) == product.n_matrix


def test_symbols_are_invariant(transform):
    """A transformation of all three sides changes nothing."""
    for degrees in ((1, 1, 2), (1, 2, 3), (2, 2, 1), (3, 3, 2)):
        sides = [transform(read_irreps(f"{degree}e")) for degree in degrees]
        symbols = wigner_3j(*degrees)
        turned = torch.einsum("abc,ai,bj,ck->ijk", symbols, *sides)
        torch.testing.assert_close(turned, symbols, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("irreps", "message"),
    [
        ("48x0x", "'48x0x' is not an irrep"),
        ("3x0e + x1o", "'x1o' is not an irrep"),
        ("0x1o", "'0x1o' has the multiplicity 0"),
    ],
)
def test_refuses_irreps_by_name(irreps, message):
    with pytest.raises(InputError, match=message):
        TensorProduct.of(irreps, "1x0e", "1x0e")


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ((0, 0, 0, "uuu", True), "instructions of mode 'uuu' are not supported"),
        ((0, 0, 0, "uvw", False), "instruction 0 has no weights"),
        ((0, 0, 7, "uvw", True), "instruction 0 names irrep 7 of output, which has 3"),
        ((-1, 0, 0, "uvw", True), "instruction 0 names irrep -1 of node"),
        ((0, 0, 1, "uvw", True), "instruction 0 is impossible: 2x0e times 1x0e does not contain"),
        ((1, 0, 2, "uvw", True), "connects 1x4e, 1x0e and 1x4e: degrees above 3 are not supported"),
        ((0, 0, 0, "uvu", True), "instruction 0 is uvu: 2x0e and 3x0e need the same multiplicity"),
        ((0, 0, 0, "uvw", True, -1.0), "instruction 0 has the path weight -1.0"),
        ((0, 0, 0, "uvw", True, float("nan")), "instruction 0 has the path weight nan"),
    ],
)
def test_refuses_instructions_by_name(instruction, message):
    with pytest.raises(InputError, match=message):
        TensorProduct.of("2x0e + 1x4e", "1x0e", "3x0e + 3x1o + 1x4e", [instruction])


def test_refuses_mixed_modes_and_unknown_norms():
    both = [(0, 0, 0, "uvw", True), (0, 0, 0, "uvu", True)]
    with pytest.raises(InputError, match="both uvw and uvu is not supported"):
        TensorProduct.of("2x0e", "1x0e", "2x0e", both)
    with pytest.raises(InputError, match="irrep_normalization='l2' is unknown"):
        TensorProduct.of("2x0e", "1x0e", "2x0e", irrep_normalization="l2")
    with pytest.raises(InputError, match="path_normalization='l2' is unknown"):
        TensorProduct.of("2x0e", "1x0e", "2x0e", path_normalization="l2")
