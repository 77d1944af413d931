"""Times of the first steps of a new process, see `benchmarks.engine.first_step`.

``python -m benchmarks.engine.fresh_process SYSTEM RESULTS DEVICE`` reads the arrays ``numbers``,
``positions`` and perhaps ``cell`` from the first file and writes times and forces to the second.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch  # noqa: F401 - so that its import is not timed


def main(system: str, results: str, device: str) -> None:
    """Import the package, make an engine and compute forces twice."""
    clock = [time.perf_counter()]
    with np.load(system) as arrays:
        inputs = dict(arrays)

    from mlff_triton.engine.engine import Engine

    clock.append(time.perf_counter())
    backend = "auto" if device == "cpu" else "triton-graph"
    engine = Engine("tensornet-gfn2", device=device, backend=backend)
    clock.append(time.perf_counter())
    for _ in range(2):
        prediction = engine.compute(**inputs, pbc="cell" in inputs)
        forces = prediction.forces.cpu().numpy()
        clock.append(time.perf_counter())
    np.savez(
        results,
        seconds=np.diff(clock),
        energy=prediction.energy.cpu().numpy(),
        forces=forces,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
