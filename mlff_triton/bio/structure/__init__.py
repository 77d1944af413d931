"""Pair stacks of structure prediction: Boltz, Protenix and OpenFold3."""
