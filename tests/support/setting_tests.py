"""Tests of a package's adapters in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar

import pytest
from torch import nn

from tests.support.caller_settings import check_caller_setting, in_all_caller_settings
from tests.support.changed_attributes import check_changed_attributes
from tests.support.precisions import Call, check_setting, in_all_settings

Case = tuple[nn.Module, Call]


class SettingTests:
    """Tests that every adapter of a package must pass.

    Attributes
    ----------
    cases : mapping
        Functions that take a device and return a model on it with a function that calls the model,
        by name.
    """

    cases: ClassVar[Mapping[str, Callable[[str], Case]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run all tests of one case after another, as they share the results of its model."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.cases)

    @classmethod
    @cache
    def made(cls, name: str, device: str) -> Case:
        """Return the model of a case and the function that calls it."""
        return cls.cases[name](device)

    @in_all_settings
    def test_every_setting_agrees_with_the_package(self, name, setting, device):
        check_setting(*self.made(name, device), setting)

    @in_all_caller_settings
    def test_settings_of_callers_are_followed(self, name, setting):
        check_caller_setting(*self.made(name, "cpu"), setting, "torch")

    def test_changed_attributes_are_noticed(self, name):
        check_changed_attributes(*self.made(name, "cpu"))

    @pytest.mark.gpu
    @in_all_caller_settings
    def test_settings_of_callers_are_followed_by_kernels(self, name, setting):
        check_caller_setting(*self.made(name, "cuda"), setting, "triton")
