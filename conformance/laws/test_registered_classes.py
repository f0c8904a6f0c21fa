"""Arguments of classes that pytree knows: an object comes to the function with all that it has."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.scenarios.regions import containers
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="structure", floor=4)
_NEEDS = ["non-tensor-arguments", "nesting"]
_AROUND = st.sampled_from(["nothing", "a region", "save_on_cpu"])
_CLASSES = st.sampled_from(["class", "dataclass", "named tuple", "OrderedDict"])


@for_readers("advanced", "wrong gradient", "register_pytree_node, register_dataclass, state_dict, _metadata, cached_property")
@law(named(containers.what_is_beside_tensors, kind=_CLASSES, around=_AROUND), needs=_NEEDS)
def test_what_is_beside_tensors_in_an_argument(case: Case) -> None:
    """What an argument has beside its registered parts or its items, such as an attribute that was set later, is there."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "register_pytree_node, KV cache, transformers")
@law(
    named(
        containers.what_flattening_makes,
        makes=st.sampled_from(["tuples", "views"]),
        count=st.integers(2, 4),
        around=_AROUND,
    ),
    needs=_NEEDS,
)
def test_parts_that_a_class_makes_as_it_is_taken_apart(case: Case) -> None:
    """Objects whose registered parts are made when pytree asks for them come back with their own parts, not with another's."""
    case.equals_plain()


@for_readers("adversarial", "wrong state", "subclass of list, __iter__, items, lazy container")
@law(
    named(
        containers.looked_through,
        kind=st.sampled_from(["list", "deque", "dict"]),
        found=st.sampled_from(["closure", "default"]),
    ),
    needs=["non-tensor-arguments"],
)
def test_containers_near_a_function_are_not_iterated(case: Case) -> None:
    """What a function refers to, but is not passed, is not iterated by methods of its own class."""
    case.equals_plain()
