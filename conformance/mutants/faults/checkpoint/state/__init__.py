"""Faults in what a recomputation restores: random numbers, autocast, modes and defaults, and what threads share of it."""
