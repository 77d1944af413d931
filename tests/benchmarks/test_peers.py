from __future__ import annotations

import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.engine import peers, runner
from benchmarks.engine.cases import CASES, Case
from benchmarks.engine.implementations import OURS
from benchmarks.lab.schema import read_rows
from benchmarks.systems import models, systems
from tests.support.benchmark_rows import CPU


def test_torchmd_net_gets_the_weights_of_the_shipped_model(lab):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    case = Case("shipped", "21", partial(systems.water, 7), "shipped")
    runner.run_case(lab, case, peers.PEERS[:1])
    (found,) = read_rows(lab.results.path("shipped"))
    assert found.error < 1e-5


@pytest.mark.parametrize("repulsion", [False, True])
def test_torchmd_net_gets_the_weights_of_a_tensornet2(lab, monkeypatch, repulsion):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    made = models.charged_model(16, repulsion=repulsion)
    monkeypatch.setattr(runner, "model", cache(lambda _: made))
    case = Case("charged", "21", partial(systems.molecule, "aspirin"), "charged")
    runner.run_case(lab, case, [*OURS, peers.PEERS[0]])
    rows = read_rows(lab.results.path("charged"))
    assert [row.gate for row in rows] == ["pass"] * 3
    assert max(row.error for row in rows) < 1e-5


@pytest.mark.filterwarnings("ignore")  # of options and versions
def test_checkpoints_are_those_that_openmm_ml_reads(tmp_path):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    from torchmdnet.models.model import load_model

    made = models.charged_model(8, repulsion=True)
    peers.save_checkpoint(made, tmp_path / "model.ckpt", coulomb_neighbors=20)
    loaded = load_model(str(tmp_path / "model.ckpt"), check_errors=False, derivative=False)
    expected = peers.rebuild(made, warp=True, coulomb_neighbors=20).state_dict()
    found = loaded.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert loaded.output_model.distance.max_num_pairs == -20


def test_torchmd_net_refuses_particle_mesh_ewald():
    (peer, *_), made = peers.PEERS, models.MODELS["charged-pme"](8)
    assert peer.refusal(made, 21, CPU) == "TorchMD-NET has no particle-mesh Ewald"
    assert peer.refusal(models.charged_model(8), 21, CPU) is None


def test_neighbor_lists_of_a_tensornet2_have_the_size_of_each_cutoff():
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    model, system = models.charged_model(8, repulsion=True), systems.random_box(1024)
    theirs = peers.rebuild_for(system, model, warp=False, static_shapes=True, room=1.1)
    found = theirs.representation_model.distance, theirs.output_model.distance
    pairs = system.count_edges(5.0) + system.n_atoms, system.count_edges(10.0) / 2
    for listed, needed in zip(found, pairs, strict=True):
        assert 1.1 * needed <= -listed.max_num_pairs * system.n_atoms <= 1.1 * needed + 16 * 1024


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("warp", [True, False])
def test_peers_compute_with_the_operators_that_they_are_named_for(warp):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    peers.rebuild(models.model("random"), warp=warp)
    from torchmdnet.models import tensornet

    assert tensornet.OPT is warp
    names = ["compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"]
    homes = [getattr(tensornet, name).__module__ for name in names]
    assert [home.startswith("torchmdnet.extensions.warp_ops") for home in homes] == 4 * [warp]


@pytest.mark.gpu
def test_every_implementation_is_right_on_a_gpu(tmp_path):
    """Run in a process of its own, because PyTorch's compiler keeps state of other tests."""
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    options = ["step", "--cases", CASES[0].name, "--peers", "torch,warp,warp-graph"]
    everyone = command.implementations_of(CASES[0], command.parse(options))
    options += ["--out", str(tmp_path)]
    checkout = Path(command.__file__).parents[1]
    command_line = [sys.executable, "-m", "benchmarks", *options]
    subprocess.run(command_line, check=True, cwd=checkout)  # noqa: S603 - we made it
    rows = read_rows(tmp_path / "step.csv")
    assert {r.impl: r.gate for r in rows} == {one.name: "pass" for one in everyone}
