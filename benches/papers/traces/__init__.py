"""Recorded operators, and schedules of them: made by DTR's heuristics or by Checkmate's integer program, checked and run."""
