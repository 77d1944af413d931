"""Status of an atom after a step: the age of its neighbors, and problems, as bits."""

from __future__ import annotations

AGE = 255
"""Bits that tell how far an atom has moved, in 1/256 of its limit."""
CONTACT, STALE, OVERLAP, SHORT, FAR, NOT_FINITE = (256 << bit for bit in range(6))
"""Bits for each problem, the most severe one highest: the atom is closer to another one than their
limits allow; it has moved too far, or lies on another one; rows are too short, or shifts too large,
in the whole neighbor matrix; the atom's position is not finite."""
UNCERTAIN = 256 << 6
"""Bit of a system in which the model is less sure of an atom than a simulation demands."""
