"""The command line: one function a command. Errors are one line, exit code 2.

What a command needs is imported when it runs, so that ``--help`` does not wait for PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from mlff_triton import __version__
from mlff_triton.cli.bench import PASS_ON, bench
from mlff_triton.cli.calibrate import calibrate
from mlff_triton.errors import InputError, MlffTritonError, OutputError

if TYPE_CHECKING:
    from mlff_triton.dynamics import Settings, Simulation, Snapshot
    from mlff_triton.model.prediction import Ensemble
    from mlff_triton.model.tensornet import TensorNet

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # as a shell reports Ctrl-C

# The base class of typer's complaints about arguments, wherever its version keeps that.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="mlff-triton",
    help="TensorNet machine-learning force fields, and alignment of sequences.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Raises
    ------
    SystemExit
        Always: 0 if all went well, 2 after an error, 130 after Ctrl-C or SIGTERM.
    """
    given = None if arguments is None else list(arguments)
    try:
        sys.exit(app(args=given, standalone_mode=False) or 0)
    except (MlffTritonError, UsageError) as error:
        message = getattr(error, "format_message", error.__str__)()
        _complain("error: " + " ".join(message.split()))
        sys.exit(EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        sys.exit(EXIT_INTERRUPTED)


def _complain(text: str) -> None:
    """One line on stderr, neither wrapped nor decorated."""
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False, emoji=False)
    console.print(f"mlff-triton: {text}")


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """TensorNet machine-learning force fields, and alignment of sequences."""


@app.command()
def md(
    context: typer.Context,
    structure: Annotated[
        str | None,
        typer.Argument(help="A file that ASE reads, or alanine-dipeptide-water."),
    ] = None,
    model: Annotated[str, typer.Option(help="Shipped name or checkpoint.")] = "default",
    ensemble: Annotated[
        list[str], typer.Option(help="nve, nvt or npt; repeat it for several stages.")
    ] = ["nvt"],  # noqa: B006
    steps: Annotated[
        list[int], typer.Option(help="Time steps: once for all stages, or once for each.")
    ] = [2000],  # noqa: B006
    temperature: Annotated[float, typer.Option(help="K.")] = 300.0,
    pressure: Annotated[float, typer.Option(help="bar; of npt.")] = 1.0,
    timestep: Annotated[float, typer.Option(help="fs.")] = 0.5,
    friction: Annotated[float, typer.Option(help="1/ps; of nvt.")] = 5.0,
    every: Annotated[int, typer.Option(help="Steps between frames, log rows and restarts.")] = 20,
    seed: Annotated[int, typer.Option(help="Of velocities and thermostat.")] = 0,
    minimize: Annotated[bool, typer.Option("--minimize", help="Relax first.")] = False,
    charge: Annotated[
        int | None, typer.Option(help="Total charge; by default what the file says, or 0.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda...")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("md"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of an earlier run.")
    ] = False,
    restart: Annotated[
        Path | None, typer.Option(help="Continue this restart.npz exactly; needs nothing else.")
    ] = None,
) -> None:
    """Run molecular dynamics, in one or several stages.

    Ctrl-C finishes the step and leaves a restart file.
    """
    from mlff_triton.dynamics import Settings, stages_of

    if restart is not None:
        simulation = _continued(restart, _explicit(context))
    elif structure is None:
        raise InputError("give a STRUCTURE to simulate, or --restart FILE")
    else:
        settings = Settings(
            stages=stages_of(ensemble, steps),
            temperature=temperature,
            pressure=pressure,
            timestep=timestep,
            friction=friction,
            every=every,
            seed=seed,
            minimize=minimize,
        )
        recipe = {"model": _model_id(model), "device": device, "dtype": dtype}
        simulation = _started(structure, charge, settings, recipe, out, overwrite)
    _run_and_report(simulation)


@app.command()
def info(
    model: Annotated[str, typer.Argument(help="Shipped name or checkpoint.")],
) -> None:
    """Show what a model is."""
    from mlff_triton.checkpoints import load_model, resolve_path

    path = resolve_path(model)
    loaded = load_model(model)
    console = Console()
    table = Table(title=path.name, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for row in _description(path, loaded):
        table.add_row(*row)
    console.print(table)
    card = _card_paragraph(path)
    if card:
        console.print(card, markup=False, highlight=False)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="Shipped name or checkpoint.")] = "default",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    atoms: Annotated[
        int | None, typer.Option(min=1, help="Size that times are predicted for.")
    ] = None,
) -> None:
    """Say which backend would compute a model here, and why not the others."""
    from mlff_triton._common.devices import find_device, find_dtype
    from mlff_triton.checkpoints import load_model
    from mlff_triton.engine import dispatch

    place = find_device(device)
    n_atoms = dispatch.TYPICAL_ATOMS if atoms is None else atoms
    Console().print(
        f"{model} in {dtype} on {place}:\n"
        + dispatch.explain(load_model(model), place, find_dtype(dtype), n_atoms),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Checkpoint of any supported kind.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .safetensors.")],
    energy_unit: Annotated[
        str, typer.Option(help="Unit a TorchMD-NET model was trained in: eV, Hartree, ...")
    ] = "eV",
    card: Annotated[Path | None, typer.Option(help="Text to keep in OUT: the model card.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
) -> None:
    """Convert a checkpoint to mlff_triton's safetensors, which is in eV."""
    from mlff_triton.checkpoints import load_model, model_card, resolve_path, save_model

    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists: give another name, or --overwrite")
    loaded = load_model(source, energy_unit)
    save_model(loaded, target, _text(card) if card else model_card(resolve_path(source)))
    Console().print(f"wrote {target}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def align(
    queries: Annotated[Path, typer.Argument(help="FASTA file, packed by gzip or not.")],
    targets: Annotated[Path, typer.Argument(help="Likewise; queries are aligned to these.")],
    out: Annotated[Path, typer.Option(help="File to write: .sam, or a table of scores, .tsv.")],
    pairs: Annotated[str, typer.Option(help="zip: k-th with k-th; all: each with each.")] = "zip",
    mode: Annotated[
        str,
        typer.Option(help="global, local, semiglobal, or ends that are free: target_begin,..."),
    ] = "global",
    matrix: Annotated[
        str | None, typer.Option(help="Substitution matrix by name, such as BLOSUM62.")
    ] = None,
    match: Annotated[int, typer.Option(help="Score of equal bases.")] = 2,
    mismatch: Annotated[int, typer.Option(help="Score of unequal bases.")] = -3,
    gap_open: Annotated[int, typer.Option(help="Cost of a gap's first letter; not negative.")] = 5,
    gap_extend: Annotated[int, typer.Option(help="Cost of each further one.")] = 2,
    band: Annotated[
        int | None, typer.Option(help="How far query and target may run apart, in letters.")
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="Letter to take unknown ones for, such as N or X.")
    ] = None,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Ends, identity and CIGAR in the .tsv too.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Pairs at a time; fewer if they are long.")] = 16384,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ... or all GPUs.")] = "auto",
    backend: Annotated[str, typer.Option(help="auto, triton, parasail or torch.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
) -> None:
    """Align the sequences of two FASTA files.

    Ctrl-C finishes the batch and leaves the pairs that are done.
    """
    from functools import partial

    from mlff_triton import bio
    from mlff_triton.bio.alignment.command import Request, run
    from mlff_triton.dynamics.interrupt import StopRequest

    aligner = partial(
        bio.align,
        mode=[end.strip() for end in mode.split(",")] if "," in mode else mode,
        matrix=matrix,
        match=match,
        mismatch=mismatch,
        gap_open=gap_open,
        gap_extend=gap_extend,
        pairs=pairs,
        band=band,
        traceback=traceback or out.suffix.lower() == ".sam",
        unknown=unknown,
        device=device,
        backend=backend,
    )
    console = Console(soft_wrap=True, markup=False, highlight=False)
    with StopRequest() as stop:
        counts = run(
            Request(queries, targets, out, pairs, batch, overwrite), aligner, console, stop
        )
    done = f"{counts.pairs} of {counts.total} pairs, {counts.gcups:.3g} GCUPS"
    console.print(f"wrote {out}: {done}")
    if counts.pairs < counts.total:
        raise typer.Exit(EXIT_INTERRUPTED)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} as text: {error}") from error


def _explicit(context: typer.Context) -> dict[str, Any]:
    """Find the options that the user typed."""
    typed = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            typed[name] = value
    return typed


def _model_id(model: str) -> str:
    """Name a model for good: by its shipped name, or by its absolute path."""
    from mlff_triton.checkpoints import resolve_path, shipped_models

    path = resolve_path(model)
    names = {file: name for name, file in shipped_models().items()}
    return names.get(path, str(path.absolute()))


def _calculator(recipe: dict[str, str]) -> Any:
    from mlff_triton.calculators import TensorNetCalculator

    return TensorNetCalculator(recipe["model"], device=recipe["device"], dtype=recipe["dtype"])


def _started(
    structure: str,
    charge: int | None,
    settings: Settings,
    recipe: dict[str, str],
    out: Path,
    overwrite: bool,
) -> Simulation:
    """Set up a new run; what can be refused quickly is refused before the model is loaded."""
    from mlff_triton.dynamics import Simulation, read_structure
    from mlff_triton.dynamics.integrators import check_ensembles
    from mlff_triton.dynamics.outputs import check_directory

    atoms = read_structure(structure)
    if charge is not None:
        atoms.info["charge"] = charge
    check_ensembles(atoms, settings)
    check_directory(out, overwrite)
    calculator = _calculator(recipe)
    return Simulation.start(atoms, calculator, settings, out, overwrite=overwrite, recipe=recipe)


def _continued(restart: Path, typed: dict[str, Any]) -> Simulation:
    from mlff_triton.dynamics import Simulation, load_restart

    snapshot = load_restart(restart)
    _refuse_contradictions(snapshot, restart, typed)
    return Simulation.resume(snapshot, _calculator(snapshot.recipe), restart.parent)


def _refuse_contradictions(snapshot: Snapshot, restart: Path, typed: dict[str, Any]) -> None:
    """Raise an `InputError` if an option says anything else than the restart file."""
    from mlff_triton.dynamics import stages_of

    stages = snapshot.settings.stages
    recorded = {
        **snapshot.settings.to_dict(),
        **snapshot.recipe,
        "ensemble": [stage.ensemble for stage in stages],
        "steps": [stage.steps for stage in stages],
        "charge": snapshot.atoms.info.get("charge"),
        "out": restart.parent.resolve(),
        "restart": restart,
    }
    wanted = dict(typed)
    if "steps" in wanted:
        wanted["steps"] = [s.steps for s in stages_of(recorded["ensemble"], wanted["steps"])]
    if "model" in wanted:
        wanted["model"] = _model_id(wanted["model"])
    if "out" in wanted:
        wanted["out"] = wanted["out"].resolve()
    for name, value in wanted.items():
        if name in ("structure", "overwrite"):
            raise InputError(f"--restart continues a run as it is: leave out {name}")
        if value != recorded[name]:
            raise InputError(
                f"--{name} contradicts the restart file, which says {recorded[name]}: leave it "
                "out, or start a new run"
            )


def _run_and_report(simulation: Simulation) -> None:
    from mlff_triton.dynamics import draw_summary
    from mlff_triton.dynamics.interrupt import StopRequest
    from mlff_triton.dynamics.report import Reporter, summary_table

    console = Console()
    with (
        StopRequest() as stop,
        Reporter(console, simulation.settings, simulation.step) as reporter,
    ):
        is_complete = simulation.run(reporter, stop)
    if simulation.is_prepared:
        draw_summary(simulation.directory, len(simulation.atoms))
        console.print(summary_table(simulation, reporter))
    if not is_complete:
        console.print(
            f"stopped at step {simulation.step}; continue with\n"
            f"mlff-triton md --restart {simulation.restart_path}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(EXIT_INTERRUPTED)


app.command()(calibrate)
app.command(context_settings=PASS_ON)(bench)


def _description(path: Path, model: TensorNet | Ensemble) -> list[tuple[str, str]]:
    """Rows of the table of `info`; of an ensemble, those of its first member."""
    from ase.data import chemical_symbols

    from mlff_triton.model.prediction import Ensemble
    from mlff_triton.model.tensornet import TensorNet

    member = model.members[0] if isinstance(model, Ensemble) else model
    assert isinstance(member, TensorNet)
    config = member.config
    symbols = [chemical_symbols[number] for number in config.elements]
    references = zip(symbols, member.references.tolist(), strict=True)
    zbl = "none" if config.zbl is None else f"ZBL within {config.zbl.cutoff:g} Å"
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    rows = [
        ("file", str(path)),
        ("size", f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"),
        ("variant", "TensorNet of " + ("TorchMD-NET" if config.self_loops else "MatGL")),
        ("elements", " ".join(symbols)),
        ("cutoff", f"{config.cutoff_lower:g} to {config.cutoff_upper:g} Å"),
        ("channels F", str(config.hidden_channels)),
        ("layers", str(config.num_layers)),
        ("radial basis", f"{config.num_rbf} {config.rbf_type}"),
        ("activation", config.activation),
        ("group", config.group),
        ("head", config.head),
        ("priors", zbl),
        ("parameters", f"{sum(p.numel() for p in member.parameters()):,} ({member.dtype})"),
        ("std", f"{member.std.item():.6g} eV"),
        ("mean", f"{member.mean.item():.6g} eV"),
        ("references", ", ".join(f"{symbol} {value:.4f}" for symbol, value in references) + " eV"),
    ]
    if isinstance(model, Ensemble):
        rows.insert(2, ("ensemble", f"{len(model.members)} members; of the first:"))
    return rows


def _card_paragraph(path: Path) -> str:
    """First paragraph of prose in a model's card: inside the file, or beside it as Markdown."""
    from mlff_triton.checkpoints import model_card

    beside = path.with_suffix(".md")
    text = model_card(path) or (beside.read_text() if beside.is_file() else "")
    prose = [part.strip() for part in text.split("\n\n") if not part.lstrip().startswith("#")]
    return " ".join(next((part for part in prose if part), "").split())
