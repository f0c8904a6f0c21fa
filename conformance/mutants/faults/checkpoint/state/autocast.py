"""Faults of the nested checkpoint that laws of the family autocast must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import on_main_thread, recompute_with, run_number
from conformance.mutants.mutant import Copy, mutant


def _enter(copy: Copy, change: Callable[[Any, Any], Any]) -> None:
    """Where autocast must be restored, ``change(wanted, found)`` is entered in place of ``wanted``."""

    def changed(entered: Any, wanted: Any, found: Any) -> Any:
        same = (wanted.autocast, wanted.cache) == (found.autocast, found.cache)
        return entered(wanted if same else change(wanted, found), found)

    copy.call_instead("state.modes", "enter_modes", changed)


def _cast(copy: Copy, change: Callable[[str, bool, torch.dtype, bool], tuple[str, bool, torch.dtype]]) -> None:
    """Where autocast must be restored, it is as ``change(kind, enabled, dtype, cache)`` says for each type of device."""

    def cast(wanted: Any, found: Any) -> Any:
        changed = [change(kind, enabled, dtype, wanted.cache) for kind, enabled, dtype in wanted.autocast]
        return wanted._replace(autocast=tuple(changed))

    _enter(copy, cast)


@mutant("state.modes", "autocast", "autocast_is_forwards", profile="default")
def forgets_autocast(copy: Copy) -> None:
    """A recomputation runs with the autocast of backward."""
    _enter(copy, lambda wanted, found: wanted._replace(autocast=found.autocast, cache=found.cache))


@mutant("state.modes", "autocast", "autocast_is_forwards", profile="default")
def forgets_the_autocast_cache(copy: Copy) -> None:
    """A recomputation caches casts if backward does."""
    _enter(copy, lambda wanted, found: wanted._replace(cache=found.cache))


@mutant("state.modes", "autocast", "autocast_is_forwards", profile="default")
def does_not_compare_whether_casts_are_cached(copy: Copy) -> None:
    """Autocast is restored only if something other than the caching of casts differs."""
    _enter(copy, lambda wanted, found: found if wanted.autocast == found.autocast else wanted)


@mutant("state.modes", "autocast", "autocast_is_forwards")
def forgets_the_autocast_dtype(copy: Copy) -> None:
    """A recomputation casts to bfloat16, whatever forward cast to."""
    _cast(copy, lambda kind, enabled, dtype, cache: (kind, enabled, torch.bfloat16))


@mutant("state.modes", "autocast", "autocast_is_forwards", profile="default")
def never_switches_autocast_off(copy: Copy) -> None:
    """Autocast that is on in backward stays on in a recomputation, also if forward had none."""
    _enter(copy, lambda wanted, _: wanted._replace(autocast=tuple(one for one in wanted.autocast if one[1])))


@mutant("state.modes", "autocast", "autocast_cache_keeps_gradients")
def takes_casts_for_cached(copy: Copy) -> None:
    """A recomputation does not cast if forward cached its casts."""
    _cast(copy, lambda kind, enabled, dtype, cache: (kind, enabled and not cache, dtype))


@mutant("nested.region", "autocast", "autocast_is_forwards", profile="default")
def restores_autocast_twice(copy: Copy) -> None:
    """From the third recomputation of a region on, the modes are those of backward."""
    present = copy["nested.region"].modes.current_modes
    recompute_with(copy, "modes", lambda region, _: region.modes if run_number(region) < 3 else present())


@mutant("nested.region", "autocast", "autocast_is_forwards_on_another_thread")
def restores_autocast_on_the_main_thread_alone(copy: Copy) -> None:
    """A recomputation on another thread than the main one runs with the modes that it finds there."""
    present = copy["nested.region"].modes.current_modes
    recompute_with(copy, "modes", lambda region, _: region.modes if on_main_thread() else present())


@mutant("state.modes", "autocast", "an_autocast_cache_that_a_function_switches")
def leaves_autocast_as_the_function_did(copy: Copy) -> None:
    """Changes to autocast by a recomputation that ends early are not undone."""
    copy.replace("state.modes", "restore_autocast", lambda found, depth: None)
