"""Graph networks over the residues of proteins, of the kind of ProteinMPNN."""
