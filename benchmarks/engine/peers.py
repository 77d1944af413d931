"""TorchMD-NET with the weights of one of our models, in every mode that it offers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.engine.implementations import PEER_TOLERANCE, Implementation, Outcome, Prepared
from benchmarks.systems.systems import System
from mlff_triton.checkpoints.torchmd_net import COULOMB_HEAD, LAYER_NAMES, charge_names
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import TensorNet2

NEIGHBORS = 64  # least capacity of its neighbor list per atom, the atom itself included
NETWORK = "representation_model."
NOT_TRANSLATED = r"^(mean|std)$|distance\.box$|\.repulsion\."
OPERATORS = ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3")


def rebuild(
    model: TensorNet,
    *,
    warp: bool,
    static_shapes: bool = False,
    derivative: bool = True,
    neighbors: int = NEIGHBORS,
    coulomb_neighbors: int | None = None,
) -> nn.Module:
    """Rebuild a network in TorchMD-NET's code, float32, without element references.

    Parameters
    ----------
    model : TensorNet
        A model of TorchMD-NET's kind.
    warp : bool
        If True, compute with Warp kernels, TorchMD-NET's default; if False, with PyTorch alone.
    static_shapes : bool
        If True, use tensors of fixed shapes, which CUDA graphs and ``torch.compile`` need.
    derivative : bool
        If True, return forces with the energy.
    neighbors : int
        Capacity of the neighbor list per atom, on average, the atom itself included.
    coulomb_neighbors : int, optional
        The same for the list of the Coulomb energy, which has each pair once. By default, that of
        TorchMD-NET, which is twice that of liquids.
    """
    from torchmdnet.models.model import create_model

    select_operators(warp=warp)
    options = {"static_shapes": static_shapes, "derivative": derivative}
    args = _arguments(model, neighbors, coulomb_neighbors) | options
    theirs = create_model(args, mean=model.mean.float(), std=model.std.float()).eval()
    theirs.load_state_dict(_translate(model, theirs.state_dict()))
    return theirs.requires_grad_(False)


def save_checkpoint(model: TensorNet2, path: Path, *, coulomb_neighbors: int) -> None:
    """Write a checkpoint of TorchMD-NET, as openmm-ml 1.8 reads one.

    openmm-ml makes TorchMD-NET 3.1 take any checkpoint for one of an earlier version, in which rows
    of one map had another order.

    Parameters
    ----------
    model : TensorNet2
        A model of TorchMD-NET's kind.
    path : Path
        File to write.
    coulomb_neighbors : int
        Capacity of the neighbor list of the Coulomb energy, as in `rebuild`.
    """
    theirs = rebuild(model, warp=True, coulomb_neighbors=coulomb_neighbors).state_dict()
    for kind in ("weight", "bias"):
        name = f"{NETWORK}tensor_embedding.linears_scalar.1.{kind}"
        theirs[name] = theirs[name].unflatten(0, (3, -1)).transpose(0, 1).flatten(0, 1)
    args = _arguments(model, NEIGHBORS, coulomb_neighbors)
    torch.save({"hyper_parameters": args, "state_dict": theirs}, path)


def _arguments(model: TensorNet, neighbors: int, coulomb_neighbors: int | None) -> dict[str, Any]:
    """Return the arguments of TorchMD-NET for a model and its neighbor lists."""
    config = model.config
    args = {
        "model": "tensornet",
        "embedding_dimension": config.hidden_channels,
        "num_layers": config.num_layers,
        "num_rbf": config.num_rbf,
        "rbf_type": config.rbf_type,
        "trainable_rbf": config.trainable_rbf,
        "activation": config.activation,
        "cutoff_lower": config.cutoff_lower,
        "cutoff_upper": config.cutoff_upper,
        "max_z": max(config.elements) + 1,
        "max_num_neighbors": neighbors,
        "equivariance_invariance_group": config.group,
        "precision": 32,
        "output_model": "Scalar",
        "reduce_op": "sum",
        "prior_model": None,
        "atom_filter": -1,
        "box_vecs": None,
    }
    if isinstance(model, TensorNet2):
        args |= _charge_arguments(model) | {"coulomb_max_num_neighbors": coulomb_neighbors}
    return args


def _charge_arguments(model: TensorNet2) -> dict[str, Any]:
    """Return the arguments that only a TensorNet2 has."""
    config: TensorNet2Config = model.config
    return {
        "model": "tensornet2",
        "output_model": COULOMB_HEAD,
        "output_mlp_num_layers": config.head_layers,
        "q_dim": config.charge_channels,
        "q_weights": model.charge_weights.tolist(),
        "coulomb_cutoff": config.coulomb_cutoff,
        "repulsion": config.repulsion,
    }


def select_operators(*, warp: bool) -> None:
    """Select Warp or PyTorch operators in TorchMD-NET, for all of its models in this process.

    The selection consists of module globals, which TorchMD-NET reads both when it builds a model
    and when it runs it. Its default is ``warp=True``.
    """
    from torchmdnet.extensions import warp_ops
    from torchmdnet.models import tensornet, tensornet2

    for module in (tensornet, tensornet2):
        module.OPT = warp
        for name in OPERATORS:
            if warp:
                theirs = f"fn_{name}" + ("_3x3" if "matmul" in name else "")
                setattr(module, name, getattr(warp_ops, theirs))
            else:
                setattr(module, name, getattr(tensornet, f"_{name}"))


def _translate(model: TensorNet, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename our weights to TorchMD-NET's names, the inverse of reading its checkpoints."""
    ours = {name: value.float() for name, value in model.state_dict().items()}
    layers = range(model.config.num_layers)
    networks = LAYER_NAMES | charge_names(model.config)
    names = {our: NETWORK + their for our, their in networks.items()}
    names |= {
        f"layers.{k}.radial.{m}": f"{NETWORK}layers.{k}.linears_scalar.{m}"
        for k in layers
        for m in range(3)
    }
    for m in (1, 2):
        names[f"readout.head.linear{m}"] = f"output_model.output_network.layers.{2 * m - 2}"
    weights = {
        f"{their}.{kind}": ours[f"{our}.{kind}"]
        for our, their in names.items()
        for kind in ("weight", "bias")
        if f"{our}.{kind}" in ours
    }
    embedding = f"{NETWORK}tensor_embedding."
    for kind in ("weight", "bias"):
        for m, part in enumerate(ours[f"embedding.radial.{kind}"].chunk(3), start=1):
            weights[f"{embedding}distance_proj{m}.{kind}"] = part
    stacks = {f"{embedding}linears_tensor": [ours["embedding.tensor.weight"]]}
    for k in layers:
        pair = [ours[f"layers.{k}.tensor_{end}.weight"] for end in ("in", "out")]
        stacks[f"{NETWORK}layers.{k}.linears_tensor"] = pair
    for name, stacked in stacks.items():
        for m, weight in enumerate(torch.cat(stacked)):
            weights[f"{name}.{m}.weight"] = weight
    if isinstance(model, TensorNet2):
        weights["output_model.qweights"] = ours["charge_weights"].flatten()
    table = torch.zeros_like(theirs[f"{embedding}emb.weight"])
    table[list(model.config.elements)] = ours["embedding.element.weight"]
    weights[f"{embedding}emb.weight"] = table
    weights |= {
        f"{NETWORK}distance_expansion.{name.removeprefix('basis.')}": value
        for name, value in ours.items()
        if name.startswith("basis.")
    }
    return weights | {name: theirs[name] for name in theirs if re.search(NOT_TRANSLATED, name)}


Runner = Callable[[nn.Module, dict[str, Any]], Callable[[], tuple[Tensor, Tensor]]]


def _peer(
    name: str, run: Runner, *, warp: bool, static_shapes: bool = False, derivative: bool = True
) -> Implementation:
    def prepare(model: TensorNet, system: System, device: torch.device) -> Prepared:
        theirs = rebuild_for(
            system, model, warp=warp, static_shapes=static_shapes, derivative=derivative
        ).to(device)
        references = lone_atoms(model, system).to(device)

        def read(result: tuple[Tensor, Tensor]) -> Outcome:
            energy, forces = result
            return Outcome(energy.detach()[:, 0].double() + references, forces.detach())

        return Prepared(run(theirs, peer_inputs(system, device)), read)

    return Implementation(
        name,
        prepare,
        max_atoms=65536,
        tolerance=PEER_TOLERANCE,
        needs_self_loops=True,
        needs_gpu=run is not eager,
    )


def rebuild_for(
    system: System,
    model: TensorNet,
    *,
    warp: bool,
    static_shapes: bool = False,
    derivative: bool = True,
    room: float = 1.0,
) -> nn.Module:
    """Rebuild a network with neighbor lists large enough for a system; see `rebuild`.

    The capacity of the lists is a multiple of the number of pairs of the system. In tensors of
    fixed shapes, filler takes as long as pairs.
    """

    def capacity(pairs: float) -> int:
        return 16 * math.ceil(room * pairs / system.n_atoms / 16)

    config = model.config
    within, coulomb_neighbors = model.cutoff, None
    if isinstance(config, TensorNet2Config):
        within = config.network_cutoff
        if config.coulomb_cutoff is not None:
            coulomb_neighbors = capacity(system.count_edges(config.coulomb_cutoff) / 2)
    return rebuild(
        model,
        warp=warp,
        static_shapes=static_shapes,
        derivative=derivative,
        neighbors=max(NEIGHBORS, capacity(system.n_atoms + system.count_edges(within))),
        coulomb_neighbors=coulomb_neighbors,
    )


def lone_atoms(model: TensorNet, system: System) -> Tensor:
    """Return the element references of each system, float64 [B] in eV, which `rebuild` omits."""
    species = model.species(torch.from_numpy(system.numbers))
    references = torch.zeros(system.n_systems, dtype=torch.float64)
    return references.index_add_(0, torch.from_numpy(system.batch), model.references[species])


def peer_inputs(system: System, device: torch.device) -> dict[str, Any]:
    """Return the arguments of a rebuilt network."""
    box = None
    if system.cell is not None:
        box = torch.tensor(system.cell, dtype=torch.float32, device=device)
    return {
        "z": torch.from_numpy(system.numbers).to(device),
        "pos": torch.tensor(system.positions, dtype=torch.float32, device=device),
        "batch": torch.from_numpy(system.batch).to(device),
        "box": box,
    }


def eager(theirs: nn.Module, inputs: dict[str, Any]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Run steps eagerly, the default of TorchMD-NET."""
    return lambda: theirs(**inputs)


def graphed(theirs: nn.Module, inputs: dict[str, Any]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Capture the step in a CUDA graph, as TorchMD-NET's ``External`` does."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # the inputs may still be uploading
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(4):
            theirs(**inputs)
        with torch.cuda.graph(graph):
            result = theirs(**inputs)

    def step(_alive: tuple[nn.Module, dict[str, Any]] = (theirs, inputs)) -> tuple[Tensor, Tensor]:
        """Replay the graph. The default argument keeps its weights and inputs alive."""
        graph.replay()
        return result

    return step


def compiled(theirs: nn.Module, inputs: dict[str, Any]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Compile the step with ``torch.compile``, as TorchMD-NET's own ASE calculator does."""
    positions = inputs["pos"].requires_grad_()
    n_systems = int(inputs["batch"][-1]) + 1
    arguments = {**inputs, "q": torch.zeros(n_systems, device=positions.device)}
    with torch.no_grad():
        theirs(**arguments)  # sets the number of systems, which compiled code cannot compute
    fast = torch.compile(
        theirs, backend="inductor", dynamic=False, fullgraph=True, mode="reduce-overhead"
    )

    def step() -> tuple[Tensor, Tensor]:
        positions.grad = None
        energy, _ = fast(**arguments)
        energy.sum().backward()
        return energy, -positions.grad

    return step


PEERS: tuple[Implementation, ...] = (
    _peer("torch", eager, warp=False),
    _peer("warp", eager, warp=True),
    _peer("warp-graph", graphed, warp=True, static_shapes=True),
    _peer("warp-compile", compiled, warp=True, static_shapes=True, derivative=False),
)
