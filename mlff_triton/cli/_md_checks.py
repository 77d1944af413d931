"""Checks of the options of ``mlff-triton md``, and the conditions of stages that they give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlff_triton.errors import InputError

if TYPE_CHECKING:
    from mlff_triton.dynamics import Settings, Snapshot, Stage
    from mlff_triton.dynamics.stages import Temperature


FURTHER = {
    "steps": "use --extend for a longer last stage, or --ensemble for a further one",
    **dict.fromkeys(
        ("ensemble", "temperature", "pressure"), "add --steps for a further stage with it"
    ),
}
"""Remedies for options that contradict a restart file."""


def make_stages(
    ensemble: list[str],
    steps: list[int],
    temperatures: list[Temperature],
    pressures: list[float],
) -> tuple[Stage, ...]:
    """Make the stages. A single temperature or pressure is one of the run."""
    from mlff_triton.dynamics import stages_of

    return stages_of(
        ensemble,
        steps,
        temperatures if len(temperatures) > 1 else [None],
        pressures if len(pressures) > 1 else [None],
    )


def read_temperatures(texts: list[str], n_systems: int) -> list[Temperature]:
    """Read temperatures: numbers, or ranges that are divided geometrically, as for exchanges."""
    return [_temperature(text, n_systems) for text in texts]


def _temperature(text: str, n_systems: int) -> Temperature:
    try:
        bounds = [float(part) for part in text.split(":")]
    except ValueError:
        bounds = []
    if len(bounds) not in (1, 2):
        raise InputError(f"--temperature {text!r} must be a number, or LOWEST:HIGHEST")
    if len(bounds) == 1:
        return bounds[0]
    lowest, highest = bounds
    if n_systems < 2 or not 0 < lowest <= highest:
        raise InputError(
            f"--temperature {text!r} needs two or more --replicas, and LOWEST below HIGHEST"
        )
    ratio = (highest / lowest) ** (1 / (n_systems - 1))
    return tuple(lowest * ratio**k for k in range(n_systems))


def check_used(given: dict[str, Any], settings: Settings) -> None:
    """Raise `InputError` if a given option has no effect, together with the others."""
    ensembles = {stage.ensemble for stage in settings.stages}
    has_thermostat, has_barostat = ensembles != {"nve"}, "npt" in ensembles
    has_friction = has_thermostat and settings.thermostat == "langevin"
    for name, is_used, need in (
        ("thermostat", has_thermostat, "--ensemble nvt or npt"),
        ("friction", has_friction, "--thermostat langevin, in nvt or npt"),
        ("barostat", has_barostat, "--ensemble npt"),
        ("barostat_time", has_barostat, "--ensemble npt"),
        ("compressibility", has_barostat, "--ensemble npt"),
        ("pressure", has_barostat, "--ensemble npt"),
    ):
        if name in given and not is_used:
            option = name.replace("_", "-")
            raise InputError(f"--{option} has no effect without {need}: leave it out, or add that")


def further_stages(
    snapshot: Snapshot, given: dict[str, Any]
) -> tuple[tuple[Stage, ...], dict[str, Any]]:
    """Return the stages that follow those of a restart file, and the options that do not say so.

    Steps with an ensemble, a temperature or a pressure are further stages, unless the plan ends
    with the same ones: a command that is given again changes nothing.
    """
    from mlff_triton.dynamics import stages_of

    own = {name: given[name] for name in ("ensemble", "temperature", "pressure") if name in given}
    if "steps" not in given or not own:
        return (), given
    planned, last = snapshot.settings.spans, snapshot.settings.stages[-1]
    temperatures: list[Temperature | None] = [last.temperature]
    if "temperature" in own:
        temperatures = [*read_temperatures(own["temperature"], len(snapshot.systems))]
    ensembles = own.get("ensemble", [last.ensemble] * len(given["steps"]))
    stages = stages_of(
        ensembles, given["steps"], temperatures, own.get("pressure", [last.pressure])
    )
    if "pressure" in own and not any(stage.ensemble == "npt" for stage in stages):
        raise InputError("--pressure has no effect without --ensemble npt: leave it out")
    rest = {name: value for name, value in given.items() if name not in {"steps", *own}}
    end = [(s.ensemble, s.stop - s.start, s.temperature, s.pressure) for s in planned]
    new = [(s.ensemble, s.steps, s.temperature, s.pressure) for s in stages]
    is_given = ["ensemble" in own, True, "temperature" in own, "pressure" in own]
    is_same = len(new) <= len(end) and all(
        not given_now or one == other
        for stage, done in zip(new, end[-len(new) :], strict=True)
        for given_now, one, other in zip(is_given, stage, done, strict=True)
    )
    return () if is_same else stages, rest


def check_consistent(snapshot: Snapshot, restart: Path, given: dict[str, Any]) -> None:
    """Raise `InputError` if an option other than the device contradicts the restart file."""
    from mlff_triton.checkpoints import lasting_name
    from mlff_triton.dispersion.damping import damping_of
    from mlff_triton.dynamics.stages import one_per_stage

    spans, stages = snapshot.settings.spans, snapshot.settings.stages
    recorded = {
        **snapshot.settings.to_dict(),
        "coulomb": "that of the model",
        "dispersion": None,
        **snapshot.recipe,
        "ensemble": [stage.ensemble for stage in stages],
        "steps": [stage.steps for stage in stages],
        "temperature": [span.temperature for span in spans],
        "pressure": [span.pressure for span in spans],
        "charge": snapshot.systems[0].info.get("charge"),
        "no_pbc": not any(atoms.pbc.any() for atoms in snapshot.systems),
        "out": restart.parent.resolve(),
        "restart": restart,
    }
    free = ("extend", "device", "reactive", "trajectory", "stop_at_uncertainty")
    wanted = {k: v for k, v in given.items() if k not in free}
    if "temperature" in wanted:
        wanted["temperature"] = read_temperatures(wanted["temperature"], len(snapshot.systems))
    for name in ("steps", "temperature", "pressure"):
        if name in wanted:
            wanted[name] = one_per_stage(f"values of --{name}", wanted[name], len(stages))
    if "model" in wanted:
        wanted["model"] = lasting_name(wanted["model"])
    if "dispersion" in wanted:
        wanted["dispersion"] = damping_of(wanted["dispersion"]).method
    if "out" in wanted:
        wanted["out"] = wanted["out"].resolve()
    for name, value in wanted.items():
        if name in ("structures", "replicas", "fix", "overwrite"):
            word = name.removesuffix("s") if name == "structures" else name
            raise InputError(f"--restart continues a run unchanged: leave out {word}")
        if value != recorded[name]:
            option, values = name.replace("_", "-"), recorded[name]
            each = dict.fromkeys(values) if isinstance(values, list) else [values]
            shown = ", ".join("none" if one is None else str(one) for one in each)
            remedy = FURTHER.get(name, "start a new run")
            raise InputError(
                f"--{option} contradicts the restart file, which says {shown}: leave it out, or "
                f"{remedy}"
            )
