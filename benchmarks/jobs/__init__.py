"""Jobs of many systems: `predict` and `embed` on several GPUs, and the choice of a scheduler."""
