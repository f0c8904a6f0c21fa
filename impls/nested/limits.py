"""Laws that nested alone does not keep, for what it tells tensors and containers by. Every entry is checked."""

from __future__ import annotations

from impls.implementation import Known, known

# Whatever lets go of a container that holds what is dropped or what its graph holds.
MADE_ANEW: dict[str, Known] = known(
    "diverges",
    "a container is made anew for the recomputation if hooks around get its tensors, or if the function has put a result into "
    "it, as keeping it would keep what is dropped, or a graph that the garbage collector does not see: ``id`` is another",
    "seen here",
    "containers_whose_tensors_are_watched",
)

# Whatever compares the tensors that are saved, and not those that they are computed from.
COMPUTED_ANEW: dict[str, Known] = known(
    "diverges",
    "a result that the function computes from a tensor is not kept, so another tensor in its place is not noticed; what is "
    "kept are leaves that are saved themselves, or as casts that autocast caches",
    "seen here",
    "what_is_computed_from_a_tensor_that_is_replaced",
)

# Whatever counts what an inner region is passed in containers among the outer one's tensors.
COUNTED: dict[str, Known] = known(
    "refuses",
    "the tensors in a container that an inner region is passed are saved by the outer region, so another number of them in the "
    "recomputation leaves the ones after them without their places",
    "seen here",
    "containers_that_an_inner_region_alone_is_passed",
)
