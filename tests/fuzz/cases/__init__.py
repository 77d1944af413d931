"""All kinds of cases, by name."""

from tests.fuzz.cases import (
    checkpoints,
    commands,
    constraints,
    lammps_scripts,
    models,
    records,
    restarts,
    sequences,
    structures,
    texts,
)

KINDS = {
    "checkpoints": checkpoints.KIND,
    "structures": structures.KIND,
    "records": records.KIND,
    "sequences": sequences.KIND,
    "restarts": restarts.KIND,
    "commands": commands.KIND,
    "constraints": constraints.KIND,
    "models": models.KIND,
    "lammps": lammps_scripts.KIND,
    "texts": texts.KIND,
}
