"""Plans on real functions: nested regions execute them, so that gradients are plain autograd's to the last bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from impls.nested import checkpoint
from impls.schedules.plan import Keep, Plan, depth, require_order, stages
from impls.schedules.validation import require_functions

Box = list[Any]
Body = Callable[[Box], Any]
# Python's frames that one more level of regions takes, when the regions inside recompute those around them for their input.
FRAMES = 14


def checkpoint_sequential(
    functions: Any, plan: Plan, input: Any, *, preserve_rng_state: bool = True, early_stop: bool = True
) -> Any:
    """Run ``functions`` one after the other, with the regions of ``plan`` checkpointed, and return the value of the last.

    The first function gets ``input``, each other the value of the one before. ``preserve_rng_state`` and ``early_stop`` are
    those of ``impls.nested.checkpoint``. Raises TypeError when functions or plan is not of a known type, IllegalPlan when
    the plan does not run each function once and in order, ValueError when its regions lie too deep for Python's
    recursion limit, and in backward what nested regions raise.
    """
    chain = require_functions(functions)
    require_order(plan, len(chain))
    most = sys.getrecursionlimit() // FRAMES
    if depth(plan) > most:
        raise ValueError(
            f"plan has {depth(plan)} regions inside each other; Python's recursion limit of {sys.getrecursionlimit()} allows "
            f"for {most}. Raise it with sys.setrecursionlimit, or choose a plan for more memory"
        )

    def region(body: Body, box: Box) -> Any:
        return checkpoint(body, box, preserve_rng_state=preserve_rng_state, early_stop=early_stop)

    return execute(chain, plan, input, region)


def execute(functions: Sequence[Callable[[Any], Any]], plan: Plan, input: Any, region: Callable[[Body, Box], Any]) -> Any:
    """Run a plan over any kind of region: ``region(body, box)`` returns what ``body(box)`` gives, checkpointed.

    A box is a list of one value, which the body takes out of it: a value that is passed on its own stays alive in the
    frames of its caller until the region is through. Nothing is checked.
    """
    return _run(functions, plan, [input], region)


def _run(functions: Sequence[Callable[[Any], Any]], plan: Plan, box: Box, region: Callable[[Body, Box], Any]) -> Any:
    for part in plan:
        if isinstance(part, Keep):
            box.append(functions[part.stage](box.pop()))
        else:
            box[:] = [region(_body(functions, part.parts, region), box)]
    return box.pop()


def _body(functions: Sequence[Callable[[Any], Any]], plan: Plan, region: Callable[[Body, Box], Any]) -> Body:
    def body(box: Box) -> Any:
        return _run(functions, plan, box, region)

    inside = list(stages(plan))
    body.__qualname__ = f"stages {inside[0]} to {inside[-1]}"  # for the messages of errors
    return body
