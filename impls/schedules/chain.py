"""What the stages of a chain cost: times, and bytes by the moment at which they are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from impls.schedules.validation import require_int


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a chain. Times are in any one unit, sizes in any one unit; both must be the same for all stages.

    ``forward`` and ``backward`` are times. ``output`` is the size of its output, ``saved`` of all that its forward leaves
    for backward, the output among it and its input not, ``gradient`` of its output's gradient. ``needs_output`` says
    whether its own backward reads the output; if not, the output goes with the stage after it. ``needs_input`` says whether
    it reads its input; if not, and nobody else holds that, it goes once the stage has run. While it runs there is, on top
    of that, ``keeping_extra`` in a forward that keeps, ``passing_extra`` in one that drops, ``backward_extra`` in backward,
    the gradient of its input included. ``stops_early`` says that it saves nothing but its input, and that before
    its only kernel, so that a recomputation that ends here costs neither time nor memory.

    With a (output), ā (saved), δ (gradient), uF, uB, oF and oB this is the model of Beaumont et al. 2019, section 3, in
    which needs_output and needs_input hold and both forward extras are oF. Raises ValueError for negative numbers and for
    saved < output.
    """

    forward: float = 1
    backward: float = 0
    output: int = 1
    saved: int = 1
    gradient: int = 1
    keeping_extra: int = 0
    passing_extra: int = 0
    backward_extra: int = 0
    needs_output: bool = True
    needs_input: bool = True
    stops_early: bool = False

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} is {value!r}; it must be a number")
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; it must be a time that is finite and not negative")
        for name in ("output", "saved", "gradient", "keeping_extra", "passing_extra", "backward_extra"):
            require_int(name, getattr(self, name), least=0)
        if self.saved < self.output:
            raise ValueError(f"saved is {self.saved}; it contains the output, so it must be at least {self.output}")
        if self.stops_early and (self.needs_output or self.saved > self.output):
            raise ValueError("stops_early is True; then the stage saves only its input: needs_output False, saved = output")


Chain = Sequence[Stage]


def require_chain(chain: Chain) -> None:
    """Raise TypeError, naming the argument, unless ``chain`` is a sequence of Stages."""
    if not isinstance(chain, Sequence):
        raise TypeError(f"chain is of type {type(chain).__name__}; it must be a sequence of Stages")
    for index, stage in enumerate(chain):
        if not isinstance(stage, Stage):
            raise TypeError(f"chain[{index}] is {stage!r}; it must be a Stage")


# A layer that saves its input and nothing else, as a sine does, with a gradient of the same size; one unit is its output.
UNIT = Stage(saved=1, needs_output=False, stops_early=True, backward_extra=1)


def unit_chain(count: int) -> tuple[Stage, ...]:
    """A chain of equal layers that each save exactly their input: the one that counts of the literature are about."""
    require_int("count", count, least=0)
    return (UNIT,) * count
