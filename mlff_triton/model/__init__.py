"""The exact model, which is the truth that every fast path is held to."""
