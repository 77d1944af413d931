"""Parameters of a TensorNet2 that a TensorNet lacks, in the layout of the engine's operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mlff_triton.engine.radial_tables import RadialTables
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import EwaldField, ReactionField
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.kernels.types.nuclei import Nuclei
from mlff_triton.model import charges
from mlff_triton.model.coulomb import COULOMB, DIELECTRIC
from mlff_triton.model.mesh_coulomb import UNIT, splitting_of
from mlff_triton.model.repulsion import COULOMB as NUCLEAR_COULOMB
from mlff_triton.model.repulsion import SCREENING_LENGTH
from mlff_triton.model.tensornet2 import ROUNDING, ChargedInteraction, TensorNet2

Linear = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class CoulombWeights:
    """Weights of the charges [N, C] of all layers, side by side, C = (layers + 1) Q.

    Attributes
    ----------
    energy : [C]
        Weights of their products, with half the Coulomb constant, eV Å.
    mean : [C]
        Weights in the partial charge of the atom.
    cutoff : float, optional
        Cutoff of the energy in Å. By default, all pairs of atoms interact.
    field : ReactionField or EwaldField, optional
        Constants of the reaction field or the Ewald sum, if there is one.
    used : int64 [U]
        Charges whose weight is not zero.
    of_mesh : float64 [U]
        Weights of their energies on a mesh, in its unit of energy.
    """

    energy: Tensor
    mean: Tensor
    cutoff: float | None
    field: ReactionField | EwaldField | None
    used: Tensor
    of_mesh: Tensor


@dataclass(frozen=True)
class ChargeParameters:
    """Networks of charges, and networks that depend on them.

    Attributes
    ----------
    predictions : list of ChargeNetwork
        Networks that predict charges before each layer and, for the Coulomb energy, after the last.
    interactions : list of InteractionNetwork
        Network of the edges of each layer.
    n_charges : int
        Number of charges Q that each network predicts for an atom.
    coulomb : CoulombWeights, optional
        Weights of the Coulomb energy, if the model has one.
    network_cutoff : float
        Cutoff in Å of everything but the Coulomb energy.
    softness_floor : float
        Least weight of an atom in the equilibration.
    """

    predictions: list[ChargeNetwork]
    interactions: list[InteractionNetwork]
    n_charges: int
    coulomb: CoulombWeights | None
    network_cutoff: float
    softness_floor: float

    @property
    def is_truncated(self) -> bool:
        """True if the model has a Coulomb energy with a cutoff."""
        return self.coulomb is not None and self.coulomb.cutoff is not None

    @property
    def list_cutoff(self) -> float:
        """Cutoff in Å of the neighbor list. A Coulomb energy of all pairs does not need one."""
        if self.coulomb is None or self.coulomb.cutoff is None:
            return self.network_cutoff
        return max(self.network_cutoff, self.coulomb.cutoff)

    def is_too_low(self, cell: Tensor, pbc: Tensor) -> Tensor:
        """Find boxes that `check_coulomb_box` refuses, without waiting for a GPU.

        Parameters
        ----------
        cell : float64 [B, 3, 3]
            Lattice vectors (rows) in Å.
        pbc : uint8 [B, 3]
            1 in periodic directions.

        Returns
        -------
        bool [B]
        """
        assert self.coulomb is not None
        assert self.coulomb.cutoff is not None
        normals = torch.linalg.cross(cell.roll(-1, 1), cell.roll(-2, 1))
        volume = (cell * normals).sum(2)
        heights = volume.abs() / torch.linalg.vector_norm(normals, dim=2)
        is_low: Tensor = (heights < 2 * self.coulomb.cutoff - ROUNDING) & (pbc != 0)
        return is_low.any(1)

    @classmethod
    def of(
        cls, model: TensorNet2, tables: RadialTables, *, tf32: bool, halves: bool
    ) -> ChargeParameters:
        """Convert the parameters of a model.

        Parameters
        ----------
        model : TensorNet2
            The model, in float64 on the device of the tables.
        tables : RadialTables
            Its tables, in the precision of the parameters.
        tf32, halves : bool
            Same as for `InteractionNetwork.of`.
        """
        config, like = model.config, tables.embedding

        def converted(tensor: Tensor) -> Tensor:
            return tensor.detach().to(like).contiguous()

        def maps(modules: nn.ModuleList) -> list[Linear]:
            linears = [module for module in modules if isinstance(module, nn.Linear)]
            return [(converted(m.weight), converted(m.bias)) for m in linears]

        def prediction(network: nn.Module) -> ChargeNetwork:
            assert isinstance(network, charges.ChargeNetwork)
            norm = converted(network.norm.weight), converted(network.norm.bias)
            first, second, third = maps(network.linears)
            return ChargeNetwork.of(norm, first, second, third, config.activation, tf32=tf32)

        def interaction(layer: nn.Module, table: Tensor, own: Tensor) -> InteractionNetwork:
            assert isinstance(layer, ChargedInteraction)
            (first, _), second, third = maps(layer.radial)
            of_charges = first[:, config.num_rbf :].unflatten(1, (2, -1)).permute(2, 1, 0)
            cutoffs = config.cutoff_lower, config.cutoff_upper
            given = table[:, :, 0], own[0], of_charges, second, third, cutoffs, config.activation
            return InteractionNetwork.of(*given, halves=halves, tf32=tf32)

        layers = zip(model.layers, tables.layers, tables.layer_self, strict=True)
        return cls(
            predictions=[prediction(m) for m in model.charges][: _n_predictions(model)],
            interactions=[interaction(*layer) for layer in layers],
            n_charges=config.charge_channels,
            coulomb=_coulomb(model, like) if config.coulomb else None,
            network_cutoff=config.network_cutoff,
            softness_floor=config.softness_floor,
        )


def _n_predictions(model: TensorNet2) -> int:
    """Return the number of networks whose charges have any effect."""
    return model.config.num_layers + model.config.coulomb


def _coulomb(model: TensorNet2, like: Tensor) -> CoulombWeights:
    cutoff = model.config.coulomb_cutoff
    mean = (model.charge_weights / model.charge_weights.sum()).flatten()
    field: ReactionField | EwaldField | None = None
    if model.uses_mesh and cutoff is not None:
        field = EwaldField.of(cutoff, splitting_of(model.config), like.device)
    elif cutoff is not None:
        field = ReactionField.of(cutoff, DIELECTRIC, like.device)
    weights = (mean * model.std * (COULOMB / 2)).to(like), mean.to(like)
    used = mean.nonzero().flatten()
    of_mesh = (mean[used] * model.std * UNIT).double()
    return CoulombWeights(*weights, cutoff, field, used, of_mesh)


def bonded_nuclei(model: TensorNet2) -> Nuclei | None:
    """Precompute the factors of a TensorNet2's nuclear repulsion for each element, or None."""
    repulsion = model.repulsion
    if repulsion is None:
        return None
    cutoff = torch.full((1,), model.config.cutoff_upper, dtype=torch.float64)
    return Nuclei(
        charge=repulsion.charge.double(),
        inverse_length=repulsion.power.double() / SCREENING_LENGTH,
        half_coulomb=(model.std * (NUCLEAR_COULOMB / 2)).reshape(1),
        cutoff=cutoff.to(model.std.device),
        ends=repulsion.radii.double().contiguous(),
    )
