"""Boltz-1 and Boltz-2: blocks of the trunk and of the MSA module, and their score networks."""
