from __future__ import annotations

import pytest

from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.reference import edge_convolution as reference
from tests.kernels.convolution.cases import CHANNELWISE, MIXED, SCALARS, inputs
from tests.support.operators import assert_matches


@pytest.mark.parametrize("product", [MIXED, CHANNELWISE, SCALARS], ids=["uvw", "uvu", "scalars"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_agrees_with_the_reference_to_second_order(product, reduce, device, dtype):
    given = inputs(product, [3, 0, 2], 5, device).to(dtype)
    assert_matches(edge_convolution, reference.edge_convolution, *given, product, reduce)
