"""Operators of frame-averaging networks over protein-ligand complexes."""
