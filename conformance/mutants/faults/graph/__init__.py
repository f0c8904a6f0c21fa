"""Faults of the graph tools, by the families of laws that must catch them."""
