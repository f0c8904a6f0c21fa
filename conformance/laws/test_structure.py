"""Structure: arguments reach the function, and results come back, as they are."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.refusals import REQUIRES_GRAD
from conformance.programs.scenarios import kept_objects
from conformance.programs.scenarios.regions import containers, owned_objects, replaced_hooks, structure
from conformance.programs.strategies import CORE, named, programs
from conformance.programs.sums import Sums
from conformance.rows.for_readers import for_readers


@for_readers("everyday", "wrong gradient", "kwargs, attention_mask, HuggingFace")
@law(programs(always=["keyword"], sometimes={*CORE, "retain"}), needs=["keyword-arguments"], floor=8)
def test_keyword_arguments(case: Case) -> None:
    """A tensor passed by keyword gets plain's gradient."""
    case.equals_plain()


_KINDS = st.sampled_from(("function", "callable", "method", "function of a class"))


@for_readers("advanced", "wrong gradient", "decorator")
@law(
    named(structure.decorated, kind=_KINDS, early=st.booleans(), calls=st.integers(1, 3)),
    needs=["decorator", "keyword-arguments"],
    floor=4,
    about=["early_stop"],
)
def test_options_alone_give_a_decorator(case: Case) -> None:
    """Without a function, options give a decorator for functions and methods; a decorated function gets every keyword."""
    case.as_expected()


@for_readers("adversarial", "wrong gradient", "id, attribute of a tensor, rotary positions")
@law(named(kept_objects.known_by_identity, attribute=st.booleans(), result=st.booleans(), nested=st.booleans()), floor=4)
def test_arguments_that_are_known_by_identity(case: Case) -> None:
    """A tensor without a gradient that a function is passed is the same object each time, also if it has attributes."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "list, tuple, dict, dataclass, namedtuple, HuggingFace")
@law(programs(always=["containers"], sometimes={*CORE, "retain"}), needs=["containers"], floor=8)
def test_containers_as_arguments(case: Case) -> None:
    """Tensors inside lists, tuples, dicts, namedtuples and dataclasses get plain's gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "OrderedDict, ModelOutput, PackedSequence, torch.return_types, HuggingFace")
@law(programs(always=["unusual-containers"]), needs=["containers"], floor=8,
     about=["OrderedDict", "Output", "PackedSequence", "sort"])  # fmt: skip
def test_containers_that_are_unusual(case: Case) -> None:
    """Tensors in an OrderedDict, a subclass of dict, a return type or a PackedSequence get plain's gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "many arguments, many outputs, attention")
@law(programs(always=["many-arguments"], sometimes={*CORE, "many-outputs"}), floor=4, effort=0.6)
def test_many_arguments_and_results(case: Case) -> None:
    """However many tensors a function takes and returns, each gets its gradient."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "kwargs, self, input, args, mask")
@law(programs(always=["named-arguments"]), needs=["keyword-arguments"], floor=4, effort=0.6)
def test_arguments_of_any_name(case: Case) -> None:
    """An argument may be called self, input, args or kwargs."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "detach, view, target network")
@law(programs(always=["aliases"]), floor=4, effort=0.6)
def test_arguments_that_share_a_storage(case: Case) -> None:
    """A tensor and a view of it, or it detached, passed together, get plain's gradients."""
    case.equals_plain()


_EMPTIED = {"kind": st.sampled_from(["list", "dict"]), "passes": st.integers(1, 2)}


@for_readers("advanced", "wrong gradient", "pop, list, dict")
@law(named(structure.emptied, **_EMPTIED), needs=["containers"], floor=3)
def test_containers_that_the_function_empties(case: Case) -> None:
    """A function may take out what is in a list or dict that it is passed: each recomputation finds it there again."""
    case.equals_plain()


_TWICE = {"kind": st.sampled_from(["list", "dict", "dataclass"]), "inside": st.booleans(), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "shared list, KV cache")
@law(named(structure.passed_twice, keyword=st.booleans(), **_TWICE), needs=["containers", "keyword-arguments"], floor=4)
def test_a_container_passed_twice(case: Case) -> None:
    """A list, dict or dataclass that is passed twice, once inside another container or not, is one object in each run."""
    case.equals_plain()


@for_readers("advanced", "wrong state", "dataclass, __post_init__")
@law(named(structure.constructed, watched=st.booleans(), nested=st.booleans()), needs=["containers"], floor=2)
def test_dataclasses_are_not_constructed_anew(case: Case) -> None:
    """A dataclass comes with all of its attributes as they are: its constructor does not run for a recomputation."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "ModelOutput, dict, HuggingFace")
@law(programs(always=["container-outputs"]), needs=["containers"], floor=8)
def test_containers_as_outputs(case: Case) -> None:
    """A result in containers comes back in containers of the same types, and carries gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "flags, None, int, use_cache")
@law(programs(always=["non-tensors"]), needs=["non-tensor-arguments"], floor=8)
def test_non_tensor_arguments(case: Case) -> None:
    """None, numbers, strings and dtypes are passed on to the function."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "None, use_cache, HuggingFace")
@law(programs(always=["non-tensor-outputs"]), needs=["non-tensor-outputs"], floor=8)
def test_non_tensor_outputs(case: Case) -> None:
    """None and numbers among the outputs come back as they are."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "find_unused_parameters, auxiliary head")
@law(programs(always=["unused-outputs"]), floor=8)
def test_unused_outputs(case: Case) -> None:
    """An output that nothing uses changes no gradient."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "residual, identity, pass-through")
@law(programs(always=["input-outputs"]), floor=8)
def test_outputs_that_are_inputs(case: Case) -> None:
    """A function may return one of its inputs."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "chunk, split, reshape")
@law(programs(always=["view-outputs"]), floor=8)
def test_outputs_that_are_views(case: Case) -> None:
    """A function may return a value and a view of it."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "tied outputs")
@law(programs(always=["repeated-outputs"]), floor=8)
def test_an_output_returned_twice(case: Case) -> None:
    """A function may return the same tensor twice."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "self attention, query key value")
@law(programs(always=["repeated-inputs"]), floor=8)
def test_the_same_tensor_passed_twice(case: Case) -> None:
    """The same tensor may be passed twice."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "mask, argmax, indices, metrics")
@law(programs(always=["no-grad-outputs"]), floor=8)
def test_outputs_without_grad(case: Case) -> None:
    """Detached and boolean outputs come back as such, and do not require grad."""
    case.equals_plain()


FALSY = st.sampled_from([False, None, 0])


@for_readers("everyday", "wrong gradient", "use_cache=False, attention_mask=None, kwargs")
@law(named(structure.keywords, flag=FALSY, nested=st.booleans()), needs=["keyword-arguments", "non-tensor-arguments"])
def test_keyword_arguments_that_are_false(case: Case) -> None:
    """None, False and 0 passed by keyword reach the function in both runs, and keywords come in the order of the call."""
    case.equals_plain()


KIND = st.sampled_from(["dataclass", "enum"])


@for_readers("everyday", "wrong state", "config, dataclass, Enum")
@law(named(structure.sentinel, kind=KIND, nested=st.booleans()), needs=["non-tensor-arguments"], floor=3)
def test_objects_without_tensors(case: Case) -> None:
    """An object that holds no tensor is the same object in both runs."""
    case.equals_plain()


_AGAIN = {"times": st.integers(2, 4), "onward": st.booleans(), "keyword": st.just(False), "draws": st.just(False)}


@for_readers("everyday", "wrong gradient", "gradient accumulation, shared layer, recurrent network, ALBERT")
@law(named(structure.called_again, **_AGAIN), floor=3)
def test_the_same_call_again(case: Case) -> None:
    """A function that is called again, on the same tensors or on others, runs again, and each call gets its gradient."""
    case.equals_plain()


_HOOKING = {"leaf": st.booleans(), "accumulated": st.booleans(), "passes": st.integers(1, 3), "fails": st.booleans()}


_hooking = functools.partial(named, structure.hooking, nested=st.booleans(), **_HOOKING)


@for_readers("advanced", "wrong gradient", "register_hook")
@law(_hooking(form=st.sampled_from(["alone", "second"])), floor=6)
def test_hooks_that_a_function_registers_on_its_argument(case: Case) -> None:
    """Hooks that the function registers on its argument are there once, however often the function is run again, or fails."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "register_hook, kwargs")
@law(_hooking(form=st.sampled_from(["keyword", "list"])), needs=["keyword-arguments", "containers"], floor=6)
def test_hooks_on_arguments_by_keyword_and_in_containers(case: Case) -> None:
    """Hooks that the function registers on what comes by keyword or in a list are there once, however often it runs again."""
    case.equals_plain()


_REHOOKING = {"steps": st.integers(1, 2), "passes": st.integers(1, 2), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "register_hook, remove")
@law(named(structure.rehooking, leaf=st.booleans(), accumulated=st.booleans(), **_REHOOKING), floor=6)
def test_hooks_that_a_function_replaces_on_its_argument(case: Case) -> None:
    """A hook that the function takes off and registers anew on its argument is there once, and its last handle removes it."""
    case.equals_plain()


_INSIDE_HOOKING = {"module": st.booleans(), "beside": st.booleans(), "nested": st.booleans(), "passes": st.integers(1, 2)}


@for_readers("advanced", "wrong gradient", "register_hook, remove, module")
@law(named(replaced_hooks.inside, steps=st.integers(1, 2), **_INSIDE_HOOKING), floor=6)
def test_hooks_that_a_function_replaces_inside_another(case: Case) -> None:
    """A hook that a module replaces on its argument is there once, also if it is called in a region, or in two."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "register_forward_hook, remove, module, autograd.grad")
@law(
    named(replaced_hooks.on_a_module_for_a_while, Sums(terms=256), steps=st.integers(1, 3), nested=st.booleans()),
    needs=["higher-order"],
    floor=3,
    about=REQUIRES_GRAD,
)
def test_module_hooks_that_a_function_takes_off_for_a_while(case: Case) -> None:
    """A module's hook that the function takes off and registers anew is there once, also if it asks for gradients inside."""
    case.equals_plain()


_LAST = {"kind": st.sampled_from(["tensor", "accumulation", "node"]), "passes": st.integers(1, 2), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "register_hook, remove")
@law(named(replaced_hooks.at_the_end, steps=st.integers(2, 3), **_LAST), floor=6)
def test_hooks_that_a_function_registers_anew_at_its_end(case: Case) -> None:
    """A hook that the function takes off first and registers anew after all that it saves is there once, in each step."""
    case.equals_plain()


_MEANWHILE = {"leaf": st.booleans(), "hooking": st.booleans(), "removing": st.booleans(), "nested": st.booleans()}
_MEANWHILE |= {"kind": st.sampled_from(["tensor", "before the node", "after the node"])}


@for_readers("adversarial", "wrong gradient", "register_hook, threads")
@law(named(replaced_hooks.hooked_meanwhile, **_MEANWHILE), floor=6)
def test_hooks_that_another_thread_registers_meanwhile(case: Case) -> None:
    """A hook that another thread registers on an argument or its node while the function runs again stays, as do its own."""
    case.equals_plain()


# On an accelerator one thread runs the backwards of all.
@for_readers("adversarial", "wrong gradient", "register_hook, threads")
@law(named(structure.hooked_for_a_while, leaf=st.booleans()), needs=["subset-requests", "rng-option"], floor=2, devices=["cpu"],
     preserve_rng_state=False)  # fmt: skip
def test_hooks_that_another_recomputation_takes_off(case: Case) -> None:
    """A hook that a function registers on its argument for a while is gone after it ran again, beside another thread's run."""
    case.equals_plain()


_ON_NODES = {"kind": st.sampled_from(["before", "after", "several"]), "passes": st.integers(1, 2), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "register_hook, register_prehook, grad_fn")
@law(named(structure.hooking_nodes, leaf=st.booleans(), **_ON_NODES), floor=6)
def test_hooks_that_a_function_registers_on_its_arguments_node(case: Case) -> None:
    """Hooks that the function registers on the node of its argument, before or after it runs, are there once."""
    case.equals_plain()


HOOKED = st.sampled_from(["result", "module"])


@for_readers("advanced", "wrong state", "register_forward_hook, TorchDispatchMode, TorchFunctionMode")
@law(named(structure.asking_for_modes, hooked=HOOKED, nested=st.booleans()), floor=3)
def test_a_function_that_asks_for_modes(case: Case) -> None:
    """A function that registers hooks, or has modules with some, finds no mode in its second run that forward did not."""
    case.equals_plain()


KINDS = st.sampled_from(["list", "dict", "tuple", "deep", "dataclass"])
_identified = functools.partial(named, containers.identified, keyword=st.just(False))


@for_readers("adversarial", "wrong gradient", "id, is, memo")
@law(_identified(kind=KINDS, holds=st.booleans(), nested=st.booleans())
     | _identified(kind=st.just("empty"), holds=st.just(False), nested=st.booleans()),
     needs=["non-tensor-arguments"], floor=6)  # fmt: skip
def test_containers_that_the_function_identifies(case: Case) -> None:
    """A container that a function is passed is the same object in each run, also if it passes it on to a region inside."""
    case.equals_plain()


_CHANGED = {"kind": st.sampled_from(["list", "deque", "dict", "dataclass"]), "holds": st.booleans()}
_changed = functools.partial(named, containers.identified_and_changed, **_CHANGED)


@for_readers("adversarial", "wrong gradient", "id, is, memo, append")
@law(_changed(puts=st.just("a number"), by=st.just("the function"), for_a_while=st.just(False), nested=st.booleans())
     | _changed(puts=st.just("a number"), by=st.just("the caller"), for_a_while=st.booleans(), nested=st.booleans()),
     needs=["non-tensor-arguments"], floor=6)  # fmt: skip
def test_containers_that_the_function_identifies_and_changes(case: Case) -> None:
    """A container that the function puts a number into, or its caller after the call, is the same object in each run."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "id, is, memo, append, save_on_cpu")
@law(_changed(puts=st.just("a result"), by=st.just("the function"), for_a_while=st.just(False), nested=st.just(False))
     | _changed(puts=st.just("a result"), by=st.just("the caller"), for_a_while=st.just(True), nested=st.just(False))
     | named(containers.identified_under_hooks, kind=st.sampled_from(["list", "dict"])),
     needs=["non-tensor-arguments"], floor=3)  # fmt: skip
def test_containers_whose_tensors_are_watched(case: Case) -> None:
    """A container is the same object in each run, also if a result is put into it, or hooks get its tensors."""
    case.equals_plain()


_TURNS = st.integers(1, 2)
_LISTS = {"kind": st.sampled_from(["list", "deque", "dict"]), "meanwhile": st.sampled_from(["nothing", "a result"])}
_around = functools.partial(named, containers.changed_around_a_region, **_LISTS)


@for_readers("adversarial", "wrong gradient", "id, is, cache, pop, append, attribute, closure")
@law(_around(known=st.just("by identity"), ends=st.just("as it was"))
     | _around(known=st.just("by another name"), ends=st.sampled_from(["as it was", "a result"])),
     needs=["non-tensor-arguments", "nesting"], floor=6)  # fmt: skip
def test_containers_that_a_function_changes_around_another_region(case: Case) -> None:
    """What a function changes, and knows by another name or identity, it finds again, also if it calls a region meanwhile."""
    case.equals_plain()


@for_readers("adversarial", "poor error", "OrderedDict, defaultdict, tensor as key")
@law(named(containers.keyed_by_tensors, kind=st.sampled_from(["dict", "OrderedDict", "defaultdict"]), passes=_TURNS),
     needs=["non-tensor-arguments"], floor=4)  # fmt: skip
def test_containers_whose_keys_are_tensors(case: Case) -> None:
    """A container whose function replaces a tensor that is a key has the first one again in the second run."""
    case.equals_plain()


_BORROWED = {"kind": st.sampled_from(["list", "deque", "dict", "dataclass"]), "holds": st.booleans(), "nested": st.booleans()}


@for_readers("adversarial", "wrong state", "list, append, pop")
@law(named(structure.borrowed, **_BORROWED), needs=["non-tensor-arguments"], floor=6)
def test_containers_that_the_function_changes_for_a_while(case: Case) -> None:
    """What the function changes in a container that it is passed, and changes back, is as it was after backward, too."""
    case.equals_plain()


_AFTER = {"kind": _BORROWED["kind"], "holds": st.booleans(), "during": st.booleans(), "steps": st.integers(1, 3)}


@for_readers("advanced", "wrong gradient", "DenseNet, append, hidden states, KV cache")
@law(named(structure.changed_after_the_call, **_AFTER), needs=["non-tensor-arguments"], floor=6)
def test_containers_that_change_after_the_call(case: Case) -> None:
    """The function runs again on what containers held at the call, and what was done to them since is there after backward."""
    case.equals_plain()


_AROUND = {"kind": st.sampled_from(["list", "dict"]), "regions": st.integers(1, 3), "others": st.integers(0, 4)}


@for_readers("adversarial", "wrong state", "list, append, pop")
@law(named(structure.borrowed_around_regions, **_AROUND), needs=["non-tensor-arguments", "nesting"], floor=6)
def test_containers_that_the_function_changes_around_regions(case: Case) -> None:
    """A container that the function changes, and changes back after other regions, is as it was after backward, too."""
    case.equals_plain()


_ENDS = {"changed": st.booleans(), "inherited": st.booleans(), "nested": st.booleans(), "passes": st.integers(1, 2)}


@for_readers("adversarial", "wrong state", "dataclass, __del__, files")
@law(named(owned_objects.finalized, **_ENDS), needs=["non-tensor-arguments"], floor=6)
def test_objects_that_clean_up_at_their_end(case: Case) -> None:
    """A dataclass with a ``__del__`` is not copied for a recomputation, so nothing is cleaned up before it ends itself."""
    case.equals_plain()


_SHARED = {"kind": st.sampled_from(["list", "dict"]), "calls": st.integers(2, 3)}


@for_readers("adversarial", "wrong gradient", "list, dict, cache, attribute, closure")
@law(named(owned_objects.also_an_attribute, **_SHARED), needs=["non-tensor-arguments"], floor=3)
def test_containers_that_the_function_reads_by_another_name(case: Case) -> None:
    """A function that fills a container that it is passed, and reads it by another name, gets plain's gradients."""
    case.equals_plain()


_INSIDE = {"held": st.integers(0, 2), "calls": st.integers(1, 2), "ends": st.booleans(), "first": st.booleans()}
_CHANGE = st.sampled_from(["inside", "later", "never"])


@for_readers("adversarial", "wrong gradient", "list, append, KV cache, attribute, closure")
@law(named(owned_objects.passed_inside_alone, change=_CHANGE, **_INSIDE), needs=["non-tensor-arguments", "nesting"], floor=8)
def test_containers_that_an_inner_region_alone_is_passed(case: Case) -> None:
    """A container that grows after forward, and is passed to an inner region alone, leaves the outer one's gradients right."""
    case.equals_plain()
