"""Faults of native's own: what C++ does in the place of nested's Python, and what it shares with Python."""
