"""Faults of the nested checkpoint that laws of the family training must catch: what a function was in another call."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from conformance.mutants.faults.checkpoint.seams import change_recomputed
from conformance.mutants.mutant import Copy, mutant
from impls.torch_private import set_version_counters


@mutant("nested.recomputation", "training", "steps_of_training")
def recomputes_with_the_weights_of_the_first_step(copy: Copy) -> None:
    """A copy of a weight that is made for its first recomputation stands for it in all later ones."""
    known = WeakIdKeyDictionary()

    def first(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor if tensor._base is None else tensor._base
        if not isinstance(whole, torch.nn.Parameter):
            return tensor
        kept = known.setdefault(whole, whole.detach().clone())
        stands_in = torch.as_strided(kept, tensor.shape, tensor.stride(), tensor.storage_offset()).clone()
        set_version_counters((stands_in,), (tensor._version,))
        return stands_in

    change_recomputed(copy, first)


@mutant("nested.region", "training", "steps_of_training_with_dropout")
def keeps_the_states_of_a_functions_first_call(copy: Copy) -> None:
    """Random numbers are captured once for each function, in its first step."""
    known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    copy.call_before(
        "nested.region",
        "Region.recompute",
        lambda self, *_: setattr(self, "states", known.setdefault(self.function, self.states)),
    )


@mutant("nested.region", "training", "the_same_function_another_time")
def stops_where_the_functions_first_call_did(copy: Copy) -> None:
    """A recomputation takes as many tensors for the whole as its function has saved in its first call."""
    known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def wanted(found: list[Any], self: Any, *_: Any) -> list[Any]:
        count = known.setdefault(self.function, len(found))
        return found if all(one is None for one in found[:count]) else found[:count]

    copy.change_result("nested.region", "Region.find_wanted", wanted)


@mutant("nested.api", "training", "the_same_module_in_another_mode")
def takes_a_function_that_drew_nothing_for_one_that_never_does(copy: Copy) -> None:
    """Random numbers are not captured for a function that drew none in its first call."""
    draws: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def run(there: Any, function: Any, args: Any, kwargs: Any, preserve: bool, *others: Any) -> Any:
        before = torch.get_rng_state()
        value = there(function, args, kwargs, preserve and draws.get(function, True), *others)
        draws.setdefault(function, not torch.equal(before, torch.get_rng_state()))
        return value

    copy.call_instead("nested.api", "_run", run)


@mutant("nested.region", "training", "the_same_function_under_another_autocast")
def keeps_the_modes_of_a_functions_first_call(copy: Copy) -> None:
    """A function is recomputed under the modes that were in force around its first call."""
    known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    copy.set_after("nested.region", "Region.__init__", modes=lambda self: known.setdefault(self.function, self.modes))
