"""The command ``mlff-triton md``: start or continue a simulation, and report on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from mlff_triton.cli import _md_options as options
from mlff_triton.cli._exits import EXIT_INTERRUPTED
from mlff_triton.cli._md_checks import (
    check_consistent,
    check_used,
    further_stages,
    make_stages,
    read_temperatures,
)
from mlff_triton.cli._shared import (
    ChargeOption,
    CoulombOption,
    DispersionOption,
    DtypeOption,
    FixOption,
    ModelOption,
    NoPbcOption,
    fix_atoms,
    given_options,
    plain_console,
    read_one,
    say_dispersion,
    screen,
)
from mlff_triton.errors import BackendError, InputError

if TYPE_CHECKING:
    from ase import Atoms

    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.dynamics import Settings, Simulation, Snapshot

EXAMPLES = (
    "mlff-triton md ethanol.xyz --temperature 300 --steps 20000",
    "mlff-triton md water.pdb --minimize --ensemble nvt --steps 4000 --ensemble npt --steps 40000",
    "mlff-triton md peptide.pdb --replicas 8 --temperature 300:450 --exchange-every 200",
    "mlff-triton md peptide.pdb --replicas 256 --device cuda:0,cuda:1",
    "mlff-triton md slab.cif --fix 'z<5' --out slab",
    "mlff-triton md --restart md/restart.npz --extend 20000",
)
MOST_REPLICAS = 100_000


def md(
    context: typer.Context,
    structures: options.Structures = None,
    model: ModelOption = "default",
    coulomb: CoulombOption = None,
    ensemble: options.Ensemble = ["nvt"],  # noqa: B006
    steps: options.Steps = [2000],  # noqa: B006
    temperature: options.Temperature = ["300"],  # noqa: B006
    heat_from: options.HeatFrom = None,
    replicas: options.Replicas = 1,
    exchange_every: options.ExchangeEvery = 0,
    pressure: options.Pressure = [1.0],  # noqa: B006
    timestep: options.Timestep = 0.5,
    hydrogen_mass: options.HydrogenMass = None,
    thermostat: options.Thermostat = "langevin",
    friction: options.Friction = 5.0,
    barostat: options.Barostat = "isotropic",
    barostat_time: options.BarostatTime = 1000.0,
    compressibility: options.Compressibility = 4.5e-5,
    every: options.Every = 20,
    log_every: options.LogEvery = None,
    trajectory: options.Trajectory = "xyz",
    seed: options.Seed = 0,
    minimize: options.Minimize = False,
    keep_velocities: options.KeepVelocities = False,
    reactive: options.Reactive = False,
    stop_at_uncertainty: options.StopAtUncertainty = None,
    fix: FixOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    device: options.Devices = "auto",
    dtype: DtypeOption = "float32",
    dispersion: DispersionOption = None,
    threads: options.Threads = None,
    out: options.Out = Path("md"),
    overwrite: options.Overwrite = False,
    restart: options.Restart = None,
    extend: options.Extend = None,
) -> None:
    """Run molecular dynamics in one or several stages.

    Several structures, or replicas of one, run in one batch. Ctrl-C leaves a restart file.
    """
    from mlff_triton.checkpoints import lasting_name
    from mlff_triton.dispersion.damping import damping_of
    from mlff_triton.dynamics import Settings

    if restart is not None:
        simulation = _resume(restart, extend, given_options(context))
    elif extend is not None:
        raise InputError("--extend needs --restart FILE")
    elif not structures:
        raise InputError("give a STRUCTURE to simulate, or --restart FILE")
    else:
        if not 1 <= replicas <= MOST_REPLICAS:
            raise InputError(f"--replicas must be 1 to {MOST_REPLICAS:,}, not {replicas}")
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
        recipe |= {} if coulomb is None else {"coulomb": coulomb}
        if dispersion is not None:
            recipe["dispersion"] = damping_of(dispersion).method
        names = [name for name in structures for _ in range(replicas)]
        if len(structures) > 1:
            recipe["inputs"] = "\n".join(names)
        simulation = _start(systems, names, settings, recipe, out, overwrite, stop_at_uncertainty)
    _run_and_report(simulation, stop_at_uncertainty)


def _make_calculator(recipe: dict[str, str]) -> TensorNetCalculator:
    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.dispersion.correction import IN_SIMULATIONS

    first = recipe["device"].partition(",")[0]
    calculator = TensorNetCalculator(
        recipe["model"],
        device=first,
        dtype=recipe["dtype"],
        coulomb=recipe.get("coulomb"),
        dispersion=recipe.get("dispersion"),
    )
    say_dispersion(calculator)
    if calculator.session.dispersion is not None:
        plain_console().print(IN_SIMULATIONS)
    return calculator


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
    most_uncertain: float | None,
) -> Simulation:
    """Set up a new run. Inexpensive checks come first, before the model is loaded."""
    from mlff_triton.dynamics import Simulation
    from mlff_triton.dynamics.conditions import check_ensembles
    from mlff_triton.dynamics.division import check_devices
    from mlff_triton.dynamics.outputs import check_directory
    from mlff_triton.dynamics.uncertain import check_limit

    check_ensembles(systems, settings)
    check_directory(out, overwrite)
    check_devices(recipe["device"], len(systems))
    calculator = _make_calculator(recipe)
    check_limit(most_uncertain, calculator, is_divided="," in recipe["device"])
    screen(systems, names, calculator)
    engine = calculator.session.engine
    device = engine.device.type if recipe["device"] == "auto" else recipe["device"]
    recipe = recipe | {"device": device, "weights": engine.weights}
    return Simulation.start(
        systems, calculator, settings, out, overwrite=overwrite, recipe=recipe, device=device
    )


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
        snapshot,
        calculator,
        restart.parent,
        trajectory=given.get("trajectory"),
        device=snapshot.recipe["device"],
    )


def _on_device(snapshot: Snapshot, restart: Path, device: str | None) -> Snapshot:
    """Return a snapshot that continues on devices; by default, on those it comes from."""
    from mlff_triton._common.devices import find_devices

    before = snapshot.recipe["device"]
    try:
        found = find_devices(device or before)
    except BackendError as error:
        if device is not None:
            raise
        raise BackendError(
            f"{restart} comes from a run with --device {before}, which is not usable here: add "
            "--device cpu to continue on the CPU, with other last bits"
        ) from error
    if device is None:
        return snapshot
    if found[0].type != before.partition(",")[0].partition(":")[0]:
        plain_console().print(
            f"continues with --device {device} instead of {before}: the last bits differ from "
            "those of an uninterrupted run"
        )
    return replace(snapshot, recipe=snapshot.recipe | {"device": ",".join(map(str, found))})


def _run_and_report(simulation: Simulation, stop_at_uncertainty: float | None) -> None:
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
        is_complete = simulation.run(reporter, stop, most_uncertain=stop_at_uncertainty)
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
