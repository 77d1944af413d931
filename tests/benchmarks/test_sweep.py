"""Sweeps of block sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.bio import sweep
from mlff_triton.errors import BackendError, InputError

CPU = torch.device("cpu")
KERNEL = sweep.KERNELS["transition"]
OWN, TILE, ODD = (64, 64, 4, 1), (16, 16, 4, 1), (48, 16, 4, 1)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> sweep.Call:
    """Make a call that takes any block sizes but odd ones."""
    monkeypatch.setattr(KERNEL.sizes, KERNEL.method, lambda: KERNEL.sizes(*OWN))

    def compute() -> Tensor:
        if KERNEL.sizes.of() == (*ODD, None):
            raise ValueError("not a power of two\nbut an odd number")
        return torch.ones(())

    return compute


@pytest.mark.parametrize("name", sweep.KERNELS)
def test_launchers_take_choices(name):
    sizes, method = sweep.KERNELS[name].sizes, sweep.KERNELS[name].method
    own = getattr(sizes, method)
    given = (torch.ones(64, 64),) if name == "update" else (128, torch.ones(1, 1, 1, 1, 1))
    with sweep.chosen(sweep.KERNELS[name], TILE):
        assert getattr(sizes, method)(*given)[:4] == TILE
    assert getattr(sizes, method) == own
    with sweep.chosen(sweep.KERNELS[name], None):
        assert getattr(sizes, method)(*given)[:4] != TILE


def test_choices_take_turns(call, monkeypatch):
    order: list[Any] = []
    monkeypatch.setattr(sweep, "_sustained", lambda *_: order.append(KERNEL.sizes.of()[:4]) or 1)
    assert sweep.sweep(KERNEL, call, [TILE], CPU, rounds=2) == {None: [1, 1], TILE: [1, 1]}
    assert order == [OWN, TILE, OWN, TILE]


def test_choices_that_do_not_work_are_left_out(call, capsys):
    found = sweep.sweep(KERNEL, call, [ODD, TILE], CPU, rounds=3, seconds=0)
    assert set(found) == {None, TILE}
    assert all(len(times) == 3 and min(times) > 0 for times in found.values())
    assert capsys.readouterr().err == "(48, 16, 4, 1): not a power of two\n"


@pytest.mark.parametrize(
    "text", ["", "64", "64,32,4", "64,32,4,2,168,1", "64,32,4,two", "64,32,4,²", "64;32"]
)
def test_other_texts_are_no_choices(text):
    with pytest.raises(InputError, match="give rows, hidden, warps, stages, registers"):
        sweep.parse(KERNEL, text)


def test_the_command(call, capsys, monkeypatch):
    kernel = KERNEL._replace(prepare=lambda *_: call)
    monkeypatch.setitem(sweep.KERNELS, "transition", kernel)
    sweep.main(["transition", "16,16,4,1", "--device", "cpu"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith("  rows, hidden, warps, stages, registers")
    assert {row.split("  ")[-1] for row in rows} == {"the launcher's own", "16, 16, 4, 1"}
    with pytest.raises(SystemExit):
        sweep.main(["transition", "16"])
    assert "'16' is not a choice" in capsys.readouterr().err


def test_the_command_says_why_nothing_runs(capsys, monkeypatch):
    def refuse() -> Tensor:
        raise BackendError("there is no GPU")

    monkeypatch.setitem(sweep.KERNELS, "transition", KERNEL._replace(prepare=lambda *_: refuse))
    with pytest.raises(SystemExit):
        sweep.main(["transition", "--device", "cpu"])
    assert capsys.readouterr().err.endswith("error: there is no GPU\n")


@pytest.mark.gpu
@pytest.mark.parametrize("name", sweep.KERNELS)
@pytest.mark.parametrize("precision", sweep.DTYPES)
def test_kernels_run_with_choices(name, precision, capsys):
    sweep.main([name, "16,32,4,1", "48,32,4,1", "--tokens", "33", "--precision", precision])
    out, err = capsys.readouterr()
    assert {row.split("  ")[-1] for row in out.splitlines()[1:]} == {
        "the launcher's own",
        "16, 32, 4, 1",
    }
    assert "(48, 32, 4, 1): " in err
