"""Whole steps of the engine and of TorchMD-NET."""
