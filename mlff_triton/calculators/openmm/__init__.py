"""The engine as an OpenMM force, and as a potential of openmm-ml."""
