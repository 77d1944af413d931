"""Stochastic rescaling of velocities, see `mlff_triton.kernels.dynamics.rescaling`."""

from __future__ import annotations

import math

from mlff_triton.kernels.common.cpu.compilation import exact_inlined, exact_loop, run
from mlff_triton.kernels.dynamics.cpu.random import Source, normals, uniforms
from mlff_triton.kernels.dynamics.reference.random import RESCALING
from mlff_triton.kernels.dynamics.reference.rescaling import ATTEMPTS, SINGULAR
from mlff_triton.kernels.types.motion import Integration, Motion, Rescaling


def choose_scale(motion: Motion, integration: Integration, rescaling: Rescaling) -> None:
    """Choose the factor by which `advance` multiplies the velocities before the next step.

    Arguments are those of `mlff_triton.kernels.dynamics.rescaling.choose_scale`.
    """
    step = int(motion.clock[0, 0])
    if motion.started[0, 0] >= step:
        return
    atoms = motion.done_positions, motion.done_velocities, motion.inverse_mass
    systems = motion.system_ptr, motion.stream, motion.lost, motion.temperature
    results = motion.drift, motion.scale, motion.work
    source = Source.of(integration.seed, step, RESCALING)
    decay = rescaling.decay(integration.timestep)
    run(_choose_scale, len(motion.cell), *atoms, *systems, *results, source, step, decay)


@exact_inlined
def _cross(a, b):
    """Return a vector product."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@exact_inlined
def _dot(a, b):
    """Return a scalar product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@exact_inlined
def _mean_motion(positions, velocities, inverse_mass, first, last):
    """Return the mass, center and velocity of the moving atoms of a system."""
    total = x = y = z = u = v = w = 0.0
    for i in range(first, last):
        if inverse_mass[i] > 0:
            mass = 1 / inverse_mass[i]
            total += mass
            x += mass * positions[i, 0]
            y += mass * positions[i, 1]
            z += mass * positions[i, 2]
            u += mass * velocities[i, 0]
            v += mass * velocities[i, 1]
            w += mass * velocities[i, 2]
    return total, (x / total, y / total, z / total), (u / total, v / total, w / total)


@exact_inlined
def _turning(positions, velocities, inverse_mass, first, last, center):
    """Return the angular momentum of a system, and xx, yy, zz, yz, xz and xy of its inertia."""
    a = b = c = 0.0
    xx = yy = zz = yz = xz = xy = 0.0
    for i in range(first, last):
        if inverse_mass[i] > 0:
            mass = 1 / inverse_mass[i]
            x, y, z = (
                positions[i, 0] - center[0],
                positions[i, 1] - center[1],
                positions[i, 2] - center[2],
            )
            velocity = velocities[i, 0], velocities[i, 1], velocities[i, 2]
            turn = _cross((x, y, z), velocity)
            a += mass * turn[0]
            b += mass * turn[1]
            c += mass * turn[2]
            xx += mass * x * x
            yy += mass * y * y
            zz += mass * z * z
            yz += mass * y * z
            xz += mass * x * z
            xy += mass * x * y
    return (a, b, c), (yy + zz, xx + zz, xx + yy, -yz, -xz, -xy)


@exact_inlined
def _solve(inertia, b):
    """Return the angular velocity for an angular momentum.

    A multiple of the unit matrix is added, so that linear molecules have one, too.
    """
    xx, yy, zz, yz, xz, xy = inertia
    trace = 0.5 * (xx + yy + zz)
    more = 2 * SINGULAR * trace + (1.0 if trace == 0 else 0.0)
    rows = (xx + more, xy, xz), (xy, yy + more, yz), (xz, yz, zz + more)
    columns = _cross(rows[1], rows[2]), _cross(rows[2], rows[0]), _cross(rows[0], rows[1])
    determinant = _dot(rows[0], columns[0])
    return (
        (columns[0][0] * b[0] + columns[1][0] * b[1] + columns[2][0] * b[2]) / determinant,
        (columns[0][1] * b[0] + columns[1][1] * b[1] + columns[2][1] * b[2]) / determinant,
        (columns[0][2] * b[0] + columns[1][2] * b[1] + columns[2][2] * b[2]) / determinant,
    )


@exact_inlined
def _gamma(source, stream, shape):
    """Draw a gamma variate by the method of Marsaglia and Tsang."""
    d = shape - 1 / 3
    for attempt in range(ATTEMPTS):
        x = normals(source, 2 * attempt + 2, stream)[0]
        u = uniforms(source, 2 * attempt + 3, stream)[0]
        root = 1 + x / math.sqrt(9 * d)
        v = root * root * root if root > 0 else 1.0
        is_accepted = root > 0 and math.log(u) < 0.5 * x * x + d * (1 - v + math.log(v))
        if is_accepted or attempt == ATTEMPTS - 1:
            break
    return d * v


@exact_loop
def _choose_scale(
    positions, velocities, inverse_mass, system_ptr, stream, lost, temperature,
    drift, scale, work, source, step, decay, first, last,
):  # fmt: skip
    for s in range(first, last):
        begin, end = system_ptr[s], system_ptr[s + 1]
        twice, count = 0.0, 0
        for i in range(begin, end):
            u, v, w = velocities[i, 0], velocities[i, 1], velocities[i, 2]
            is_moving = inverse_mass[i] > 0
            twice += (u * u + v * v + w * w) / (inverse_mass[i] if is_moving else 1.0)
            count += is_moving
        velocity = spin = (0.0, 0.0, 0.0)
        overall = 0.0
        center = velocity
        if lost[s] > 0:
            given = positions, velocities, inverse_mass, begin, end
            total, center, velocity = _mean_motion(*given)
            overall = total * _dot(velocity, velocity)
            if lost[s] == 6:
                momentum, inertia = _turning(*given, center)
                spin = _solve(inertia, momentum)
                xx, yy, zz, yz, xz, xy = inertia
                turned = (
                    xx * spin[0] + xy * spin[1] + xz * spin[2],
                    xy * spin[0] + yy * spin[1] + yz * spin[2],
                    xz * spin[0] + yz * spin[1] + zz * spin[2],
                )
                overall += 2 * _dot(spin, momentum) - _dot(spin, turned)
        moved = _cross(spin, center)
        for axis in range(3):
            drift[s, axis] = velocity[axis] - moved[axis]
            drift[s, 3 + axis] = spin[axis]
        rest = twice - overall
        r = normals(source, 0, stream[s])[0]
        squares = 2 * _gamma(source, stream[s], 0.5 * (3 * count - lost[s] - 1))
        share = (1 - decay) * (temperature[s, 0] + temperature[s, 1] * step) / rest
        squared = decay + share * (r * r + squares) + 2 * r * math.sqrt(decay * share)
        squared = max(squared, 0.0) if rest > 0 else 1.0
        scale[s] = math.sqrt(squared)
        work[s] += 0.5 * ((squared - 1) * rest - overall)
