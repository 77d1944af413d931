"""Formats of trajectories: their additional files, and a change of format within a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ase import Atoms

from mlff_triton.dynamics.outputs import LOG, TOPOLOGY, Records, names, trajectory_names
from mlff_triton.dynamics.restart import Snapshot
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.trajectories import check_trajectory, write_topology
from mlff_triton.errors import InputError


def write_topologies(folder: Path, settings: Settings, systems: Sequence[Atoms]) -> None:
    """Write a topology for each trajectory, if their format does not name elements."""
    if settings.trajectory != "xyz":
        for name, system in zip(names(TOPOLOGY, len(systems)), systems, strict=True):
            write_topology(folder / name, system)


def change_format(snapshot: Snapshot, folder: Path, trajectory: str) -> Snapshot:
    """Return a snapshot whose trajectories continue in new files of another format.

    The files so far keep the frames that the snapshot includes.

    Parameters
    ----------
    snapshot : Snapshot
        State of the run.
    folder : path
        Directory of the run, which is locked.
    trajectory : {"xyz", "dcd", "xtc"}
        The other format.

    Raises
    ------
    InputError
        If the format is unknown, does not suit a system, or holds an earlier part of the run.
    OutputError
        If a file so far is shorter than it must be.
    """
    settings, count = replace(snapshot.settings, trajectory=trajectory), len(snapshot.systems)
    for name, atoms in zip(trajectory_names(settings, count), snapshot.systems, strict=True):
        if (folder / name).exists():
            raise InputError(f"{folder / name} holds an earlier part: choose another format")
        check_trajectory(name, atoms)
    Records(folder, snapshot.settings, count, snapshot.sizes).cut()
    write_topologies(folder, settings, snapshot.systems)
    logs = names(LOG, count)
    sizes, lasting = (
        {name: size for name, size in given.items() if name in logs}
        for given in (snapshot.sizes, snapshot.lasting_sizes)
    )
    return replace(snapshot, settings=settings, sizes=sizes, lasting_sizes=lasting)
