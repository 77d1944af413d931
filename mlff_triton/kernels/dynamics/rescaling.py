"""Stochastic rescaling of velocities: a thermostat.

Velocities are multiplied by alpha, so that the kinetic energy K of ``n`` degrees of freedom follows
its canonical distribution (G. Bussi, D. Donadio, M. Parrinello, J. Chem. Phys. 126, 014101 (2007),
https://doi.org/10.1063/1.2408420, eq. A7). With ``c = exp(-timestep / time)`` and ``r`` normal,

    alpha^2 = c + (1 - c) kT / (2 K) (r^2 + s) + 2 r sqrt(c (1 - c) kT / (2 K))

where ``s`` is a sum of ``n - 1`` squares of normal numbers.

Forces do not change overall motion, which this thermostat would mistake for heat. So it is
subtracted first, whether it comes from Langevin dynamics or from rounding errors: the momentum and,
without periodic boundaries, the angular momentum. Its energy counts as work.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.dynamics.random import RESCALING, normals, thermal_energy, uniforms
from mlff_triton.kernels.dynamics.vectors import apply_symmetric, load_masses, load_vectors
from mlff_triton.kernels.types.motion import Integration, Motion, Rescaling

_BLOCK = tl.constexpr(1024)
_TURNING = tl.constexpr(256)  # because moments of rotations need many registers
_SINGULAR = tl.constexpr(1e-9)  # share of an inertia tensor added to keep those of lines invertible
_ATTEMPTS = tl.constexpr(32)  # at a gamma variate; all are rejected once in 1e40 times


@triton.jit
def _momentum(velocities_ptr, inverse_mass_ptr, begin, end):
    """Return twice the kinetic energy, mass, momentum and number of the atoms that move."""
    zero = tl.zeros((_BLOCK,), tl.float64)
    twice, total, px, py, pz, count = zero, zero, zero, zero, zero, zero
    for start in range(begin, end, _BLOCK):
        atom = start + tl.arange(0, _BLOCK)
        live, atom = atom < end, atom.to(tl.int64)
        mass = load_masses(inverse_mass_ptr, atom, live)
        x, y, z = load_vectors(velocities_ptr, atom, live)
        count += tl.where(mass > 0, 1.0, 0.0)
        twice += mass * (x * x + y * y + z * z)
        total += mass
        px, py, pz = px + mass * x, py + mass * y, pz + mass * z
    return tl.sum(twice), tl.sum(total), tl.sum(px), tl.sum(py), tl.sum(pz), tl.sum(count)


@triton.jit
def _rotation(positions_ptr, velocities_ptr, inverse_mass_ptr, begin, end, total, momentum):
    """Return the rotation of a system about its center of mass, and twice its energy.

    The rotation is given by the velocity that it has at the origin, and the angular velocity.
    Moments are summed about the first atom, because they would lose digits far from it.
    """
    first = begin.to(tl.int64)
    origin = positions_ptr + 3 * first
    ox, oy, oz = tl.load(origin), tl.load(origin + 1), tl.load(origin + 2)
    zero = tl.zeros((_TURNING,), tl.float64)
    mx, my, mz, lx, ly, lz = zero, zero, zero, zero, zero, zero
    xx, yy, zz, yz, xz, xy = zero, zero, zero, zero, zero, zero
    for start in range(begin, end, _TURNING):
        atom = start + tl.arange(0, _TURNING)
        live, atom = atom < end, atom.to(tl.int64)
        mass = load_masses(inverse_mass_ptr, atom, live)
        x, y, z = load_vectors(positions_ptr, atom, live)
        x, y, z = x - ox, y - oy, z - oz
        u, v, w = load_vectors(velocities_ptr, atom, live)
        mx, my, mz = mx + mass * x, my + mass * y, mz + mass * z
        lx, ly = lx + mass * (y * w - z * v), ly + mass * (z * u - x * w)
        lz += mass * (x * v - y * u)
        xx, yy, zz = xx + mass * x * x, yy + mass * y * y, zz + mass * z * z
        yz, xz, xy = yz + mass * y * z, xz + mass * x * z, xy + mass * x * y
    cx, cy, cz = tl.sum(mx) / total, tl.sum(my) / total, tl.sum(mz) / total
    px, py, pz = momentum
    lx = tl.sum(lx) - (cy * pz - cz * py)
    ly = tl.sum(ly) - (cz * px - cx * pz)
    lz = tl.sum(lz) - (cx * py - cy * px)
    xx = tl.sum(xx) - total * cx * cx
    yy = tl.sum(yy) - total * cy * cy
    zz = tl.sum(zz) - total * cz * cz
    yz = total * cy * cz - tl.sum(yz)  # off the diagonal, as in the inertia tensor
    xz = total * cx * cz - tl.sum(xz)
    xy = total * cx * cy - tl.sum(xy)
    inertia = yy + zz, xx + zz, xx + yy, yz, xz, xy
    more = 2 * _SINGULAR * (xx + yy + zz)
    spin = _solve((yy + zz + more, xx + zz + more, xx + yy + more, yz, xz, xy), lx, ly, lz)
    wx, wy, wz = spin
    ix, iy, iz = apply_symmetric(inertia, wx, wy, wz)
    energy = wx * (2 * lx - ix) + wy * (2 * ly - iy) + wz * (2 * lz - iz)
    cx, cy, cz = cx + ox, cy + oy, cz + oz
    velocity = wz * cy - wy * cz, wx * cz - wz * cx, wy * cx - wx * cy
    return velocity, spin, energy


@triton.jit
def _solve(m, x, y, z):
    """Solve a system of linear equations with a symmetric matrix (xx, yy, zz, yz, xz, xy)."""
    xx, yy, zz, yz, xz, xy = m
    axx, ayy, azz = yy * zz - yz * yz, xx * zz - xz * xz, xx * yy - xy * xy
    ayz, axz, axy = xy * xz - xx * yz, xy * yz - yy * xz, yz * xz - xy * zz
    det = xx * axx + xy * axy + xz * axz
    u, v, w = apply_symmetric((axx, ayy, azz, ayz, axz, axy), x, y, z)
    det = tl.where(det == 0, 1.0, det)
    return u / det, v / det, w / det


@triton.jit
def _gamma(seed, step, stream, shape):
    """Draw a gamma variate of a shape of at least one, by the method of Marsaglia and Tsang.

    Attempts are made in parallel, and the first accepted one counts.
    """
    attempt = tl.arange(0, _ATTEMPTS)
    d = shape - 1.0 / 3.0
    x, _, _, _ = normals(seed, step, RESCALING, 2 * attempt + 2, stream)
    u, _, _, _ = uniforms(seed, step, RESCALING, 2 * attempt + 3, stream)
    root = 1 + x / tl.sqrt(9 * d)
    v = root * root * root
    positive = tl.where(root > 0, v, 1.0)
    bound = 0.5 * x * x + d * (1 - positive + tl.log(positive))
    accepted = (root > 0) & (tl.log(u) < bound)
    first = tl.min(tl.where(accepted, attempt, _ATTEMPTS - 1))
    return tl.sum(tl.where(attempt == first, d * positive, 0.0))


@triton.jit
def _rescale_kernel(
    positions_ptr,
    velocities_ptr,
    inverse_mass_ptr,
    system_ptr,
    stream_ptr,
    lost_ptr,
    temperature_ptr,
    work_ptr,
    scale_ptr,
    drift_ptr,
    clock_ptr,
    started_ptr,
    programs,
    seed,
    decay: tl.float64,
    EARLY_LAUNCH: tl.constexpr,
):
    """Choose the factor of the velocities. Grid: one program per system.

    Reads the state that is done, and ``clock[B, P]`` and ``started[B, P]``: nothing is done if the
    next step has been started. Writes ``scale[B]`` and ``drift[B, 6]``, and adds to ``work[B]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0)
    step = tl.load(clock_ptr + system * programs)
    if tl.load(started_ptr + system * programs) < step:
        begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
        twice, mass, px, py, pz, count = _momentum(velocities_ptr, inverse_mass_ptr, begin, end)
        lost, overall = tl.load(lost_ptr + system), 0 * mass
        if lost > 0:
            ux, uy, uz = px / mass, py / mass, pz / mass
            overall = mass * (ux * ux + uy * uy + uz * uz)
            if lost == 6:
                velocity, spin, energy = _rotation(
                    positions_ptr, velocities_ptr, inverse_mass_ptr, begin, end, mass, (px, py, pz)
                )
                ux, uy, uz = ux + velocity[0], uy + velocity[1], uz + velocity[2]
                overall += energy
                for d in tl.static_range(3):
                    tl.store(drift_ptr + 6 * system + 3 + d, spin[d])
            tl.store(drift_ptr + 6 * system, ux)
            tl.store(drift_ptr + 6 * system + 1, uy)
            tl.store(drift_ptr + 6 * system + 2, uz)
        rest = twice - overall
        stream = tl.load(stream_ptr + system)
        r, _, _, _ = normals(seed, step, RESCALING, stream * 0, stream)
        n = 3 * count - lost
        squares = 2 * _gamma(seed, step, stream, 0.5 * (n - 1))
        kt = thermal_energy(temperature_ptr, system, step)
        share = (1 - decay) * kt / tl.where(rest > 0, rest, 1.0)
        squared = decay + share * (r * r + squares) + 2 * r * tl.sqrt(decay * share)
        squared = tl.where(rest > 0, tl.maximum(squared, 0.0), 1.0)
        tl.store(scale_ptr + system, tl.sqrt(squared))
        work = tl.load(work_ptr + system)
        tl.store(work_ptr + system, work + 0.5 * ((squared - 1) * rest - overall))


def choose_scale(motion: Motion, integration: Integration, rescaling: Rescaling) -> None:
    """Choose the factor by which `advance` multiplies the velocities before the next step.

    Parameters
    ----------
    motion : Motion
        The state of the simulation; ``scale``, ``drift`` and ``work`` are written.
    integration : Integration
        Time step and seed.
    rescaling : Rescaling
        Relaxation time.
    """
    check_device(motion.positions)
    n_systems, programs = motion.clock.shape
    with torch.cuda.device_of(motion.positions):
        _rescale_kernel[(n_systems,)](
            motion.done_positions,
            motion.done_velocities,
            motion.inverse_mass,
            motion.system_ptr,
            motion.stream,
            motion.lost,
            motion.temperature,
            motion.work,
            motion.scale,
            motion.drift,
            motion.clock,
            motion.started,
            programs,
            integration.seed,
            rescaling.decay(integration.timestep),
            num_warps=4,
            **early_launch(motion.positions),
        )
