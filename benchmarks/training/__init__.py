"""Steps of an optimizer on energies and forces, compared with TorchMD-NET."""
