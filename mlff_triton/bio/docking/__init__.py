"""Docking of many ligands at once by DiffDock's reverse diffusion.

- ``poses``: rotations, translations and torsions of a batch of ligands on a device
- ``diffusion``: settings and steps of the diffusion
- ``sampler``: the diffusion of a batch of complexes
- ``screening``: `dock`, from complexes to poses with confidences
"""
