"""Molecular dynamics in stages, with exact restarts and output files that are always complete.

Examples
--------
>>> from mlff_triton.dynamics import Settings, Simulation, Stage, read_structure
>>> from mlff_triton.calculators import TensorNetCalculator
>>> settings = Settings(stages=(Stage("nvt", 2000), Stage("nve", 2000)), minimize=True)
>>> simulation = Simulation.start(  # doctest: +SKIP
...     read_structure("alanine-dipeptide-water"), TensorNetCalculator(), settings, "runs/example"
... )
>>> simulation.run()  # doctest: +SKIP
True
"""

from mlff_triton.dynamics.ladder import frames_by_temperature
from mlff_triton.dynamics.restart import Snapshot, load_restart
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.simulation import Monitor, Simulation
from mlff_triton.dynamics.stages import Stage, stages_of
from mlff_triton.dynamics.structures import read_structure
from mlff_triton.dynamics.summary import draw_summary

__all__ = [
    "Monitor",
    "Settings",
    "Simulation",
    "Snapshot",
    "Stage",
    "draw_summary",
    "frames_by_temperature",
    "load_restart",
    "read_structure",
    "stages_of",
]
