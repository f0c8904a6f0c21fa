"""The surroundings of a recomputation: forward's random numbers and modes are put in force, and what was there is put back."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import FrameType, TracebackType

from impls.state import modes, threads
from impls.state.modes import Modes, ProcessWide
from impls.state.process_lock import PROCESS_LOCK, DisturbedError
from impls.state.random_numbers import States, set_states
from impls.torch_private import get_thread_object, has_thread_object, remove_thread_object, set_thread_object

# Where torch keeps what belongs to a thread, and to those on which autograd runs the backward that the thread waits for.
_KEY = "reprise.recomputation"


def current_restoration() -> Restoration | None:
    """The recomputation that this is part of, also where it runs a backward on another thread."""
    return get_thread_object(_KEY) if has_thread_object(_KEY) else None


class Restoration:
    """Context of one recomputation: it runs under forward's modes (None: those in force) and from its generators' states.

    Modes and generators that belong to the process are set under a lock, by one recomputation at a time. A mode is set only
    if it differs from forward's; other threads see it meanwhile. On exit a mode is put back if it is still what was set here,
    or ``modes_after``, which is what forward left if the function itself sets modes; after an error it is put back in any case.

    Raises ProcessLockError where another recomputation does not end, and on exit DisturbedError, in place of any Exception,
    where another one passed this one by while it slept, and was not waited for.
    """

    found: ProcessWide | None = None
    found_here: tuple[Modes, int] | None = None  # on this thread, with the depth of autocast
    holds_lock = entered = disturbed = False
    failed = False  # whether the function has ended with an error that is not raised, as what it is run for is there
    passed: tuple[Restoration, threads.Sleep] | None = None  # the one that it passed, and the sleep that has to last
    stack: ExitStack | None = None
    call: FrameType | None = None  # the call that has the ``with`` block and ends with it, while this holds the lock

    def __init__(self, wanted: Modes | None, states: States, modes_after: ProcessWide | None = None) -> None:
        self.wanted, self.states, self.modes_after = wanted, states, modes_after
        self.before: States = []
        self.outer = outer = current_restoration()
        # The one around this that holds the lock.
        self.outer_holder: Restoration | None = outer if outer is None or outer.holds_lock else outer.outer_holder
        self.thread = threads.current_thread()

    def __enter__(self) -> None:
        try:
            if self.states:
                self.acquire_lock(sys._getframe(1))
                self.before = [(source, source.get_state()) for source, _ in self.states]
                set_states(self.states)
            if self.wanted is not None:
                found = modes.current_modes()
                self.found, self.found_here = found.process_wide, (found, modes.autocast_depth())
                if found != self.wanted:
                    self.set_modes(self.wanted, found)
            set_thread_object(_KEY, self)
            self.entered = True
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def acquire_lock(self, call: FrameType) -> None:
        """Wait until no other recomputation has set what belongs to the process."""
        self.holds_lock, self.call = True, call
        PROCESS_LOCK.acquire(self)

    def set_modes(self, wanted: Modes, found: Modes) -> None:
        """Put the wanted modes in force."""
        if not self.holds_lock and found.process_wide != wanted.process_wide:
            self.acquire_lock(sys._getframe(2))
            found = modes.current_modes()  # another recomputation may have set them before
            self.found = found.process_wide
        self.stack = modes.enter_modes(wanted, found)
        modes.set_process_wide(wanted.process_wide)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        disturbed = False
        try:
            if self.entered:
                remove_thread_object(_KEY) if self.outer is None else set_thread_object(_KEY, self.outer)
            if self.stack is not None:
                self.stack.__exit__(kind, error, trace)
            if self.found_here is not None:
                modes.restore_autocast(*self.found_here)
            if self.wanted is not None and modes.process_wide() != self.found:
                self.put_modes_back(self.wanted.process_wide, failed=self.failed or error is not None)
        finally:
            if self.holds_lock:
                disturbed = PROCESS_LOCK.release(self)
                self.call = None
        if disturbed and (error is None or isinstance(error, Exception)):
            raise DisturbedError

    def is_abandoned(self) -> bool:
        """Whether the call that began this is over, although it holds the lock: an interrupt kept it from its end."""
        return not threads.is_under_way(self.call)

    def put_modes_back(self, set_here: ProcessWide, *, failed: bool) -> None:
        """Undo what the recomputation changed of the process-wide modes."""
        if self.found is not None:
            modes_after = set_here if self.modes_after is None else self.modes_after
            modes.restore_process_wide(self.found, None if failed else (set_here, modes_after))

    def inherit(self, other: Restoration) -> None:
        """On exit put back what another one found, which got the lock before this one and releases it first.

        That comes last, and so prevails: a device's generator may be in both, in one as a device and in the other as itself.
        """
        self.before = [*self.before, *other.before]
        self.found = None if self.found is None else other.found
