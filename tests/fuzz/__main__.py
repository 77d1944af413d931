"""The campaign as a program: see ``python -m tests.fuzz --help``."""

from __future__ import annotations

import os
import secrets
import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from mlff_triton._common.cache import FOLDER
from tests.fuzz import campaign
from tests.fuzz.cases import KINDS
from tests.fuzz.isolated import Limits
from tests.fuzz.verdict import FINDING


def main(
    seconds: Annotated[float, typer.Option(help="Duration of the campaign in s.")] = 3600,
    cases: Annotated[int | None, typer.Option(help="Most cases; by default, no limit.")] = None,
    seed: Annotated[int | None, typer.Option(help="First seed; by default, a new one.")] = None,
    kind: Annotated[
        list[str], typer.Option(help=f"Kind of cases, repeatable: {', '.join(KINDS)}.")
    ] = list(KINDS),  # noqa: B006
    name: Annotated[str | None, typer.Option(help="Run only the cases of this name.")] = None,
    failures: Annotated[Path, typer.Option(help="Folder for the files of failing cases.")] = Path(
        "runs/fuzz"
    ),
    replay: Annotated[
        Path | None, typer.Option(help="Check a failing case again, from its file.")
    ] = None,
) -> None:
    """Run damaged, hostile and absurd input through the package, and report what fails."""
    limits = Limits()
    if replay is not None:
        verdict = campaign.replay(replay, limits)
        typer.echo(f"{verdict.status}: {verdict.reason}")
        raise typer.Exit(verdict.status == FINDING)
    first = secrets.randbits(32) if seed is None else seed
    typer.echo(f"first seed: {first}")
    failures.mkdir(parents=True, exist_ok=True)
    names = [pair for one in kind for pair in campaign.names_of(one) if name in (None, pair[1])]
    with tempfile.TemporaryDirectory() as cache:
        os.environ[FOLDER] = cache  # that of the user must not grow
        report = campaign.run(
            islice(campaign.all_cases(names, first), cases),
            limits,
            failures=failures,
            seconds=seconds,
            show=typer.echo,
        )
    typer.echo(report)
    raise typer.Exit(bool(report.findings))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
