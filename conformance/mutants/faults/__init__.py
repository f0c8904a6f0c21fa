"""The faults that the laws must catch, one a mutant, in files by family. ``conformance.mutants.mutant`` gathers them."""
