"""Saved tensors that are changed in place, in a context that allows it: right, refused, or after they were moved."""
