"""Faults of the nested checkpoint, by the families of laws that must catch them."""
