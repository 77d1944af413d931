"""MatGL checkpoints: a published model, and random ones against an independent implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor
from torch.nn import functional

from mlff_triton import TensorNet, TensorNetCalculator, load_model
from mlff_triton.errors import CheckpointError, UnsupportedModelError
from mlff_triton.testing import (
    assert_close,
    assert_within,
    finite_difference_forces,
    random_cluster,
    random_rotation,
)

CUTOFF = 4.0
UNITS = 6
ELEMENTS = ["H", "C", "N", "O"]

PUBLISHED = "matgl-tensornet-matpes-pbe"
PUBLISHED_ENERGY = (
    -247.286789
)  # energy of acala3nhme.xyz in eV, from the version of MatGL that wrote the model

BASES_OF_MATGL: dict[str, dict[str, Any]] = {
    "gauss": {"rbf_type": "Gaussian", "num_rbf": 5, "width": 0.7},
    "bessel-smooth": {"rbf_type": "SphericalBessel", "use_smooth": True, "max_n": 5},
    "bessel": {"rbf_type": "SphericalBessel", "use_smooth": False, "max_n": 3, "max_l": 2},
}


def description(version: int = 2, **init_args: Any) -> dict[str, Any]:
    """Make the content of ``model.json``."""
    args = {
        "element_types": ELEMENTS,
        "units": UNITS,
        "nblocks": 2,
        "activation_type": "swish",
        "cutoff": CUTOFF,
        "equivariance_invariance_group": "O(3)",
        "is_intensive": False,
        "include_state": False,
        "ntargets": 1,
        **BASES_OF_MATGL["gauss"],
        **init_args,
    }
    network = {"@class": "TensorNet", "@model_version": version, "init_args": args}
    return {
        "@class": "Potential",
        "@model_version": 3,
        "kwargs": {"model": network, "calc_repuls": False},
    }


def init_args(content: dict[str, Any]) -> dict[str, Any]:
    return content["kwargs"]["model"]["init_args"]


def random_weights(args: dict[str, Any]) -> dict[str, Tensor]:
    """Make the content of ``state.pt``, without any weight of 0 or 1."""
    f = args["units"]
    n_basis = args.get("num_rbf", 0)
    if args["rbf_type"] == "SphericalBessel":
        n_basis = args["max_n"] * (1 if args["use_smooth"] else args["max_l"])
    shapes = {"tensor_embedding.emb.weight": (len(args["element_types"]), f)}
    linears = {"tensor_embedding.emb2": (f, 2 * f), "linear": (f, 3 * f)}
    linears |= {f"tensor_embedding.distance_proj{m}": (f, n_basis) for m in (1, 2, 3)}
    linears |= scalar_layers("tensor_embedding", (f, 2 * f, 3 * f))
    for k in range(args["nblocks"]):
        linears |= scalar_layers(f"layers.{k}", (n_basis, f, 2 * f, 3 * f))
    for m, width in ((0, f), (2, f), (4, f), (6, 1)):
        linears |= {f"final_layer.gated.{kind}.{m}": (width, f) for kind in ("layers", "gates")}
    norms = {"tensor_embedding.init_norm": f, "out_norm": 3 * f}
    blocks = {"tensor_embedding": 3} | {f"layers.{k}": 6 for k in range(args["nblocks"])}
    for block, count in blocks.items():
        shapes |= {f"{block}.linears_tensor.{m}.weight": (f, f) for m in range(count)}
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    weights = {
        name: torch.randn(shape, dtype=torch.float64) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    for name, size in norms.items():
        weights[f"{name}.weight"] = 1 + 0.3 * torch.randn(size, dtype=torch.float64)
        weights[f"{name}.bias"] = torch.randn(size, dtype=torch.float64)
    if args["rbf_type"] == "Gaussian":
        centers = torch.linspace(0, args["cutoff"] + 1, n_basis, dtype=torch.float64)
        weights["bond_expansion.rbf.centers"] = centers
    else:
        weights["bond_expansion.rbf.cutoff"] = torch.tensor(args["cutoff"])
    weights = {f"model.{name}": value for name, value in weights.items()}
    weights["data_std"] = torch.tensor(1.7, dtype=torch.float64)
    weights["data_mean"] = torch.tensor(-0.4, dtype=torch.float64)
    references = torch.tensor([-1.5, -8.25, -9.0, -4.75], dtype=torch.float64)
    weights["element_refs.property_offset"] = references
    weights["element_refs.onehot"] = torch.eye(len(references))
    return weights


def scalar_layers(block: str, sizes: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    return {f"{block}.linears_scalar.{m}": (sizes[m + 1], sizes[m]) for m in range(len(sizes) - 1)}


def write(folder: Path, content: Any, weights: Any) -> Path:
    """Write a MatGL checkpoint."""
    (folder / "model.json").write_text(json.dumps(content))
    torch.save(weights, folder / "state.pt")
    return folder


def energy_of(model: TensorNet, atoms: Atoms) -> float:
    return TensorNetCalculator(model, device="cpu", dtype="float64").get_potential_energy(atoms)


class DirectTensorNet:
    """MatGL's TensorNet in its own conventions, on tensors [N, N, F, 3, 3] of all pairs.

    In version 1, edge vectors point from sender to receiver, and the embedding of the sender comes
    first. In version 2, both are reversed.
    """

    activations = {  # noqa: RUF012
        "swish": functional.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softplus2": lambda x: functional.softplus(x) - np.log(2),
    }

    def __init__(self, content: dict[str, Any], weights: dict[str, Tensor], basis: Any) -> None:
        self.args, self.basis = init_args(content), basis
        self.version = content["kwargs"]["model"]["@model_version"]
        self.weights = {name.removeprefix("model."): value for name, value in weights.items()}
        self.activation = self.activations[self.args["activation_type"]]

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.weights.get(f"{name}.bias", 0)
        return torch.einsum("...k,fk->...f", x, self.weights[f"{name}.weight"]) + bias

    def scalar_network(self, block: str, x: Tensor, depth: int) -> Tensor:
        """Compute three factors per channel, [..., F, 3]."""
        for m in range(depth):
            x = self.activation(self.linear(f"{block}.linears_scalar.{m}", x))
        return x.reshape(*x.shape[:-1], self.args["units"], 3)

    def norm(self, name: str, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def mix(self, block: str, first: int, parts: list[Tensor]) -> list[Tensor]:
        return [
            torch.einsum(
                "gf,nfab->ngab", self.weights[f"{block}.linears_tensor.{first + m}.weight"], x
            )
            for m, x in enumerate(parts)
        ]

    def energy(self, atoms: Atoms) -> float:
        species = torch.tensor([ELEMENTS.index(s) for s in atoms.symbols])
        positions = torch.from_numpy(atoms.positions)
        arrow = positions[:, None] - positions[None, :]  # from sender j to receiver i
        if self.version == 2:
            arrow = -arrow
        d = arrow.norm(dim=-1) + torch.eye(len(atoms))
        pairs = (d < CUTOFF) & ~torch.eye(len(atoms), dtype=torch.bool)
        cutoff = torch.where(pairs, 0.5 * torch.cos(np.pi * d / CUTOFF) + 0.5, 0)
        radial = self.basis(d)

        x = self.embedding(species, arrow / d[..., None], cutoff, radial)
        for k in range(self.args["nblocks"]):
            x = self.interaction(f"layers.{k}", x, cutoff, radial)
        invariants = torch.cat([squares(part) for part in irreps(x)], dim=-1)
        hidden = self.linear("linear", self.norm("out_norm", invariants))
        energies = self.gated(hidden)[:, 0] * self.weights["data_std"]
        references = self.weights["element_refs.property_offset"][species]
        return float((energies + references).sum() + self.weights["data_mean"])

    def embedding(self, species: Tensor, u: Tensor, cutoff: Tensor, radial: Tensor) -> Tensor:
        levi_civita = torch.zeros(3, 3, 3, dtype=u.dtype)
        for a, b, c in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            levi_civita[a, b, c], levi_civita[b, a, c] = 1, -1
        eye = torch.eye(3, dtype=u.dtype)
        outer = torch.einsum("ija,ijb->ijab", u, u)
        shapes = torch.stack(
            [
                eye.expand_as(outer),
                -torch.einsum("abc,ijc->ijab", levi_civita, u),
                outer - eye / 3,
            ]
        )
        factors = [self.linear(f"tensor_embedding.distance_proj{m}", radial) for m in (1, 2, 3)]
        z = self.weights["tensor_embedding.emb.weight"][species]
        receiver, sender = z[:, None].expand(-1, len(z), -1), z[None].expand(len(z), -1, -1)
        both = (sender, receiver) if self.version == 1 else (receiver, sender)
        pair = self.linear("tensor_embedding.emb2", torch.cat(both, dim=-1))
        parts = torch.einsum("ij,ijf,mijf,mijab->mifab", cutoff, pair, torch.stack(factors), shapes)
        scales = self.norm("tensor_embedding.init_norm", squares(parts.sum(0)))
        scales = self.scalar_network("tensor_embedding", scales, 2)
        mixed = self.mix("tensor_embedding", 0, list(parts))
        return sum(x * scales[..., m, None, None] for m, x in enumerate(mixed))

    def interaction(self, block: str, x: Tensor, cutoff: Tensor, radial: Tensor) -> Tensor:
        factors = self.scalar_network(block, radial, 3) * cutoff[..., None, None]
        x = x / (squares(x) + 1)[..., None, None]
        parts = self.mix(block, 0, irreps(x))
        y = sum(parts)
        message = sum(
            torch.einsum("ijf,jfab->ifab", factors[..., m], part) for m, part in enumerate(parts)
        )
        product = y @ message + message @ y
        if self.args["equivariance_invariance_group"] == "SO(3)":
            product = 2 * y @ message
        product = irreps(product / (squares(product) + 1)[..., None, None])
        delta = sum(self.mix(block, 3, product))
        return x + delta + delta @ delta

    def gated(self, x: Tensor) -> Tensor:
        value = gate = x
        for m in (0, 2, 4, 6):
            value = self.linear(f"final_layer.gated.layers.{m}", value)
            gate = self.linear(f"final_layer.gated.gates.{m}", gate)
            if m < 6:
                value, gate = functional.silu(value), functional.silu(gate)
        return value * torch.sigmoid(gate)


def irreps(x: Tensor) -> list[Tensor]:
    """Split [..., 3, 3] into its trace, skew and symmetric traceless parts."""
    trace = torch.einsum("...aa,bc->...bc", x, torch.eye(3, dtype=x.dtype)) / 3
    return [trace, (x - x.mT) / 2, (x + x.mT) / 2 - trace]


def squares(x: Tensor) -> Tensor:
    return torch.einsum("...ab,...ab->...", x, x)


def gaussians(content: dict[str, Any], weights: dict[str, Tensor]) -> Any:
    width, centers = init_args(content)["width"], weights["model.bond_expansion.rbf.centers"]
    return lambda d: torch.exp(-width * (d[..., None] - centers) ** 2)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
@pytest.mark.parametrize("basis", BASES_OF_MATGL)
def test_energies_follow_the_equations(tmp_path, version, group, basis):
    content = description(version, equivariance_invariance_group=group, **BASES_OF_MATGL[basis])
    weights = random_weights(init_args(content))
    model = load_model(write(tmp_path, content, weights))
    # The Bessel bases are tested against independent formulas in tests/model/test_radial_basis.py.
    expansion = gaussians(content, weights) if basis == "gauss" else model.basis
    for seed in (0, 1):
        atoms = random_cluster(9, seed=seed)
        expected = DirectTensorNet(content, weights, expansion).energy(atoms)
        assert_close(energy_of(model, atoms), expected, 0)


@pytest.mark.parametrize("activation", DirectTensorNet.activations)
def test_activations_follow_the_equations(tmp_path, activation):
    content = description(activation_type=activation, nblocks=1)
    weights = random_weights(init_args(content))
    model = load_model(write(tmp_path, content, weights))
    atoms = random_cluster(9)
    expected = DirectTensorNet(content, weights, gaussians(content, weights)).energy(atoms)
    assert_close(energy_of(model, atoms), expected, 0)


def test_fused_projections_of_distances_are_the_same_model(tmp_path):
    """MatGL 4.1.2 saves one map instead of three where it finds NVIDIA Warp."""
    content = description()
    weights = random_weights(init_args(content))
    expected = energy_of(load_model(write(tmp_path, content, weights)), random_cluster(9))
    for kind in ("weight", "bias"):
        prefix = "model.tensor_embedding.distance_proj"
        parts = [weights.pop(f"{prefix}{m}.{kind}") for m in (1, 2, 3)]
        weights[f"{prefix}.{kind}"] = torch.cat(parts)
    assert energy_of(load_model(write(tmp_path, content, weights)), random_cluster(9)) == expected


def test_models_of_dgl_are_refused_by_name(tmp_path):
    content = description(version=1)
    weights = random_weights(init_args(content))
    for kind, shape in (("weight", (UNITS, 5)), ("bias", (UNITS,))):
        weights[f"model.tensor_embedding.emb3.{kind}"] = torch.zeros(shape)
    with pytest.raises(UnsupportedModelError, match="saved by MatGL with DGL"):
        load_model(write(tmp_path, content, weights))


def test_versions_are_different_models(tmp_path):
    weights = random_weights(init_args(description()))
    energies = [
        energy_of(load_model(write(tmp_path, description(v), weights)), random_cluster(9))
        for v in (1, 2)
    ]
    assert abs(energies[0] - energies[1]) > 0.01


@pytest.mark.parametrize("basis", BASES_OF_MATGL)
def test_energies_are_invariant_and_forces_their_derivative(tmp_path, rng, basis):
    content = description(**BASES_OF_MATGL[basis])
    model = load_model(write(tmp_path, content, random_weights(init_args(content))))
    calculator = TensorNetCalculator(model, device="cpu", dtype="float64")
    atoms = random_cluster(6)
    energy, forces = calculator.get_potential_energy(atoms), calculator.get_forces(atoms)
    assert np.isfinite(energy)
    assert np.abs(forces).max() > 0.01
    expected = finite_difference_forces(calculator.get_potential_energy, atoms)
    assert_within(forces, expected, 1e-6, floor=1.0)
    turned = atoms.copy()
    turned.positions = turned.positions @ random_rotation(rng) + 5.0
    assert_close(calculator.get_potential_energy(turned), energy, 0)


def test_weights_keep_their_dtype_and_values(tmp_path):
    content = description()
    weights = random_weights(init_args(content))
    assert load_model(write(tmp_path, content, weights)).dtype == torch.float64
    single = {name: value.float() for name, value in weights.items()}
    model = load_model(write(tmp_path, content, single) / "model.json")
    assert model.dtype == torch.float32
    assert torch.equal(model.readout.linear.weight, single["model.linear.weight"])
    assert model.references.dtype == torch.float64
    assert model.config.elements == (1, 6, 7, 8)
    assert not model.uses_charge


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_published_model_gives_its_published_energy(data_folder, dtype):
    folder = data_folder / PUBLISHED
    atoms = ase.io.read(folder / "acala3nhme.xyz")
    atoms.calc = TensorNetCalculator(folder, device="cpu", dtype=dtype)
    assert atoms.get_potential_energy() == pytest.approx(PUBLISHED_ENERGY, abs=1e-3)


def test_published_models_forces_are_its_energys_derivative(data_folder, rng):
    folder = data_folder / PUBLISHED
    atoms = ase.io.read(folder / "acala3nhme.xyz")
    calculator = TensorNetCalculator(folder, device="cpu", dtype="float64")
    forces = calculator.get_forces(atoms)
    for _ in range(3):
        direction = rng.normal(size=forces.shape)
        direction /= np.linalg.norm(direction)
        energies = []
        for step in (-2e-4, -1e-4, 1e-4, 2e-4):
            moved = atoms.copy()
            moved.positions += step * direction
            energies.append(calculator.get_potential_energy(moved))
        slope = (8 * (energies[2] - energies[1]) - (energies[3] - energies[0])) / 12e-4
        assert_within(-(forces * direction).sum(), slope, 1e-6, floor=1.0)


UNSUPPORTED = {
    "M3GNet": lambda d: d["kwargs"]["model"].update({"@class": "M3GNet"}),
    "QET": lambda d: d["kwargs"]["model"].update({"@class": "QET"}),
    "no potential": lambda d: d.update({"@class": "TensorNet"}),
    "later version": lambda d: d["kwargs"]["model"].update({"@model_version": 3}),
    "no version": lambda d: d["kwargs"]["model"].pop("@model_version"),
    "repulsion": lambda d: d["kwargs"].update(calc_repuls=True),
    "intensive": lambda d: init_args(d).update(is_intensive=True),
    "intensive by default": lambda d: init_args(d).pop("is_intensive"),
    "state": lambda d: init_args(d).update(include_state=True),
    "two targets": lambda d: init_args(d).update(ntargets=2),
    "trainable activation": lambda d: init_args(d).update(activation_type="softexp"),
    "other basis": lambda d: init_args(d).update(rbf_type="ExpNorm"),
    "other group": lambda d: init_args(d).update(equivariance_invariance_group="SU(2)"),
}


@pytest.mark.parametrize("change", UNSUPPORTED)
def test_unsupported_models_are_refused_by_name(tmp_path, change):
    content = description()
    weights = random_weights(init_args(content))
    UNSUPPORTED[change](content)
    with pytest.raises(UnsupportedModelError) as refusal:
        load_model(write(tmp_path, content, weights))
    assert str(tmp_path) in str(refusal.value)
    assert "support" in str(refusal.value) or "use one of" in str(refusal.value)
    assert "\n" not in str(refusal.value)


BROKEN_DESCRIPTIONS = {
    "list": [],
    "text": "TensorNet",
    "no kwargs": {"@class": "Potential"},
    "kwargs are a list": {"@class": "Potential", "kwargs": []},
    "model is text": {"@class": "Potential", "kwargs": {"model": "TensorNet"}},
    "no arguments": {
        "@class": "Potential",
        "kwargs": {"model": {"@class": "TensorNet", "@model_version": 2}},
    },
    "unknown element": description(element_types=["H", "C", "N", "Xx"]),
    "elements are a number": description(element_types=4),
    "cutoff is text": description(cutoff="far"),
    "no cutoff": description(cutoff=0),
    "units are negative": description(units=-1),
    "units are text": description(units="many"),
    "more blocks than weights": description(nblocks=3),
    "fewer blocks than weights": description(nblocks=1),
    "other number of functions": description(num_rbf=9),
}


@pytest.mark.parametrize("case", BROKEN_DESCRIPTIONS)
def test_broken_descriptions_are_refused(tmp_path, case):
    weights = random_weights(init_args(description()))
    with pytest.raises(CheckpointError) as refusal:
        load_model(write(tmp_path, BROKEN_DESCRIPTIONS[case], weights))
    assert str(tmp_path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_weight_is_needed_and_none_is_ignored(tmp_path):
    content = description()
    weights = random_weights(init_args(content))
    optional = {"element_refs.property_offset", "element_refs.onehot"}
    for name in weights.keys() - optional:
        fewer = {key: value for key, value in weights.items() if key != name}
        with pytest.raises(CheckpointError, match="lacks"):
            load_model(write(tmp_path, content, fewer))
    more = weights | {"model.layers.2.linears_tensor.0.weight": torch.zeros(UNITS, UNITS)}
    with pytest.raises(CheckpointError, match=r"layers\.2\.linears_tensor"):
        load_model(write(tmp_path, content, more))


def test_broken_weights_are_refused(tmp_path):
    content = description()
    weights = random_weights(init_args(content))
    for name, value in (
        ("model.linear.weight", torch.full((UNITS, 3 * UNITS), torch.nan)),
        ("model.linear.weight", torch.zeros(UNITS, 2 * UNITS)),
        ("model.linear.weight", "a text"),
        ("data_std", torch.tensor(torch.nan)),
        ("data_mean", torch.zeros(3)),
        ("element_refs.property_offset", torch.zeros(3)),
        ("element_refs.property_offset", torch.full((4,), torch.inf)),
    ):
        with pytest.raises(CheckpointError) as refusal:
            load_model(write(tmp_path, content, weights | {name: value}))
        assert str(tmp_path) in str(refusal.value)


def test_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no model\.json"):
        load_model(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no state\.pt"):
        load_model(tmp_path)
    torch.save(["no", "weights"], tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="does not contain a MatGL model"):
        load_model(tmp_path)
    (tmp_path / "model.json").write_text('{"@class": "Pot')
    with pytest.raises(CheckpointError, match="not JSON"):
        load_model(tmp_path)
    (tmp_path / "model.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_model(tmp_path)
