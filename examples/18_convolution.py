"""Convolve features of atoms equivariantly, and compute forces by the gradient.

Usage: ``python 18_convolution.py``; without a GPU, it runs the reference in plain PyTorch alone.

The graph connects random atoms within a cutoff, as in DiffDock, MACE and NequIP. A network with one
hidden layer makes thousands of weights per edge, which the operator never stores, as its last layer
is part of it. Forces follow by the chain rule through harmonics and hidden values. The script shows
that both operators agree, and that turned atoms have the same energy and turned forces.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.reference import edge_convolution as reference
from mlff_triton.kernels.convolution.types import TensorProduct

NODE, HARMONICS = "48x0e + 10x1o", "1x0e + 1x1o"
PRODUCT = TensorProduct.of(NODE, HARMONICS, NODE)
SCALARS, CUTOFF, HIDDEN = 48, 5.0, 64
Convolution = Callable[..., Tensor]


class Graph(NamedTuple):
    """Edges within the cutoff, sorted by receiver, as CSR."""

    receivers: Tensor
    senders: Tensor
    row_ptr: Tensor


def neighbors(positions: Tensor) -> Graph:
    """Find the edges between atoms [N, 3] within the cutoff, in Å."""
    close = torch.cdist(positions, positions) < CUTOFF
    close.fill_diagonal_(fill_value=False)
    receivers, senders = close.nonzero().T
    row_ptr = torch.searchsorted(receivers, torch.arange(len(positions) + 1).to(receivers))
    return Graph(receivers, senders, row_ptr)


class Layer(nn.Module):
    """Network of an edge and convolution, whose result is the sum of the scalars' squares."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, HIDDEN)
        self.last = nn.Linear(HIDDEN, PRODUCT.n_weights)

    def forward(
        self, node: Tensor, positions: Tensor, graph: Graph, convolve: Convolution
    ) -> Tensor:
        """Return the energy of atoms with features [N, 78] at positions [N, 3]."""
        vectors = positions[graph.senders] - positions[graph.receivers]
        distance = vectors.norm(dim=1, keepdim=True)
        edge_sh = torch.cat([torch.ones_like(distance), 3**0.5 * vectors / distance], 1)
        centers = torch.linspace(0, CUTOFF, 16).to(distance)
        smooth = 0.5 * (1 + torch.cos(torch.pi * distance / CUTOFF))
        hidden = torch.relu(self.first(torch.exp(-((distance - centers) ** 2) * 4)))
        weight, bias = self.last.weight.T, self.last.bias
        rest = graph.row_ptr, graph.senders, PRODUCT
        out = convolve(node, edge_sh * smooth, hidden, weight, bias, *rest)
        return out[:, :SCALARS].square().sum()


def energy_and_forces(
    layer: Layer, node: Tensor, positions: Tensor, graph: Graph, convolve: Convolution
) -> tuple[Tensor, Tensor]:
    """Return the energy, and the forces [N, 3]."""
    positions = positions.detach().requires_grad_()
    energy = layer(node, positions, graph, convolve)
    (gradient,) = torch.autograd.grad(energy, positions)
    return energy.detach(), -gradient


def rotation(angle: float) -> Tensor:
    """Return a rotation about the axis z, [3, 3]."""
    turn = torch.eye(3)
    cos, sin = torch.tensor(angle).cos(), torch.tensor(angle).sin()
    turn[:2, :2] = torch.stack([cos, -sin, sin, cos]).view(2, 2)
    return turn


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest value."""
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> None:
    """Convolve, turn the atoms, convolve again, and compare with plain PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    edge = (args.atoms / 0.05) ** (1 / 3)  # 0.05 atoms per Å^3
    positions, device = torch.rand(args.atoms, 3) * edge, torch.device(args.device)
    node = torch.randn(args.atoms, PRODUCT.n_node)
    node, positions, layer = node.to(device), positions.to(device), Layer().to(device)
    graph = neighbors(positions)
    print(f"{args.atoms} atoms, {len(graph.senders)} edges, {PRODUCT.n_weights} weights per edge")

    operators: dict[str, Convolution] = {"PyTorch": reference.edge_convolution}
    if device.type == "cuda":
        operators["mlff_triton"] = edge_convolution
    found = {}
    for name, convolve in operators.items():
        arguments = layer, node, positions, graph, convolve
        energy_and_forces(*arguments)  # compiles kernels
        start = time.perf_counter()
        found[name] = energy_and_forces(*arguments)
        float(found[name][0])  # waits
        print(f"{name:12s} {1e3 * (time.perf_counter() - start):8.2f} ms with forces")
    energy, forces = found[name]
    if len(found) > 1:
        print(f"forces differ by {difference(forces, found['PyTorch'][1]):.0e}")

    turn = rotation(0.7).to(device)
    vectors = node[:, SCALARS:].view(args.atoms, -1, 3) @ turn.T
    turned = torch.cat([node[:, :SCALARS], vectors.flatten(1)], 1)
    again, others = energy_and_forces(layer, turned, positions @ turn.T, graph, convolve)
    print(f"turned: energy differs by {difference(again, energy):.0e}", end="")
    print(f", forces by {difference(others @ turn, forces):.0e}")


if __name__ == "__main__":
    main()
