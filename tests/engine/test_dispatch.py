"""Choice of a backend for a model, and the reasons given against the others."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mlff_triton._common import cache
from mlff_triton.engine import dispatch
from mlff_triton.engine.dispatch import BACKENDS, candidates, choose, explain
from mlff_triton.errors import BackendError
from mlff_triton.kernels.common.cpu import loop_folder
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.tensornet import TensorNet

CPU, GPU = torch.device("cpu"), torch.device("cuda")  # nothing is computed, so no GPU is needed
CONFIG = TensorNetConfig(elements=(1, 8), hidden_channels=32, num_layers=1, num_rbf=4)
TRITON = ("triton-graph", "triton")
ZBL = ZBLConfig(cutoff=2.0, prefactor=14.4)


def model_of(**changes: object) -> TensorNet:
    return TensorNet(replace(CONFIG, **changes))


def obstacles(
    model: TensorNet, device: torch.device = GPU, dtype: torch.dtype = torch.float32
) -> dict[str, str | None]:
    return {c.backend: c.obstacle for c in candidates([model], device, dtype)}


@pytest.fixture(autouse=True)
def _not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set by tests of kernels
    monkeypatch.setattr(dispatch, "has_loops", lambda: True)


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_loops", lambda: False)


@pytest.mark.parametrize("channels", dispatch.CHANNELS)
@pytest.mark.parametrize("dtype", dispatch.DTYPES)
@pytest.mark.parametrize("zbl", [None, ZBL], ids=["", "ZBL"])
def test_a_gpu_takes_the_graph(channels, dtype, zbl):
    pytest.importorskip("triton")
    model = model_of(hidden_channels=channels, zbl=zbl)
    assert list(obstacles(model, GPU, dtype)) == list(BACKENDS)
    found = obstacles(model, GPU, dtype)
    assert [backend for backend, why in found.items() if why] == ["cpu"]
    assert choose("auto", [model], GPU, dtype) == "triton-graph"


def test_a_cpu_has_no_kernels():
    found = obstacles(model_of(), CPU)
    for backend in TRITON:
        assert found[backend] == "Triton kernels need a GPU, and the device is cpu"
    assert found["cpu"] is found["torch"] is found["exact"] is None
    assert choose("auto", [model_of()], CPU, torch.float32) == "cpu"


@pytest.mark.usefixtures("without_numba")
def test_a_cpu_without_numba_takes_the_exact_module():
    assert obstacles(model_of(), CPU)["cpu"] == "its loops need Numba: pip install numba"
    assert choose("auto", [model_of()], CPU, torch.float32) == "exact"
    assert "cpu           no: its loops need Numba" in explain(model_of())


def test_loops_for_cpus_serve_two_precisions():
    found = obstacles(model_of(), CPU, torch.float16)
    assert found["cpu"] == "its loops serve float32 and float64, not torch.float16"


@pytest.mark.parametrize("device", [CPU, GPU])
def test_what_is_asked_for_is_taken(device):
    for backend, obstacle in obstacles(model_of(), device).items():
        if obstacle is None:
            assert choose(backend, [model_of()], device, torch.float32) == backend


@pytest.mark.parametrize(
    ("changes", "obstacle", "able"),
    [
        ({"num_layers": 0}, "needs a model with an interaction layer", {"exact"}),
        ({"hidden_channels": 48}, "channels, not 48", {"torch", "exact"}),
    ],
    ids=["no layers", "48 channels"],
)
def test_models_that_kernels_do_not_serve(changes, obstacle, able):
    pytest.importorskip("triton")
    model = model_of(**changes)
    found = obstacles(model)
    assert {backend for backend in BACKENDS if found[backend] is None} == able
    for backend in set(BACKENDS) - able:
        assert obstacle in found[backend] or backend == "cpu"  # the device is a GPU
    assert choose("auto", [model], GPU, torch.float32) in able


def test_half_precision_is_not_for_kernels():
    pytest.importorskip("triton")
    found = obstacles(model_of(), GPU, torch.float16)
    for backend in TRITON:
        assert "float32 and float64, not torch.float16" in found[backend]


@pytest.mark.usefixtures("without_triton")
def test_without_triton():
    found = obstacles(model_of())
    for backend in TRITON:
        assert found[backend] == "Triton is not installed: pip install triton"
    assert choose("auto", [model_of()], GPU, torch.float32) not in TRITON


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("changes", [{"num_layers": 0}, {"zbl": ZBL}, {"hidden_channels": 48}, {}])
def test_refusals_name_an_alternative_that_serves(changes, device):
    model = model_of(**changes)
    found = obstacles(model, device)
    for backend in BACKENDS:
        if found[backend] is None:
            continue
        with pytest.raises(BackendError) as refusal:
            choose(backend, [model], device, torch.float32)
        message = str(refusal.value)
        assert message.startswith(f"backend={backend!r}: {found[backend]}; use backend='")
        named = message.rsplit("'", 2)[1]
        assert choose(named, [model], device, torch.float32) == named


@pytest.mark.parametrize("backend", ["cuda", "", "Torch", None])
def test_unknown_backends_are_refused(backend):
    with pytest.raises(BackendError, match="is unknown: use 'auto' or one of triton-graph"):
        choose(backend, [model_of()], CPU, torch.float32)


def test_one_member_hinders_an_ensemble():
    members = [model_of(), model_of(num_layers=0)]
    found = candidates(members, CPU, torch.float32)
    assert {c.backend for c in found if c.obstacle is None} == {"exact"}
    assert choose("auto", members, CPU, torch.float32) == "exact"
    with pytest.raises(BackendError, match="interaction layer; use backend='exact'"):
        choose("torch", members, CPU, torch.float32)


def test_the_interpreter_is_only_taken_when_asked_for(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = obstacles(model_of(), CPU)
    assert found["triton"] is None
    assert "need a GPU" in found["triton-graph"]
    assert choose("triton", [model_of()], CPU, torch.float32) == "triton"
    assert choose("auto", [model_of()], CPU, torch.float32) not in TRITON


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("changes", [{}, {"num_layers": 0}, {"zbl": ZBL}, {"hidden_channels": 48}])
def test_explain_says_what_choose_does(changes, device):
    model = model_of(**changes)
    lines = explain(model, device).splitlines()[: len(BACKENDS)]
    verdicts = dict(line.split(maxsplit=1) for line in lines)
    assert list(verdicts) == list(BACKENDS)
    (taken,) = (backend for backend, verdict in verdicts.items() if verdict == "taken")
    assert taken == choose("auto", [model], torch.device(device), torch.float32)
    for backend, obstacle in obstacles(model, torch.device(device)).items():
        if obstacle:
            assert verdicts[backend] == f"no: {obstacle}"
        elif backend != taken:
            assert verdicts[backend] == "slower"


def test_explain_says_what_choose_does_under_the_interpreter(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    verdicts = dict(line.split(maxsplit=1) for line in explain(model_of()).splitlines())
    assert verdicts[choose("auto", [model_of()], CPU, torch.float32)] == "taken"


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize(
    ("calls", "taken"), [(1, "exact"), (39, "exact"), (40, "cpu"), (10**9, "cpu"), (None, "cpu")]
)
def test_few_calls_do_not_wait_for_a_compiler(calls, taken):
    model = model_of()
    assert choose("auto", [model], CPU, torch.float32, calls) == taken
    verdicts = dict(line.split(maxsplit=1) for line in explain(model, calls=calls).splitlines())
    start = ", after 6 s to compile it once"
    if taken == "cpu":
        assert (verdicts["cpu"], verdicts["exact"]) == ("taken" + start, "slower")
    else:
        assert verdicts["cpu"] == "slower for so few calls" + start
        assert verdicts["exact"] == "taken"


def test_few_calls_take_loops_that_are_compiled():
    assert choose("auto", [model_of()], CPU, torch.float32, 1) == "cpu"


@pytest.mark.usefixtures("nothing_compiled")
def test_what_is_asked_for_is_compiled_for_a_single_call():
    assert choose("cpu", [model_of()], CPU, torch.float32, 1) == "cpu"


def test_ten_thousand_calls_of_models_without_loops_take_the_exact_module():
    assert choose("auto", [model_of(num_layers=0)], CPU, torch.float32, 10_000) == "exact"


@pytest.mark.parametrize("by", [cache.FOLDER, loop_folder.NUMBA_FOLDER])
def test_compiled_loops_are_found_without_numba(monkeypatch, tmp_path, by):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv(by, str(tmp_path))
    assert not loop_folder.has_loops()
    cache.write(loop_folder.KIND, "one", b"code", loop_folder.root())
    assert loop_folder.has_loops()
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    os.utime(file, (0, 0))  # older than the package
    assert not loop_folder.has_loops()


class Kinked(torch.nn.Module):
    """A basis with a kink, which no table holds."""

    def forward(self, distance: Tensor) -> Tensor:
        return (distance[:, None] - 1.2345678).abs() * torch.ones(CONFIG.num_rbf).to(distance)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_models_without_tables_are_served_by_the_exact_module(device):
    model = model_of()
    model.basis = Kinked()
    reason = "the radial networks change too fast to be tabulated near "
    found = obstacles(model, device)
    assert found.pop("exact") is None
    assert all(obstacle.startswith(reason) for obstacle in found.values())
    assert choose("auto", [model], device, torch.float32) == "exact"
    assert f"cpu           no: {reason}" in explain(model, device)
    with pytest.raises(BackendError, match=f"^backend='cpu': {reason}.* Å; use backend='exact'$"):
        choose("cpu", [model], device, torch.float32)
