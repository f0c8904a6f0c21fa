"""What a run costs, in exact counts: calls, kernels, live storages, saved tensors, Python objects."""
