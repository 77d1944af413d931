"""Stochastic rescaling of velocities, and of the cell: a thermostat and a barostat.

Velocities are multiplied by alpha, so that the kinetic energy K of ``n`` degrees of freedom follows
its canonical distribution (G. Bussi, D. Donadio, M. Parrinello, J. Chem. Phys. 126, 014101 (2007),
https://doi.org/10.1063/1.2408420, eq. A7). With ``c = exp(-timestep / time)`` and ``r`` normal,

    alpha^2 = c + (1 - c) kT / (2 K) (r^2 + s) + 2 r sqrt(c (1 - c) kT / (2 K))

where ``s`` is a sum of ``n - 1`` squares of normal numbers.

Forces leave overall motion alone, which this thermostat would mistake for heat. So it is subtracted
first, whether Langevin dynamics has left it or rounding errors have added up: the momentum, and
without periodic boundaries also the angular momentum. Its energy counts as work.

The barostat stretches the cell by ``exp(M)`` and velocities by ``exp(-M)``, with a symmetric M
(M. Bernetti, G. Bussi, J. Chem. Phys. 153, 114107 (2020), https://doi.org/10.1063/5.0020514). In
the logarithm of the volume, with compressibility beta,

    tr M = beta dt / time (P_internal - P) + sqrt(2 kT beta dt / (V time)) r

If the shape may change, each component obeys the same equation with the internal pressure tensor
and a third of the rate and of the squared noise. Off the diagonal, the noise has half the variance,
as an antisymmetric part would only rotate the system.

The work of the barostat is the kinetic energy that it gives each atom, and the potential energy
that the virials W before and after it tell, W being the derivative with respect to strain:

    (W_before : (exp(M) - 1) + W_after : (1 - exp(-M))) / 2

W_after belongs to the forces at the end of the next step, which is also when they act. So the error
is of the same order as that of the integrator, and the total energy without all work and heat is
conserved as well as without a barostat.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.dynamics.integrator import kinetic
from mlff_triton.kernels.dynamics.random import BAROSTAT, RESCALING, normals, uniforms
from mlff_triton.kernels.dynamics.vectors import load_masses, load_vectors, store_vectors
from mlff_triton.kernels.types.motion import ATOMS, Barostat, Integration, Motion, Rescaling

_BLOCK = tl.constexpr(1024)
_TURNING = tl.constexpr(256)  # as moments of rotations need many registers
_SINGULAR = tl.constexpr(1e-9)  # part of an inertia tensor that keeps those of lines invertible
_ATTEMPTS = tl.constexpr(32)  # at a gamma variate; all are rejected once in 1e40 times


@triton.jit
def _apply(m, x, y, z):
    """Multiply vectors by a symmetric matrix (xx, yy, zz, yz, xz, xy)."""
    xx, yy, zz, yz, xz, xy = m
    return (
        tl.fma(xz, z, tl.fma(xy, y, xx * x)),
        tl.fma(yz, z, tl.fma(yy, y, xy * x)),
        tl.fma(zz, z, tl.fma(yz, y, xz * x)),
    )


@triton.jit
def _kinetic_tensor(velocities_ptr, inverse_mass_ptr, begin, end):
    """Return ``sum m v_a v_b`` of the atoms of a system: xx, yy, zz, yz, xz, xy."""
    zero = tl.zeros((_BLOCK,), tl.float64)
    xx, yy, zz, yz, xz, xy = zero, zero, zero, zero, zero, zero
    for start in range(begin, end, _BLOCK):
        atom = start + tl.arange(0, _BLOCK)
        live, atom = atom < end, atom.to(tl.int64)
        mass = load_masses(inverse_mass_ptr, atom, live)
        x = tl.load(velocities_ptr + 3 * atom, live, other=0.0)
        y = tl.load(velocities_ptr + 3 * atom + 1, live, other=0.0)
        z = tl.load(velocities_ptr + 3 * atom + 2, live, other=0.0)
        xx, yy, zz = xx + mass * x * x, yy + mass * y * y, zz + mass * z * z
        yz, xz, xy = yz + mass * y * z, xz + mass * x * z, xy + mass * x * y
    return tl.sum(xx), tl.sum(yy), tl.sum(zz), tl.sum(yz), tl.sum(xz), tl.sum(xy)


@triton.jit
def _momentum(velocities_ptr, inverse_mass_ptr, begin, end):
    """Return twice the kinetic energy, mass and momentum of the atoms that move, and how many."""
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
    Moments are summed about the first atom, as they would lose digits far from it.
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
    ix, iy, iz = _apply(inertia, wx, wy, wz)
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
    u, v, w = _apply((axx, ayy, azz, ayz, axz, axy), x, y, z)
    det = tl.where(det == 0, 1.0, det)
    return u / det, v / det, w / det


@triton.jit
def _gamma(seed, step, stream, shape):
    """Draw a gamma variate of a shape of at least one, by the method of Marsaglia and Tsang.

    Attempts are made side by side, and the first one that is accepted counts.
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
def _thermal_energy(temperature_ptr, system, step):
    """Return ``kT`` of a system at a step."""
    slope = tl.load(temperature_ptr + 2 * system + 1)
    return tl.fma(slope, step.to(tl.float64), tl.load(temperature_ptr + 2 * system))


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
        kt = _thermal_energy(temperature_ptr, system, step)
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


@triton.jit
def _volume(cell_ptr):
    """Return the volume of a cell."""
    ax, ay, az = tl.load(cell_ptr), tl.load(cell_ptr + 1), tl.load(cell_ptr + 2)
    bx, by, bz = tl.load(cell_ptr + 3), tl.load(cell_ptr + 4), tl.load(cell_ptr + 5)
    cx, cy, cz = tl.load(cell_ptr + 6), tl.load(cell_ptr + 7), tl.load(cell_ptr + 8)
    x, y, z = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
    return tl.abs(ax * x + ay * y + az * z)


@triton.jit
def _product(a, b):
    """Multiply symmetric matrices (xx, yy, zz, yz, xz, xy) that commute."""
    axx, ayy, azz, ayz, axz, axy = a
    bxx, byy, bzz, byz, bxz, bxy = b
    return (
        axx * bxx + axy * bxy + axz * bxz,
        axy * bxy + ayy * byy + ayz * byz,
        axz * bxz + ayz * byz + azz * bzz,
        axy * bxz + ayy * byz + ayz * bzz,
        axx * bxz + axy * byz + axz * bzz,
        axx * bxy + axy * byy + axz * byz,
    )


@triton.jit
def _exponentials(m):
    """Return ``exp(M)`` and ``exp(-M)``, by their series up to fourth order."""
    m2 = _product(m, m)
    m3, m4 = _product(m2, m), _product(m2, m2)
    xx, yy, zz = 1 + m2[0] / 2 + m4[0] / 24, 1 + m2[1] / 2 + m4[1] / 24, 1 + m2[2] / 2 + m4[2] / 24
    yz, xz, xy = m2[3] / 2 + m4[3] / 24, m2[4] / 2 + m4[4] / 24, m2[5] / 2 + m4[5] / 24
    a, b, c = m[0] + m3[0] / 6, m[1] + m3[1] / 6, m[2] + m3[2] / 6
    d, e, f = m[3] + m3[3] / 6, m[4] + m3[4] / 6, m[5] + m3[5] / 6
    grown = xx + a, yy + b, zz + c, yz + d, xz + e, xy + f
    shrunk = xx - a, yy - b, zz - c, yz - d, xz - e, xy - f
    return grown, shrunk


@triton.jit
def _contract(virial_ptr, m):
    """Multiply a virial [3, 3] with a symmetric matrix, and sum over all elements."""
    xx, yy, zz, yz, xz, xy = m
    diagonal = (
        tl.load(virial_ptr) * xx + tl.load(virial_ptr + 4) * yy + tl.load(virial_ptr + 8) * zz
    )
    yz = (tl.load(virial_ptr + 5) + tl.load(virial_ptr + 7)) * yz
    xz = (tl.load(virial_ptr + 2) + tl.load(virial_ptr + 6)) * xz
    xy = (tl.load(virial_ptr + 1) + tl.load(virial_ptr + 3)) * xy
    return diagonal + yz + xz + xy


@triton.jit
def _settle(work_ptr, owed_ptr, strain_ptr, virial_ptr, step):
    """Add what is owed for the last action of the barostat to the work, if that is due now."""
    if tl.load(owed_ptr + 1) == step.to(tl.float64):
        xx, yy, zz = tl.load(strain_ptr), tl.load(strain_ptr + 1), tl.load(strain_ptr + 2)
        yz, xz, xy = tl.load(strain_ptr + 3), tl.load(strain_ptr + 4), tl.load(strain_ptr + 5)
        rest = _contract(virial_ptr, (1 - xx, 1 - yy, 1 - zz, -yz, -xz, -xy))
        tl.store(work_ptr, tl.load(work_ptr) + tl.load(owed_ptr) + 0.5 * rest)
        tl.store(owed_ptr + 1, -1.0)


@triton.jit
def _press_kernel(
    velocities_ptr,
    done_cell_ptr,
    cell_ptr,
    inverse_mass_ptr,
    system_ptr,
    stream_ptr,
    temperature_ptr,
    work_ptr,
    owed_ptr,
    strain_ptr,
    clock_ptr,
    pressed_ptr,
    totals_ptr,
    programs,
    every,
    seed,
    pressure: tl.float64,
    rate: tl.float64,
    ISOTROPIC: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Choose the next cell after every so many steps. Grid: one program per system.

    Reads the state that is done, and its ``totals[B, 11]``. Writes ``strain[B, 2, 6]``,
    ``cell[B, 3, 3]`` and ``pressed[B]``. ``rate`` is the compressibility times time over time. The
    work of the last action is added to ``work[B]`` one step later, and ``owed[B, 2]`` until then.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0)
    step = tl.load(clock_ptr + system * programs)
    virial, owed = totals_ptr + 11 * system + 1, owed_ptr + 2 * system
    _settle(work_ptr + system, owed, strain_ptr + 12 * system + 6, virial, step)
    is_new = tl.load(pressed_ptr + system) < step
    if is_new & (step % every == 0):
        begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
        kxx, kyy, kzz, kyz, kxz, kxy = _kinetic_tensor(velocities_ptr, inverse_mass_ptr, begin, end)
        volume = _volume(done_cell_ptr + 9 * system)
        pxx = (kxx - tl.load(virial)) / volume - pressure
        pyy = (kyy - tl.load(virial + 4)) / volume - pressure
        pzz = (kzz - tl.load(virial + 8)) / volume - pressure
        stream = tl.load(stream_ptr + system)
        a, b, c, _ = normals(seed, step, BAROSTAT, stream * 0, stream)
        kt = _thermal_energy(temperature_ptr, system, step)
        zero = a * 0
        if ISOTROPIC:
            width = tl.sqrt(2 * kt * rate / volume)
            third = (rate * (pxx + pyy + pzz) / 3 + width * a) / 3
            strain = third, third, third, zero, zero, zero
        else:
            share, width = rate / 3, tl.sqrt(2 * kt * rate / (3 * volume))
            f, g, h, _ = normals(seed, step, BAROSTAT, stream * 0 + 1, stream)
            half = width * 0.7071067811865476
            pyz = (kyz - tl.load(virial + 5)) / volume
            pxz = (kxz - tl.load(virial + 2)) / volume
            pxy = (kxy - tl.load(virial + 1)) / volume
            strain = (
                share * pxx + width * a,
                share * pyy + width * b,
                share * pzz + width * c,
                share * pyz + half * f,
                share * pxz + half * g,
                share * pxy + half * h,
            )
        grown, shrunk = _exponentials(strain)
        for k in tl.static_range(6):
            tl.store(strain_ptr + 12 * system + k, grown[k])
            tl.store(strain_ptr + 12 * system + 6 + k, shrunk[k])
        for row in tl.static_range(3):
            old, new = done_cell_ptr + 9 * system + 3 * row, cell_ptr + 9 * system + 3 * row
            x, y, z = _apply(grown, tl.load(old), tl.load(old + 1), tl.load(old + 2))
            tl.store(new, x)
            tl.store(new + 1, y)
            tl.store(new + 2, z)
        xx, yy, zz, yz, xz, xy = grown
        tl.store(owed, 0.5 * _contract(virial, (xx - 1, yy - 1, zz - 1, yz, xz, xy)))
        tl.store(owed + 1, (step + 1).to(tl.float64))
        tl.store(pressed_ptr + system, step)


@triton.jit
def _stretch_kernel(
    positions_ptr,
    velocities_ptr,
    heat_ptr,
    inverse_mass_ptr,
    system_ptr,
    strain_ptr,
    pressed_ptr,
    stretched_ptr,
    ATOMS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Stretch the pending state with the cell. Grid: a program per ``ATOMS`` atoms, and systems.

    Reads ``strain[B, 2, 6]`` and ``pressed[B]``. Changes positions and velocities [N, 3] once,
    adds the change of kinetic energies to ``heat[N]``, and notes that in ``stretched[B, P]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    part, system = tl.program_id(0), tl.program_id(1)
    program = system * tl.num_programs(0) + part
    pressed = tl.load(pressed_ptr + system)
    if tl.load(stretched_ptr + program) < pressed:
        end = tl.load(system_ptr + system + 1)
        atom = tl.load(system_ptr + system) + part * ATOMS + tl.arange(0, ATOMS)
        live, atom = atom < end, atom.to(tl.int64)
        for which in tl.static_range(2):
            pointer = positions_ptr if which == 0 else velocities_ptr
            m = strain_ptr + 12 * system + 6 * which
            xx, yy, zz = tl.load(m), tl.load(m + 1), tl.load(m + 2)
            yz, xz, xy = tl.load(m + 3), tl.load(m + 4), tl.load(m + 5)
            before = load_vectors(pointer, atom, live)
            after = _apply((xx, yy, zz, yz, xz, xy), before[0], before[1], before[2])
            store_vectors(pointer, atom, live, after)
            if which == 1:
                inverse_mass = tl.load(inverse_mass_ptr + atom, live, other=1.0)
                gained = kinetic(after, inverse_mass) - kinetic(before, inverse_mass)
                heat = tl.load(heat_ptr + atom, live, other=0.0)
                tl.store(heat_ptr + atom, heat + gained, live)
        tl.store(stretched_ptr + program, pressed)


def press(motion: Motion, totals: Tensor, integration: Integration, barostat: Barostat) -> None:
    """Stretch cells and pending atoms if the barostat is to act after the last step that is done.

    Parameters
    ----------
    motion : Motion
        The state of the simulation; its pending state is changed, once for each action.
    totals : float64 [B, 11]
        Totals of the last step that is done, if it is one after which the barostat acts.
    integration : Integration
        Time step and seed.
    barostat : Barostat
        Pressure and rates.
    """
    check_device(motion.positions, totals)
    n_systems, programs = motion.clock.shape
    with torch.cuda.device_of(totals):
        _press_kernel[(n_systems,)](
            motion.done_velocities,
            motion.done_cell,
            motion.cell,
            motion.inverse_mass,
            motion.system_ptr,
            motion.stream,
            motion.temperature,
            motion.work,
            motion.owed,
            motion.strain,
            motion.clock,
            motion.pressed,
            totals,
            programs,
            barostat.every,
            integration.seed,
            barostat.pressure,
            barostat.rate(integration.timestep),
            ISOTROPIC=barostat.isotropic,
            num_warps=4,
            **early_launch(totals),
        )
        _stretch_kernel[(programs, n_systems)](
            motion.positions,
            motion.velocities,
            motion.heat,
            motion.inverse_mass,
            motion.system_ptr,
            motion.strain,
            motion.pressed,
            motion.stretched,
            ATOMS=ATOMS,
            num_warps=4,
            **early_launch(totals),
        )
