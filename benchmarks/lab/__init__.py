"""Tools of all benchmarks: time limits, result files, figures and tables."""
