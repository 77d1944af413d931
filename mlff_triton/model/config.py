"""What distinguishes one TensorNet from another, apart from its weights."""

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
        Distance in Å at which the cosine cutoff switches it off.
    prefactor : float
        Coulomb constant ``e^2 / (4 pi eps0)`` in eV Å.
    length_scale : float
        Length of one Å of the model in Å of the screening function.
    charges : tuple of float, optional
        Nuclear charge of each element; by default its atomic number.
    """

    cutoff: float
    prefactor: float
    length_scale: float = 1.0
    charges: tuple[float, ...] | None = None


@dataclass(frozen=True)
class TensorNetConfig:
    """The architecture of a TensorNet.

    Attributes
    ----------
    elements : tuple of int
        Atomic numbers that the model knows, in the order of its embedding.
    hidden_channels, num_layers, num_rbf : int
        Channels F, interaction layers, radial basis functions.
    rbf_type : {"expnorm", "gauss", "bessel", "bessel-smooth"}
        Radial basis.
    bessel_orders : int
        Angular orders of the ``bessel`` basis; they divide ``num_rbf``.
    trainable_rbf : bool
        Whether the basis is trained.
    activation : str
        One of ``ACTIVATIONS``; ``silu`` and ``swish`` are the same.
    cutoff_lower, cutoff_upper : float
        Cutoff radii in Å.
    group : {"O(3)", "SO(3)"}
        Symmetry of the tensor product.
    self_loops : bool
        Whether an atom is its own neighbor at distance 0 (TorchMD-NET: yes, MatGL: no).
    readout_activation : bool
        Whether the linear layer before the head is activated (TorchMD-NET: yes, MatGL: no).
    head : {"scalar", "gated"}
        TorchMD-NET's ``Scalar`` network, or MatGL's gated one with SiLU.
    uses_charge : bool
        Whether the model was made for total charges other than 0.
    zbl : ZBLConfig, optional
        Nuclear repulsion added to the network's energy.
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
            raise InputError("elements must be atomic numbers, and at least one")
        if self.zbl is not None:
            charges = self.elements if self.zbl.charges is None else self.zbl.charges
            if not self.zbl.cutoff > 0 or len(charges) != len(self.elements):
                raise InputError("zbl needs a positive cutoff, and one charge for each element")

    @property
    def cutoff(self) -> float:
        """Radius in Å within which every pair must be in the neighbor list."""
        return max(self.cutoff_upper, self.zbl.cutoff if self.zbl else 0.0)
