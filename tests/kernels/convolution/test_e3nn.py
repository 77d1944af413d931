"""The references compute what e3nn computes, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mlff_triton.kernels.convolution.reference.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.testing import assert_close
from tests.kernels.convolution.cases import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    o3 = pytest.importorskip("e3nn.o3", reason="e3nn is not installed")

QUICK = (Phase.explicit, Phase.generate)  # products take long to make: failures are not shrunk
IRREP = st.builds("{}x{}{}".format, st.integers(1, 3), st.integers(0, 3), st.sampled_from("eo"))
IRREPS = st.lists(IRREP, min_size=1, max_size=3).map(" + ".join)
NORMS = st.fixed_dictionaries(
    {
        "irrep_normalization": st.sampled_from(["component", "norm", "none"]),
        "path_normalization": st.sampled_from(["element", "path", "none"]),
    }
)


def check(product: TensorProduct, peer: torch.nn.Module) -> None:
    """Assert that a product has the weights of e3nn's, and the same mean over edges."""
    assert product.n_weights == peer.weight_numel
    x = inputs(product, [2, 0, 3], 4, "cpu")
    weights = x.hidden @ x.weight + x.bias
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        messages = peer(x.node[x.senders], x.edge_sh, weights)
    expected = torch.stack([messages[:2].mean(0), 0 * messages[0], messages[2:].mean(0)])
    assert_close(edge_convolution(*x, product, "mean"), expected, 0, floor=1e-6)


@pytest.fixture(autouse=True)
def _exact_constants() -> Iterator[None]:
    """Let e3nn compute its constants in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def peer_of(kind: type[torch.nn.Module], *arguments: object, **norms: str) -> torch.nn.Module:
    """Make a tensor product of e3nn in float64."""
    options = {"compile_right": False, "shared_weights": False, "internal_weights": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(*arguments, **norms, **options)


@settings(max_examples=8, phases=QUICK)
@given(IRREPS, IRREPS, IRREPS, NORMS)
def test_all_paths_are_those_of_e3nn(node, harmonics, output, norms):
    product = TensorProduct.of(node, harmonics, output, **norms)
    check(product, peer_of(o3.FullyConnectedTensorProduct, node, harmonics, output, **norms))


@settings(max_examples=5, phases=QUICK)
@given(st.data(), NORMS)
def test_paths_with_weights_are_those_of_e3nn(data, norms):
    node, harmonics = "2x0e + 2x1o + 2x2e", "2x0e + 1x1o + 1x2e"
    output = "2x0e + 2x1o + 2x1e + 2x2e + 2x3o"
    whole = TensorProduct.of(node, harmonics, output)
    mode = data.draw(st.sampled_from(["uvw", "uvu"]))
    paths = data.draw(st.lists(st.sampled_from(whole.paths), min_size=1, max_size=6))
    weights = st.sampled_from([0.5, 1.0, 2.0])
    listed = [(p.node, p.harmonic, p.output, mode, True, data.draw(weights)) for p in paths]
    product = TensorProduct.of(node, harmonics, output, listed, **norms)
    check(product, peer_of(o3.TensorProduct, node, harmonics, output, listed, **norms))
