"""Check whether activation checkpointing is right on a user's own model, and what it saves; torch and numpy suffice.

``checking`` compares an implementation with plain; ``explanations`` finds where a recomputation first differs from its forward.
Everything runs in this process, which is left as it was; hangs, and crashes of the process, are not detected.
"""
