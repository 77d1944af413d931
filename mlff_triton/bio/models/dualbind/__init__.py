"""DualBind, which predicts the affinities of ligands bound to proteins."""
