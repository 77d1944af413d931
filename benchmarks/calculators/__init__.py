"""Steps and simulations through ASE and OpenMM."""
