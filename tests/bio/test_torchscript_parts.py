"""Modules with parts in TorchScript, as e3nn generates them."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.core.snapshot import Snapshot


def make_module() -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Tanh())).eval()


def test_snapshots_notice_other_parts() -> None:
    module = make_module()
    snapshot = Snapshot(module)
    assert snapshot.obstacle is None
    assert snapshot.is_current()
    module[1] = make_module()[1]
    assert not snapshot.is_current()


def test_only_packages_that_generate_code_may_have_them() -> None:
    module = make_module()
    assert not is_unmodified(module)
    assert is_unmodified(module, generates_code=True)
    assert not is_unmodified(module[1], generates_code=True)
