"""DualBind, accelerated, compared with a structural double."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.bio.models.dualbind import network
from mlff_triton.bio.models.dualbind.adapter import DualBindForward
from mlff_triton.bio.models.dualbind.weights import DualBindWeights
from mlff_triton.errors import UnsupportedModelError
from tests.bio.models.dualbind import dualbind_double
from tests.support.strides import assert_strides_do_not_matter

double = dualbind_double.load()

N_TYPES, N_KINDS, SLOTS = 21, 38, 14
FEATURES = 9, 13


class Graph(NamedTuple):
    """Molecules with the interface of chemprop's BatchMolGraph."""

    components: tuple[Any, ...]

    def get_components(self) -> tuple[Any, ...]:
        return self.components


def make_model(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    model = double.DualBind(**options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def make_graph(sizes: list[int], n_features: tuple[int, int]) -> Graph:
    """Return chains of atoms, the first bond and atom of which stand for none."""
    atoms, bonds = [torch.zeros(n_features[0])], [(0, 0, 0)]
    incoming: list[list[int]] = [[]]
    scopes = []
    for size in sizes:
        scopes.append((len(atoms), size))
        for k in range(size):
            atom = len(atoms)
            atoms.append(torch.randn(n_features[0]))
            incoming.append([])
            if k:
                forward, back = len(bonds), len(bonds) + 1
                bonds += [(atom - 1, atom, back), (atom, atom - 1, forward)]
                incoming[atom].append(forward)
                incoming[atom - 1].append(back)
    width = max(map(len, incoming))
    source, _, reverse = torch.tensor(bonds).T
    features = torch.randn(len(bonds), n_features[1])
    features[0] = 0
    padded = torch.tensor([row + [0] * (width - len(row)) for row in incoming])
    return Graph((torch.stack(atoms), features, padded, source, reverse, scopes, scopes))


def make_batch(
    sizes: list[int], n_residues: int, n_features: tuple[int, int] = FEATURES
) -> dict[str, Any]:
    """Return complexes with missing atoms, and with residues missing at the end of the last."""
    torch.manual_seed(len(sizes) + n_residues)
    count, most = len(sizes), max(sizes)
    bind_x, bind_a = torch.zeros(count, most, SLOTS, 3), torch.zeros(count, most, SLOTS).long()
    for b, size in enumerate(sizes):
        bind_x[b, :size, 1] = 3 * torch.randn(size, 3) + 20
        bind_a[b, :size, 1] = 1
    tgt_x = torch.randn(count, n_residues, SLOTS, 3) * torch.tensor([9.0, 7.0, 5.0]) + 20
    tgt_a = torch.randint(N_KINDS, (count, n_residues, SLOTS))
    tgt_a[..., 5:] *= torch.rand(count, n_residues, SLOTS - 5) < 0.5
    tgt_x[torch.rand(tgt_a.shape) < 0.1] = 0.0
    types = torch.randint(N_TYPES, (count, n_residues))
    tgt_s = nn.functional.one_hot(types, N_TYPES).float()
    tgt_x[-1, n_residues // 2 :], tgt_a[-1, n_residues // 2 :] = 0.0, 0
    tgt_x[tgt_a == 0] = 0.0
    return {
        "binder": (bind_x, make_graph(sizes, n_features), bind_a),
        "target": (tgt_x, tgt_s, tgt_a),
    }


def make_pockets(count: int) -> dict[str, Any]:
    """Return ligands of up to 35 atoms, each in a pocket of 50 residues, without overlaps."""
    torch.manual_seed(count)
    sizes, n_residues = torch.randint(15, 36, (count,)).tolist(), 50
    batch = make_batch(sizes, n_residues)
    bind_x, graph, bind_a = batch["binder"]
    bind_x[:, :, 1] = (bind_x[:, :, 1] - 20) / 3 * torch.tensor([3.5, 2.0, 1.2]) + 20
    bind_x[bind_a == 0] = 0.0
    axes = torch.tensor([1.3, 1.0, 0.8])
    shell = nn.functional.normalize(torch.randn(count, n_residues, 1, 3), dim=-1) * axes
    tgt_x = 20 + shell * (5 + 7 * torch.rand(count, n_residues, 1, 1))
    tgt_x = tgt_x + 1.7 * torch.randn(count, n_residues, SLOTS, 3)
    tgt_x[batch["target"][2] == 0] = 0.0
    return {"binder": (bind_x, graph, bind_a), "target": (tgt_x, *batch["target"][1:])}


def to(batch: dict[str, Any], where: Any) -> dict[str, Any]:
    """Move the tensors of a batch; graphs stay on the CPU, as chemprop makes them."""

    def move(x: Any) -> Any:
        if isinstance(x, Tensor):
            is_dtype = isinstance(where, torch.dtype)
            return x.to(where) if x.is_floating_point() or not is_dtype else x
        return x

    return {name: tuple(map(move, group)) for name, group in batch.items()}


@torch.inference_mode()
def energies(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return model(**batch)


def assert_near(found: Tensor, expected: Tensor, error: float) -> None:
    assert (found - expected).abs().max() <= error * expected.abs().max()


@pytest.mark.parametrize(
    "options",
    [{}, {"depth": 1, "threshold": 5.0}, {"size": 64, "num_heads": 4, "hidden": 96}],
    ids=str,
)
def test_energies_are_the_same(options):
    model = make_model(**options).double()
    batch = to(make_batch([5, 9, 1], 12), torch.float64)
    expected = energies(model, batch)
    assert expected.abs().min() > 0
    with bio.accelerated(model, backend="torch"):
        assert_near(energies(model, batch), expected, 1e-12)
        assert "fast" in str(bio.report(model))


def test_orientations_do_not_matter():
    model, batch = make_model().double(), to(make_batch([5, 3], 8), torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3).double())[0]
    with bio.accelerated(model, backend="torch"):
        expected = energies(model, batch)
        for name, (x, *rest) in batch.items():
            known = x.norm(dim=-1, keepdim=True) > 0
            batch[name] = ((x @ turn.T - 7.0) * known, *rest)
        assert_near(energies(model, batch), expected, 1e-11)


def test_the_package_gets_the_same_energies():
    real = pytest.importorskip("DualBind.model.dualbind_model", reason="DualBind is not installed")
    sizes = {"hidden_size": 64, "num_heads": 4, "mpn_depth": 3, "vocab_size": N_KINDS}
    sizes |= {"aa_size": N_TYPES, "max_residue_atoms": SLOTS, "threshold": 10.0, "dropout": 0.1}
    training = {"loss_ratio": 2, "eps_scaling": True, "use_mtl_loss": True}
    optimizer = SimpleNamespace(lr=1e-3, anneal_rate=0.9)
    model = real.DualBind(SimpleNamespace(**sizes, **training, optimizer=optimizer)).eval()
    batch = make_batch([5, 9], 12, (model.mpn.atom_fdim, model.mpn.bond_fdim))
    expected = energies(model, batch)
    with bio.accelerated(model, backend="torch"):
        assert_near(energies(model, batch), expected, 1e-5)
        assert "fell back" not in str(bio.report(model))


def test_many_complexes_are_computed_in_chunks(monkeypatch):
    model, batch = make_model(), make_batch([3, 4, 2, 5, 1], 6)
    expected = energies(model, batch)
    monkeypatch.setattr(network, "MAX_ATOMS", 400)
    with bio.accelerated(model, backend="torch"):
        assert_near(energies(model, batch), expected, 2e-5)


def test_several_atoms_per_slot_and_far_padding():
    model, batch = make_model().double(), to(make_batch([4, 2], 6), torch.float64)
    bind_x, _, bind_a = batch["binder"]
    bind_x[0, :2, 3] = torch.randn(2, 3) + 20
    bind_a[0, :2, 3] = 7
    near = energies(model, batch)
    for x, _, kinds in batch.values():
        x[kinds == 0] = 30 * torch.randn(3).double()
    expected = energies(model, batch)
    assert not torch.allclose(expected, near)
    with bio.accelerated(model, backend="torch"):
        assert_near(energies(model, batch), expected, 1e-12)


def test_kernels_agree(device):
    model, batch = make_model(), make_batch([3, 2], 4)
    expected = energies(model.double(), to(batch, torch.float64))
    model.float().to(device)
    with bio.accelerated(model, backend="triton"):
        found = energies(model, to(batch, device)).cpu()
    assert_near(found.double(), expected, 1e-5)


@pytest.mark.gpu
def test_kernels_agree_at_full_size():
    model, batch = make_model(size=256, num_heads=4), make_pockets(70)
    model.double().cuda()
    expected = energies(model, to(to(batch, torch.float64), "cuda"))
    model.float()
    with bio.accelerated(model):
        found = energies(model, to(batch, "cuda"))
        assert torch.equal(energies(model, to(batch, "cuda")), found)
    assert_near(found.double(), expected, 1e-6)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_nothing_waits_for_the_gpu():
    model, batch = make_model(size=64, num_heads=4).cuda(), to(make_batch([9, 5], 12), "cuda")
    with bio.accelerated(model):
        expected = energies(model, batch)
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = energies(model, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)


def test_complexes_without_contacts_have_no_energy():
    model, batch = make_model(), make_batch([3, 2], 4)
    batch["target"][0][1] += 500.0 * (batch["target"][0][1] != 0)
    expected = energies(model, batch)
    with bio.accelerated(model, backend="torch"):
        found = energies(model, batch)
    assert found[1] == expected[1] == 0
    assert_near(found, expected, 2e-5)


def test_models_are_restored_and_copied():
    model, batch = make_model(), make_batch([3, 2], 4)
    expected = energies(model, batch)
    bio.accelerate(model, backend="torch")
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert "DualBind" in str(bio.report(twin))
    bio.restore(model)
    assert "forward" not in vars(model)
    assert torch.equal(energies(model, batch), expected)
    assert_near(energies(twin, batch), expected, 2e-5)


def test_changed_weights_are_read_again():
    model, batch = make_model(), make_batch([3, 2], 4)
    with bio.accelerated(model, backend="torch"):
        before = energies(model, batch)
        with torch.no_grad():
            model.target_output[0].bias += 1.0
        model.threshold = 7.0
        found = energies(model, batch)
    assert not torch.allclose(found, before)
    assert_near(found, energies(model, batch), 2e-5)


def test_weights_may_have_any_stride():
    assert_strides_do_not_matter(lambda each: DualBindWeights.of(each, torch.float32), make_model())


def test_gradients_need_the_original():
    model, batch = make_model(), make_batch([3, 2], 4)
    with bio.accelerated(model, backend="torch"), pytest.warns(FallbackWarning, match="gradients"):
        assert model(**batch).requires_grad


def test_precisions_are_refused():
    model, batch = make_model(), make_batch([3, 2], 4)
    expected = energies(model, batch)
    with (
        bio.accelerated(model, backend="torch", precision="fp16"),
        pytest.warns(FallbackWarning, match="precisions"),
    ):
        assert torch.equal(energies(model, batch), expected)


def test_shapes_that_do_not_fit_need_the_original():
    model, batch = make_model(), make_batch([3, 2], 4)
    tgt_x, tgt_s, tgt_a = batch["target"]
    batch["target"] = tgt_x, tgt_s[..., :-1], tgt_a
    with (
        bio.accelerated(model, backend="torch"),
        pytest.warns(FallbackWarning, match="tgt_S"),
        pytest.raises(RuntimeError),
    ):
        energies(model, batch)


def test_kinds_of_other_dtypes_need_the_original():
    model, batch = make_model(), make_batch([3, 2], 4)
    tgt_x, tgt_s, tgt_a = batch["target"]
    expected = energies(model, batch)
    batch["target"] = tgt_x, tgt_s, tgt_a.int()
    with bio.accelerated(model, backend="torch"), pytest.warns(FallbackWarning, match="int64"):
        assert torch.equal(energies(model, batch), expected)


def enlarge_weight(model: nn.Module) -> None:
    with torch.no_grad():
        model.encoder.encoder.linear1.weight[0, 0] = 7e4


def make_threshold_a_tensor(model: nn.Module) -> None:
    model.threshold = torch.tensor(10.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (enlarge_weight, r"too large to be split: 7e\+04"),
        (make_threshold_a_tensor, "threshold"),
    ],
)
def test_models_that_kernels_cannot_compute_need_the_original(change, reason, device):
    model, batch = make_model().to(device), to(make_batch([3, 2], 4), device)
    change(model)
    expected = energies(model, batch)
    with bio.accelerated(model, backend="triton"), pytest.warns(FallbackWarning, match=reason):
        assert torch.equal(energies(model, batch), expected)


def test_weights_that_are_too_large_are_read_once(device, monkeypatch):
    model, batch = make_model().to(device), to(make_batch([3, 2], 4), device)
    enlarge_weight(model)
    reads = []
    read = DualBindForward.read
    monkeypatch.setattr(DualBindForward, "read", lambda own: reads.append(1) or read(own))
    with bio.accelerated(model, backend="triton"):
        with pytest.warns(FallbackWarning, match="too large to be split"):
            energies(model, batch)
        energies(model, batch)
        assert len(reads) == 1
        with torch.no_grad():
            model.encoder.encoder.linear1.weight[0, 0] = 1.0
        monkeypatch.setattr(DualBindForward, "compute", lambda *_: "kernels")
        assert energies(model, batch) == "kernels"
    assert len(reads) == 2


def test_unknown_kinds_are_not_a_number():
    model, batch = make_model(), make_batch([3, 2], 4)
    batch["target"][2][0, 0, 0] = N_KINDS
    batch["target"][0][0, 0, 0] = 1.0
    with bio.accelerated(model, backend="torch"):
        found = energies(model, batch)
    assert found.isnan().tolist() == [True, False]


def change_class(model: nn.Module) -> None:
    model.encoder.__class__ = type("FANN", (type(model.encoder),), {"__module__": "elsewhere"})


def change_activation(model: nn.Module) -> None:
    model.target_output[1] = nn.ReLU()


def change_shape(model: nn.Module) -> None:
    model.encoder.linear = nn.Linear(66, 32)


def add_parameter(model: nn.Module) -> None:
    model.encoder.bias = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("change", [change_class, change_activation, change_shape, add_parameter])
def test_other_models_are_refused(change):
    model = make_model()
    change(model)
    with pytest.raises(UnsupportedModelError, match="DualBind contains no module"):
        bio.accelerate(model, strict=True)
