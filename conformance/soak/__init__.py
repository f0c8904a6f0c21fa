"""Exploration with fresh seeds until the time is over; what it finds is kept."""
