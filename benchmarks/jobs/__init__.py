"""Jobs of many systems: `predict` on several GPUs, and the choice of a scheduler."""
