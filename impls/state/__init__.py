"""What a recomputation restores besides its inputs, for all implementations: random numbers, modes, devices, streams, hooks."""
