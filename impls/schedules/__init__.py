"""Checkpointing schedules that execute: plans for a chain of stages, what they cost, and running them with nested regions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from impls.schedules.chain import UNIT, Chain, Stage, unit_chain
from impls.schedules.execution import checkpoint_sequential, execute
from impls.schedules.interpreter import Account, interpret, interpret_steps
from impls.schedules.lowering import Action, Step, steps
from impls.schedules.measurement import measure
from impls.schedules.plan import IllegalPlan, Infeasible, Keep, Plan, Region, depth, kept, require_order, stages, text
from impls.schedules.planners.binomial import advances, revolve
from impls.schedules.planners.bisection import binary, recursive
from impls.schedules.planners.chen import greedy, searched, sqrt_segments, uniform

if TYPE_CHECKING:
    from impls.schedules.planners.least_memory import least_memory
    from impls.schedules.planners.model_planner import plan_for
    from impls.schedules.planners.rotor import optimal

__all__ = [
    "UNIT",
    "Account",
    "Action",
    "Chain",
    "IllegalPlan",
    "Infeasible",
    "Keep",
    "Plan",
    "Region",
    "Stage",
    "Step",
    "advances",
    "binary",
    "checkpoint_sequential",
    "depth",
    "execute",
    "greedy",
    "interpret",
    "interpret_steps",
    "kept",
    "least_memory",
    "measure",
    "optimal",
    "plan_for",
    "recursive",
    "require_order",
    "revolve",
    "searched",
    "sqrt_segments",
    "stages",
    "steps",
    "text",
    "uniform",
    "unit_chain",
]

_WITH_NUMPY = {"least_memory": "least_memory", "optimal": "rotor", "plan_for": "model_planner"}  # imported when first asked for


def __getattr__(name: str) -> Any:
    if name not in _WITH_NUMPY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.planners.{_WITH_NUMPY[name]}"), name)
