"""What a run costs, in counts that are exact: calls, kernels, live storages, saved tensors, Python objects."""
