"""Check whether activation checkpointing is right on a user's own model, and what it saves; torch and numpy suffice.

``checking`` compares an implementation with plain, ``explain`` finds where a recomputation parts from its forward.
Everything runs in this process, which is left as it was: a hang is not detected, and neither is a crash of the process.
"""
