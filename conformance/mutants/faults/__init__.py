"""The faults that the laws must catch, one a mutant, in a folder for each implementation.

What several files of a folder use stands in its ``seams``. ``conformance.mutants.mutant`` gathers the mutants.
"""
