"""Padding of batches of molecules to fixed shapes, so that one captured step serves all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.neighbors.graph import Graph

REQUIRED = ("z", "pos", "batch")
MASKS = ("atom_mask", "molecule_mask")
SPACING = 100.0  # Å between filler atoms, beyond any cutoff


def pad_batch(
    batch: Mapping[str, Tensor],
    n_atoms: int,
    n_molecules: int,
    *,
    per_molecule: Collection[str] = ("energy", "q"),
) -> dict[str, Tensor]:
    """Pad a batch of molecules to fixed numbers of atoms and molecules.

    The filler consists of molecules of their own after the others, whose atoms have no neighbors.
    So it does not change the energies and forces of the others. The masks exclude it from a loss.

    Parameters
    ----------
    batch : dict of str to Tensor
        Arguments of TorchMD-NET's models, and labels: atomic numbers ``z`` of N atoms, positions
        ``pos`` in Å, the molecule of each atom ``batch`` in ascending order, and any others. It is
        not modified. Pad batches before they are moved to a GPU, as this reads the number of
        molecules.
    n_atoms, n_molecules : int
        Numbers of atoms and molecules of the result. Unless both are those of the batch, they must
        allow at least one more molecule, and one atom in each additional molecule.
    per_molecule : collection of str
        Names of tensors with a row per molecule, if they are in the batch. All others have a row
        per atom.

    Returns
    -------
    dict of str to Tensor
        The padded batch, with zeros as labels of the filler, and two bool tensors that are True
        for what was in the batch: ``atom_mask`` [n_atoms] and ``molecule_mask`` [n_molecules].

    Raises
    ------
    InputError
        If the batch does not fit, lacks a required tensor, has a periodic box or is padded already,
        or if a tensor has another number of rows.

    Examples
    --------
    >>> water = {
    ...     "z": torch.tensor([8, 1, 1]),
    ...     "pos": torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.96], [0.0, 0.93, -0.24]]),
    ...     "batch": torch.zeros(3, dtype=torch.int64),
    ...     "energy": torch.tensor([-2.0]),
    ... }
    >>> padded = pad_batch(water, n_atoms=5, n_molecules=2)
    >>> padded["batch"]
    tensor([0, 0, 0, 1, 1])
    >>> energy = torch.zeros(2)  # of a model
    >>> error = (energy - padded["energy"]) * padded["molecule_mask"]
    >>> error.square().sum() / padded["molecule_mask"].sum()  # the mean over molecules
    tensor(4.)
    """
    _, molecules = _check(batch, per_molecule)
    return fill_batch(batch, molecules, n_atoms, n_molecules, per_molecule=per_molecule)


def fill_batch(
    batch: Mapping[str, Tensor],
    molecules: int,
    n_atoms: int,
    n_molecules: int,
    *,
    per_molecule: Collection[str],
) -> dict[str, Tensor]:
    """Pad a batch as `pad_batch` does, without reading its tensors, which may be on a GPU.

    Parameters
    ----------
    batch : dict of str to Tensor
        A batch that `pad_batch` takes.
    molecules : int
        Number of molecules of the batch.
    n_atoms, n_molecules : int
        Numbers of atoms and molecules of the result.
    per_molecule : collection of str
        Names of tensors with a row per molecule.

    Raises
    ------
    InputError
        If the batch does not fit.
    """
    atoms = len(batch["z"])
    spare_atoms, spare_molecules = n_atoms - atoms, n_molecules - molecules
    if spare_atoms < 0 or spare_molecules < 0:
        raise InputError(
            f"{atoms} atoms in {molecules} molecules do not fit in {n_atoms} atoms and "
            f"{n_molecules} molecules"
        )
    if spare_atoms < spare_molecules or (spare_atoms and not spare_molecules):
        raise InputError(
            f"{spare_atoms} filler atoms cannot make up {spare_molecules} filler molecules: each "
            "needs at least one atom, and all atoms need a molecule"
        )
    padded = {}
    for name, tensor in batch.items():
        spare = spare_molecules if name in per_molecule else spare_atoms
        padded[name] = torch.cat([tensor, tensor.new_zeros(spare, *tensor.shape[1:])])
    filler = torch.arange(spare_atoms, device=batch["z"].device)
    padded["z"][atoms:] = batch["z"][0]  # an element that the model knows
    padded["pos"][atoms:, 0] = SPACING * filler.to(batch["pos"].dtype)
    padded["batch"][atoms:] = molecules + filler.clamp(max=max(0, spare_molecules - 1))
    device = filler.device
    padded["atom_mask"] = torch.arange(n_atoms, device=device) < atoms
    padded["molecule_mask"] = torch.arange(n_molecules, device=device) < molecules
    return padded


def pad_graph(graph: Graph, n_atoms: int, n_edges: int) -> Graph:
    """Pad a neighbor list to fixed numbers of atoms and edges.

    Our own models take such a list, with atoms that `pad_batch` has padded to the same number.
    Filler edges are spread over pairs of filler atoms, at distances beyond any cutoff. They cross
    no boundary, so the cells of filler in a periodic batch may be zero.

    Parameters
    ----------
    graph : Graph
        List of a batch. It is not modified.
    n_atoms, n_edges : int
        Numbers of atoms and edges of the result. They must allow two more atoms, unless the number
        of edges is that of the list.

    Returns
    -------
    Graph

    Raises
    ------
    InputError
        If the list does not fit, or would have half a pair of edges.

    Examples
    --------
    >>> from mlff_triton import neighbor_list
    >>> water = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.96], [0.0, 0.93, -0.24]])
    >>> padded = pad_graph(neighbor_list(water, 5.0), n_atoms=5, n_edges=8)
    >>> padded.senders
    tensor([1, 2, 0, 2, 0, 1, 4, 3])
    """
    spare_atoms, spare = n_atoms - graph.n_atoms, n_edges - graph.n_edges
    if spare_atoms < 0 or spare < 0:
        raise InputError(
            f"{graph.n_atoms} atoms with {graph.n_edges} edges do not fit in {n_atoms} atoms and "
            f"{n_edges} edges"
        )
    if spare % 2:
        raise InputError(f"n_edges={n_edges} is odd, but edges come in pairs")
    if spare and spare_atoms < 2:
        raise InputError(f"{spare} filler edges need two filler atoms, not {spare_atoms}")
    n_half, n_pairs = spare // 2, max(1, spare_atoms // 2)  # rows are summed one after another
    half = torch.arange(n_half, device=graph.senders.device)
    forth, back = graph.n_edges + half, graph.n_edges + n_half + half
    first = graph.n_atoms + half * n_pairs // max(1, n_half)  # of the pair of filler atoms
    ends = torch.arange(1, n_pairs + 1, device=half.device) * n_half
    ends = graph.n_edges + (ends + n_pairs - 1) // n_pairs
    ends = torch.cat([ends, n_half + ends, ends.new_full((spare_atoms % 2,), n_edges)])
    return Graph(
        row_ptr=torch.cat([graph.row_ptr, ends[:spare_atoms]]),
        senders=torch.cat([graph.senders, first + n_pairs, first]),
        shifts=torch.cat([graph.shifts, graph.shifts.new_zeros(spare, 3)]),
        reverse=torch.cat([graph.reverse, back, forth]),
    )


def _check(batch: Mapping[str, Tensor], per_molecule: Collection[str]) -> tuple[int, int]:
    """Return the numbers of atoms and molecules of a batch, or raise if it cannot be padded."""
    for name in REQUIRED:
        if name not in batch:
            raise InputError(f"the batch has no tensor {name!r}: it needs {', '.join(REQUIRED)}")
    if "box" in batch:
        raise InputError("batches in a periodic box cannot be padded: use batches of equal sizes")
    for name in MASKS:
        if name in batch:
            raise InputError(f"the batch has a tensor {name!r} already: pad it only once")
    atoms = len(batch["z"])
    if not atoms:
        raise InputError("a batch without atoms cannot be padded")
    molecules = int(batch["batch"].max()) + 1
    for name, tensor in batch.items():
        kind, rows = ("molecules", molecules) if name in per_molecule else ("atoms", atoms)
        if tensor.ndim == 0 or len(tensor) != rows:
            raise InputError(
                f"batch[{name!r}] has shape {list(tensor.shape)}, but there are {rows} {kind}"
            )
    return atoms, molecules
