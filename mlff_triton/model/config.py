"""The architecture of a TensorNet, as plain data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError, UnknownElementError

# Symbols of the elements by atomic number; X is TorchMD-NET's element 0.
SYMBOLS = """
X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm
Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr
Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
""".split()  # noqa: SIM905 (a hundred quoted symbols would be harder to read)
MAX_ATOMIC_NUMBER = len(SYMBOLS) - 1
# Limits far above any published model, so that a wrong number fails in one line instead of
# filling the memory.
MAX_CHANNELS = 2048
MAX_LAYERS = 64
MAX_RBF = 1024
MAX_ORDERS = 16
MAX_CHARGE_CHANNELS = 1024
MAX_HEAD_LAYERS = 16
MAX_CUTOFF = 100.0  # Å
MAX_SOFTNESS_FLOOR = 1e3
MAX_PREFACTOR = 1e6  # eV Å; e^2 / (4 pi eps0) is 14.4
MAX_LENGTH_SCALE = 1e3
RBF_TYPES = ("expnorm", "gauss", "bessel", "bessel-smooth")
ACTIVATIONS = ("silu", "swish", "ssp", "tanh", "sigmoid", "mish")
GROUPS = ("O(3)", "SO(3)")
HEADS = ("scalar", "gated")
COULOMB_METHODS = ("all-pairs", "reaction-field", "pme")
DAMPING_RADIUS = 4.6
"""Distance in Å below which the Coulomb energy of a pair is damped."""
PME_ERRORS = 1e-7, 1e-2
"""Smallest and largest relative error of forces that may be asked of particle-mesh Ewald."""


def symbols_of(numbers: Iterable[int]) -> str:
    """List elements in a message by their symbols.

    Parameters
    ----------
    numbers : iterable of int
        Atomic numbers; those without an element are shown as numbers.

    Returns
    -------
    str

    Examples
    --------
    >>> symbols_of([11, 17])
    'Na, Cl'
    """
    return ", ".join(SYMBOLS[z] if 0 <= z < len(SYMBOLS) else f"atomic number {z}" for z in numbers)


def unknown_elements(numbers: Iterable[int], known: Iterable[int]) -> UnknownElementError:
    """Return the error for atomic numbers that a model of the known elements was not made for."""
    missing = symbols_of(sorted(set(numbers)))
    return UnknownElementError(f"the model does not know {missing}; it knows {symbols_of(known)}")


@dataclass(frozen=True)
class ZBLConfig:
    """Parameters of the screened nuclear repulsion in `mlff_triton.model.zbl`.

    Attributes
    ----------
    cutoff : float
        Distance in Å beyond which the repulsion is zero.
    prefactor : float
        Coulomb constant ``e^2 / (4 pi eps0)`` in eV Å.
    length_scale : float
        Factor from the distances of the model to those of the screening function.
    charges : tuple of float, optional
        Nuclear charge of each element; by default its atomic number.
    is_smooth : bool
        True for a switch whose first two derivatives vanish at the cutoff. The default, as in
        TorchMD-NET, is a cosine, whose curvature jumps there.

    Raises
    ------
    InputError
        If a value is negative, not finite, or much larger than any real one.
    """

    cutoff: float
    prefactor: float
    length_scale: float = 1.0
    charges: tuple[float, ...] | None = None
    is_smooth: bool = False

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("cutoff", self.cutoff, MAX_CUTOFF),
            ("prefactor", self.prefactor, MAX_PREFACTOR),
            ("length_scale", self.length_scale, MAX_LENGTH_SCALE),
        ):
            if not 0 < value <= limit:
                raise InputError(
                    f"{name}={value!r} of zbl must be above 0 and at most {limit:g}, in Å and eV"
                )
        if self.charges is not None and not all(0 <= q <= MAX_ATOMIC_NUMBER for q in self.charges):
            raise InputError(f"charges of zbl must lie in 0..{MAX_ATOMIC_NUMBER}")

    def charges_of(self, elements: tuple[int, ...]) -> tuple[float, ...]:
        """Return the nuclear charges of a model of these elements, in their order."""
        return elements if self.charges is None else self.charges


@dataclass(frozen=True)
class TensorNetConfig:
    """Hyperparameters of a TensorNet.

    Attributes
    ----------
    elements : tuple of int
        Atomic numbers that the model supports, in the order of its embedding.
    hidden_channels, num_layers, num_rbf : int
        Number of channels F, of interaction layers, and of radial basis functions.
    rbf_type : {"expnorm", "gauss", "bessel", "bessel-smooth"}
        Radial basis.
    bessel_orders : int
        Number of angular orders of the ``bessel`` basis; must divide ``num_rbf``.
    trainable_rbf : bool
        If True, the parameters of the radial basis are trained.
    activation : {"silu", "swish", "ssp", "tanh", "sigmoid", "mish"}
        Activation function; ``silu`` and ``swish`` are the same.
    cutoff_lower, cutoff_upper : float
        Cutoff radii in Å.
    group : {"O(3)", "SO(3)"}
        Symmetry of the tensor product.
    self_loops : bool
        If True, every atom is its own neighbor at distance 0, as in TorchMD-NET but not in MatGL.
    readout_activation : bool
        If True, an activation follows the linear layer before the head, as in TorchMD-NET but not
        in MatGL.
    head : {"scalar", "gated"}
        Output network: TorchMD-NET's ``Scalar``, or MatGL's gated network with SiLU.
    uses_charge : bool
        If True, the model supports total charges other than 0.
    zbl : ZBLConfig or tuple of ZBLConfig, optional
        Nuclear repulsion, or several, added to the energy of the network.

    Raises
    ------
    InputError
        If an option is unknown, or the values do not make a model.

    Examples
    --------
    >>> TensorNetConfig(elements=(1, 6, 7, 8), cutoff_upper=4.5).cutoff
    4.5
    """

    elements: tuple[int, ...]
    hidden_channels: int = 128
    num_layers: int = 2
    num_rbf: int = 32
    rbf_type: str = "expnorm"
    bessel_orders: int = 1
    trainable_rbf: bool = False
    activation: str = "silu"
    cutoff_lower: float = 0.0
    cutoff_upper: float = 5.0
    group: str = "O(3)"
    self_loops: bool = True
    readout_activation: bool = True
    head: str = "scalar"
    uses_charge: bool = True
    zbl: ZBLConfig | tuple[ZBLConfig, ...] | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("rbf_type", self.rbf_type, RBF_TYPES),
            ("activation", self.activation, ACTIVATIONS),
            ("group", self.group, GROUPS),
            ("head", self.head, HEADS),
        ):
            if value not in known:
                raise InputError(
                    f"{name}={short_repr(value)} is unknown: use one of {', '.join(known)}"
                )
        self._check_flags("trainable_rbf", "self_loops", "readout_activation", "uses_charge")
        if not 0 <= self.cutoff_lower < self.cutoff_upper <= MAX_CUTOFF:
            raise InputError(
                f"cutoffs must satisfy 0 <= lower < upper <= {MAX_CUTOFF:g} Å, not "
                f"{self.cutoff_lower}, {self.cutoff_upper}"
            )
        if self.rbf_type == "bessel" and self.self_loops:
            raise InputError("the bessel basis has no value at distance 0: use self_loops=False")
        self._check_size("hidden_channels", 1, MAX_CHANNELS)
        self._check_size("num_layers", 0, MAX_LAYERS)
        self._check_size("num_rbf", 2 if self.rbf_type == "gauss" else 1, MAX_RBF)
        self._check_size("bessel_orders", 1, MAX_ORDERS)
        if self.num_rbf % self.bessel_orders:
            raise InputError(
                f"bessel_orders={self.bessel_orders} must divide num_rbf={self.num_rbf}"
            )
        self._check_elements()

    def _check_flags(self, *names: str) -> None:
        for name in names:
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise InputError(f"{name}={short_repr(flag)} must be True or False")

    def _check_size(self, name: str, least: int, most: int) -> None:
        size = getattr(self, name)
        if not least <= size <= most:
            raise InputError(f"{name}={short_repr(size)} must lie in {least}..{most}")

    def _check_elements(self) -> None:
        counts = Counter(self.elements)
        if not counts or not all(z in range(MAX_ATOMIC_NUMBER + 1) for z in counts):
            raise InputError(
                f"elements must be atomic numbers in 0..{MAX_ATOMIC_NUMBER}, at least one"
            )
        repeated = [z for z, count in counts.items() if count > 1]
        if repeated:
            raise InputError(f"elements must differ: {symbols_of(repeated)} occurs repeatedly")
        for zbl in self.repulsions:
            if len(zbl.charges_of(self.elements)) != len(self.elements):
                raise InputError("zbl needs one charge for each element")

    @property
    def repulsions(self) -> tuple[ZBLConfig, ...]:
        """All terms of the nuclear repulsion, which are added up; none without ``zbl``."""
        if self.zbl is None:
            return ()
        return self.zbl if isinstance(self.zbl, tuple) else (self.zbl,)

    @property
    def cutoff(self) -> float:
        """Cutoff radius in Å of the neighbor list that the model needs."""
        return max(self.cutoff_upper, *(zbl.cutoff for zbl in self.repulsions), 0.0)

    @property
    def edge_features(self) -> int:
        """Number of inputs of the network that acts on the edges of each layer."""
        return self.num_rbf


@dataclass(frozen=True)
class TensorNet2Config(TensorNetConfig):
    """Hyperparameters of a TensorNet2, in addition to those of a TensorNet.

    Attributes
    ----------
    charge_channels : int
        Number of partial charges of each atom after the embedding and after each layer, which is
        ``q_dim`` in TorchMD-NET.
    head_layers : int
        Number of additional hidden layers of the ``scalar`` head.
    coulomb : bool
        If True, the energy contains a Coulomb energy of the partial charges, damped at short range.
    coulomb_cutoff : float, optional
        Cutoff in Å of the Coulomb energy, with a reaction field beyond it. Periodic boxes require
        it. By default, all pairs of atoms interact.
    pme_error : float, optional
        If given, the Coulomb energy beyond the cutoff is that of all periodic images, by
        particle-mesh Ewald (PME). The value is the allowed root-mean-square error of the Coulomb
        forces, relative to the root mean square of these forces.
    repulsion : bool
        If True, the energy contains the nuclear repulsion in `mlff_triton.model.repulsion`.
    softness_floor : float
        Least weight of an atom in the equilibration of charges, where weights are squares of
        predicted softness. TorchMD-NET has none: 0. Then the forces on a small molecule have a
        spike wherever the softness of all its atoms passes through zero.

    Raises
    ------
    InputError
        If an option is unknown, or the values do not make a model.

    Examples
    --------
    >>> TensorNet2Config(elements=(1, 6, 7, 8), coulomb_cutoff=12.0).cutoff
    12.0
    """

    charge_channels: int = 16
    head_layers: int = 0
    coulomb: bool = True
    coulomb_cutoff: float | None = None
    repulsion: bool = False
    pme_error: float | None = None
    softness_floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_flags("coulomb", "repulsion")
        self._check_size("charge_channels", 1, MAX_CHARGE_CHANNELS)
        self._check_size("head_layers", 0, MAX_HEAD_LAYERS)
        if self.head != "scalar" and self.head_layers:
            raise InputError("head_layers are those of the scalar head: use head='scalar'")
        if self.repulsion and self.cutoff_lower > 0:
            raise InputError("a model with repulsion has no lower cutoff: use cutoff_lower=0")
        for name in ("coulomb_cutoff", "pme_error", "softness_floor"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, Real)):
                raise InputError(f"{name}={short_repr(value)} must be a number")
        if self.coulomb_cutoff is not None:
            if not self.coulomb:
                raise InputError("the model has no Coulomb energy: leave coulomb_cutoff out")
            if not 0 < self.coulomb_cutoff <= MAX_CUTOFF:
                raise InputError(
                    f"coulomb_cutoff={short_repr(self.coulomb_cutoff)} must be above 0 and at most "
                    f"{MAX_CUTOFF:g} Å"
                )
        if self.pme_error is not None:
            self._check_pme(self.pme_error)
        if not 0 <= self.softness_floor <= MAX_SOFTNESS_FLOOR:
            raise InputError(
                f"softness_floor={short_repr(self.softness_floor)} must be at least 0 and at most "
                f"{MAX_SOFTNESS_FLOOR:g}"
            )

    def _check_pme(self, error: float) -> None:
        if not self.coulomb:
            raise InputError("the model has no Coulomb energy: leave pme_error out")
        smallest, largest = PME_ERRORS
        if not smallest <= error <= largest:
            raise InputError(
                f"pme_error={short_repr(error)} is out of range: use {smallest:g} to {largest:g}"
            )
        if self.coulomb_cutoff is None or self.coulomb_cutoff < DAMPING_RADIUS:
            raise InputError(
                f"PME needs a coulomb_cutoff of at least {DAMPING_RADIUS} Å, the distance up to "
                f"which charges are damped, not {self.coulomb_cutoff}: use 9"
            )

    @property
    def coulomb_method(self) -> str | None:
        """One of `COULOMB_METHODS`, or None if the model has no Coulomb energy."""
        if not self.coulomb:
            return None
        if self.pme_error is not None:
            return "pme"
        return "all-pairs" if self.coulomb_cutoff is None else "reaction-field"

    @property
    def cutoff(self) -> float:
        """Cutoff radius in Å of the neighbor list; infinite if all pairs of atoms interact."""
        if not self.coulomb:
            return self.network_cutoff
        return max(self.network_cutoff, self.coulomb_cutoff or math.inf)

    @property
    def network_cutoff(self) -> float:
        """Cutoff radius in Å of everything but the Coulomb energy."""
        return super().cutoff

    @property
    def edge_features(self) -> int:
        """Number of inputs of the network that acts on the edges of each layer."""
        return self.num_rbf + 2 * self.charge_channels
