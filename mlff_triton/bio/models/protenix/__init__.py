"""Protenix: blocks of the trunk and of the MSA module, and its score network."""
