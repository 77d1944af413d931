"""The architecture of a TensorNet, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from mlff_triton.errors import InputError

MAX_ATOMIC_NUMBER = 118
RBF_TYPES = ("expnorm", "gauss", "bessel", "bessel-smooth")
ACTIVATIONS = ("silu", "swish", "ssp", "tanh", "sigmoid", "mish")
GROUPS = ("O(3)", "SO(3)")
HEADS = ("scalar", "gated")


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
    """

    cutoff: float
    prefactor: float
    length_scale: float = 1.0
    charges: tuple[float, ...] | None = None


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
    zbl : ZBLConfig, optional
        Nuclear repulsion added to the energy of the network.

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
    zbl: ZBLConfig | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("rbf_type", self.rbf_type, RBF_TYPES),
            ("activation", self.activation, ACTIVATIONS),
            ("group", self.group, GROUPS),
            ("head", self.head, HEADS),
        ):
            if value not in known:
                raise InputError(f"{name}={value!r} is unknown: use one of {', '.join(known)}")
        if not 0 <= self.cutoff_lower < self.cutoff_upper:
            raise InputError(
                f"cutoffs must satisfy 0 <= lower < upper, not {self.cutoff_lower}, "
                f"{self.cutoff_upper}"
            )
        if self.rbf_type == "bessel" and self.self_loops:
            raise InputError("the bessel basis has no value at distance 0: use self_loops=False")
        sizes = (
            self.hidden_channels,
            self.num_rbf - (self.rbf_type == "gauss"),
            self.num_layers + 1,
        )
        if min(sizes) < 1 or self.num_rbf % max(1, self.bessel_orders):
            raise InputError(
                f"hidden_channels={self.hidden_channels}, num_layers={self.num_layers}, "
                f"num_rbf={self.num_rbf} and bessel_orders={self.bessel_orders} do not make a model"
            )
        if not self.elements or not all(0 <= z <= MAX_ATOMIC_NUMBER for z in self.elements):
            raise InputError("elements must be atomic numbers in 0..118, at least one")
        if self.zbl is not None:
            charges = self.elements if self.zbl.charges is None else self.zbl.charges
            if not self.zbl.cutoff > 0 or len(charges) != len(self.elements):
                raise InputError("zbl needs a positive cutoff, and one charge for each element")

    @property
    def cutoff(self) -> float:
        """Cutoff radius in Å of the neighbor list that the model needs."""
        return max(self.cutoff_upper, self.zbl.cutoff if self.zbl else 0.0)
