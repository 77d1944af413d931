"""Pair stacks of structure prediction: Boltz, OpenFold3 and Protenix."""
