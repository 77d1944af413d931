"""All kinds of cases, by name."""

from tests.fuzz.cases import checkpoints, commands, restarts, sequences, structures

KINDS = {
    "checkpoints": checkpoints.KIND,
    "structures": structures.KIND,
    "sequences": sequences.KIND,
    "restarts": restarts.KIND,
    "commands": commands.KIND,
}
