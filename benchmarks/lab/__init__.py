"""The lab: runs cases, keeps rows, draws figures, profiles."""
