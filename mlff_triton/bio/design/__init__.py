"""Models that design the sequences of proteins with a given backbone."""
