"""The command ``mlff-triton md``: start or continue a simulation, and report on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mlff_triton.cli._exits import EXIT_INTERRUPTED
from mlff_triton.cli._md_options import (
    check_consistent,
    check_used,
    further_stages,
    make_stages,
    read_temperatures,
)
from mlff_triton.cli._shared import (
    ChargeOption,
    DeviceOption,
    DtypeOption,
    FixOption,
    ModelOption,
    NoPbcOption,
    fix_atoms,
    given_options,
    plain_console,
    read_one,
    screen,
)
from mlff_triton.errors import BackendError, InputError

if TYPE_CHECKING:
    from ase import Atoms

    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.dynamics import Settings, Simulation, Snapshot

# Groups of options in the help
STAGES, SYSTEMS, MOTION, FILES = "Stages", "Several systems", "Motion", "Files"
CONTINUE = "Continue a run"

EXAMPLES = (
    "mlff-triton md ethanol.xyz --temperature 300 --steps 20000",
    "mlff-triton md water.pdb --minimize --ensemble nvt --steps 4000 --ensemble npt --steps 40000",
    "mlff-triton md peptide.pdb --replicas 8 --temperature 300:450 --exchange-every 200",
    "mlff-triton md slab.cif --fix 'z<5' --out slab",
    "mlff-triton md --restart md/restart.npz --extend 20000",
)


def md(
    context: typer.Context,
    structures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STRUCTURE]...",
            help="Structure files that ASE can read, or alanine-dipeptide-water.",
        ),
    ] = None,
    model: ModelOption = "default",
    ensemble: Annotated[
        list[str],
        typer.Option(help="nve, nvt or npt; repeat for several stages.", rich_help_panel=STAGES),
    ] = ["nvt"],  # noqa: B006
    steps: Annotated[
        list[int], typer.Option(help="Time steps, once or once per stage.", rich_help_panel=STAGES)
    ] = [2000],  # noqa: B006
    temperature: Annotated[
        list[str],
        typer.Option(
            help="In K, once or once per stage; for replicas also LOWEST:HIGHEST.",
            rich_help_panel=STAGES,
        ),
    ] = ["300"],  # noqa: B006
    heat_from: Annotated[
        float | None,
        typer.Option(
            help="Start at this temperature, K, and rise in the first stage.",
            rich_help_panel=STAGES,
        ),
    ] = None,
    replicas: Annotated[
        int, typer.Option(help="Simulate each structure so many times.", rich_help_panel=SYSTEMS)
    ] = 1,
    exchange_every: Annotated[
        int,
        typer.Option(
            help="Steps between exchanges of temperatures; 0 for none.", rich_help_panel=SYSTEMS
        ),
    ] = 0,
    pressure: Annotated[
        list[float],
        typer.Option(help="In bar, for npt, once or once per stage.", rich_help_panel=STAGES),
    ] = [1.0],  # noqa: B006
    timestep: Annotated[float, typer.Option(help="Time step in fs.", rich_help_panel=MOTION)] = 0.5,
    hydrogen_mass: Annotated[
        float | None,
        typer.Option(
            help="Mass of hydrogen in amu, taken from its neighbors.", rich_help_panel=MOTION
        ),
    ] = None,
    thermostat: Annotated[
        str, typer.Option(help="langevin or rescaling.", rich_help_panel=MOTION)
    ] = "langevin",
    friction: Annotated[
        float, typer.Option(help="Friction in 1/ps, for langevin.", rich_help_panel=MOTION)
    ] = 5.0,
    barostat: Annotated[
        str, typer.Option(help="isotropic or anisotropic.", rich_help_panel=MOTION)
    ] = "isotropic",
    barostat_time: Annotated[
        float,
        typer.Option(help="Relaxation time of the volume in fs, for npt.", rich_help_panel=MOTION),
    ] = 1000.0,
    compressibility: Annotated[
        float,
        typer.Option(
            help="Estimate in 1/bar, for npt; by default that of water.", rich_help_panel=MOTION
        ),
    ] = 4.5e-5,
    every: Annotated[
        int, typer.Option(help="Steps between frames and restarts.", rich_help_panel=FILES)
    ] = 20,
    log_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between log rows; by default as for frames.", rich_help_panel=FILES
        ),
    ] = None,
    trajectory: Annotated[
        str, typer.Option(help="Format: xyz, dcd or xtc.", rich_help_panel=FILES)
    ] = "xyz",
    seed: Annotated[
        int, typer.Option(help="Random seed of velocities and thermostat.", rich_help_panel=MOTION)
    ] = 0,
    minimize: Annotated[
        bool, typer.Option("--minimize", help="Minimize the energy first.", rich_help_panel=STAGES)
    ] = False,
    keep_velocities: Annotated[
        bool,
        typer.Option(
            "--keep-velocities",
            help="Start with the velocities of the structure.",
            rich_help_panel=MOTION,
        ),
    ] = False,
    reactive: Annotated[
        bool,
        typer.Option(
            "--reactive", help="Go on if bonds of the start break.", rich_help_panel=MOTION
        ),
    ] = False,
    fix: FixOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    threads: Annotated[
        int | None, typer.Option(help="Threads on a CPU; by default one per 64 atoms.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Directory for the results.", rich_help_panel=FILES)
    ] = Path("md"),
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace the results of an earlier run.", rich_help_panel=FILES
        ),
    ] = False,
    restart: Annotated[
        Path | None,
        typer.Option(
            help="Restart file to continue from, exactly; no other option is needed.",
            rich_help_panel=CONTINUE,
        ),
    ] = None,
    extend: Annotated[
        int | None,
        typer.Option(
            help="Steps to add to the last stage, with --restart.", rich_help_panel=CONTINUE
        ),
    ] = None,
) -> None:
    """Run molecular dynamics in one or several stages.

    Several structures, or replicas of one, run in one batch. Ctrl-C leaves a restart file.
    """
    from mlff_triton.checkpoints import lasting_name
    from mlff_triton.dynamics import Settings

    if restart is not None:
        simulation = _resume(restart, extend, given_options(context))
    elif extend is not None:
        raise InputError("--extend needs --restart FILE")
    elif not structures:
        raise InputError("give a STRUCTURE to simulate, or --restart FILE")
    else:
        if replicas < 1:
            raise InputError(f"--replicas must be at least one, not {replicas}")
        temperatures = read_temperatures(temperature, replicas * len(structures))
        settings = Settings(
            stages=make_stages(ensemble, steps, temperatures, pressure),
            temperature=temperatures[0],
            heat_from=heat_from,
            pressure=pressure[0],
            timestep=timestep,
            thermostat=thermostat,
            friction=friction,
            barostat=barostat,
            barostat_time=barostat_time,
            compressibility=compressibility,
            every=every,
            log_every=log_every,
            exchange_every=exchange_every,
            seed=seed,
            minimize=minimize,
            keep_velocities=keep_velocities,
            reactive=reactive,
            hydrogen_mass=hydrogen_mass,
            trajectory=trajectory,
            threads=threads,
        )
        check_used(given_options(context), settings)
        systems = _read(structures, replicas, charge, no_pbc, fix)
        if not keep_velocities and any(atoms.has("momenta") for atoms in systems):
            plain_console().print(
                "velocities are drawn anew: --keep-velocities takes those of the structure"
            )
        recipe = {"model": lasting_name(model), "device": device, "dtype": dtype}
        names = [name for name in structures for _ in range(replicas)]
        if len(structures) > 1:
            recipe["inputs"] = "\n".join(names)
        simulation = _start(systems, names, settings, recipe, out, overwrite)
    _run_and_report(simulation)


def _make_calculator(recipe: dict[str, str]) -> TensorNetCalculator:
    from mlff_triton.calculators import TensorNetCalculator

    return TensorNetCalculator(recipe["model"], device=recipe["device"], dtype=recipe["dtype"])


def _read(
    structures: list[str], replicas: int, charge: int | None, no_pbc: bool, fix: str | None
) -> list[Atoms]:
    """Read the systems of a run, with replicas side by side."""
    from mlff_triton.dynamics.systems import INPUT

    read = [read_one(name, charge, not no_pbc, velocities=True) for name in structures]
    for atoms, name in zip(read, structures, strict=True):
        fix_atoms(atoms, name, fix)
        if len(structures) > 1:
            atoms.info[INPUT] = name
    return [atoms for atoms in read for _ in range(replicas)]


def _start(
    systems: list[Atoms],
    names: list[str],
    settings: Settings,
    recipe: dict[str, str],
    out: Path,
    overwrite: bool,
) -> Simulation:
    """Set up a new run. Inexpensive checks come first, before the model is loaded."""
    from mlff_triton.dynamics import Simulation
    from mlff_triton.dynamics.conditions import check_ensembles
    from mlff_triton.dynamics.outputs import check_directory

    check_ensembles(systems, settings)
    check_directory(out, overwrite)
    calculator = _make_calculator(recipe)
    screen(systems, names, calculator)
    engine = calculator.session.engine
    device = engine.device.type if recipe["device"] == "auto" else recipe["device"]
    recipe = recipe | {"device": device, "weights": engine.weights}
    return Simulation.start(systems, calculator, settings, out, overwrite=overwrite, recipe=recipe)


def _resume(restart: Path, extend: int | None, given: dict[str, Any]) -> Simulation:
    """Set up the continuation of a run from its restart file."""
    from mlff_triton.dynamics import Simulation, load_restart

    snapshot = load_restart(restart)
    if "model" not in snapshot.recipe:
        raise InputError(
            f"{restart} does not say which model to use: continue this run in Python, with "
            "Simulation.resume"
        )
    stages, given = further_stages(snapshot, given)
    check_consistent(snapshot, restart, given)
    snapshot = _on_device(snapshot, restart, given.get("device"))
    if given.get("reactive"):
        snapshot = replace(snapshot, settings=replace(snapshot.settings, reactive=True))
    if extend is not None:
        snapshot = snapshot.extended(extend)
    if stages:
        snapshot = snapshot.continued(*stages)
    calculator = _make_calculator(snapshot.recipe)
    weights = calculator.session.engine.weights
    if snapshot.recipe.get("weights", weights) != weights:
        raise InputError(
            f"{snapshot.recipe['model']} has other weights than when the run began: restore the "
            "model, or start a new run"
        )
    return Simulation.resume(
        snapshot, calculator, restart.parent, trajectory=given.get("trajectory")
    )


def _on_device(snapshot: Snapshot, restart: Path, device: str | None) -> Snapshot:
    """Return a snapshot that continues on a device; by default, on the kind it comes from."""
    from mlff_triton._common.devices import find_device

    before = snapshot.recipe["device"]
    try:
        found = find_device(device or before)
    except BackendError as error:
        if device is not None:
            raise
        raise BackendError(
            f"{restart} comes from a run with --device {before}, which is not usable here: add "
            "--device cpu to continue on the CPU, with other last bits"
        ) from error
    if device is None:
        return snapshot
    if found.type != before.partition(":")[0]:
        plain_console().print(
            f"continues with --device {device} instead of {before}: the last bits differ from "
            "those of an uninterrupted run"
        )
    return replace(snapshot, recipe=snapshot.recipe | {"device": str(found)})


def _run_and_report(simulation: Simulation) -> None:
    """Run a simulation with a progress bar, then print a table and draw a summary."""
    from mlff_triton._common.interrupt import StopRequest
    from mlff_triton.dynamics import draw_summary
    from mlff_triton.dynamics.outputs import LOG, names
    from mlff_triton.dynamics.report import Reporter, summary_table

    console = Console()
    with (
        StopRequest() as stop,
        Reporter(console, simulation.settings, simulation.step) as reporter,
    ):
        is_complete = simulation.run(reporter, stop)
    if simulation.is_prepared:
        first = names(LOG, len(simulation.systems))[0]
        draw_summary(simulation.directory, len(simulation.atoms), first)
        console.print(summary_table(simulation, reporter))
    if not is_complete:
        plain_console().print(
            f"stopped at step {simulation.step}; continue with\n"
            f"mlff-triton md --restart {simulation.restart_path}"
        )
        raise typer.Exit(EXIT_INTERRUPTED)
