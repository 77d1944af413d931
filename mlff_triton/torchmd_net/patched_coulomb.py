"""TorchMD-NET's head `ScalarPlusWeightedCoulomb`, with derivatives that do not wait for each other.

The original indexes the charges of both atoms of each pair. The gradient of an index adds pairs of
the same atom one after the other, which takes a quarter of a training step on molecules.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmdnet.models.output_modules import ScalarPlusWeightedCoulomb, _triu_indices

from mlff_triton.model.coulomb import DIELECTRIC, coulomb_energy


def is_known(head: ScalarPlusWeightedCoulomb) -> bool:
    """Return True if a head computes the energy that `PatchedCoulomb` computes."""
    own = type(head) in (ScalarPlusWeightedCoulomb, PatchedCoulomb)
    return own and getattr(head, "epsilon_solvent", DIELECTRIC) == DIELECTRIC


class PatchedCoulomb(ScalarPlusWeightedCoulomb):
    """TorchMD-NET's head with a Coulomb energy after `mlff_triton.accelerate`.

    Attributes
    ----------
    mlff_triton_backend : {"auto", "triton", "torch"}
        As in `PatchedTensorNet`; the operations are those of PyTorch on any backend.
    """

    mlff_triton_backend: str

    def pre_reduce(
        self,
        x: Tensor,
        v: Tensor | None,  # noqa: ARG002 - the head has no vector features
        z: Tensor,  # noqa: ARG002 - nor needs elements
        pos: Tensor,
        batch: Tensor,
        box: Tensor | None = None,
    ) -> Tensor:
        """Compute energies [N, 1] of atoms from their features and charges, concatenated in x."""
        if box is not None and self.cutoff is None:
            raise ValueError("PBC is not supported with coulomb_cutoff = None")
        features, charges = x[:, : self.hidden_channels], x[:, self.hidden_channels :]
        first, second, distances, filler = self._pairs(pos, batch, box)

        weighted = charges * (self.qweights / self.qweights.sum())
        products = weighted.index_select(0, first) * charges.index_select(0, second)
        halves = 0.5 * coulomb_energy(distances, self.cutoff) * products.sum(1)
        if filler is not None:
            halves = halves.masked_fill(filler, 0)
        energies = halves.new_zeros(len(x)).index_add(0, first, halves)
        energies = energies.index_add(0, second, halves)
        atoms: Tensor = self.output_network(features) + energies[:, None]
        return atoms

    def _pairs(
        self, pos: Tensor, batch: Tensor, box: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return both atoms, the distance in Å, and True for filler, of each pair, [P] each."""
        if self.cutoff is None:
            capturing = pos.is_cuda and torch.cuda.is_current_stream_capturing()
            if not (capturing or torch.compiler.is_compiling()):
                self.edge_index = _triu_indices(pos, batch)
            first, second = self.edge_index
            vectors = pos.index_select(0, first) - pos.index_select(0, second)
            return first, second, torch.linalg.norm(vectors, dim=-1), None
        index, distances, _ = self.distance(pos, batch, box=box)
        if not self.static_shapes:
            return index[0], index[1], distances, None
        filler = index[0] < 0
        first, second = index.masked_fill(filler, 0)
        return first, second, distances.masked_fill(filler, 1), filler
