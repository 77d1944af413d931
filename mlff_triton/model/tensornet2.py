"""TensorNet2 as a plain PyTorch module: a TensorNet with partial charges and their Coulomb energy.

After the embedding and after each layer, a network predicts charges of each atom, which are
equilibrated over its system. The network that acts on the edges of the next layer takes the charges
of both atoms. The energy contains the Coulomb energy of all charges: between all pairs of atoms,
within a cutoff with a reaction field, or between all periodic images by particle-mesh Ewald. The
rest follows `torchmdnet.models.tensornet2` of TorchMD-NET 3.1, without Warp.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError
from mlff_triton.model.charges import ChargeNetwork
from mlff_triton.model.config import COULOMB_METHODS, TensorNet2Config, TensorNetConfig
from mlff_triton.model.coulomb import coulomb_energy, ewald_energy
from mlff_triton.model.edges import Edges, half_to_each
from mlff_triton.model.known_domain import hash_of_weights
from mlff_triton.model.mesh_coulomb import check_mesh_box, mesh_energies, prepare_mesh
from mlff_triton.model.prediction import Ensemble, members_of
from mlff_triton.model.readout import ScalarHead
from mlff_triton.model.repulsion import Repulsion
from mlff_triton.model.tensornet import AtomResults, Frame, Interaction, TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph

ROUNDING = 1e-6
"""Å by which a box may fall short of two Coulomb cutoffs, because unit conversions round."""
PME_CUTOFF, PME_ERROR = 9.0, 1e-4
"""Cutoff in Å and relative error of particle-mesh Ewald for models that have none."""


class ChargedInteraction(Interaction):
    """One round of message passing, with factors that depend on the charges of both atoms."""

    def forward(self, x: Tensor, edges: Edges, charges: Tensor) -> Tensor:
        """Update tensors x [9, N, F], given charges [N, Q] of the atoms."""
        first = self.radial[0]
        assert isinstance(first, nn.Linear)
        of_distance, of_receiver, of_sender = first.weight.split(
            (edges.basis.shape[1], charges.shape[1], charges.shape[1]), dim=1
        )
        at_pairs = functional.linear(edges.basis, of_distance, first.bias)  # [P + 1, F]
        at_receivers = functional.linear(charges, of_receiver)  # [N, F]
        at_senders = functional.linear(charges, of_sender)  # [N, F]
        graph = edges.graph
        hidden = at_pairs.index_select(0, edges.row)
        hidden = hidden + at_receivers.index_select(0, graph.receivers)
        hidden = hidden + at_senders.index_select(0, graph.senders)
        factors = self._factors(hidden, edges.cutoff.index_select(0, edges.row))
        own = None
        if self.config.self_loops:
            own = self._factors(at_pairs[0] + at_receivers + at_senders, edges.cutoff[:1])
        return self.update(x, edges, list(factors.unbind(1)), own, 1.0)

    def _factors(self, hidden: Tensor, cutoff: Tensor) -> Tensor:
        """Map the output of the first linear map to factors: [E, F] and [E] -> [E, 3, F]."""
        hidden = self.activation(hidden)
        for linear in self.radial[1:]:
            hidden = self.activation(linear(hidden))
        factors: Tensor = (hidden * cutoff[:, None]).unflatten(1, (3, -1))
        return factors


class TensorNet2(TensorNet):
    """TensorNet2 energies and charges, twice differentiable by edge vectors and weights.

    `predict` computes energies, forces, virials and charges with it. Each atom depends on all
    others of its system through their charges.

    Parameters
    ----------
    config : TensorNet2Config
        The architecture.

    Attributes
    ----------
    charge_weights : [num_layers + 1, Q]
        Weight of each charge in the Coulomb energy and in the partial charges. By default, only
        those after the last layer count.

    Examples
    --------
    >>> from mlff_triton import TensorNet2Config
    >>> TensorNet2(TensorNet2Config(elements=(1, 8), hidden_channels=16)).has_charges
    True
    """

    config: TensorNet2Config
    charge_weights: Tensor
    layer = ChargedInteraction

    def __init__(self, config: TensorNet2Config) -> None:
        super().__init__(config)
        self.charges = nn.ModuleList([ChargeNetwork(config) for _ in range(config.num_layers + 1)])
        if config.head == "scalar":
            self.readout.head = ScalarHead(config, config.head_layers)
        weights = torch.zeros(config.num_layers + 1, config.charge_channels)
        weights[-1] = 1.0
        self.register_buffer("charge_weights", weights if config.coulomb else None)
        self.repulsion = Repulsion(config) if config.repulsion else None

    @property
    def has_charges(self) -> bool:
        """True if the model predicts the partial charge of each atom, for its Coulomb energy."""
        return self.config.coulomb

    @property
    def is_local(self) -> bool:
        """Return False: charges depend on all atoms of a system."""
        return False

    @property
    def uses_mesh(self) -> bool:
        """True if the Coulomb energy is computed by particle-mesh Ewald."""
        return self.config.coulomb_method == "pme"

    @property
    def weights_hash(self) -> str:
        """Hash of the weights and of what the energy depends on besides them."""
        facts = dict(self.state_dict())
        for name in ("coulomb_cutoff", "pme_error", "softness_floor"):
            value = getattr(self.config, name)
            if value:
                facts[name] = torch.tensor(value, dtype=torch.float64)
        return hash_of_weights(facts)

    def check_box(self, box: Box) -> None:
        """Raise `InputError` if the Coulomb energy is not defined in a box."""
        check_coulomb_box(self.config, box)

    def atom_results(
        self,
        numbers: Tensor,
        vectors: Tensor,
        graph: Graph,
        charge: Tensor,
        batch: Tensor | None = None,
        frame: Frame | None = None,
    ) -> AtomResults:
        """Compute all results of each atom as `TensorNet.atom_results` does."""
        if batch is None:
            batch = torch.zeros_like(numbers)
        n_systems = len(batch)  # or fewer; counting them would wait for the GPU
        total = charge.to(vectors.dtype)[:, None]
        species = self.species(numbers)
        edges = self._near_edges(vectors, graph)
        x = self.embedding(species, edges)
        charges = []
        for network, layer in zip(self.charges[:-1], self.layers, strict=True):
            charges.append(network(x, total, batch, n_systems))
            x = layer(x, edges, charges[-1])
        energies, hidden = self.readout(x)
        energies, uncertainty = energies.double(), self.readout.uncertainty_of(hidden)
        if self.repulsion is not None:
            energies = energies + self._nuclear_energies(self.repulsion, species, edges)
        if not self.config.coulomb:
            return AtomResults(self._with_priors(energies, species, edges), None, uncertainty)
        charges.append(self.charges[-1](x, total, batch, n_systems))
        weights = self.charge_weights / self.charge_weights.sum()
        every = torch.stack(charges, dim=1)  # [N, layers + 1, Q]
        splitting = None
        if self.uses_mesh:
            frame, parameters = prepare_mesh(self.config, frame, batch, graph.n_edges)
            given = every.flatten(1), weights.flatten(), frame, batch, parameters
            energies, splitting = energies + mesh_energies(*given), parameters.splitting
        energies = energies + self._coulomb_energies(every, weights, vectors, graph, splitting)
        mean = (every * weights).sum((1, 2))
        return AtomResults(self._with_priors(energies, species, edges), mean, uncertainty)

    def _near_edges(self, vectors: Tensor, graph: Graph) -> Edges:
        """Drop the edges beyond the network's cutoff; while a CUDA graph is captured, keep all.

        They do not contribute to its results.
        """
        if is_capturing(vectors):
            return self._edges(vectors, graph)
        near = self._is_near(vectors, graph)
        if bool(near.all()):
            return self._edges(vectors, graph)
        return self._edges(vectors[near], graph.select(near))

    def _is_near(self, vectors: Tensor, graph: Graph) -> Tensor:
        """Return which edges are within the network's cutoff, bool [E], equal for opposite ones."""
        first, pair = graph.pairs
        distances = torch.linalg.vector_norm(vectors.detach()[first], dim=1)
        near: Tensor = distances < self.config.network_cutoff
        return near[pair]

    def _coulomb_energies(
        self,
        charges: Tensor,
        weights: Tensor,
        vectors: Tensor,
        graph: Graph,
        splitting: float | None,
    ) -> Tensor:
        """Compute the Coulomb energy of each atom, float64 [N], eV: half that of its pairs.

        It is the weighted mean over the charges [N, layers + 1, Q] of each atom. For particle-mesh
        Ewald, it is only the sum over pairs.
        """
        first, _ = graph.pairs
        distance = torch.linalg.vector_norm(vectors.index_select(0, first), dim=1).double()
        i, j = graph.receivers[first], graph.senders[first]
        left, right = (charges * weights).flatten(1), charges.flatten(1)
        products = (left.index_select(0, i) * right.index_select(0, j)).sum(1).double()
        cutoff = self.config.coulomb_cutoff
        if splitting is None:
            energies = products * coulomb_energy(distance, cutoff)
        else:
            energies = products * ewald_energy(distance, splitting)
        if cutoff is not None:
            energies = energies * (distance < cutoff)
        return half_to_each(energies, graph)

    def _nuclear_energies(self, repulsion: Repulsion, species: Tensor, edges: Edges) -> Tensor:
        """Compute the nuclear repulsion of each atom, float64 [N], eV: half that of its pairs."""
        graph = edges.graph
        first, _ = graph.pairs
        distance = edges.distances.double()
        i, j = graph.receivers[first], graph.senders[first]
        energies = repulsion(distance, species[i], species[j])
        return half_to_each(energies * (distance < self.config.cutoff_upper), graph)


def check_coulomb_box(config: TensorNet2Config, box: Box) -> None:
    """Raise `InputError` if the Coulomb energy of a model is not defined in a box.

    Particle-mesh Ewald needs two or three periodic directions. Other boxes need a Coulomb cutoff,
    and must be at least twice as high as the cutoff in periodic directions.
    """
    if config.coulomb_method == "pme":
        check_mesh_box(box)
        return
    if not config.coulomb or not box.pbc.any():
        return
    cutoff = config.coulomb_cutoff
    if cutoff is None:
        raise InputError(
            "the model sums the Coulomb energy over all pairs of atoms, so it cannot be "
            "periodic: drop the cell, or choose another sum by load_model(..., coulomb='pme'), "
            "--coulomb pme of a command, or mlff-triton convert --coulomb-cutoff 12"
        )
    height = box.heights[box.pbc].min()
    if height < 2 * cutoff - ROUNDING:
        raise InputError(
            f"the cell is {height:.4g} Å high, less than twice the Coulomb cutoff of "
            f"{cutoff:g} Å: use a larger cell, or load the model with a smaller coulomb_cutoff or "
            "coulomb='pme'"
        )


def model_of(config: TensorNetConfig) -> TensorNet:
    """Return a new model: a TensorNet2 if the architecture is that of one."""
    return TensorNet2(config) if isinstance(config, TensorNet2Config) else TensorNet(config)


def with_coulomb(
    model: TensorNet | Ensemble,
    coulomb: str | None = None,
    coulomb_cutoff: float | None = None,
    pme_error: float | None = None,
) -> TensorNet | Ensemble:
    """Return a copy of a model with another kind of Coulomb energy and the same weights.

    Parameters
    ----------
    model : TensorNet2 or Ensemble
        A model, or several, with a Coulomb energy.
    coulomb : {"all-pairs", "reaction-field", "pme"}, optional
        Sum over all pairs of atoms, over those within the cutoff with a reaction field beyond it,
        or over all periodic images by particle-mesh Ewald. By default, the model's own, or a
        reaction field if only a cutoff is given.
    coulomb_cutoff : float, optional
        Cutoff in Å; by default the model's own, or `PME_CUTOFF` for PME of a model without one.
    pme_error : float, optional
        Relative error of the Coulomb forces by PME; by default the model's own, or `PME_ERROR`.

    Raises
    ------
    InputError
        If the model has no Coulomb energy, or a value is unknown, invalid, or means nothing for
        this kind of energy.
    """
    if coulomb is not None and coulomb not in COULOMB_METHODS:
        raise InputError(
            f"coulomb={short_repr(coulomb)} is unknown: use one of {', '.join(COULOMB_METHODS)}"
        )
    if isinstance(model, Ensemble):
        members = [_with_coulomb(m, coulomb, coulomb_cutoff, pme_error) for m in members_of(model)]
        return Ensemble(members)
    return _with_coulomb(model, coulomb, coulomb_cutoff, pme_error)


def _with_coulomb(
    model: TensorNet, coulomb: str | None, coulomb_cutoff: float | None, pme_error: float | None
) -> TensorNet:
    if not isinstance(model, TensorNet2) or not model.config.coulomb:
        name = "coulomb_cutoff" if coulomb is None and pme_error is None else "coulomb"
        raise InputError(f"the model has no Coulomb energy: leave {name} out")
    old = model.config
    method = coulomb or ("reaction-field" if old.coulomb_cutoff is None else old.coulomb_method)
    if method != "pme" and pme_error is not None:
        raise InputError("pme_error is that of coulomb='pme': give both, or leave it out")
    if method == "all-pairs" and coulomb_cutoff is not None:
        raise InputError("coulomb='all-pairs' has no cutoff: leave coulomb_cutoff out")
    cutoff = old.coulomb_cutoff if coulomb_cutoff is None else coulomb_cutoff
    if method == "all-pairs":
        cutoff = None
    elif method == "reaction-field" and cutoff is None:
        raise InputError(
            "a reaction field needs a cutoff: load the model with coulomb_cutoff=12.0, or give it "
            "one by mlff-triton convert --coulomb-cutoff 12"
        )
    elif method == "pme":
        cutoff = PME_CUTOFF if cutoff is None else cutoff
        given = (pme_error, old.pme_error, PME_ERROR)
        pme_error = next(error for error in given if error is not None)
    changed = copy.deepcopy(model)
    changed.config = replace(old, coulomb_cutoff=cutoff, pme_error=pme_error)
    return changed
