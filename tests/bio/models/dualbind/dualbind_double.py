"""A structural double of DualBind, for tests without the package.

It is written from the published architecture (https://arxiv.org/abs/2406.07770 and
https://arxiv.org/abs/2507.08966; message passing: https://arxiv.org/abs/1904.01561; frames:
https://arxiv.org/abs/2110.03336) and has the package's interfaces: the classes, attributes, shapes
and arguments by which `mlff_triton.bio` recognizes a model. `load` gives it the package's name.

It computes complex by complex, without padding or fusion, so it is also an independent reference.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

MODULE = "DualBind.model.double"


def load() -> ModuleType:
    """Import this file as if it were part of the package, so that its classes can be pickled."""
    if MODULE not in sys.modules:
        spec = importlib.util.spec_from_file_location(MODULE, __file__)
        assert spec is not None
        assert spec.loader is not None
        package = MODULE.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            sys.modules[package] = ModuleType(package)
        sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[MODULE])
    return sys.modules[MODULE]


class MPNEncoder(nn.Module):
    """Directed message passing between bonds."""

    def __init__(self, size: int, depth: int, atom_features: int, bond_features: int) -> None:
        super().__init__()
        self.depth = depth
        self.dropout_layer = nn.Dropout(0.1)
        self.act_func = nn.ReLU()
        self.W_i = nn.Linear(bond_features, size, bias=False)
        self.W_h = nn.Linear(size, size, bias=False)
        self.W_o = nn.Linear(atom_features + size, size)

    def forward(self, mol_graph: Any) -> Tensor:
        atoms, bonds, incoming, source, reverse, scopes, _ = mol_graph.get_components()
        own = self.W_i(bonds.to(self.W_i.weight))
        message = self.act_func(own)
        for _ in range(self.depth - 1):
            arriving = torch.stack([message[row].sum(0) for row in incoming])
            message = self.act_func(own + self.W_h(arriving[source] - message[reverse]))
        arriving = torch.stack([message[row].sum(0) for row in incoming])
        out = self.act_func(self.W_o(torch.cat([atoms.to(arriving), arriving], 1)))
        parts = [out[start : start + size] for start, size in scopes]
        return nn.utils.rnn.pad_sequence(parts, batch_first=True)


class MultiHeadAttention(nn.Module):
    """Softmax attention within one sequence [L, C]."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.dense = (nn.Linear(size, size) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (f(h).unflatten(-1, (self.num_heads, -1)) for f in (self.wq, self.wk, self.wv))
        scores = torch.einsum("...ihd,...jhd->...hij", q, k) / q.shape[-1] ** 0.5
        mixed = torch.einsum("...hij,...jhd->...ihd", scores.softmax(-1), v)
        return self.dense(mixed.flatten(-2))


class TransformerEncoderLayer(nn.Module):
    """A Transformer layer that normalizes after each part."""

    def __init__(self, size: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.multihead_attention = MultiHeadAttention(size, num_heads)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.linear1, self.linear2 = nn.Linear(size, hidden), nn.Linear(hidden, size)
        self.activation = nn.ReLU()
        self.dropout, self.dropout1, self.dropout2 = (nn.Dropout(0.1) for _ in range(3))

    def forward(self, src: Tensor) -> Tensor:
        src = self.norm1(src + self.multihead_attention(src))
        return self.norm2(src + self.linear2(self.activation(self.linear1(src))))


class FANN(nn.Module):
    """A Transformer layer averaged over eight frames."""

    def __init__(self, size: int, num_heads: int, n_types: int, n_kinds: int, hidden: int) -> None:
        super().__init__()
        self.W_bind, self.W_tgt = nn.Linear(size, size), nn.Linear(n_types, size)
        self.A_bind, self.A_tgt = nn.Embedding(n_kinds, size), nn.Embedding(n_kinds, size)
        self.linear = nn.Linear(2 * size + 3, size)
        self.encoder = TransformerEncoderLayer(size, num_heads, hidden)

    def forward(self, x: Tensor, embedded: Tensor, empty: Tensor) -> Tensor:
        """Encode atoms [L, C] at x [L, 3]; positions of empty slots count for the axes."""
        x = x - x.mean(0)
        _, axes = torch.linalg.eigh((x.T @ x + empty.T @ empty).detach())
        frames = []
        for signs in torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * 3):
            rotated = x @ (axes * signs.to(axes))
            frames.append(self.encoder(self.linear(torch.cat([rotated, embedded], -1))))
        return torch.stack(frames).mean(0)


class DualBind(nn.Module):
    """Energies of contacts between ligand atoms and the protein's atoms."""

    def __init__(
        self,
        size: int = 32,
        num_heads: int = 2,
        n_types: int = 21,
        n_kinds: int = 38,
        slots: int = 14,
        depth: int = 3,
        threshold: float = 10.0,
        features: tuple[int, int] = (9, 13),
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        self.max_residue_atoms, self.threshold = slots, threshold
        self.mse_loss = nn.MSELoss()
        self.mpn = MPNEncoder(size, depth, *features)
        self.encoder = FANN(size, num_heads, n_types, n_kinds, hidden or size)
        self.binder_output = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))
        self.target_output = nn.Sequential(nn.Linear(size, size), nn.SiLU())

    def forward(self, binder: tuple[Any, ...], target: tuple[Any, ...]) -> Tensor:
        bind_x, graph, bind_a = binder
        tgt_x, tgt_s, tgt_a = target
        atoms = self.mpn(graph)
        complexes = zip(bind_x, bind_a, atoms, tgt_x, tgt_a, tgt_s, strict=True)
        return torch.stack([self._energy(*given) for given in complexes])

    def _energy(self, x: Tensor, a: Tensor, s: Tensor, y: Tensor, b: Tensor, r: Tensor) -> Tensor:
        encoder = self.encoder
        here = (a > 0) & (x.norm(dim=-1) > 1e-4)
        there = (b > 0) & (y.norm(dim=-1) > 1e-4)
        empty = torch.cat([x[~here], y[~there]])
        x, y = x[here], y[there]
        s = encoder.W_bind(s)[:, None].expand(*here.shape, -1)[here]
        r = encoder.W_tgt(r)[:, None].expand(*there.shape, -1)[there]
        embedded = torch.cat(
            [
                torch.cat([s, encoder.A_bind(a[here])], -1),
                torch.cat([r, encoder.A_tgt(b[there])], -1),
            ]
        )
        h = encoder(torch.cat([x, y]), embedded, empty)
        ligand, protein = self.binder_output(h[: len(x)]), self.target_output(h[len(x) :])
        contacts = (x[:, None] - y[None]).norm(dim=-1) < self.threshold
        return ((ligand @ protein.T) * contacts).sum()
