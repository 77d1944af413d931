"""DiffDock, which docks ligands to proteins by diffusion, and scores their poses."""
