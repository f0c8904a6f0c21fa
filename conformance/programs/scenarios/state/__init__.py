"""State around regions that a recomputation finds changed: random numbers, autocast, modes, defaults and context variables."""
