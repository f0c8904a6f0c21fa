"""FairScale's checkpoint_wrapper, as it is. It wraps modules, so a function becomes the forward of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairscale.nn.checkpoint import checkpoint_wrapper
from torch import nn

from impls.implementation import Implementation, known
from impls.known_failures import (
    AUTOCAST_LOST,
    MOVED_BY_AN_ERROR,
    RUNS_TO_THE_END,
    SINGLE_NODE,
    STATISTICS_REQUIRE_GRAD,
    TWO_DTYPES,
)
from impls.peers.torch_limits import TORCH_REENTRANT


class _Calling(nn.Module):
    """A module that calls a function; where that is a module, its parameters are the parameters of this one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a module that calls ``function``, wrapped by FairScale for this one call."""
    return checkpoint_wrapper(_Calling(function))(*args, **kwargs)


# What the function above does, for scripts that are to need the package alone.
_BINDING = """\
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs):
    return checkpoint_wrapper(Calling(function))(*args, **kwargs)
"""

IMPLEMENTATION = Implementation(
    name="fairscale",
    binding=_BINDING,
    checkpoint=checkpoint,
    summary="FairScale's checkpoint_wrapper (0.4.13)",
    source="https://fairscale.readthedocs.io/en/stable/api/nn/checkpoint/checkpoint_activations.html",
    capabilities=frozenset(
        {
            "autocast",
            "hidden-saves",
            "keyword-arguments",
            "nesting",
            "non-tensor-arguments",
            "non-tensor-outputs",
            "recomputes",
            "rng",
        }
    ),
    known=SINGLE_NODE
    | STATISTICS_REQUIRE_GRAD
    | RUNS_TO_THE_END
    | TORCH_REENTRANT
    | AUTOCAST_LOST
    | TWO_DTYPES
    | MOVED_BY_AN_ERROR
    | known(
        "diverges",
        "autocast is asked about and entered again for CUDA alone, and without its dtype",
        "fairscale#1199; seen here",
        "autocast_is_forwards",
        "an_error_leaves_autocast",
    )
    | known(
        "diverges",
        "a tensor of no elements that requires grad is made for each call, an operator that a mode around forward sees",
        "seen here, fairscale 0.4.13",
        "no_operators_are_seen_but_the_functions",
    )
    | known("diverges", "a list comes back as a tuple", "seen here, fairscale 0.4.13", "containers_as_outputs")
    | known(
        "diverges",
        "where all tensors are in containers, no input requires grad: the region gives no gradient, and no error where "
        "another path gives one",
        "seen here, fairscale 0.4.13",
        "containers_as_arguments",
        "containers_that_are_unusual",
        seed=10,
    )
    | known(
        "crashes",
        "what it wraps is a module, whose call has a parameter self: an argument of that name is given twice",
        "seen here, fairscale 0.4.13",
        "arguments_of_any_name",
    )
    | known(
        "diverges",
        "hooks that wrapping puts on batch norms keep their statistics from being updated twice, and no other buffers; a "
        "module that is wrapped for each call, as here, has them several times, and then they are left switched off",
        "seen here, fairscale 0.4.13",
        "a_module_updates_its_buffers_once",
    )
    | known("diverges", "torch.Generator arguments are not saved", "seen here", "explicit_generators_by_keyword")
    | known(
        "diverges",
        "the function runs again on the very object in a container, with the hook that it registered on it in forward",
        "seen here",
        "hooks_on_arguments_by_keyword_and_in_containers",
    )
    | known(
        "diverges",
        "strict=False exports what a node of its own calls without grad mode: gradients are lost",
        "seen here, fairscale 0.4.13",
        "exported_regions_equal_plain",
    ),
)
