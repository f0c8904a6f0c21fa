"""The lock on what belongs to the whole process: generators of random numbers, the default dtype, determinism.

A recomputation needs them as they were in forward, and other recomputations have to wait meanwhile. Two rules keep them
from waiting for ever. First, a recomputation that holds the lock waits for no other one: what else it needs, such as the inputs
of its region, it has before it asks for the lock. Second, if thread A holds the lock and sleeps, for example because it joins
thread B, which wants to recompute, then B goes first: it sets what it needs, and puts it back before A wakes. Should A wake
before, both have to run again, since either may have drawn the other's random numbers.

An interrupt may come as ``release`` is entered, or where the ``with`` block is left, and then nobody releases the lock. So
being in the list is not enough to keep others waiting: a holder has the lock only while the call that has the block is under
way on its thread; otherwise it is dropped.

A finalizer or a callback of the garbage collector may go backward at any moment, also while its thread acquires or releases the
lock. A thread never waits for itself: what it holds goes on once the inner recomputation is over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from impls.state import threads
from impls.state.random_numbers import set_states

if TYPE_CHECKING:
    from impls.state.restoration import Restoration

LIMIT = 300.0  # seconds that one recomputation may keep others waiting
POLL = 0.02  # seconds between two looks at whom one waits for
T = TypeVar("T")


class ProcessLockError(RuntimeError):
    """Another thread does not end its recomputation, or two cannot go on without disturbing each other."""


class DisturbedError(Exception):
    """What a recomputation had set was set anew by another thread while it ran, so it has to run again."""


class ProcessLock:
    """The recomputations that hold the lock. Only the last of them runs: those before it sleep, or it is a part of them."""

    def __init__(self) -> None:
        self.holders: list[Restoration] = []
        self.calls = 0  # of acquire and release that are under way; too many after an interrupt, and never too few
        self.mutex = threading.RLock()  # which a finalizer may ask for while its thread has it
        self.changed = threading.Condition(self.mutex)

    def acquire(self, waiter: Restoration) -> None:
        """Wait for the lock, unless this is part of the one that holds it. Raises ProcessLockError."""
        with self.mutex:
            self.calls += 1
            try:
                if self.holders and self.holders[-1] is not waiter.outer_holder:
                    self._wait(waiter)
                self.holders.append(waiter)
            finally:
                self.calls -= 1

    def _wait(self, waiter: Restoration) -> None:
        last: Restoration | None = None
        deadline, was_gone = 0.0, False
        while self.holders and self.holders[-1] is not waiter.outer_holder:
            if self.holders[-1] is not last:
                last, deadline, was_gone = self.holders[-1], time.monotonic() + LIMIT, False
            gone, is_own = last.is_abandoned(), last.thread is waiter.thread
            # That of another thread is dropped on the second look alone.
            if gone and (was_gone or is_own):
                self._drop(last)
                continue
            if is_own:
                return
            was_gone = gone
            sleep = last.thread.sleeps_for(waiter.thread)
            if sleep is not None:
                waiter.passed = last, sleep
                return
            if time.monotonic() > deadline:
                raise ProcessLockError(
                    f"another thread has been in one recomputation for {LIMIT:.0f} s, and those that replay random numbers or "
                    "set process-wide modes take turns. If functions wait for each other, pass preserve_rng_state=False to "
                    "those that draw nothing"
                )
            self.changed.wait(POLL)

    def _drop(self, holder: Restoration) -> None:
        """Forget the last holder, which is over. Generators stay as it left them: by now the program may rely on that."""
        self.holders.remove(holder)
        holder.disturbed = True
        if self.holders:
            self.holders[-1].disturbed = True
        if holder.passed is not None:
            holder.passed[0].disturbed = True

    def release(self, holder: Restoration) -> bool:
        """Put generators back to where they were, and let others go on. Returns whether the holder was disturbed."""
        with self.mutex:
            self.calls += 1
            try:
                return self._release(holder)
            finally:
                self.calls -= 1

    def _release(self, holder: Restoration) -> bool:
        if holder not in self.holders:  # an interrupt came before it had the lock
            return holder.disturbed
        while (last := self.holders[-1]) is not holder and last.thread is holder.thread and last.is_abandoned():
            self._drop(last)
        try:
            if self.holders[-1] is holder:
                set_states(holder.before)
            else:  # it was asleep, and did not wait for the one that passed it
                self.holders[self.holders.index(holder) + 1].inherit(holder)
                holder.disturbed = True
        finally:
            self.holders.remove(holder)
            if self.calls > 1:  # somebody waits
                self.changed.notify_all()
        if holder.passed is not None:
            sleeper, sleep = holder.passed
            # Looked at only now: if it wakes from here on, it finds everything as it left it.
            if sleeper.thread.asleep() != sleep:
                holder.disturbed = sleeper.disturbed = True
        return holder.disturbed

    def after_fork(self) -> None:
        """Forget the threads that did not come along."""
        own = threading.get_ident()
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        self.calls = 0
        self.holders = [holder for holder in self.holders if holder.thread.ident == own]
        for holder in self.holders:
            holder.thread, holder.passed = threads.current_thread(), None


PROCESS_LOCK = ProcessLock()  # of the process

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS_LOCK.after_fork)


def run_undisturbed(attempt: Callable[[], T]) -> T:
    """What ``attempt`` returns, called twice if another thread disturbs it. Raises ProcessLockError if that does not help."""
    try:
        return attempt()
    except DisturbedError:
        pass
    this = threads.current_thread()
    was_patient, this.patient = this.patient, True
    try:
        return attempt()
    except DisturbedError as disturbed:
        raise ProcessLockError(
            "functions that are recomputed on two threads wait for each other, and both set what the process has once, such as "
            "the states of its random number generators. Pass preserve_rng_state=False to those that draw nothing, or go "
            "backward through one after the other"
        ) from disturbed.__context__  # the error that the function ended with, if it did
    finally:
        this.patient = was_patient
