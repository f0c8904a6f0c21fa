"""Faults of the nested checkpoint that laws about several threads must catch."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from types import MethodType, SimpleNamespace
from typing import Any, NoReturn

import torch

from conformance.mutants.mutant import Copy, mutant


def _refuse_to_wait(copy: Copy) -> None:
    """Raise an error where a thread would wait until another one has recomputed a region.

    A region is held a little longer, so that threads meet on a busy machine, too.
    """

    def sleep(_: float) -> NoReturn:
        raise RuntimeError("another thread recomputes this region")

    copy.call_before("state.advisory_locks", "release", lambda what: time.sleep(0.03))
    copy.replace("state.advisory_locks", "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep), only_here=True)


@mutant("state.advisory_locks", "lifetimes", "two_threads_over_one_graph")
def refuses_what_another_thread_recomputes(copy: Copy) -> None:
    """That another thread is recomputing the same region is an error."""
    _refuse_to_wait(copy)


@mutant("state.advisory_locks", "lifetimes", "two_threads_ask_for_parts_of_nested_regions")
def gives_up_on_a_busy_region(copy: Copy) -> None:
    """A region that another thread is recomputing is not waited for."""
    _refuse_to_wait(copy)


@mutant("state.advisory_locks", "lifetimes", "two_threads_ask_for_parts_of_nested_regions")
def locks_in_both_orders(copy: Copy) -> None:
    """A thread takes the lock before its region's inputs, and holds it while it waits for a thread that waits for the lock."""
    lock, seconds = threading.RLock(), 5.0  # then it is an error, which a deadlock is not, so that the thread ends

    def recompute(there: Any, *args: Any) -> Any:
        if not lock.acquire(timeout=seconds):
            raise RuntimeError("two threads wait for each other")
        try:
            return there(*args)
        finally:
            lock.release()

    def wait(what: int, this: Any) -> bool:
        until = time.monotonic() + 2 * seconds
        while copy["state.advisory_locks"]._holders.setdefault(what, this) is not this:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    copy.call_instead("nested.region", "Region.recompute", recompute)
    copy.replace("state.advisory_locks", "_wait", wait)


def _wait_for_what_is_over(copy: Copy) -> None:
    """Wait for a recomputation that has the lock even if nothing of it is under way any more."""
    copy.replace("state.restoration", "Restoration.is_abandoned", lambda self: False)


@mutant("state.process_lock", "lifetimes", "a_fork_while_another_thread_recomputes")
def stays_locked_after_a_fork(copy: Copy) -> None:
    """In a forked process, threads that exist only in the parent keep the lock."""
    copy.replace("state.process_lock", "PROCESS_LOCK", copy["state.process_lock"].ProcessLock())
    _wait_for_what_is_over(copy)


@mutant("nested.region", "lifetimes", "backward_in_another_thread")
def has_regions_of_each_thread(copy: Copy) -> None:
    """On another thread than that of forward, a region is empty."""
    copy.wrap("nested.region", "Region", lambda there: type("Region", (threading.local, there), {}))


@mutant("nested.api", "lifetimes", "a_forward_on_another_thread_meanwhile")
def saves_in_the_newest_region(copy: Copy) -> None:
    """What is saved on any thread goes to the region, or recomputation of one, that has begun last and is alive."""
    newest: list[Any] = []

    def pack(self: Any, tensor: torch.Tensor) -> Any:
        return (newest[0]() or self).pack(tensor)

    def push(owner: Any, context: bool = False) -> None:
        newest[:] = [weakref.ref(owner)]
        torch._C._autograd._push_saved_tensors_default_hooks(MethodType(pack, owner), owner.unpack)

    def end(self: Any, output: Any) -> None:
        if self.enclosing is not None:
            newest[:] = [weakref.ref(self.enclosing)]

    copy.replace("nested.user_hooks", "push_hooks_of", push)
    copy.call_before("nested.region", "Region.end_forward", end)


@mutant("nested.region", "lifetimes", "backward_of_a_region_that_is_under_way")
def refuses_while_forward_is_under_way_elsewhere(copy: Copy) -> None:
    """A region whose forward has not ended on another thread is not recomputed."""

    def recompute(self: Any, *_: Any) -> None:
        if not self.complete and copy["nested.region"]._enclosing_region() is None:
            self.refuse("its forward has not ended")

    copy.call_before("nested.region", "Region.recompute", recompute)


@mutant("state.restoration", "lifetimes", "regions_of_two_threads_run_at_once")
def has_one_lock_for_all(copy: Copy) -> None:
    """Recomputations wait for each other even if they replay no random numbers."""
    always = type("Always", (list,), {"__bool__": lambda _: True})
    copy.set_after("state.restoration", "Restoration.__init__", states=lambda self: always(self.states))


@mutant("nested.api", "lifetimes", "regions_of_two_threads_run_at_once")
def lets_one_forward_run_at_a_time(copy: Copy) -> None:
    """One thread at a time may be in the forward of a region."""
    lock = threading.RLock()

    def run(there: Any, *given: Any) -> Any:
        with lock:
            return there(*given)

    copy.call_instead("nested.api", "_run", run)


@mutant("state.process_lock", "lifetimes", "another_thread_goes_on_after_an_error")
def keeps_its_lock_after_an_error(copy: Copy) -> None:
    """A recomputation that raises an error keeps the lock."""

    def release(_: bool, self: Any, holder: Any) -> None:
        if sys.exc_info()[0] is not None:
            self.holders.append(holder)

    copy.call_after("state.process_lock", "ProcessLock.release", release)
    _wait_for_what_is_over(copy)
    copy.replace("state.process_lock", "LIMIT", 5.0)  # so that a thread that waits in vain ends when the law has seen it
