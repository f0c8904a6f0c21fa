"""Traces of operators: what a forward and backward computed, from what, of what size and cost, and when each value died.

A value is one state of one storage: an operator that writes in place reads one value and makes the next. Views make no
value. Tensors that were there before, such as parameters and inputs, are constants, outside of every memory budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves
from torch.utils.flop_counter import flop_registry

FLOPS_PER_BYTE = 50  # of a typical accelerator; only the ratio of costs matters here


class Event(NamedTuple):
    """``compute`` the operator of that number, or ``release`` or ``drop`` the value of that number."""

    kind: str
    number: int


class Ref(NamedTuple):
    """A tensor among an operator's arguments or results: how it lies in the storage of a value."""

    value: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int | torch.SymInt


@dataclass(frozen=True)
class Call:
    """How to run an operator again: its arguments flattened, with Refs for values, and the Refs of its results."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec
    results: tuple[Ref | None, ...]
    written: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Op:
    """An operator: the values it reads and makes, and its cost."""

    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    cost: int
    call: Call | None = None


@dataclass(frozen=True)
class Trace:
    """Operators in order with the releases in between, and the size of each value. What is never released is a result."""

    ops: tuple[Op, ...]
    sizes: tuple[int, ...]
    events: tuple[Event, ...]
    outputs: tuple[Ref, ...] = ()

    @property
    def makers(self) -> tuple[int, ...]:
        """The operator that makes each value."""
        made = {value: index for index, op in enumerate(self.ops) for value in op.makes}
        return tuple(made[value] for value in range(len(self.sizes)))

    @property
    def results(self) -> frozenset[int]:
        """Values that are to be there at the end."""
        return frozenset(range(len(self.sizes))) - {event.number for event in self.events if event.kind == "release"}

    @property
    def cost(self) -> int:
        """What all operators cost once."""
        return sum(op.cost for op in self.ops)

    @property
    def peak(self) -> int:
        """The most that is alive when nothing is evicted."""
        alive = peak = 0
        for kind, number in self.events:
            alive += sum(self.sizes[value] for value in self.ops[number].makes) if kind == "compute" else -self.sizes[number]
            peak = max(peak, alive)
        return peak

    @property
    def floor(self) -> int:
        """The most that one operator reads and makes: no budget below that can do."""
        return max(sum(self.sizes[value] for value in {*op.reads, *op.makes}) for op in self.ops)


def linear_chain(n: int) -> Trace:
    """A chain of ``n`` layers of one unit each: forward i reads i - 1, backward i reads forward i - 1 and the gradient.

    The chain's input and the loss gradient are constants. A value dies after the last operator that reads it, that of the last
    forward at once. It is what autograd does on a chain of softplus when nobody holds the output; a test compares the two.
    """
    ops = [Op("forward", (i - 1,) if i else (), (i,), 1) for i in range(n)]
    events = [*(Event("compute", i) for i in range(n)), Event("release", n - 1)]
    for i in reversed(range(n)):
        reads = (() if i == n - 1 else (len(ops) - 1,)) + (() if i == 0 else (i - 1,))
        events += [Event("compute", len(ops)), *(Event("release", value) for value in sorted(reads))]
        ops.append(Op("backward", reads, (len(ops),), 1))
    return Trace(tuple(ops), (1,) * len(ops), tuple(events))


def record(
    function: Callable[[], Sequence[torch.Tensor]], *, cost: Callable[[Any, Any, Any, Any], int] | None = None
) -> tuple[Trace, Sequence[torch.Tensor]]:
    """Run ``function``: the trace of this thread's operators, and its value. What is still alive then are the results.

    ``cost(operator, args, kwargs, result)`` defaults to bytes moved, or operations / 50 when that is more. Raises
    ValueError for an operator that draws random numbers or writes to a constant: running it again would be another thing.
    """
    recorder = _Recorder(cost or roofline)
    with recorder:
        value = function()
    recorder.release()
    outputs = tuple(ref for ref in map(recorder.ref, value) if isinstance(ref, Ref))
    return Trace(tuple(recorder.ops), tuple(recorder.sizes), tuple(recorder.events), outputs), value


def roofline(operator: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes read and written, or floating point operations / 50 when that is more."""
    leaves = tree_leaves((args, kwargs, result))
    moved = sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
    count = flop_registry.get(operator.overloadpacket)
    operations = count(*args, **kwargs, out_val=result) if count else 0
    return max(moved, operations // FLOPS_PER_BYTE)


class _Recorder(TorchDispatchMode):
    def __init__(self, cost: Callable[[Any, Any, Any, Any], int]) -> None:
        super().__init__()
        self.cost = cost
        self.ops: list[Op] = []
        self.sizes: list[int] = []
        self.events: list[Event] = []
        self.values: dict[int, tuple[StorageWeakRef, int]] = {}

    def __enter__(self) -> _Recorder:
        super().__enter__()
        torch.empty(0)  # torch's first dispatch imports modules in a cycle that keeps every frame of the stack
        self.ops, self.sizes, self.events, self.values = [], [], [], {}
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ValueError(f"{func} draws random numbers; a recorded function must give the same each time")
        self.release()
        leaves, spec = tree_flatten((args, kwargs))
        refs = [self.ref(leaf) for leaf in leaves]
        given = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
        result = func(*args, **kwargs)
        written = self.written(func, args, kwargs)
        made = [
            self.value(leaf)
            for leaf in tree_leaves(result)
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in given
        ]
        makes = tuple(dict.fromkeys([new for _, new in written] + made))
        if makes:
            reads = tuple(dict.fromkeys(ref.value for ref in refs if isinstance(ref, Ref)))
            results = tuple(one if isinstance(one := self.ref(leaf), Ref) else None for leaf in tree_leaves(result))
            call = Call(func, tuple(refs), spec, results, written)
            self.events.append(Event("compute", len(self.ops)))
            self.ops.append(Op(func.overloadpacket.__name__, reads, makes, self.cost(func, args, kwargs, result), call))
            self.events += [Event("release", old) for old, _ in written]
        return result

    def ref(self, leaf: Any) -> Any:
        """A tensor of a value as a Ref; anything else, constants among it, as it is."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        known = self.values.get(leaf.untyped_storage()._cdata)
        return leaf if known is None else Ref(known[1], leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.storage_offset())

    def value(self, tensor: torch.Tensor) -> int:
        """The value that a tensor's storage has now, a new one for a storage that was not seen."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.values:
            self.values[storage._cdata] = StorageWeakRef(storage), len(self.sizes)
            self.sizes.append(storage.nbytes())
        return self.values[storage._cdata][1]

    def written(self, func: Any, args: Any, kwargs: Any) -> tuple[tuple[int, int], ...]:
        """Values before and after, for each argument that the operator writes to."""
        pairs = []
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(given):
                key = tensor.untyped_storage()._cdata
                if key not in self.values:
                    raise ValueError(f"{func} writes to a tensor that was there before the recording")
                weak, old = self.values[key]
                self.values[key] = weak, len(self.sizes)
                pairs.append((old, len(self.sizes)))
                self.sizes.append(self.sizes[old])
        return tuple(pairs)

    def release(self) -> None:
        """Note which values have died since."""
        for key, (weak, value) in list(self.values.items()):
            if weak.expired():
                del self.values[key]
                self.events.append(Event("release", value))
