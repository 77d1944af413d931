"""Splice junctions, compared with their references in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics import pair_junctions as kernels
from mlff_triton.kernels.genomics.reference import pair_junctions as reference

ORGANISM = torch.tensor([1, 0])


@pytest.mark.parametrize(("n_sites", "channels"), [(1, 6), (35, 130)])
def test_rotated_sites(n_sites, channels, device):
    x = torch.randn(2, n_sites, channels).half()
    scale, shift = torch.randn(2, 2, 3, channels).half()
    angle = 9 * torch.rand(2, n_sites, channels // 2)
    given = x, scale, shift, angle.cos(), angle.sin()
    exact = reference.rotated_sites(*(t.double() for t in given), ORGANISM)
    found = kernels.rotated_sites(*(t.to(device) for t in (*given, ORGANISM)))
    torch.testing.assert_close(found.cpu().double(), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("n_sites", "n_tissues"), [(1, 1), (11, 67)])
def test_reads(n_sites, n_tissues, device):
    products = (4 * torch.randn(2, n_tissues, n_sites, n_sites)).half()
    sites = torch.randint(-3, 9, (2, 4, n_sites))
    mask = torch.rand(2, n_tissues) < 0.7
    shape = 2, n_sites, n_sites, 2 * n_tissues
    exact, found = torch.zeros(shape).double(), torch.zeros(shape, device=device)
    for strand in range(2):
        some = slice(strand * n_tissues, (strand + 1) * n_tissues)
        given = sites[:, 2 * strand : 2 * strand + 2], mask, ORGANISM
        reference.junction_reads(products.double(), 32.0, *given, exact[..., some])
        moved = (t.to(device) for t in given)
        kernels.junction_reads(products.to(device), 32.0, *moved, found[..., some])
    torch.testing.assert_close(found.cpu().double(), exact, rtol=1e-5, atol=1e-6)


def test_products_beyond_32_bits_are_read(device):
    """The program of the first pairs reads tissue 63 from beyond element 2**31."""
    n_sites, n_tissues, some = 6000, 64, 64
    middle = 2**31  # where offsets that overflow stay within the memory
    size = middle + n_tissues * n_sites**2
    memory = torch.empty(size, dtype=torch.int8, device=device)  # hardly any of it is touched
    rows = torch.arange(n_tissues, device=device)[:, None] * n_sites**2
    pairs = torch.arange(some, device=device)
    expected = torch.randint(1, 9, (n_tissues, some), device=device, dtype=torch.int8)
    products = memory[middle:]
    memory[:some] = 0
    products[rows + pairs] = expected
    zeros = torch.zeros(n_sites, device=device).long()
    ones = torch.ones(1, n_tissues, device=device).bool()
    out = torch.empty(some, n_tissues, device=device)
    kernels._junction_reads_kernel[1, 1, 1](
        *(products, zeros, zeros, ones, zeros, out, n_sites, n_tissues, n_sites, n_tissues),
        FACTOR=1.0,
        M=some,
        N=n_tissues,
    )
    exact = torch.nn.functional.softplus(expected.T.double())
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)
