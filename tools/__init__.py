"""Tools for development: the documentation's hook and the check of English."""
