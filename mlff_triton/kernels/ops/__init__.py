"""Public operators, differentiable twice."""
