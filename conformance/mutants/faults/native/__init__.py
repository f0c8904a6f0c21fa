"""Faults of native alone: in what C++ does in place of nested's Python, and in what it shares with Python."""
