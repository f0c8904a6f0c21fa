"""Measurements: what the literature claims, reproduced, and what implementations cost."""
