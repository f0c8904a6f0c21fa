"""Which groups of regions to checkpoint, by an integer program: HiGHS, through scipy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from reprise.model_check.budgets.memory_model import Moment, Term


def require_scipy() -> Any:
    """``scipy.optimize``. Raises ValueError if scipy is missing."""
    try:
        from scipy import optimize
    except ModuleNotFoundError as error:
        raise ValueError(
            f"budget needs the package scipy, which this Python lacks: {sys.executable} -m pip install scipy"
        ) from error
    return optimize


def cheapest(moments: Sequence[Moment], costs: Sequence[float], budget: int) -> frozenset[int] | None:
    """The groups that cost least to recompute and keep every moment within the budget; None if there are none."""
    largest = max(costs, default=0.0) or 1.0
    return _solved(moments, len(costs), costs=[(one or largest) / largest for one in costs], limit=budget)


def least(moments: Sequence[Moment], groups: int) -> frozenset[int]:
    """The groups with which the peak is least."""
    found = _solved(moments, groups, costs=[0.0] * groups, limit=None)
    assert found is not None, "without a limit there is always a choice"
    return found


def _solved(moments: Sequence[Moment], groups: int, *, costs: list[float], limit: int | None) -> frozenset[int] | None:
    """Solve for one variable for each group, one for each term of several groups, and the peak in units of plain's."""
    optimize = require_scipy()
    unit = max(1, *(one.plain for one in moments))
    several = {term: groups + number for number, term in enumerate(dict.fromkeys(_of_several(moments)))}
    count = groups + len(several) + 1
    peak = count - 1
    rows, bounds = [], []
    for one in moments:  # plain + terms - peak <= 0
        row = np.zeros(count)
        for term, size in one.terms.items():
            row[several.get(term, min(term[1]))] += size / unit
        row[peak] = -1
        rows.append(row)
        bounds.append(-one.plain / unit)
    for (kind, members), column in several.items():
        for group in members:  # "all" is at most each, "any" at least each
            row = np.zeros(count)
            row[column], row[group] = (1, -1) if kind == "all" else (-1, 1)
            rows.append(row)
            bounds.append(0.0)
    result = optimize.milp(
        np.array([*costs, *[0.0] * len(several), 1.0 if limit is None else 0.0]),
        integrality=np.array([1] * groups + [0] * (count - groups)),
        bounds=optimize.Bounds(0, np.array([1.0] * (count - 1) + [np.inf if limit is None else limit / unit])),
        constraints=optimize.LinearConstraint(np.array(rows), -np.inf, np.array(bounds)),
    )
    return frozenset(np.flatnonzero(result.x[:groups] > 0.5).tolist()) if result.x is not None else None


def _of_several(moments: Sequence[Moment]) -> list[Term]:
    return [term for one in moments for term in one.terms if len(term[1]) > 1]
