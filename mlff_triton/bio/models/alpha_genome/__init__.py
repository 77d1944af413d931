"""AlphaGenome of the package alphagenome-pytorch."""
