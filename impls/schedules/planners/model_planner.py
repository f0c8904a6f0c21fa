"""The plan for a model and a budget."""

from __future__ import annotations

from typing import Any

from impls.schedules.interpreter import interpret
from impls.schedules.measurement import measure
from impls.schedules.plan import Infeasible, Plan, kept
from impls.schedules.planners.least_memory import least_memory
from impls.schedules.planners.rotor import optimal
from impls.schedules.validation import require_functions, require_int


def plan_for(model: Any, example: Any, budget_bytes: int, *, slots: int = 500, repeats: int = 1) -> Plan:
    """The fastest plan for training ``model``, a chain, with inputs like ``example``, within ``budget_bytes``.

    The budget is for what one forward and backward of the chain make: activations, their gradients and temporaries. Not in
    it are the input, parameters and their gradients, the output once its stage's backward is done, states of random number
    generators (5 kB a region on the CPU), and what ``measure`` does not see. The plan is for ``checkpoint_sequential`` with
    early stop. ``slots`` is the precision of ``optimal``, ``repeats`` how often ``measure`` times each stage.

    Raises Infeasible, with the least budget that a plan can meet, when the budget is below it, and what ``measure`` raises.
    """
    require_functions(model, "model")
    require_int("budget_bytes", budget_bytes, least=0)
    require_int("slots", slots, least=1)
    chain = measure(model, example, repeats=repeats)
    least, plain = interpret(least_memory(chain), chain).peak, interpret(kept(0, len(chain)), chain).peak
    if budget_bytes < least:
        raise Infeasible(
            f"budget_bytes is {budget_bytes}; the least that any plan of this model needs is {least} bytes, and it needs "
            f"{plain} without checkpointing. Cut it into smaller stages, or take a smaller batch"
        )
    return optimal(chain, budget_bytes, slots=slots)
