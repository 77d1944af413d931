"""Parameters of a TensorNet in the layout of the engine's operators.

Radial networks become tables, and the pair embedding becomes two tables of elements. Every linear
map is stored twice, once transposed for the backward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton.engine.charge_parameters import ChargeParameters, bonded_nuclei
from mlff_triton.engine.mesh import MeshChoice
from mlff_triton.engine.radial_tables import TOLERANCES, RadialTables, find_knots, tabulate
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.types.nuclei import Nuclei
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig, unknown_elements
from mlff_triton.model.readout import GatedHead, Readout, ScalarHead
from mlff_triton.model.tensornet import IrrepLinear, TensorNet
from mlff_triton.model.tensornet2 import TensorNet2, check_coulomb_box
from mlff_triton.model.zbl import nuclei_of
from mlff_triton.neighbors.box import Box

SMALLEST_HIDDEN = 16  # tensor cores multiply blocks of at least 16, so smaller heads are padded

Linear = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TensorMaps:
    """Linear maps [3, F, F] over the three parts, and their adjoints."""

    forward: SplitWeight
    backward: SplitWeight


@dataclass(frozen=True)
class ScalarNetworkWeights:
    """Layer norm and two linear maps F -> 2 F -> 3 F, named as in `kernels.tensornet`."""

    gain: Tensor
    shift: Tensor
    weight1: SplitWeight
    bias1: Tensor
    weight2: SplitWeight
    bias2: Tensor
    adjoint1: SplitWeight
    adjoint2: SplitWeight


@dataclass(frozen=True)
class ReadoutWeights:
    """Layer norm over 3 F and a linear map to F, named as in `kernels.tensornet`."""

    gain: Tensor
    shift: Tensor
    weight: SplitWeight
    bias: Tensor
    adjoint: SplitWeight


@dataclass(frozen=True)
class ScalarHeadWeights:
    """Two linear maps F -> H -> 1, the second one in eV, named as in `kernels.tensornet`."""

    weight1: SplitWeight
    bias1: Tensor
    adjoint1: SplitWeight
    weight2: Tensor
    bias2: Tensor


@dataclass(frozen=True)
class DeepHeadWeights:
    """A chain of linear maps, the last one to eV."""

    maps: list[Linear]


@dataclass(frozen=True)
class GatedHeadWeights:
    """Two chains of linear maps, and the scale of their product in eV."""

    values: list[Linear]
    gates: list[Linear]
    scale: float


@dataclass(frozen=True)
class Parameters:
    """All parameters of one model that a step needs.

    Attributes
    ----------
    config : TensorNetConfig
        The architecture.
    species_of_number : int64 [119]
        Index of each element in the model's list, or -1.
    receiver, sender : [S, F]
        Pair embedding ``P[z_i] + Q[z_j]``.
    tables : RadialTables
        Radial networks.
    scalar, embedding, layers, readout, head
        Weights; ``layers`` holds a pair (in, out) per layer.
    deviations : SplitWeight [K, H], optional
        Map U from the head's last hidden values to the uncertainty of an atom, if the model has it.
    references : float64 [S]
        Energy of each element, eV.
    mean : float64 [1]
        Energy of each system, eV.
    nuclei : list of Nuclei
        Nuclear repulsions, of which a TensorNet2 may have two.
    charges : ChargeParameters, optional
        Parameters that only a TensorNet2 has.
    """

    config: TensorNetConfig
    species_of_number: Tensor
    receiver: Tensor
    sender: Tensor
    tables: RadialTables
    scalar: ScalarNetworkWeights
    embedding: TensorMaps
    layers: list[tuple[TensorMaps, TensorMaps]]
    readout: ReadoutWeights
    head: ScalarHeadWeights | DeepHeadWeights | GatedHeadWeights
    deviations: SplitWeight | None
    references: Tensor
    mean: Tensor
    nuclei: list[Nuclei]
    charges: ChargeParameters | None

    @property
    def cutoff(self) -> float:
        """Cutoff in Å of the neighbor list that a step needs."""
        return self.config.cutoff if self.charges is None else self.charges.list_cutoff

    @property
    def has_uncertainty(self) -> bool:
        """True if the model predicts the uncertainty of each atom."""
        return self.deviations is not None

    @property
    def network_cutoff(self) -> float:
        """Cutoff in Å of everything but a Coulomb energy."""
        return self.config.cutoff if self.charges is None else self.charges.network_cutoff

    @property
    def has_charges(self) -> bool:
        """True if the model predicts the partial charge of each atom."""
        return self.charges is not None and self.charges.coulomb is not None

    @property
    def mesh_choice(self) -> MeshChoice | None:
        """A new choice of the mesh of a batch, if the Coulomb energy uses particle-mesh Ewald."""
        if isinstance(self.config, TensorNet2Config) and self.config.coulomb_method == "pme":
            return MeshChoice(self.config)
        return None

    def check_box(self, box: Box) -> None:
        """Raise `InputError` if the Coulomb energy of a TensorNet2 is not defined in a box."""
        if isinstance(self.config, TensorNet2Config):
            check_coulomb_box(self.config, box)

    def species(self, numbers: Tensor) -> Tensor:
        """Return the index of each atom's element: int64 [N] -> int32 [N].

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """
        known = self.species_of_number
        inside = (numbers >= 0) & (numbers < len(known))
        species = torch.where(inside, known[torch.where(inside, numbers, 0)], -1)
        if bool((species < 0).any()):
            raise unknown_elements(numbers[species < 0].tolist(), self.config.elements)
        return species.int()

    @classmethod
    def of(
        cls,
        model: TensorNet,
        device: torch.device,
        dtype: torch.dtype,
        tf32: bool = False,
        halves: bool = False,
    ) -> Parameters:
        """Convert the parameters of a model, in float64 until the end.

        Parameters
        ----------
        model : TensorNet
            The model, which is not changed.
        device, dtype
            Device and precision of the parameters.
        tf32 : bool
            If True, factors of matrix products in float32 are rounded to TF32.
        halves : bool
            If True, edge networks of a TensorNet2 are stored in the form that is fastest in
            kernels.

        Raises
        ------
        UnsupportedModelError
            If the model has no interaction layer, or is a TensorNet2 without self-loops, or its
            radial networks cannot be tabulated.
        """
        if not model.layers:
            raise UnsupportedModelError("the engine needs a layer: use backend='exact'")
        if not model.is_local and not model.config.self_loops:
            raise UnsupportedModelError(
                "the engine needs the self-loops of a TensorNet2: use backend='exact'"
            )
        exact = _exact(model)
        tables = tabulate(exact, TOLERANCES[dtype]).to(device, dtype)
        exact = exact.to(device)

        def converted(tensor: Tensor) -> Tensor:
            return tensor.detach().to(device, dtype).contiguous()

        def both(weight: Tensor) -> tuple[SplitWeight, SplitWeight]:
            forward = SplitWeight.of(converted(weight), tf32)
            return forward, forward.transposed

        def maps(linear: IrrepLinear) -> TensorMaps:
            return TensorMaps(*both(linear.weight))

        charges, nuclei = None, nuclei_of(exact.config, device)
        if isinstance(exact, TensorNet2):
            charges = ChargeParameters.of(exact, tables, tf32=tf32, halves=halves)
            bonded = bonded_nuclei(exact)
            nuclei += [] if bonded is None else [bonded]
        embedding, readout = exact.embedding, exact.readout
        half = exact.config.hidden_channels
        elements, pair = embedding.element.weight, embedding.pair
        first, second = (_linear(module) for module in embedding.scalar)
        weight1, adjoint1 = both(first.weight)
        weight2, adjoint2 = both(second.weight)
        weight, adjoint = both(readout.linear.weight)
        return cls(
            config=exact.config,
            species_of_number=exact.species_of_number,
            receiver=converted(elements @ pair.weight[:, :half].T),
            sender=converted(elements @ pair.weight[:, half:].T + pair.bias),
            tables=tables,
            scalar=ScalarNetworkWeights(
                gain=converted(embedding.norm.weight),
                shift=converted(embedding.norm.bias),
                weight1=weight1,
                bias1=converted(first.bias),
                weight2=weight2,
                bias2=converted(second.bias),
                adjoint1=adjoint1,
                adjoint2=adjoint2,
            ),
            embedding=maps(embedding.tensor),
            layers=[
                (maps(layer.tensor_in), maps(layer.tensor_out)) for layer in exact.interactions
            ],
            readout=ReadoutWeights(
                gain=converted(readout.norm.weight),
                shift=converted(readout.norm.bias),
                weight=weight,
                bias=converted(readout.linear.bias),
                adjoint=adjoint,
            ),
            head=_head(readout.head, exact.std, device, dtype, tf32),
            deviations=_deviations(readout, device, dtype, tf32),
            references=exact.references,
            mean=exact.mean.reshape(1),
            nuclei=nuclei,
            charges=charges,
        )


def table_obstacle(model: TensorNet, dtype: torch.dtype) -> str | None:
    """Return the reason why a model cannot be tabulated in a precision, or None if it can.

    This takes milliseconds, and the knots that it finds are kept for the tables.
    """
    try:
        find_knots(_exact(model), TOLERANCES[dtype])
    except UnsupportedModelError as error:
        return str(error).partition(": use ")[0]
    return None


def _exact(model: TensorNet) -> TensorNet:
    """Return a copy of a model in float64 on the CPU."""
    return copy.deepcopy(model).double().requires_grad_(False).eval().cpu()


def _head(
    head: nn.Module, scale: Tensor, device: torch.device, dtype: torch.dtype, tf32: bool
) -> ScalarHeadWeights | DeepHeadWeights | GatedHeadWeights:
    def converted(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, dtype).contiguous()

    def chain(modules: Iterable[nn.Module]) -> list[Linear]:
        linears = [_linear(module) for module in modules]
        return [(converted(linear.weight.T), converted(linear.bias)) for linear in linears]

    if isinstance(head, ScalarHead) and not _is_padded(head):
        last = _linear(head.linear2)
        to_ev = converted(last.weight.T * scale), converted(last.bias * scale)
        return DeepHeadWeights([*chain([head.linear1, *head.hidden]), to_ev])
    if isinstance(head, ScalarHead):
        missing = max(0, SMALLEST_HIDDEN - head.linear1.out_features)
        padding = scale.new_zeros(missing, head.linear1.in_features)
        weight1 = SplitWeight.of(converted(torch.cat([head.linear1.weight, padding])), tf32)
        weight2 = torch.cat([head.linear2.weight[0] * scale, scale.new_zeros(missing)])
        return ScalarHeadWeights(
            weight1=weight1,
            bias1=converted(torch.cat([head.linear1.bias, scale.new_zeros(missing)])),
            adjoint1=weight1.transposed,
            weight2=converted(weight2),
            bias2=converted(head.linear2.bias * scale),
        )
    assert isinstance(head, GatedHead)
    return GatedHeadWeights(chain(head.values), chain(head.gates), float(scale))


def _deviations(
    readout: Readout, device: torch.device, dtype: torch.dtype, tf32: bool
) -> SplitWeight | None:
    """Return the map of a readout to uncertainties, with as many rows as kernels take.

    Norms depend on ``U^T U`` alone, so no more rows than columns are needed.
    """
    given = readout.uncertainty
    if given is None:
        return None
    if len(given) > given.shape[1]:
        given = torch.linalg.qr(given, mode="r").R
    missing = max(0, SMALLEST_HIDDEN - given.shape[1]) if _is_padded(readout.head) else 0
    n_rows = max(SMALLEST_HIDDEN, 1 << (len(given) - 1).bit_length())
    padding = (0, missing, 0, n_rows - len(given))
    weight = functional.pad(given, padding).to(device, dtype)
    return SplitWeight.of(weight, tf32)


def _is_padded(head: nn.Module) -> bool:
    """Return True for heads whose hidden values kernels pad."""
    return isinstance(head, ScalarHead) and not len(head.hidden)


def _linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module
