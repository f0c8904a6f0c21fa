"""Processes with limits, and what the suite keeps apart from the user's.

One process for an implementation that may die or hang; fresh ones for what happens once in each. Apart are the compiler's
cache, and the kernels that a process computes with.
"""
