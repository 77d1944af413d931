"""Models that predict the affinities of ligands bound to proteins."""
