"""Output files of a relaxation: trajectory, final structure and figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ase import Atoms

from mlff_triton._common.figures import figure_class
from mlff_triton._common.files import replace_file, reported
from mlff_triton.dynamics.lock import DirectoryLock
from mlff_triton.dynamics.outputs import check_directory
from mlff_triton.dynamics.trajectories.append_only import AppendOnlyFile
from mlff_triton.statics.relaxation import RelaxationStep
from mlff_triton.statics.result_text import extended_xyz, with_results

TRAJECTORY = "trajectory.xyz"
FINAL = "final.xyz"
SUMMARY = "summary.png"
OUTPUTS = (TRAJECTORY, FINAL, SUMMARY)


class RelaxationFiles:
    """Output files of a relaxation, in extended XYZ with energies, forces and stresses.

    Parameters
    ----------
    directory : Path
        Their directory, which is created, and locked until the files are finished. Files of an
        earlier relaxation are removed from it.
    overwrite : bool
        If True, the directory need not be empty.

    Raises
    ------
    OutputError
        If a file cannot be written, the directory is not empty, or another relaxation or a
        simulation uses it.
    """

    def __init__(self, directory: Path, *, overwrite: bool = False) -> None:
        with reported(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(directory)
        with self._lock.kept(), reported(directory):
            check_directory(directory, overwrite)  # again, because another run may have begun
            for name in OUTPUTS:
                (directory / name).unlink(missing_ok=True)
            self._trajectory = AppendOnlyFile(directory / TRAJECTORY, 0)
        self.directory = directory

    def add(self, atoms: Atoms, step: RelaxationStep) -> None:
        """Append a frame to the trajectory."""
        self._trajectory.append(_frame(atoms, step))

    def finish(self, atoms: Atoms, history: Sequence[RelaxationStep], fmax: float) -> None:
        """Write the final structure, and draw energies and largest forces of all steps."""
        replace_file(self.directory / FINAL, _frame(atoms, history[-1]))
        replace_file(self.directory / SUMMARY, _figure(history, len(atoms), fmax))
        self._lock.release()


def _frame(atoms: Atoms, step: RelaxationStep) -> bytes:
    shown = with_results(atoms, atoms.calc.results)
    shown.set_constraint(atoms.constraints)
    return extended_xyz([shown], [{"step": step.number}])


def _figure(history: Sequence[RelaxationStep], n_atoms: int, fmax: float) -> bytes:
    make_figure = figure_class()
    from matplotlib.ticker import MaxNLocator

    numbers = [step.number for step in history]
    last = history[-1].energy
    figure = make_figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    style = {"lw": 1, "marker": "." if len(history) == 1 else None}  # a line needs two points
    top.plot(numbers, [1000 * (step.energy - last) / n_atoms for step in history], **style)
    top.set_ylabel("energy above the last\n(meV/atom)")
    bottom.semilogy(numbers, [step.max_force for step in history], **style)
    bottom.axhline(fmax, color="0.7", lw=0.8, ls="--", zorder=0)
    bottom.set_ylabel("largest force (eV/Å)")
    bottom.set_xlabel("step")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()
