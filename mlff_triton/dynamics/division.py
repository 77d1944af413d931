"""Division of the systems of a run among devices."""

from __future__ import annotations

from collections.abc import Sequence

from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton._common.devices import find_devices
from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.dynamics.device_process import DeviceProcess
from mlff_triton.dynamics.divided_dynamics import DividedDynamics
from mlff_triton.errors import InputError


class DeviceProcesses:
    """The processes of a run, as a context. They start when they are first needed.

    Parameters
    ----------
    calculator : TensorNetCalculator
        Each process has a copy of it.
    devices : sequence of str
        Device of each process.

    Attributes
    ----------
    n_devices : int
        Number of devices.
    """

    def __init__(self, calculator: TensorNetCalculator, devices: Sequence[str]) -> None:
        self._calculator, self._devices = calculator, devices
        self._processes: list[DeviceProcess] = []
        self.n_devices = len(devices)

    def __enter__(self) -> DeviceProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        while self._processes:
            self._processes.pop().end()

    def dynamics(self, systems: Sequence[Atoms], threads: int | None) -> DividedDynamics:
        """Divide systems among the processes; parameters are those of `make_dynamics`."""
        self._calculator.check_many(systems)  # with warnings, which processes do not give
        if not self._processes:
            maker = self._calculator.maker
            self._processes = [DeviceProcess(maker(name), name) for name in self._devices]
        return DividedDynamics(self._processes, systems, threads)


def check_devices(device: str, n_systems: int) -> list[str]:
    """Return the devices of a comma-separated list of names.

    Raises
    ------
    InputError
        If the list is invalid, or has more devices than there are systems.
    BackendError
        If this machine has no such device.
    """
    devices = [str(found) for found in find_devices(device)]
    if len(devices) > n_systems:
        count = "1 simulation" if n_systems == 1 else f"{n_systems} simulations"
        raise InputError(
            f"{len(devices)} devices cannot share {count}: name fewer devices, or use more replicas"
        )
    return devices


def divide(calculator: Calculator, device: str | None, n_systems: int) -> DeviceProcesses | None:
    """Return the processes of several devices; None for fewer than two devices.

    Raises
    ------
    InputError, BackendError
        As for `check_devices`, or if the calculator is not ours.
    """
    devices = [] if device is None else check_devices(device, n_systems)
    if len(devices) < 2:
        return None
    if not isinstance(calculator, TensorNetCalculator):
        raise InputError(
            f"several devices need a TensorNetCalculator, not {type(calculator).__name__}: use one "
            "device"
        )
    return DeviceProcesses(calculator, devices)
