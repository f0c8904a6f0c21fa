"""The containers that regions keep as they are: put back after a run, and let go of once they hold something else.

A list that an output was appended to since holds the region that keeps the list, through the graph, where the garbage
collector does not see it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from impls.tensors.containers import Container

# A container that a run gets as it is, and what it holds as the run begins, or has to be filled with.
ReusedContainer = tuple[Container, Any, list[Any]]


class KeepsContainers(Protocol):
    """The arguments of a call, as ``Inputs`` has them."""

    def drop_changed_containers(self) -> bool:
        """Let go of containers that hold something else by now; returns whether others are left."""


class EarlierCalls:
    """The calls that keep containers, in the order in which they were added.

    Each new call looks at those of the last call, and of two that were not looked at for longest. With one look for each new
    call, lists that outputs were appended to would gather beside those that do not change; with two they cannot. The last call
    is looked at first so that in a plain loop no list waits for its turn.
    """

    def __init__(self) -> None:
        self.waiting: deque[weakref.ref[KeepsContainers]] = deque()
        self.added = 0  # how many were added so far, those that have left included; fewer if threads add at the same time

    def add(self, call: weakref.ref[KeepsContainers]) -> None:
        self.added += 1
        self.waiting.append(call)

    def look_at_some(self) -> None:
        taken: list[weakref.ref[KeepsContainers]] = []
        with suppress(IndexError):  # there are no more, or another thread was first
            taken.extend(take() for take in (self.waiting.pop, self.waiting.popleft, self.waiting.popleft))
        for one in taken:
            if (call := one()) is not None and call.drop_changed_containers():
                self.add(one)

    def look_at_those_after(self, added: int) -> None:
        """Look at the calls that were added since so many were."""
        if (count := self.added - added) > 0:
            for one in tuple(self.waiting)[-count:]:  # a copy made in one go: other threads may add calls, and take them out
                if (call := one()) is not None:
                    call.drop_changed_containers()


earlier_calls = EarlierCalls()


class ContainersOfRun:
    """Entered for a run of a region's function: undoes at its end what that has done to the containers that it got as they are.

    It may have been stopped half-way. What others did to a container before the run stays: that one was made anew. Then the
    containers that were passed to regions inside are looked at: a run that was stopped makes no further call that would do so.
    """

    __slots__ = ("added", "reused")

    def __init__(self, reused: Iterable[ReusedContainer]) -> None:
        self.reused, self.added = reused, earlier_calls.added

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for container, itself, children in self.reused:
            container.refill(itself, children)
        earlier_calls.look_at_those_after(self.added)
