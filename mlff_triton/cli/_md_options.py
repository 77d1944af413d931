"""Options of ``mlff-triton md``, in the groups of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STAGES, SYSTEMS, MOTION, FILES = "Stages", "Several systems", "Motion", "Files"
CONTINUE = "Continue a run"

Structures = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STRUCTURE]...",
        help="Structure files that ASE can read, or alanine-dipeptide-water.",
    ),
]
Ensemble = Annotated[
    list[str],
    typer.Option(help="nve, nvt or npt; repeat for several stages.", rich_help_panel=STAGES),
]
Steps = Annotated[
    list[int], typer.Option(help="Time steps, once or once per stage.", rich_help_panel=STAGES)
]
Temperature = Annotated[
    list[str],
    typer.Option(
        help="In K, once or once per stage; for replicas also LOWEST:HIGHEST.",
        rich_help_panel=STAGES,
    ),
]
HeatFrom = Annotated[
    float | None,
    typer.Option(
        help="Start at this temperature, K, and rise in the first stage.",
        rich_help_panel=STAGES,
    ),
]
Replicas = Annotated[
    int, typer.Option(help="Number of simulations of each structure.", rich_help_panel=SYSTEMS)
]
ExchangeEvery = Annotated[
    int,
    typer.Option(
        help="Steps between exchanges of temperatures; 0 for none.", rich_help_panel=SYSTEMS
    ),
]
Devices = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda or cuda:1; cuda:0,cuda:1 and so on share the systems."),
]
Pressure = Annotated[
    list[float],
    typer.Option(help="In bar, for npt, once or once per stage.", rich_help_panel=STAGES),
]
Timestep = Annotated[float, typer.Option(help="Time step in fs.", rich_help_panel=MOTION)]
HydrogenMass = Annotated[
    float | None,
    typer.Option(help="Mass of hydrogen in amu, taken from its neighbors.", rich_help_panel=MOTION),
]
Thermostat = Annotated[str, typer.Option(help="langevin or rescaling.", rich_help_panel=MOTION)]
Friction = Annotated[
    float, typer.Option(help="Friction in 1/ps, for langevin.", rich_help_panel=MOTION)
]
Barostat = Annotated[str, typer.Option(help="isotropic or anisotropic.", rich_help_panel=MOTION)]
BarostatTime = Annotated[
    float,
    typer.Option(help="Relaxation time of the volume in fs, for npt.", rich_help_panel=MOTION),
]
Compressibility = Annotated[
    float,
    typer.Option(
        help="Estimate in 1/bar, for npt; by default that of water.", rich_help_panel=MOTION
    ),
]
Every = Annotated[
    int, typer.Option(help="Steps between frames and restarts.", rich_help_panel=FILES)
]
LogEvery = Annotated[
    int | None,
    typer.Option(help="Steps between log rows; by default as for frames.", rich_help_panel=FILES),
]
Trajectory = Annotated[str, typer.Option(help="Format: xyz, dcd or xtc.", rich_help_panel=FILES)]
Seed = Annotated[
    int, typer.Option(help="Random seed of velocities and thermostat.", rich_help_panel=MOTION)
]
Minimize = Annotated[
    bool, typer.Option("--minimize", help="Minimize the energy first.", rich_help_panel=STAGES)
]
KeepVelocities = Annotated[
    bool,
    typer.Option(
        "--keep-velocities",
        help="Start with the velocities of the structure.",
        rich_help_panel=MOTION,
    ),
]
Reactive = Annotated[
    bool,
    typer.Option("--reactive", help="Go on if bonds of the start break.", rich_help_panel=MOTION),
]
StopAtUncertainty = Annotated[
    float | None,
    typer.Option(
        help="Stop where the expected error of a force is larger, eV/Å; save the structure.",
        rich_help_panel=MOTION,
    ),
]
Threads = Annotated[int | None, typer.Option(help="Threads on a CPU; default: one per 128 atoms.")]
Out = Annotated[Path, typer.Option(help="Directory for the results.", rich_help_panel=FILES)]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the results of an earlier run.", rich_help_panel=FILES
    ),
]
Restart = Annotated[
    Path | None,
    typer.Option(
        help="Restart file to continue from, exactly; no other option is needed.",
        rich_help_panel=CONTINUE,
    ),
]
Extend = Annotated[
    int | None,
    typer.Option(help="Steps to add to the last stage, with --restart.", rich_help_panel=CONTINUE),
]
