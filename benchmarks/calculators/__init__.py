"""Steps through ASE and OpenMM."""
