"""Options of ``mlff-triton train``, in the groups of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA, MODEL, LOSS, MOTION = "Data", "Model", "Loss", "Optimization"

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA...",
        help="Files of structures with energies and forces: extended XYZ or another format that "
        "ASE reads, .npz, .h5.",
    ),
]
Out = Annotated[Path, typer.Option(help="Directory for the results.")]
Key = Annotated[
    list[str],
    typer.Option(
        help="Name of a label in the files, such as energy=REF_energy, forces=-gradient; repeat.",
        rich_help_panel=DATA,
    ),
]
EnergyUnit = Annotated[
    str,
    typer.Option(help="Of energies: eV, Hartree, kcal/mol or kJ/mol.", rich_help_panel=DATA),
]
LengthUnit = Annotated[
    str, typer.Option(help="Of positions and cells: A, Bohr or nm.", rich_help_panel=DATA)
]
ForceUnit = Annotated[
    str | None,
    typer.Option(
        help="Of forces, such as Hartree/Bohr; by default that of energies over that of positions.",
        rich_help_panel=DATA,
    ),
]
StressUnit = Annotated[
    str, typer.Option(help="Of stresses: eV/A^3, GPa or kbar.", rich_help_panel=DATA)
]
DipoleUnit = Annotated[
    str, typer.Option(help="Of dipoles: e*A, e*Bohr or Debye.", rich_help_panel=DATA)
]
Split = Annotated[
    str,
    typer.Option(
        help="random; group, for whole groups; given, by the files.", rich_help_panel=DATA
    ),
]
Valid = Annotated[
    float, typer.Option(help="To validate with: a fraction, or a number.", rich_help_panel=DATA)
]
Test = Annotated[
    float, typer.Option(help="To test with: a fraction, or a number.", rich_help_panel=DATA)
]
ValidFile = Annotated[
    str | None, typer.Option(help="File to validate with, instead.", rich_help_panel=DATA)
]
TestFile = Annotated[
    str | None, typer.Option(help="File to test with, instead.", rich_help_panel=DATA)
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out structures with bad labels.", rich_help_panel=DATA),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", help="Fine-tune a model: default, or a checkpoint.", rich_help_panel=MODEL
    ),
]
References = Annotated[
    str,
    typer.Option(
        help="Energies of the elements, with --from: fit, or keep those of the model.",
        rich_help_panel=MODEL,
    ),
]
Replay = Annotated[
    str | None,
    typer.Option(
        help="File with labels of the model's own method, such as predict writes, to train on as "
        "well, with --from.",
        rich_help_panel=MODEL,
    ),
]
ReplayWeight = Annotated[
    float, typer.Option(help="Weight of its structures.", rich_help_panel=MODEL)
]
Channels = Annotated[int, typer.Option(help="Channels.", rich_help_panel=MODEL)]
Layers = Annotated[int, typer.Option(help="Interaction layers.", rich_help_panel=MODEL)]
Rbf = Annotated[int, typer.Option(help="Radial basis functions.", rich_help_panel=MODEL)]
Cutoff = Annotated[float, typer.Option(help="Cutoff in Å.", rich_help_panel=MODEL)]
Zbl = Annotated[
    float | None,
    typer.Option(
        help="Add a nuclear repulsion (ZBL) up to this distance, Å.", rich_help_panel=MODEL
    ),
]
Charges = Annotated[
    bool,
    typer.Option(
        "--charges",
        help="Make a TensorNet2: partial charges, and their Coulomb energy.",
        rich_help_panel=MODEL,
    ),
]
CoulombCutoff = Annotated[
    float | None,
    typer.Option(
        help="Of the Coulomb energy, Å; without it, all pairs of atoms.", rich_help_panel=MODEL
    ),
]
LossOption = Annotated[str, typer.Option(help="huber, mae or mse.", rich_help_panel=LOSS)]
EnergyWeight = Annotated[
    float, typer.Option(help="Weight of energies, 1 / (eV per atom).", rich_help_panel=LOSS)
]
ForceWeight = Annotated[
    float, typer.Option(help="Weight of forces, 1 / (eV/Å).", rich_help_panel=LOSS)
]
StressWeight = Annotated[
    float, typer.Option(help="Weight of virials, 1 / (eV per atom).", rich_help_panel=LOSS)
]
ChargeWeight = Annotated[
    float, typer.Option(help="Weight of partial charges, 1 / e.", rich_help_panel=LOSS)
]
DipoleWeight = Annotated[
    float, typer.Option(help="Weight of dipoles, 1 / (e Å).", rich_help_panel=LOSS)
]
RelativeWeight = Annotated[
    float,
    typer.Option(help="Weight of energies relative to their series, 1 / eV.", rich_help_panel=LOSS),
]
Epochs = Annotated[int, typer.Option(help="Epochs.", rich_help_panel=MOTION)]
BatchOption = Annotated[int, typer.Option(help="Structures per step.", rich_help_panel=MOTION)]
Lr = Annotated[
    float | None,
    typer.Option(
        help="Highest learning rate.",
        show_default="0.001, or 0.0003 with --from",
        rich_help_panel=MOTION,
    ),
]
WarmUp = Annotated[
    int | None,
    typer.Option(
        help="Steps until the highest learning rate.",
        show_default="a twentieth of all",
        rich_help_panel=MOTION,
    ),
]
Decay = Annotated[
    float,
    typer.Option(help="Decay of the average of weights, per step.", rich_help_panel=MOTION),
]
MaxGradient = Annotated[
    float, typer.Option(help="Norm to clip gradients to.", rich_help_panel=MOTION)
]
Patience = Annotated[
    int,
    typer.Option(
        help="Epochs without progress in validation after which to stop; 0 for all epochs.",
        rich_help_panel=MOTION,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Minutes after which to stop; the same command continues.", rich_help_panel=MOTION
    ),
]
Devices = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda or cuda:1; cuda:0,cuda:1 and so on share every batch."),
]
Seed = Annotated[
    int, typer.Option(help="Seed of weights, split and order.", rich_help_panel=MOTION)
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew, and replace earlier results.")
]
