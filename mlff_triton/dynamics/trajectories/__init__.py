"""Trajectories: extended XYZ, DCD and XTC, written by a thread beside the simulation.

The suffix of a file chooses its format. Positions are stored as simulated: neither wrapped into the
cell nor made whole.

================  ==========================================================================
suffix            contents
================  ==========================================================================
.xyz, .extxyz     everything in a `Frame`, as text with eight decimals; ASE reads it
.dcd              positions (float32, Å) and cell; one time step and interval for the file
.xtc              positions (rounded to 0.01 Å), cell (nm), step and time (ps)
================  ==========================================================================

DCD and XTC name no elements: `write_topology` writes the PDB file that viewers open with them. Both
need MDAnalysis, which the extra ``trajectories`` installs.

Files grow by complete frames. The size of a file after a frame identifies that frame: a file that
is opened again at this size and cut continues as if it had never been interrupted. It refuses
frames if its size is not the expected one, because something else has then written to it.

Examples
--------
>>> import tempfile
>>> from pathlib import Path
>>> from ase.build import molecule
>>> from ase.calculators.emt import EMT
>>> from mlff_triton.dynamics.trajectories import (
...     Frame, Recorder, check_trajectory, open_trajectory, write_topology
... )
>>> atoms = molecule("H2O")
>>> atoms.calc = EMT()
>>> results = atoms.get_potential_energy(), atoms.get_forces()
>>> folder = Path(tempfile.mkdtemp())
>>> path = folder / "trajectory.xyz"
>>> check_trajectory(path, atoms)  # before anything is written
>>> write_topology(folder / "topology.pdb", atoms)
>>> with Recorder([open_trajectory(path, timestep_ps=0.001, interval=10)]) as recorder:
...     recorder.append(Frame.of(atoms, 0, 0.0, "nve", *results))
...     (size,) = recorder.flush()  # for the restart file
...     recorder.append(Frame.of(atoms, 10, 0.01, "nve", *results))
>>> resumed = open_trajectory(path, timestep_ps=0.001, interval=10, size=size)
>>> resumed.cut()  # drops step 10
>>> resumed.size == path.stat().st_size == size
True
"""

from mlff_triton.dynamics.trajectories.formats import check_trajectory, open_trajectory
from mlff_triton.dynamics.trajectories.frame import Frame
from mlff_triton.dynamics.trajectories.recorder import Recorder
from mlff_triton.dynamics.trajectories.topology import write_topology
from mlff_triton.dynamics.trajectories.trajectory_file import TrajectoryFile

__all__ = [
    "Frame",
    "Recorder",
    "TrajectoryFile",
    "check_trajectory",
    "open_trajectory",
    "write_topology",
]
