"""The error of a budget that no plan meets."""

from __future__ import annotations


class Infeasible(ValueError):
    """No plan, or none that was tried, is within the budget; the message names the budget and the least that one needs."""
