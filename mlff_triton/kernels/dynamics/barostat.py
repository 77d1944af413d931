"""Stochastic rescaling of the cell: a barostat.

It stretches cell and positions by ``exp(M)``, and velocities by ``exp(-M)``, with a symmetric M
(M. Bernetti, G. Bussi, J. Chem. Phys. 153, 114107 (2020), https://doi.org/10.1063/5.0020514). In
the logarithm of the volume, with a rate ``a``, and the internal pressure p,

    tr M = a (p - P) + sqrt((1 - k / 2) 2 kT a / V) r

where ``r`` is normal, and ``k = a B`` with the stiffness B is the share of an excess pressure that
an action relieves. The factor ``1 - k / 2`` is due to the finite size of steps: an elastic system
in equilibrium stays there at any k below 2, whatever the atoms do between actions. Noise must not
be correlated in time, because it would cool bonds that vibrate faster than the barostat acts.

The rate is ``beta dt / time`` with a compressibility beta, but lower for stiff systems, so that k
is at most `SHARE`. An error in B changes the variance of the volume by ``k / 2`` times as much.

If the shape may change, each component obeys the same equation with the internal pressure tensor
and a third of the rate and of the squared noise. Off the diagonal, the noise has half the variance,
because an antisymmetric part would only rotate the system. The system is then rotated such that the
lattice vector a keeps its direction, and b its plane with a. So lower triangular cells remain
triangular.

The work of the barostat is the kinetic energy that it gives each atom, plus a potential energy that
follows from the virials W before and after, the derivatives with respect to strain:

    (W_before : M + W_after : M) / 2

W_after belongs to the forces at the end of the next step, when they also act, and M is rotated with
them. So the error is of the same order as the integrator's, and the total energy without work and
heat is conserved as well as without a barostat.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.dynamics.integrator import kinetic
from mlff_triton.kernels.dynamics.random import BAROSTAT, normals, thermal_energy
from mlff_triton.kernels.dynamics.vectors import (
    add,
    apply_symmetric,
    load_masses,
    load_vectors,
    store_vectors,
    times,
)
from mlff_triton.kernels.neighbors.motion import cross
from mlff_triton.kernels.types.motion import ATOMS, JUMP, SHARE, Barostat, Integration, Motion

_BLOCK = tl.constexpr(1024)
_JUMP, _SHARE = tl.constexpr(JUMP), tl.constexpr(SHARE)


@triton.jit
def _kinetic_tensor(velocities_ptr, inverse_mass_ptr, begin, end):
    """Return ``sum m v_a v_b`` of the atoms of a system: xx, yy, zz, yz, xz, xy."""
    zero = tl.zeros((_BLOCK,), tl.float64)
    xx, yy, zz, yz, xz, xy = zero, zero, zero, zero, zero, zero
    for start in range(begin, end, _BLOCK):
        atom = start + tl.arange(0, _BLOCK)
        live, atom = atom < end, atom.to(tl.int64)
        mass = load_masses(inverse_mass_ptr, atom, live)
        x, y, z = load_vectors(velocities_ptr, atom, live)
        xx, yy, zz = xx + mass * x * x, yy + mass * y * y, zz + mass * z * z
        yz, xz, xy = yz + mass * y * z, xz + mass * x * z, xy + mass * x * y
    return tl.sum(xx), tl.sum(yy), tl.sum(zz), tl.sum(yz), tl.sum(xz), tl.sum(xy)


@triton.jit
def _load_symmetric(pointer):
    """Load a symmetric 3x3 matrix as xx, yy, zz, yz, xz, xy."""
    return (
        tl.load(pointer),
        tl.load(pointer + 4),
        tl.load(pointer + 8),
        tl.load(pointer + 5),
        tl.load(pointer + 2),
        tl.load(pointer + 1),
    )


@triton.jit
def _contraction(a, b):
    """Return the sum of products of all elements of symmetric matrices."""
    diagonal = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return diagonal + 2 * (a[3] * b[3] + a[4] * b[4] + a[5] * b[5])


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
def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def _square(m, a):
    """Return ``a^T m a`` with a symmetric matrix (xx, yy, zz, yz, xz, xy)."""
    return _dot(apply_symmetric(m, a[0], a[1], a[2]), a)


@triton.jit
def _volume(cell):
    """Return the volume of a cell."""
    return tl.abs(_dot(cell[0], cross(cell[1], cell[2])))


@triton.jit
def _axes(cell):
    """Return unit vectors: along a, normal to it in the plane of a and b, and normal to both."""
    a, b, _ = cell
    i = times(1 / tl.sqrt(_dot(a, a)), a)
    b = add(b, -_dot(b, i), i)
    j = times(1 / tl.sqrt(_dot(b, b)), b)
    return i, j, cross(i, j)


@triton.jit
def _turn(vector, axes, turned):
    """Replace the unit vectors ``axes`` by ``turned`` ones in a vector."""
    i, j, k = axes
    x, y, z = times(_dot(vector, i), turned[0])
    x, y, z = add((x, y, z), _dot(vector, j), turned[1])
    return add((x, y, z), _dot(vector, k), turned[2])


@triton.jit
def _turned_cell(cell, axes, turned):
    """Turn lattice vectors whose components beyond the diagonal are exactly zero in ``axes``."""
    a, b, c = cell
    i, j, _ = axes
    first = times(_dot(a, i), turned[0])
    second = add(times(_dot(b, i), turned[0]), _dot(b, j), turned[1])
    return first, second, _turn(c, axes, turned)


@triton.jit
def _rows(m):
    """Return the rows of a symmetric matrix (xx, yy, zz, yz, xz, xy)."""
    xx, yy, zz, yz, xz, xy = m
    return (xx, xy, xz), (xy, yy, yz), (xz, yz, zz)


@triton.jit
def _store_rows(pointer, rows):
    """Store three vectors as the rows of a matrix."""
    for row in tl.static_range(3):
        for d in tl.static_range(3):
            tl.store(pointer + 3 * row + d, rows[row][d])


@triton.jit
def _load_rows(pointer):
    """Load a 3x3 matrix."""
    return (
        (tl.load(pointer), tl.load(pointer + 1), tl.load(pointer + 2)),
        (tl.load(pointer + 3), tl.load(pointer + 4), tl.load(pointer + 5)),
        (tl.load(pointer + 6), tl.load(pointer + 7), tl.load(pointer + 8)),
    )


@triton.jit
def _settle(work_ptr, owed_ptr, strain_ptr, virial_ptr, step):
    """Add the work owed for the last action, if it is due now.

    With ``G = exp(M) R`` and ``S = exp(-M) R``, the rotated M is ``(G^T G - S^T S) / 4`` up to its
    third power.
    """
    if tl.load(owed_ptr + 1) == step.to(tl.float64):
        virial = _load_symmetric(virial_ptr)
        grown, shrunk = _load_rows(strain_ptr), _load_rows(strain_ptr + 9)
        total = tl.load(work_ptr) + tl.load(owed_ptr)
        for row in tl.static_range(3):
            total += _square(virial, grown[row]) / 8
            total -= _square(virial, shrunk[row]) / 8
        tl.store(work_ptr, total)
        tl.store(owed_ptr + 1, -1.0)


@triton.jit
def _choose(excess, width, rate, seed, step, stream, ISOTROPIC: tl.constexpr):
    """Return the symmetric matrix M for an excess pressure tensor and a width of the noise."""
    pxx, pyy, pzz, pyz, pxz, pxy = excess
    a, b, c, _ = normals(seed, step, BAROSTAT, stream * 0, stream)
    if ISOTROPIC:
        zero, third = a * 0, (rate * (pxx + pyy + pzz) / 3 + width * a) / 3
        strain = third, third, third, zero, zero, zero
    else:
        f, g, h, _ = normals(seed, step, BAROSTAT, stream * 0 + 1, stream)
        share, width = rate / 3, width * 0.5773502691896258
        half = width * 0.7071067811865476
        strain = (
            share * pxx + width * a,
            share * pyy + width * b,
            share * pzz + width * c,
            share * pyz + half * f,
            share * pxz + half * g,
            share * pxy + half * h,
        )
    return strain


@triton.jit
def _press_kernel(
    velocities_ptr,
    done_cell_ptr,
    cell_ptr,
    inverse_mass_ptr,
    system_ptr,
    stream_ptr,
    temperature_ptr,
    stiffness_ptr,
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
    """Choose the next cell at regular intervals. Grid: one program per system.

    Reads the state that is done, and its ``totals[B, 11]``. Writes ``strain[B, 2, 3, 3]``,
    ``cell[B, 3, 3]`` and ``pressed[B]``. ``rate`` is the compressibility times time over time. The
    work of the last action is added to ``work[B]`` one step later, and ``owed[B, 2]`` until then.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0)
    step = tl.load(clock_ptr + system * programs)
    is_new = tl.load(pressed_ptr + system) < step
    virial_ptr, owed = totals_ptr + 11 * system + 1, owed_ptr + 2 * system
    _settle(work_ptr + system, owed, strain_ptr + 18 * system, virial_ptr, step)
    if is_new & (step % every == 0):
        begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
        kxx, kyy, kzz, kyz, kxz, kxy = _kinetic_tensor(velocities_ptr, inverse_mass_ptr, begin, end)
        virial = _load_symmetric(virial_ptr)
        cell = _load_rows(done_cell_ptr + 9 * system)
        volume = _volume(cell)
        kt = thermal_energy(temperature_ptr, system, step)
        stiffness = tl.load(stiffness_ptr + system)
        rate = rate / tl.maximum(rate * stiffness / _SHARE, 1.0)
        excess = (
            (kxx - virial[0]) / volume - pressure,
            (kyy - virial[1]) / volume - pressure,
            (kzz - virial[2]) / volume - pressure,
            (kyz - virial[3]) / volume,
            (kxz - virial[4]) / volume,
            (kxy - virial[5]) / volume,
        )
        width = tl.sqrt((1 - 0.5 * rate * stiffness) * 2 * kt * rate / volume)
        stream = tl.load(stream_ptr + system)
        strain = _choose(excess, width, rate, seed, step, stream, ISOTROPIC)
        grown, shrunk = _exponentials(strain)
        stretched = (
            apply_symmetric(grown, cell[0][0], cell[0][1], cell[0][2]),
            apply_symmetric(grown, cell[1][0], cell[1][1], cell[1][2]),
            apply_symmetric(grown, cell[2][0], cell[2][1], cell[2][2]),
        )
        growth, shrinkage = _rows(grown), _rows(shrunk)
        if not ISOTROPIC:
            axes, kept = _axes(stretched), _axes(cell)
            stretched = _turned_cell(stretched, axes, kept)
            growth = (
                _turn(growth[0], axes, kept),
                _turn(growth[1], axes, kept),
                _turn(growth[2], axes, kept),
            )
            shrinkage = (
                _turn(shrinkage[0], axes, kept),
                _turn(shrinkage[1], axes, kept),
                _turn(shrinkage[2], axes, kept),
            )
        _store_rows(strain_ptr + 18 * system, growth)
        _store_rows(strain_ptr + 18 * system + 9, shrinkage)
        if _contraction(strain, strain) <= _JUMP * _JUMP:
            _store_rows(cell_ptr + 9 * system, stretched)
        else:  # NaN, too: positions become NaN, so no step can end
            tl.store(strain_ptr + 18 * system, float("nan"))
        tl.store(owed, 0.5 * _contraction(virial, strain))
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

    Reads ``strain[B, 2, 3, 3]`` and ``pressed[B]``. Changes positions and velocities [N, 3] once,
    adds the change of kinetic energies to ``heat[N]``, and records this in ``stretched[B, P]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    part, system = tl.program_id(0), tl.program_id(1)
    program = system * tl.num_programs(0) + part
    pressed = tl.load(pressed_ptr + system)
    if tl.load(stretched_ptr + program) < pressed:
        end = tl.load(system_ptr + system + 1)
        atom = tl.load(system_ptr + system) + part * ATOMS + tl.arange(0, ATOMS)
        live, atom = atom < end, atom.to(tl.int64)
        growth = _load_rows(strain_ptr + 18 * system)
        shrinkage = _load_rows(strain_ptr + 18 * system + 9)
        x, y, z = load_vectors(positions_ptr, atom, live)
        position = add(add(times(x, growth[0]), y, growth[1]), z, growth[2])
        store_vectors(positions_ptr, atom, live, position)
        before = load_vectors(velocities_ptr, atom, live)
        x, y, z = before
        after = add(add(times(x, shrinkage[0]), y, shrinkage[1]), z, shrinkage[2])
        store_vectors(velocities_ptr, atom, live, after)
        inverse_mass = tl.load(inverse_mass_ptr + atom, live, other=1.0)
        gained = kinetic(after, inverse_mass) - kinetic(before, inverse_mass)
        heat = tl.load(heat_ptr + atom, live, other=0.0)
        tl.store(heat_ptr + atom, heat + gained, live)
        tl.store(stretched_ptr + program, pressed)


def press(motion: Motion, totals: Tensor, integration: Integration, barostat: Barostat) -> None:
    """Stretch cells and pending atoms if the barostat is due after the last step that is done.

    If a strain exceeds `JUMP`, the positions become NaN instead, and no further step is valid;
    `mlff_triton.engine.motion.check_strain` detects this.

    Parameters
    ----------
    motion : Motion
        The state of the simulation; its pending state is changed, once for each action.
    totals : float64 [B, 11]
        Totals of the last step that is done, if it was done just now.
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
            motion.stiffness,
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
