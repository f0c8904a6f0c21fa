"""Faults of the offloaded model, by what they are about."""
