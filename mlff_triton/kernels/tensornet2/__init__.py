"""Operators of TensorNet2: messages that depend on charges, equilibration, and Coulomb energy."""
