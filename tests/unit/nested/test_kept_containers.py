"""The calls whose containers are looked at, while other threads add theirs."""

from __future__ import annotations

import sys
import threading
import weakref

from impls.nested.kept_containers import EarlierCalls


class Call:
    """A call that keeps its containers, and counts the looks at them."""

    def __init__(self) -> None:
        self.looks = 0

    def drop_changed_containers(self) -> bool:
        self.looks += 1
        return True


def test_calls_may_come_and_go_while_a_run_ends() -> None:
    calls, earlier, ended = [Call() for _ in range(20)], EarlierCalls(), threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for call in calls:
                earlier.look_at_some()
                earlier.add(weakref.ref(call))
                if len(earlier.waiting) > 50:
                    earlier.waiting.popleft()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    others = [threading.Thread(target=come_and_go) for _ in range(2)]
    try:
        for thread in others:
            thread.start()
        for _ in range(30_000):
            earlier.look_at_those_after(earlier.added - 30)
    finally:
        ended.set()
        for thread in others:
            thread.join()
        sys.setswitchinterval(interval)


def test_the_end_of_a_run_looks_at_what_was_added_since() -> None:
    before, since, earlier = Call(), [Call(), Call()], EarlierCalls()
    earlier.add(weakref.ref(before))
    added = earlier.added
    for call in since:
        earlier.add(weakref.ref(call))
    earlier.look_at_those_after(added)
    assert [call.looks for call in (before, *since)] == [0, 1, 1]
    earlier.look_at_those_after(earlier.added)
    assert [call.looks for call in (before, *since)] == [0, 1, 1]
