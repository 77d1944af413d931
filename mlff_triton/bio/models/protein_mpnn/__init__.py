"""ProteinMPNN, which designs the sequences of proteins with a given backbone."""
