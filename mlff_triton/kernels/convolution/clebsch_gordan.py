"""Coupling of real spherical harmonics: Wigner 3j symbols in the basis and the signs of e3nn.

    (x * y)_k = sum_ij C_ijk x_i y_j,      sum_ijk C_ijk^2 = 1

The complex coefficients follow Racah's formula (https://doi.org/10.1103/PhysRev.62.438), in exact
rational numbers up to one square root. A unitary matrix per degree changes to the real basis. Its
factor ``(-i)^l`` makes all coefficients real.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import factorial, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.kernels.convolution.types import TensorProduct, first_column


def wigner_3j(l1: int, l2: int, l3: int) -> Tensor:
    """Return the real symbols of three degrees, float64 [2 l1 + 1, 2 l2 + 1, 2 l3 + 1]."""
    return torch.from_numpy(symbols_of(l1, l2, l3))


@cache
def symbols_of(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    """Return the symbols of `wigner_3j` as an array, which can be cached in any PyTorch mode."""
    complex_ = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1), np.complex128)
    for m1 in range(-l1, l1 + 1):
        for m2 in range(max(-l2, -l3 - m1), min(l2, l3 - m1) + 1):
            complex_[l1 + m1, l2 + m2, l3 + m1 + m2] = _coefficient(l1, m1, l2, m2, l3)
    bases = _real_basis(l1), _real_basis(l2), _real_basis(l3).conj()
    real = np.einsum("abc,ai,bj,ck->ijk", complex_, *bases).real
    symbols: NDArray[np.float64] = np.ascontiguousarray(real / np.linalg.norm(real))
    return symbols


def _coefficient(l1: int, m1: int, l2: int, m2: int, l3: int) -> float:
    """Return the Clebsch-Gordan coefficient <l1 m1 l2 m2 | l3 m1 + m2>."""
    f, m3 = factorial, m1 + m2
    triangle = Fraction(
        (2 * l3 + 1) * f(l3 + l1 - l2) * f(l3 - l1 + l2) * f(l1 + l2 - l3), f(l1 + l2 + l3 + 1)
    )
    orders = f(l3 + m3) * f(l3 - m3) * f(l1 - m1) * f(l1 + m1) * f(l2 - m2) * f(l2 + m2)
    total = Fraction(0)
    for k in range(max(0, l2 - l3 - m1, l1 - l3 + m2), min(l1 + l2 - l3, l1 - m1, l2 + m2) + 1):
        below = f(k) * f(l1 + l2 - l3 - k) * f(l1 - m1 - k) * f(l2 + m2 - k)
        below *= f(l3 - l2 + m1 + k) * f(l3 - l1 - m2 + k)
        total += Fraction((-1) ** k, below)
    return sqrt(triangle * orders) * float(total)


def _real_basis(degree: int) -> NDArray[np.complex128]:
    """Return complex harmonics (rows) in terms of real ones (columns)."""
    basis = np.zeros((2 * degree + 1, 2 * degree + 1), np.complex128)
    basis[degree, degree] = 1
    for m in range(1, degree + 1):
        plus, minus = degree + m, degree - m
        basis[minus, plus], basis[minus, minus] = sqrt(0.5), -1j * sqrt(0.5)
        sign = (-1) ** m
        basis[plus, plus], basis[plus, minus] = sign * sqrt(0.5), 1j * sign * sqrt(0.5)
    return basis * (-1j) ** degree


def coupling(product: TensorProduct) -> Tensor:
    """Return the map from an edge's harmonics to its coupling matrices, float64 [P, harmonics].

    The P rows are the elements of one matrix [2 l1 + 1, 2 l3 + 1] for each path and each channel v
    of its harmonics, in this order. A matrix maps a node's irrep of degree l1 to an output of
    degree l3, and includes the factor of the path.
    """
    return torch.from_numpy(_coupling(product))


@cache
def _coupling(product: TensorProduct) -> NDArray[np.float64]:
    n_columns = sum(irrep.columns for irrep in product.harmonics)
    rows = [np.zeros((0, n_columns))]
    for path in product.paths:
        node, harmonic, out = (
            product.node[path.node],
            product.harmonics[path.harmonic],
            product.output[path.output],
        )
        symbols = path.factor * symbols_of(node.degree, harmonic.degree, out.degree)
        for v in range(harmonic.count):
            block = np.zeros((node.width * out.width, n_columns))
            start = first_column(product.harmonics, path.harmonic) + v * harmonic.width
            block[:, start : start + harmonic.width] = symbols.transpose(0, 2, 1).reshape(
                -1, harmonic.width
            )
            rows.append(block)
    return np.concatenate(rows)
