"""Models that `mlff_triton.bio.accelerate` knows, one package each.

- ``families``: table of all adapters
- ``alpha_genome``, ``enformer``: models of genomes
- ``boltz``, ``openfold3``, ``protenix``: structures of complexes
- ``diffdock``: poses of ligands, and their confidences
- ``dualbind``: affinities of ligands
- ``encoders``: Transformer encoders (ESM-1b, ESM-2, BERT and parts of others)
- ``protein_mpnn``: design of sequences
- ``structure``: code that Boltz, OpenFold3 and Protenix share
"""
