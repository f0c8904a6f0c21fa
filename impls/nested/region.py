"""A region of the nested checkpoint: its slots in the graph, and what unpacking one of them sets going.

Where the time goes (``python -m benches.overhead --profile`` measures it): three calls of Python for each saved tensor,
``pack`` here, ``Recomputation.pack``, ``unpack`` here; then the looks at the tensor, in forward and again, and the handle
that follows its version counter. So a slot is one tuple, looks are compared as one, and equal neighbours share it. To follow
only tensors that outlive forward would save the handle, and would miss a change to one that died before the change, made
through an alias that was detached from it. What is fixed for a region is the stop, random state, modes and arguments.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn

import torch

from impls.nested.hook_registrations import undone
from impls.nested.inputs import Held, Inputs, put_back
from impls.nested.operator_log import Operators, listing
from impls.nested.outside_tensors import Origin, keep, origin
from impls.nested.recomputation import Recomputation, Values
from impls.nested.user_hooks import Within
from impls.state import modes, random_numbers, streams, under_way
from impls.state.restoration import Restoration
from impls.state.turns import NoTurnError, undisturbed
from impls.tensors.versions import Counter, Look, counter, described, look
from impls.torch_private import (
    current_autograd_node,
    current_graph_exec_group,
    current_graph_task_id,
    innermost_transform,
    is_batched_tensor,
    next_sequence_number,
    queue_callback,
    top_hooks,
)

# What regions have recomputed for a group of backward calls, owned by neither: it is gone with the group or with the graph.
_grouped: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Region, Values]] = weakref.WeakKeyDictionary()


class CheckpointError(RuntimeError):
    """A region cannot be recomputed, or its recomputation is not what forward was."""


# Stands in the graph for a tensor that forward saved: its index, what follows its version, and how it looked then.
Slot = tuple[int, Counter, Look]


def _references(slots: list[Any]) -> list[int]:
    return [sys.getrefcount(slot) for slot in slots]


(_ALONE,) = _references([(object(),)])  # as many as an object has that is nowhere but in the list


def _in_graph(slots: list[Slot]) -> list[Slot | None]:
    """The slots that somebody else holds too, which is the graph; None in place of those that it has cleared.

    A forward that is under way on another thread may add slots meanwhile: those are left out.
    """
    return [slot if count > _ALONE else None for count, slot in zip(_references(slots), slots, strict=False)]


def _read_with(slot: Slot) -> set[int]:
    """The identities of the slot and of those that the node which is being executed has saved beside it.

    Whoever reads the ``ctx.saved_tensors`` of a custom Function a second time reads all of them, and one recomputation will do.
    """
    node = current_autograd_node()
    try:
        own = {id(one.data) for one in getattr(node, "_raw_saved_tensors", ())}
    except RuntimeError:  # a node that has freed its own, while a hook reads those of another one
        own = set()
    return own if id(slot) in own else {id(slot)}


class Region(Within):
    """One call of ``checkpoint``: its inputs, its slots, and how to run it again."""

    def __init__(self, function: Callable[..., Any], inputs: Inputs | Held, context: AbstractContextManager[Any]) -> None:
        self.function, self.inputs, self.context = function, inputs, context
        self.slots: list[Slot] = []
        self.look: Look | None = None
        self.inside: list[int] = []  # versions of the tensors that regions inside saved
        self.enclosing = _enclosing()
        # Tensors from outside by the index of their slots; -1, -2 and so on, for those that regions inside saved.
        self.outside: dict[int, Origin] = {}
        self.begun: int = self.enclosing.begun if isinstance(self.enclosing, Region) else next_sequence_number()
        self.values: dict[int, weakref.ref[Values]] = {}
        self.modes, self.stream = modes.present(), streams.current()
        self.left: modes.ProcessWide | None = None
        self.states: random_numbers.States = []
        self.early_stop, self.check, self.complete = True, True, False
        self.operators: Operators | None = None

    def pack(self, tensor: torch.Tensor) -> Slot:
        seen = look(tensor)
        if seen == self.look:
            seen = self.look  # neighbours often look the same, and then one object serves them all
        else:
            self.look = seen
        slots = self.slots
        slot = (len(slots), counter(tensor), seen)  # rule 1: hooks do not stack, so only the innermost region is asked
        slots.append(slot)
        base, known = tensor._base, None
        node = tensor.grad_fn if base is None else base.grad_fn
        if (node is None or node._sequence_nr() < self.begun) and self.check and not self.inputs.has(tensor):
            known = origin(tensor, tensor if base is None else base, slot[1], seen)
            if known is not None:
                self.outside[slot[0]] = known
        if self.enclosing is not None:
            self.enclosing.saw(tensor, known)
        return slot

    def saw(self, tensor: torch.Tensor, known: Origin | None) -> None:
        """Note the version of a tensor that a region inside saves, for comparison when this one is recomputed."""
        one: Region | Recomputation | None = self
        while isinstance(one, Region):  # no recursion: regions may be as deep as Python allows for
            one.inside.append(tensor._version)
            if known is not None:
                one.outside[-len(one.inside)] = known
            one = one.enclosing
        if one is not None:
            one.saw(tensor, known)

    def end(self, output: Any) -> None:
        """Forward is over, or has failed: let go of what only that needed. What is from outside shows as the outermost ends."""
        if self.outside and not isinstance(self.enclosing, Region):
            keep(self.outside.values(), output, watched=self.inputs.watched)
        self.enclosing = self.look = self.around = None
        self.inputs.end()

    def unpack(self, slot: Slot) -> torch.Tensor:
        index, follows, seen = slot
        version = seen[3]
        now = follows._version
        if now != version:
            self.refuse(f"saved tensor {index} ({described(seen)}) was changed in place after it was saved: it is at "
                        f"version {now}, expected version {version}. Clone it before changing it")  # fmt: skip
        task = current_graph_task_id()
        reference = self.values.get(task)
        values = None if reference is None else reference()
        tensor = None if values is None else values.pop(index, None)  # rule 4: it dies as it is unpacked
        if tensor is None:
            tensor = self.bring(task, slot)
        if tensor._version != version:
            self.refuse(f"saved tensor {index} ({described(seen)}) was changed in place during recomputation, "
                        "unlike in forward")  # fmt: skip
        return tensor

    def recomputed(self, task: int) -> Values | None:
        """What is left of the recomputation for a backward."""
        reference = self.values.get(task)
        return None if reference is None else reference()

    def bring(self, task: int, slot: Slot) -> torch.Tensor:
        """Recompute, while other threads do not recompute this region, unless that would make one wait for ever."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self.bring(task, slot)
        begun = under_way.begin(id(self))
        try:
            values = self.recomputed(task)
            if values is None and task != -1 and (group := current_graph_exec_group()) is not None:
                values = self.adopted(task, group)
            if values is None or slot[0] not in values:  # another thread of this backward may have come first
                values = undisturbed(partial(self.recompute, task, slot))
            return values.pop(slot[0])
        except NoTurnError as error:
            self.refuse(str(error))
        finally:
            if begun:
                under_way.end(id(self))

    def adopted(self, task: int, group: Any) -> Values | None:
        """What is left of the recomputation for a group of backward calls, of which this is another one."""
        regions = _grouped.get(group)
        values = None if regions is None else regions.get(self)
        if values is not None:
            self.values[task] = weakref.ref(values)
        return values

    def recompute(self, task: int, slot: Slot) -> Values:
        """Run the function again and bring what is alive; slots that the graph has cleared are skipped (rule 6)."""
        complete = self.complete  # asked before the slots are, as forward may end meanwhile on another thread
        wanted = _in_graph(self.slots)
        there = self.recomputed(task)
        if there is not None and there.task != task:  # another backward of the group has used up what this one needs
            wanted = [None if one is None or one[0] in there else one for one in wanted]
            there.task = task
        elif task == -1 or there is not None:
            asked = _read_with(slot)  # outside a backward, or again within one
            wanted = [one if id(one) in asked else None for one in wanted]
        changed = self.inputs.changed()
        if changed is not None:
            self.refuse(f"input tensor {changed} was changed in place since it was passed, so forward cannot be repeated. "
                        "Clone it before changing it")  # fmt: skip
        args, kwargs, tensors, through = self.inputs.restore()  # rule 2: unpacking these recomputes the parent first
        run = Recomputation(wanted, self.slots, self.inside, self.outside, self.unpack, complete=complete,
                            early_stop=self.early_stop, check=self.check, log=self.operators is not None)  # fmt: skip
        group = None if task == -1 else current_graph_exec_group()
        shared = group is not None or (task != -1 and len([one for one in wanted if one is not None]) > 1)
        try:
            if any(map(_has_left_vmap, tensors)):
                self.refuse("it was called under torch.func.vmap, which is over, so forward cannot be repeated. Call vmap "
                            "inside the region")  # fmt: skip
            # Backward may come from another stream: of a node that forward ran elsewhere.
            with streams.on(self.stream), undone(tensors, registering=self.inputs.registering()):
                surroundings = Restoration(self.modes, self.states, self.left)
                values = run.run(lambda: self.function(*args, **kwargs), surroundings, self.context)  # keeps rule 3
        finally:
            put_back(through)
        if run.mismatch is not None:
            self.refuse(f"recomputation differs from forward: {run.mismatch}. The function must do the same in both runs",
                        run.operators)  # fmt: skip
        if there is not None:
            there.update(values)
            return there
        if shared:
            self.values = {key: weak for key, weak in self.values.items() if weak() is not None}
            values.task = task
            self.values[task] = weakref.ref(values)
        if group is not None:
            _grouped.setdefault(group, weakref.WeakKeyDictionary())[self] = values
        elif shared:
            queue_callback(values)  # rule 4: also when the task fails
        return values

    def refuse(self, reason: str, recomputed: Operators | None = None) -> NoReturn:
        name = getattr(self.function, "__qualname__", None) or type(self.function).__qualname__
        message = f"checkpointed region {name!r}: {reason}."
        if self.operators is not None:
            message += listing("Operators in forward", self.operators)
            message += listing("Operators in recomputation", recomputed)
        raise CheckpointError(message)


def _has_left_vmap(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func.vmap, and no transform is under way in which it could be used."""
    return is_batched_tensor(tensor) and innermost_transform() is None


def _enclosing() -> Region | Recomputation | None:
    """The region whose forward or recomputation is under way here, if no other hooks are in between."""
    hooks = top_hooks(True)
    owner = getattr(hooks[0], "__self__", None) if hooks else None
    return owner if isinstance(owner, Region | Recomputation) else None
