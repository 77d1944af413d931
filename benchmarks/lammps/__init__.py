"""Large systems through LAMMPS on several GPUs."""
