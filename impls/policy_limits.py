"""Limits of PyTorch's selective policies, which whatever takes them for its context_fn has.

Every entry is checked, as those of :mod:`impls.known_failures` are.
"""

from __future__ import annotations

from impls.implementation import Known, known

# Of PyTorch's selective policies: what they keep is not run again.
KEPT: dict[str, Known] = {
    **known(
        "diverges",
        "what a policy keeps is not drawn again, so what is drawn after it gets its random numbers: masks are others, and "
        "gradients wrong",
        "seen here",
        "what_is_drawn_after_what_a_policy_keeps",
    ),
    **known(
        "diverges",
        "allow_cache_entry_mutation=True switches the policy's own check off: a recomputation gets what forward left and "
        "changes that once more, and what operators save of it afterwards looks as it did",
        "its documentation; seen here, torch 2.13",
        "kept_results_that_may_be_changed_and_are_read",
    ),
    **known(
        "diverges",
        "a policy compares version counters, and .data and the chunks of unsafe_chunk, as of a GRU, have counters of their "
        "own: a recomputation gets what forward left and changes that once more",
        "seen here, torch 2.13",
        "kept_results_that_change_where_no_version_tells",
    ),
}

# Of PyTorch's selective policies, before torch 2.14.
BYPASSED: dict[str, Known] = known(
    "refuses",
    "what a policy keeps is out of sight of hooks before torch 2.14, and to ask for it is refused",
    "https://docs.pytorch.org/docs/2.15/checkpoint.html, respect_saved_tensors_hooks",
    "hooks_get_what_a_policy_keeps_if_asked_to",
)
