"""Activation functions and their derivatives for float32 and float64 blocks inside kernels.

No exponential overflows, and absolute errors are at the rounding error of the dtype, except for
`gelu_half` and, in float64, `softplus_relative`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.numerics.exponential import LN_2, LOG2_E

_SQRT_1_2 = tl.constexpr(0.7071067811865476)
_1_SQRT_2PI = tl.constexpr(0.3989422804014327)
_2_SQRT_2_PI = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
_GELU_CUBIC = tl.constexpr(0.044715)
_GELU_SIGMOID = tl.constexpr(1.702)
_GELU_SIGMOID_EXPONENT = tl.constexpr(-_GELU_SIGMOID.value * LOG2_E.value)  # for exp2


@triton.jit
def _sigmoid_and_rest(x):
    """Return ``1 / (1 + exp(-x))`` and one minus it, both without cancellation."""
    decay = tl.exp(-tl.abs(x))
    near, far = 1 / (1 + decay), decay / (1 + decay)
    return tl.where(x < 0, far, near), tl.where(x < 0, near, far)


@triton.jit
def sigmoid(x):
    """Return ``1 / (1 + exp(-x))``."""
    return _sigmoid_and_rest(x)[0]


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent."""
    s, rest = _sigmoid_and_rest(2 * x)
    return s - rest


@triton.jit
def softplus(x):
    """Return ``log(1 + exp(x))``."""
    return tl.where(x < 0, 0.0, x) + tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def softplus_relative(x):
    """Return ``log(1 + exp(x))`` with a small relative error for large negative arguments too.

    The logarithm of one plus a decay is the decay times a polynomial, whose fit minimizes the
    relative error, 2e-7. The absolute error of `softplus` is smaller.
    """
    decay = tl.exp2(-LOG2_E * tl.abs(x))
    ratio = 4.408928162e-2 - 8.539104909e-3 * decay
    ratio = ratio * decay - 1.076812526e-1
    ratio = ratio * decay + 1.774521192e-1
    ratio = ratio * decay - 2.449545342e-1
    ratio = ratio * decay + 3.327547847e-1
    ratio = ratio * decay - 4.999740535e-1
    ratio = ratio * decay + 9.999998057e-1
    return tl.maximum(x, 0.0) + ratio * decay


@triton.jit
def activate_with_slope(x, ACTIVATION: tl.constexpr):
    """Return `activate` and `activate_derivative`; SiLU takes one exponential and one division."""
    if ACTIVATION == "silu" or ACTIVATION == "swish":
        decay = tl.exp2(tl.minimum(-LOG2_E * x, 126.0))
        s = 1 / (1 + decay)
        value = x * s
        slope = s + value * (decay * s)
    else:
        value, slope = activate(x, ACTIVATION), activate_derivative(x, ACTIVATION)
    return value, slope


@triton.jit
def _tanh_softplus(x):
    """Return ``tanh(softplus(x))`` and one minus its square.

    Both are ratios of polynomials in ``exp(-|x|)``.
    """
    decay = tl.exp(-tl.abs(x))
    numerator = tl.where(x < 0, decay * (decay + 2), 1 + 2 * decay)
    rest = tl.where(x < 0, 2.0, 2 * decay * decay)
    denominator = numerator + rest
    value = numerator / denominator
    return value, rest / denominator * (1 + value)


@triton.jit
def gelu_half(x):
    """Return GELU with an error below 5.4e-5, for results in half precision.

    This takes less than half the time of the exact function. The normal distribution function is
    approximated by one half plus ``x`` times a polynomial in ``x**2``, clamped to zero and one
    beyond 4.25. The fit minimizes the largest error of the product, with errors near zero weighted
    tenfold. The mean error for normally distributed inputs is 5e-6.
    """
    t = tl.minimum(x * x, 18.0625)
    slope = 5.7111930e-11 * t - 5.4302076e-9
    slope = slope * t + 2.2839654e-7
    slope = slope * t - 5.6661131e-6
    slope = slope * t + 9.3694720e-5
    slope = slope * t - 1.1092769e-3
    slope = slope * t + 9.8146189e-3
    slope = slope * t - 6.6335008e-2
    slope = slope * t + 3.9889195e-1
    return x * tl.minimum(tl.maximum(0.5 + x * slope, 0.0), 1.0)


@triton.jit
def gelu_single(x):
    """Return GELU as exactly as float32 allows, with an error below 5.5e-8 before rounding.

    This takes a third of the instructions of the error function. The logarithm of the tail of the
    normal distribution is a polynomial in ``|x|`` up to 5.75, beyond which the tail is nothing. The
    fit minimizes the largest error of the result.
    """
    t = tl.minimum(tl.abs(x), 5.75)
    log_tail = 3.309277963e-5 * t - 7.692193612e-4
    log_tail = log_tail * t + 8.080715314e-3
    log_tail = log_tail * t - 5.341210216e-2
    log_tail = log_tail * t - 4.587709606e-1
    log_tail = log_tail * t - 1.151201725
    log_tail = log_tail * t - 9.999930859e-1
    return tl.where(x < 0, 0.0, x) - t * tl.exp2(log_tail)


@triton.jit
def gelu_sigmoid(x):
    """Return ``x sigmoid(1.702 x)``, with one exponential and one division."""
    return x / (1 + tl.exp2(tl.minimum(_GELU_SIGMOID_EXPONENT * x, 126.0)))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):  # noqa: C901 - Triton has no lookup tables
    """Apply the activation named ``ACTIVATION`` to a block."""
    if ACTIVATION == "none":
        y = x
    elif ACTIVATION == "silu" or ACTIVATION == "swish":
        y = x * sigmoid(x)
    elif ACTIVATION == "gelu" and x.dtype == tl.float32:
        y = gelu_single(x)
    elif ACTIVATION == "gelu":
        y = 0.5 * x * (1 + tl.erf(x * _SQRT_1_2))
    elif ACTIVATION == "gelu_tanh":
        y = x * sigmoid(_2_SQRT_2_PI * x * (1 + _GELU_CUBIC * x * x))
    elif ACTIVATION == "gelu_half":
        y = gelu_half(x)
    elif ACTIVATION == "gelu_sigmoid":
        y = gelu_sigmoid(x)
    elif ACTIVATION == "relu":
        y = tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "tanh":
        y = tanh(x)
    elif ACTIVATION == "sigmoid":
        y = sigmoid(x)
    elif ACTIVATION == "ssp":
        y = softplus(x) - LN_2
    else:
        tl.static_assert(ACTIVATION == "mish", "unknown activation")
        y = x * _tanh_softplus(x)[0]
    return y


@triton.jit
def activate_derivative(x, ACTIVATION: tl.constexpr):
    """Return the derivative of `activate` with respect to ``x``."""
    if ACTIVATION == "none":
        slope = tl.full(x.shape, 1.0, x.dtype)
    elif ACTIVATION == "silu" or ACTIVATION == "swish":
        s, rest = _sigmoid_and_rest(x)
        slope = s * (1 + x * rest)
    elif ACTIVATION == "gelu":
        density = _1_SQRT_2PI * tl.exp(-0.5 * x * x)
        slope = 0.5 * (1 + tl.erf(x * _SQRT_1_2)) + x * density
    elif ACTIVATION == "gelu_tanh":
        s, rest = _sigmoid_and_rest(_2_SQRT_2_PI * x * (1 + _GELU_CUBIC * x * x))
        slope = s * (1 + x * rest * _2_SQRT_2_PI * (1 + 3 * _GELU_CUBIC * x * x))
    elif ACTIVATION == "gelu_sigmoid":
        s, rest = _sigmoid_and_rest(_GELU_SIGMOID * x)
        slope = s * (1 + _GELU_SIGMOID * x * rest)
    elif ACTIVATION == "relu":
        slope = tl.where(x > 0, 1.0, 0.0).to(x.dtype)
    elif ACTIVATION == "tanh":
        s, rest = _sigmoid_and_rest(2 * x)
        slope = 4 * s * rest
    elif ACTIVATION == "sigmoid":
        s, rest = _sigmoid_and_rest(x)
        slope = s * rest
    elif ACTIVATION == "ssp":
        slope = sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "mish", "unknown activation")
        value, rest = _tanh_softplus(x)
        slope = value + x * rest * sigmoid(x)
    return slope


@triton.jit
def activate_curvature(x, ACTIVATION: tl.constexpr):
    """Return the second derivative of `activate` with respect to ``x``."""
    if ACTIVATION == "none" or ACTIVATION == "relu":
        curvature = tl.zeros(x.shape, x.dtype)
    elif ACTIVATION == "silu" or ACTIVATION == "swish":
        s, rest = _sigmoid_and_rest(x)
        curvature = s * rest * (2 + x * (rest - s))
    elif ACTIVATION == "gelu":
        curvature = _1_SQRT_2PI * tl.exp(-0.5 * x * x) * (2 - x * x)
    elif ACTIVATION == "gelu_tanh":
        s, rest = _sigmoid_and_rest(_2_SQRT_2_PI * x * (1 + _GELU_CUBIC * x * x))
        first = _2_SQRT_2_PI * (1 + 3 * _GELU_CUBIC * x * x)  # derivatives of the argument
        second = 6 * _2_SQRT_2_PI * _GELU_CUBIC * x
        curvature = s * rest * (2 * first + x * ((rest - s) * first * first + second))
    elif ACTIVATION == "gelu_sigmoid":
        s, rest = _sigmoid_and_rest(_GELU_SIGMOID * x)
        curvature = _GELU_SIGMOID * s * rest * (2 + _GELU_SIGMOID * x * (rest - s))
    elif ACTIVATION == "tanh":
        s, rest = _sigmoid_and_rest(2 * x)
        curvature = 8 * s * rest * (rest - s)
    elif ACTIVATION == "sigmoid":
        s, rest = _sigmoid_and_rest(x)
        curvature = s * rest * (rest - s)
    elif ACTIVATION == "ssp":
        s, rest = _sigmoid_and_rest(x)
        curvature = s * rest
    else:
        tl.static_assert(ACTIVATION == "mish", "unknown activation")
        value, slope = _tanh_softplus(x)
        s, rest = _sigmoid_and_rest(x)
        curvature = slope * s * (2 + x * (rest - 2 * value * s))
    return curvature
