"""What the installed release's ``torch.utils.checkpoint.checkpoint`` takes, and its limits about options and switches."""

from __future__ import annotations

import inspect

import torch.utils.checkpoint

from impls.implementation import Known, known

OPTIONS = inspect.signature(torch.utils.checkpoint.checkpoint).parameters
# The capabilities that it cannot have: a decorator since torch 2.14.
LACKING: frozenset[str] = frozenset() if OPTIONS["function"].default is None else frozenset({"decorator"})

FLAGS_OF_ANY_TYPE: dict[str, Known] = known(
    "diverges",
    'a flag is taken for true if it is not empty, so that the text "False" switches it on, and None off',
    "seen here",
    "a_flag_is_true_or_false",
)

# PyTorch's checkpoint in a graph, whatever calls it.
DROPPED: dict[str, Known] = known(
    "diverges",
    "in a graph preserve_rng_state=False and early_stop=False have no effect, and an option may be taken that an eager call "
    "refuses: nothing says so",
    "seen here, torch 2.13",
    "options_of_compiled_regions_are_kept_or_refused",
)

# PyTorch's checkpoint as it is, and its switches.
SWITCHED: dict[str, Known] = known(
    "diverges",
    "the switches are variables of the module: what one thread has switched is switched for the regions of all",
    "seen here, torch 2.13",
    "switches_belong_to_a_thread",
)
SWITCHES_UNHEEDED: dict[str, Known] = known(
    "diverges",
    "with use_reentrant=True set_checkpoint_debug_enabled and set_checkpoint_early_stop have no effect, and nothing says so",
    "seen here, torch 2.13",
    "debug_is_switched_around_forward",
    "early_stop_is_switched_around_forward",
    "switches_belong_to_a_thread",
)

# PyTorch's checkpoint in an exported program.
EXPORTED: dict[str, Known] = known(
    "diverges",
    "strict=False exports a region that needs no graph of its own, one of the reentrant variant or inside of another, without "
    "grad mode, and what follows it, too: gradients are lost",
    "pytorch#185140; seen here, torch 2.13",
    "exported_regions_equal_plain",
)
EXPORTED_BY_DYNAMO: dict[str, Known] = known(
    "crashes",
    "strict=True ends in a KeyError about _checkpoint_context_fn, unless a context_fn is given",
    "seen here, torch 2.13",
    "regions_exported_by_dynamo_equal_plain",
)
