"""Faults of the nested checkpoint's switches, which laws of the family switches must catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from conformance.mutants.mutant import Copy, mutant


@mutant("nested.api", "switches", "debug_is_switched_around_forward")
def switches_no_debug(copy: Copy) -> None:
    """Inside of set_checkpoint_debug_enabled, the option is heeded as it was passed."""
    copy.change_arguments("nested.api", "_override", lambda given: given.update(debug=None))


@mutant("nested.api", "switches", "debug_is_switched_around_forward")
def leaves_debug_switched_after_an_error(copy: Copy) -> None:
    """What set_checkpoint_debug_enabled has switched stays so if an error ends it."""
    copy.wrap("nested.api", "_override", _never_left_by_an_error)


@mutant("nested.api", "switches", "early_stop_is_switched_around_forward")
def leaves_early_stop_switched_after_an_error(copy: Copy) -> None:
    """What set_checkpoint_early_stop has switched stays so if an error ends it."""
    copy.wrap("nested.api", "_override", _never_left_by_an_error)


def _never_left_by_an_error(override: Any) -> Any:
    kept = []  # so that the end of a generator leaves none

    @contextmanager
    def overridden(*arguments: Any) -> Iterator[None]:
        kept.append(override(*arguments))
        kept[-1].__enter__()
        yield
        kept.pop().__exit__(None, None, None)

    return overridden


@mutant("nested.api", "switches", "switches_belong_to_a_thread")
def shares_switches_between_threads(copy: Copy) -> None:
    """What one thread has switched is switched for the regions of all threads."""
    there = [(None, None)]

    def put(values: Any) -> Any:
        before, there[0] = there[0], values
        return before

    copy.replace("nested.api", "_overrides", SimpleNamespace(get=lambda: there[0], set=put, reset=put))
