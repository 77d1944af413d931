"""Parts of large systems with neighbor lists from the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from mlff_triton.engine.batch import to_tensor
from mlff_triton.engine.charged_step import Geometry, Operators, evaluate_charged_part
from mlff_triton.engine.mesh import Mesh, MeshChoice, PartMesh
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.part import (
    PartAtoms,
    PartBorders,
    PartPrediction,
    own_errors,
    virials_of,
)
from mlff_triton.engine.step import ChargedAtoms, Systems, evaluate_part
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.graph import Graph
from mlff_triton.neighbors.verlet_list import VerletList

PartResults = tuple[Tensor, Tensor, Tensor | None]


class HostPart(ABC):
    """Steps of one part on the host.

    Parameters
    ----------
    charge : float
        Total charge of the whole system in elementary charges.
    device : torch.device
        Device that computes the network.
    mesh_choice : MeshChoice, optional
        Choice of the mesh, if the Coulomb energy uses particle-mesh Ewald.
    """

    def __init__(
        self, charge: float, device: torch.device, mesh_choice: MeshChoice | None = None
    ) -> None:
        self.device = device
        self._charge = torch.tensor([charge], dtype=torch.float64, device=device)
        self._part_mesh = None if mesh_choice is None else PartMesh(mesh_choice, device)
        self._mesh: Mesh | None = None

    def set_atoms(self, atoms: PartAtoms) -> None:
        """Replace all atoms."""
        self._atoms = atoms
        if self._part_mesh is not None:
            self._part_mesh.forget_atoms()
        self._numbers = to_tensor(atoms.numbers, self.device)
        self._prepare()

    def step(
        self, positions: FloatArray, *, per_atom: bool, box: Box | None = None
    ) -> PartPrediction:
        """Compute the current atoms, at least one of them own, in Å and eV."""
        if self._part_mesh is not None:
            assert self._atoms.exchange is not None
            assert box is not None
            own = positions[: self._atoms.n_own]
            plan = self._part_mesh.update(own, box, self._atoms.exchange.gather)
            self._mesh = plan.in_cells(to_tensor(box.cell[None], self.device))
        forces, atoms, uncertainty = self._evaluate(positions)
        virials = virials_of(atoms[1:].cpu())
        energies = atoms[0, : self._atoms.n_own].cpu().numpy()
        return PartPrediction(
            energy=float(energies.sum()),
            forces=forces.cpu().numpy(),
            virial=virials.sum(0),
            atom_energies=energies,
            atom_virials=virials if per_atom else None,
            uncertainty=None if uncertainty is None else own_errors(uncertainty, self._atoms),
        )

    @abstractmethod
    def _prepare(self) -> None:
        """Look up what depends on the current atoms."""

    @abstractmethod
    def _evaluate(self, positions: FloatArray) -> PartResults:
        """Return forces [N, 3], energies and virials [7, N], and uncertainties, as `Outputs`."""


class ListPart(HostPart):
    """Steps of one part with a reusable neighbor list from the host.

    Parameters
    ----------
    cutoff, skin : float
        Å.
    charge, device, mesh_choice
        Same as for `HostPart`.
    """

    def __init__(
        self,
        cutoff: float,
        skin: float,
        charge: float,
        device: torch.device,
        mesh_choice: MeshChoice | None = None,
    ) -> None:
        super().__init__(charge, device, mesh_choice)
        self._cutoff, self._skin = cutoff, skin

    def _prepare(self) -> None:
        self._list = VerletList(self._cutoff, self._skin)

    def _evaluate(self, positions: FloatArray) -> PartResults:
        graph = self._list.update(positions, None, False)
        return self._compute(graph.to(self.device), torch.from_numpy(positions).to(self.device))

    @abstractmethod
    def _compute(self, graph: Graph, positions: Tensor) -> PartResults:
        """Return the results of `HostPart._evaluate`, given a graph and positions [N, 3]."""


class ExactPart(ListPart):
    """Steps of the exact module, differentiated by autograd.

    Parameters
    ----------
    model : TensorNet
        The model, on the device.
    skin, charge, device
        Same as for `ListPart`.
    """

    def __init__(self, model: TensorNet, skin: float, charge: float, device: torch.device) -> None:
        super().__init__(model.cutoff, skin, charge, device)
        self._model = model

    def _prepare(self) -> None:
        super()._prepare()
        self._model.species(self._numbers)
        self._charges = self._charge.expand(len(self._numbers))

    def _compute(self, graph: Graph, positions: Tensor) -> PartResults:
        n_own, vectors = self._atoms.n_own, graph.vectors(positions, None, None)
        given = vectors.to(self._model.dtype).detach().requires_grad_()
        with torch.enable_grad():
            found = self._model.atom_results(self._numbers, given, graph, self._charges)
            energies = found.energies[:n_own]
            gradient = torch.autograd.grad(energies.sum(), given)[0].double()
        n_atoms = len(self._numbers)
        pull = gradient[graph.reverse] - gradient
        forces = pull.new_zeros(n_atoms, 3).index_add(0, graph.receivers, pull)
        strain = -vectors[:, :, None] * pull[:, None, :] / 2
        x, y, z = (strain + strain.mT).unbind(1)
        shares = torch.stack([x[:, 0], y[:, 1], z[:, 2], y[:, 2], x[:, 2], x[:, 1]]) / 2
        atoms = pull.new_zeros(7, n_atoms)
        atoms[1:] = atoms[1:].index_add(1, graph.receivers, shares)
        atoms[0, :n_own] = energies.detach() + self._model.mean / self._atoms.n_total
        return forces, atoms, found.uncertainty


class SequencePart(ListPart):
    """Steps of the engine over operators that need no neighbor list on a GPU.

    Parameters
    ----------
    operators : Operators
        Plain PyTorch, on any device.
    parameters : Parameters
        The model, on the device.
    cutoff, skin, charge, device
        Same as for `ListPart`.
    dtype : torch.dtype
        Precision of the network.
    """

    def __init__(
        self,
        operators: Operators,
        parameters: Parameters,
        cutoff: float,
        skin: float,
        charge: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(cutoff, skin, charge, device, parameters.mesh_choice)
        self._operators = operators
        self._parameters = parameters
        self._dtype = dtype

    def _prepare(self) -> None:
        super()._prepare()
        self._systems = systems_of_part(self._parameters, self._atoms, self._charge)
        self._rows = to_tensor(self._atoms.rows, self.device)

    def _compute(self, graph: Graph, positions: Tensor) -> PartResults:
        p, systems, n_own = self._parameters, self._systems, self._atoms.n_own
        vectors = graph.vectors(positions, None, None)
        edges, exchange = self._edges(graph, vectors), self._atoms.exchange
        if p.charges is not None:
            assert exchange is not None
            near = self._edges(*within(p.charges.network_cutoff, graph, vectors))
            far = edges if p.charges.is_truncated else None
            geometry = Geometry(positions, near, far, self._mesh)
            others = PartBorders(exchange, n_own)
            return evaluate_charged_part(self._operators, p, systems, geometry, n_own, others)
        status = torch.zeros(graph.n_atoms, dtype=torch.int32, device=self.device)
        rows, borders = [n_own] * (len(p.layers) + 1), None
        if exchange is None:
            order, rows = shells(graph, n_own, len(p.layers))
            systems = self._systems.clone()
            self._systems.sort(order, systems)
            edges = _sorted(edges, order)
        else:
            borders = PartBorders(exchange, n_own)
        given = self._operators.network, p, systems, edges, status
        outputs = evaluate_part(*given, rows, borders)
        return outputs.forces, outputs.atoms, outputs.uncertainty

    def _edges(self, graph: Graph, vectors: Tensor) -> Edges:
        """Return the edges of a graph; with an exchange, senders are its rows."""
        lists = graph.row_ptr, self._rows[graph.senders], graph.reverse
        return Edges.of_graph(*lists, vectors, self._parameters.tables.knots).to(self._dtype)


def within(cutoff: float, graph: Graph, vectors: Tensor) -> tuple[Graph, Tensor]:
    """Drop the edges beyond a cutoff in Å."""
    near = torch.linalg.vector_norm(vectors, dim=1) < cutoff
    return graph.select(near), vectors[near]


def systems_of_part(p: Parameters, atoms: PartAtoms, charge: Tensor) -> Systems:
    """Return the atoms of a part as a step takes them; only own atoms have offsets.

    With an exchange, species belong to its rows, and facts about charges to own atoms. The total
    charge of the whole system, float64 [1], is on the device.
    """
    device = charge.device
    systems = Systems.of(
        p,
        to_tensor(atoms.numbers, device),
        charge,
        torch.tensor([0, len(atoms.numbers)], dtype=torch.int32, device=device),
        torch.tensor([atoms.n_total], device=device),
    )
    systems.offsets[atoms.n_own :] = 0
    systems = replace(systems, species=p.species(to_tensor(atoms.row_numbers, device)))
    if systems.charged is None:
        return systems
    own = torch.tensor([0, atoms.n_own], dtype=torch.int32, device=device)
    return replace(systems, system_ptr=own, charged=ChargedAtoms.of(charge, own))


def shells(graph: Graph, n_own: int, n_layers: int) -> tuple[Tensor, list[int]]:
    """Sort atoms by their hops along edges from the nearest of the first ``n_own`` atoms.

    Returns
    -------
    order : int32 [N]
        Index of each sorted atom. Atoms with equally many hops keep their order.
    rows : list of int
        Number of atoms with at most h hops, for each h up to ``n_layers``.
    """
    hops = torch.full_like(graph.row_ptr[1:], n_layers + 1)
    hops[:n_own] = 0
    for h in range(n_layers):
        reached = torch.zeros_like(hops, dtype=torch.bool)
        reached[graph.senders[hops[graph.receivers] == h]] = True
        hops[reached & (hops > h)] = h + 1
    counts = torch.bincount(hops, minlength=n_layers + 2).cumsum(0)
    return hops.argsort(stable=True).int(), counts[: n_layers + 1].tolist()


def _sorted(edges: Edges, order: Tensor) -> Edges:
    """Return the same edges in the same slots, for atoms in another order, int32 [N]."""
    rank = torch.empty_like(order)
    rank[order.long()] = torch.arange(len(order), dtype=order.dtype, device=order.device)
    return edges._replace(
        slot_begin=edges.slot_begin[order],
        slot_end=edges.slot_end[order],
        senders=rank[edges.senders],
    )
