"""OpenMM: the engine as a force, and a potential for openmm-ml."""
