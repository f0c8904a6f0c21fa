"""What parts of a chain need in memory by themselves: the inequalities that both searches over plans are made of.

All sizes are without the input of the part, which whoever runs it keeps. The gradient of a part's output is there
whenever the part runs again. A part's input is *loose* when nobody but the first stage of the part can have a use for it:
then it goes once that stage has kept what it saves, if its backward does not read it. After the chain stands an end that
costs nothing and is always kept, so that the last stage too may lie in a region; the part that the end belongs to runs in
the first forward alone, where there is no gradient yet.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from impls.schedules.chain import Chain, Stage

END = Stage(forward=0, output=0, saved=0, gradient=0, needs_output=False)
Ints = NDArray[np.int64]


class Sizes:
    """The columns of a chain and its end as arrays, and what they imply."""

    def __init__(self, chain: Chain, *, early_stop: bool) -> None:
        chain = (*chain, END)
        whole = sum(
            stage.saved + stage.gradient + stage.keeping_extra + stage.passing_extra + stage.backward_extra for stage in chain
        )
        if whole >= 2**62:  # beyond 64 bits numpy gives something else, and no error
            raise ValueError(f"the sizes of chain sum to {whole}; they must sum to less than 2**62, so take a larger unit")
        self.count = len(chain)
        self.output, self.saved = _column(chain, lambda stage: stage.output), _column(chain, lambda stage: stage.saved)
        self.gradient = _column(chain, lambda stage: stage.gradient)
        self.keeping = self.saved + _column(chain, lambda stage: stage.keeping_extra)
        own = np.array([stage.needs_output for stage in chain])
        extra = _column(chain, lambda stage: stage.backward_extra)
        self.backward = self.gradient + self.saved - np.where(own, 0, self.output) + extra
        self.before = np.concatenate([np.zeros(1, np.int64), self.output[:-1]])
        self.loosens = ~own  # whether the stage, once it has kept what it saves, leaves the next one's input loose
        self.freed = np.where([stage.needs_input for stage in chain], 0, self.before)
        alone = self.output + _column(chain, lambda stage: stage.passing_extra)
        self.passing = alone + self.before
        self.first_passing = alone
        # A stage that ends a recomputation may be stopped before it does anything.
        self.stopped = np.array([early_stop and stage.stops_early for stage in chain])

    def keep(self, start: int, stop: int, *, loose: bool) -> int:
        """The least in which stage ``start`` can keep what it saves, in a part that ends with stage ``stop``."""
        backward = self.backward[start] - (self.freed[start] if loose else 0)
        if start == stop and self.stopped[start]:
            return int(max(0, backward))
        return int(max(self.gradient[stop] + self.keeping[start], backward))

    def drop(self, start: int, stop: int) -> Ints:
        """The least in which a region from ``start`` to each of ``start .. stop - 1`` can pass, in a part up to ``stop``."""
        needs = self.passing[start:stop].copy()
        needs[0] = self.first_passing[start]
        return np.maximum.accumulate(needs) + self.gradient[stop]


def _column(chain: Chain, value: Callable[[Stage], int]) -> Ints:
    return np.array([value(stage) for stage in chain], np.int64)
