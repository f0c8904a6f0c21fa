"""Implementations with one fault each, and the mutation score. The faults are in ``faults``, in files by family."""
