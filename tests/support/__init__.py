"""Helpers shared by tests: structures, random inputs, models, launches."""
