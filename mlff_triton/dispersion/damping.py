"""Dispersion corrections by name: the damping parameters of each functional."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from mlff_triton._common.remedies import install
from mlff_triton._common.text import shortened
from mlff_triton.errors import InputError

SCHEME = "d3bj"
FORM = f"{SCHEME}:FUNCTIONAL, such as {SCHEME}:pbe"
COMPOSITE = ("b973c", "hf3c", "hf3cv", "pbeh3c")
"""Methods whose energy has further corrections, for the basis set and three bodies."""
ALIASES = {
    "b1p86": "b1p",
    "b3lyp5": "b3lyp",
    "b3p86": "b3p",
    "bhandhlyp": "bhlyp",
    "bp86": "bp",
    "mpw1pw91": "mpw1pw",
    "mpwpw91": "mpwpw",
    "pbeh": "pbe0",
}
"""Second names of functionals, which the Fortran library of s-dftd3 knows as well."""


@dataclass(frozen=True)
class Damping:
    """A two-body D3 correction with the rational damping of Becke and Johnson.

    Attributes
    ----------
    functional : str
        Name of the functional.
    s6, s8 : float
        Factors of the terms in r^-6 and r^-8.
    a1, a2 : float
        Parameters of the damping radius; a2 in Bohr.

    References
    ----------
    S. Grimme, S. Ehrlich, L. Goerigk, J. Comput. Chem. 2011, 32, 1456.
    """

    functional: str
    s6: float
    s8: float
    a1: float
    a2: float

    @property
    def method(self) -> str:
        """Name of the correction, such as "d3bj:pbe"."""
        return f"{SCHEME}:{self.functional}"


def damping_of(method: str) -> Damping:
    """Return the damping of a correction.

    Parameters
    ----------
    method : str
        "d3bj:" and the name of a functional; case, hyphens and slashes do not matter.

    Returns
    -------
    Damping
        Parameters are those of s-dftd3.

    Raises
    ------
    InputError
        If the name is malformed or unknown, or s-dftd3 is missing.

    Examples
    --------
    >>> damping_of("d3bj:PBE").a1
    0.4289
    """
    if not isinstance(method, str):
        raise InputError(f"dispersion={method!r} must be a text: give {FORM}")
    scheme, _, name = method.partition(":")
    shown = repr(shortened(method))
    if scheme.strip().lower() != SCHEME:
        raise InputError(f"dispersion {shown} is unknown: give {FORM}")
    known = dampings()
    wanted = _plain(name)
    found = known.get(ALIASES.get(wanted, wanted))
    if found is not None:
        return found
    if wanted in COMPOSITE:
        raise InputError(
            f"dispersion {shown} is one of several corrections of a composite method, and alone "
            "would be wrong: take that of a functional"
        )
    names = sorted([*(damping.functional for damping in known.values()), *ALIASES])
    close = get_close_matches(wanted, names, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(f'{SCHEME}:{one}' for one in close)}?"
    raise InputError(f"dispersion {shown} is unknown: {advice if close else f'give {FORM}'}")


@cache
def dampings() -> dict[str, Damping]:
    """Return all known corrections by the plain name of the functional.

    Raises
    ------
    InputError
        If s-dftd3 is missing.
    """
    try:
        from dftd3.parameters import get_all_damping_params
    except ImportError as error:
        raise InputError(f"dispersion needs dftd3: {install('dispersion')}") from error
    found = {}
    for name, values in get_all_damping_params(["bj"]).items():
        if name in COMPOSITE or not {"s8", "a1", "a2"} <= values.keys():
            continue
        s6, s8, a1, a2 = (float(values[key]) for key in ("s6", "s8", "a1", "a2"))
        found[_plain(name)] = Damping(name, s6, s8, a1, a2)
    return found


def _plain(name: str) -> str:
    """Return the name of a functional in lower case, without marks in which spellings differ."""
    return re.sub(r"[-_/\s]", "", name.lower())
