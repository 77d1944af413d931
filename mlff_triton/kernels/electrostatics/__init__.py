"""Electrostatics of partial charges in periodic boxes, by particle-mesh Ewald."""
