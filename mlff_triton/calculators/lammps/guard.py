"""Errors of the model, which end a LAMMPS script at the point where they occur.

LAMMPS calls the model through ctypes, which drops exceptions. Only LAMMPS's own errors end runs,
loops and scripts. So a second fix follows the one that calls the model, and fails in its place. It
is a ``fix indent`` in a group without atoms. Its radius is negative, and refused by LAMMPS, unless
the model has confirmed the present step.
"""

from __future__ import annotations

from typing import Any

from mlff_triton.errors import InputError, SimulationError

NAME = "mlff_triton_guard"
"""Name of the fix, its group and its radius in LAMMPS."""
CONFIRMED = "mlff_triton_step"
"""LAMMPS variable with the last step that the model has confirmed."""
NO_STEP = -1.0
GUARDED = "mlff_triton"
"""Name of the fix that calls the model."""
MOST_GROUPS = 32


class Guard:
    """The fix that fails if the model has not computed a step.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance. Whatever ran LAMMPS then raises the error of the model: its method
        ``command``, ``commands_list``, ``commands_string`` or ``file``.

    Attributes
    ----------
    failure : BaseException or None
        Error of the model that ends the present run.
    """

    def __init__(self, lmp: Any) -> None:
        self.failure: BaseException | None = None
        self._lmp = lmp
        self._confirmed = NO_STEP
        self._shows_errors = True

    def check_groups(self) -> None:
        """Raise `InputError` if LAMMPS cannot have the group that the fix needs."""
        groups = [name for name in self._lmp.available_ids("group") if name]
        if len(groups) >= MOST_GROUPS and NAME not in groups:
            raise InputError(
                f"all {MOST_GROUPS} groups of LAMMPS are in use, and the coupling needs one: "
                "remove one by `group NAME delete`, or couple before they are made"
            )

    def attach(self) -> None:
        """Make the fix in LAMMPS, directly after the one that calls the model."""
        lmp = self._lmp
        if lmp.has_id("fix", NAME):
            lmp.command(f"unfix {NAME}")
        lmp.commands_list(
            [
                f"variable {CONFIRMED} internal {NO_STEP}",
                f"variable {NAME} equal (v_{CONFIRMED}==step)*is_defined(fix,{GUARDED})-0.5",
                f"group {NAME} empty",
                f"fix {NAME} {NAME} indent 0.0 sphere 0.0 0.0 0.0 v_{NAME} units box",
            ]
        )
        kind = type(lmp)
        if not issubclass(kind, _Guarded):  # only of this instance, and only once
            lmp.__class__ = type(kind.__name__, (_Guarded, kind), {})
        lmp.mlff_triton_guard = self

    def confirm(self, step: float) -> None:
        """Let LAMMPS continue, because the model has been computed in this step."""
        self._confirmed = step
        self._lmp.lib.lammps_set_internal_variable(self._lmp.lmp, CONFIRMED.encode(), step)

    def fail(self, error: BaseException | None) -> None:
        """Make LAMMPS fail when the callback returns, with this error instead of its own."""
        if self.failure is None:  # or none has raised the first one
            self.failure, self._shows_errors = error, self._show_errors(False)
        self.confirm(NO_STEP)

    def raise_pending(self) -> None:
        """Raise an error of the model that LAMMPS missed because a script removed the fix."""
        if self.failure is not None:
            raise self.failure

    def _show_errors(self, is_shown: bool) -> bool:
        """Let LAMMPS print its errors or not, and return whether it did."""
        return bool(self._lmp.lib.lammps_set_show_error(self._lmp.lmp, is_shown))

    def explain(self, error: Exception) -> BaseException:
        """Return the cause of an error of LAMMPS."""
        failure, self.failure = self.failure, None
        if failure is not None:
            self._show_errors(self._shows_errors)
            return failure
        step = self._lmp.extract_global("ntimestep")
        is_lost = self._confirmed != step or not self._lmp.has_id("fix", GUARDED)
        if "fix indent" in str(error) and is_lost:
            return SimulationError(
                f"LAMMPS did not compute the model in step {step}: the fix of the coupling was "
                "removed, so couple again, or Ctrl-C came between LAMMPS and the model"
            )
        return error


class _Guarded:
    """Part of the class of a guarded LAMMPS instance: its errors, and what it keeps alive."""

    mlff_triton_guard: Guard
    callback: dict[str, Any]

    @property
    def _lammps_exception(self) -> BaseException:
        error: Exception = super()._lammps_exception  # type: ignore[misc]
        return self.mlff_triton_guard.explain(error)

    def close(self) -> None:
        """Release the model as well, because its callback would keep both alive."""
        super().close()  # type: ignore[misc]
        self.callback.pop(GUARDED, None)
