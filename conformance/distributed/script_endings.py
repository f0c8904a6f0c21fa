"""How scripts for ranks end: functions whose bodies come after the program, one for each thing that a law measures.

Each rank that ``torchrun`` starts runs one, and ends with status 1 if it sees the fault; torchrun then fails, too. A rank ends
at once: while there are groups, Python's own end aborts now and then ("terminate called without an active exception").
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

Run = Callable[[Any, Callable[..., None], str], object]


def values(run: Run, plain: Any, judged: Any, name: str, tolerance: float) -> None:
    """What a rank notes is what it notes with plain regions, and the other ranks come to their ends.

    An error with plain regions is no fault: it ends the script with status 2, as any that is not expected.
    """
    rank = dist.get_rank()
    expected: dict[str, Any]
    seen: dict[str, Any]
    expected, seen = {}, {}
    run(plain, lambda label, value=None: expected.update({label: tree_map(kept, value)}), "cpu")
    try:
        run(judged, lambda label, value=None: seen.update({label: tree_map(kept, value)}), "cpu")
    except Exception as error:
        print(f"rank {rank}, {name}: {error!r}", flush=True)
        os._exit(1)
    wrong = [label for label, value in expected.items() if differ(value, seen.get(label), tolerance)]
    for label in wrong:
        print(f"rank {rank}, {label}: plain {expected[label]}, {name} {seen.get(label)}", flush=True)
    dist.barrier()
    os._exit(len(wrong) > 0)


def notes(run: Run, plain: Any, judged: Any, name: str) -> None:
    """Nothing is compared: it prints what a rank notes, with plain regions and with those that are judged."""
    rank = dist.get_rank()
    for which, one in (("plain", plain), (name, judged)):
        run(one, lambda label, value=None, which=which: print(f"rank {rank}, {label}: {which} {value}", flush=True), "cpu")
    dist.barrier()
    os._exit(0)


def same(run: Run, judged: Any, label: str) -> None:
    """What ranks note is the same on all of them."""
    notes: dict[str, Any] = {}
    run(judged, lambda label, value=None: notes.update({label: tree_map(kept, value)}), "cpu")
    all_of_them: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, notes[label])
    print(f"rank {dist.get_rank()}, {label}: {notes[label]}", flush=True)
    os._exit(differ(all_of_them[0], notes[label], 0.0))


def expected(run: Run, judged: Any, tolerance: float) -> None:
    """What a rank notes as seen is what it notes as expected."""
    notes: dict[str, Any] = {}
    run(judged, lambda label, value=None: notes.update({label: tree_map(kept, value)}), "cpu")
    due = {label.partition(" ")[2]: value for label, value in notes.items() if label.startswith("expected ")}
    wrong = [label for label, value in due.items() if differ(value, notes.get(f"seen {label}"), tolerance)]
    for label in wrong:
        print(f"rank {dist.get_rank()}, {label}: expected {due[label]}, seen {notes.get(f'seen {label}')}", flush=True)
    dist.barrier()
    os._exit(len(wrong) > 0)


def counts(run: Run, judged: Any, due: dict[str, int]) -> None:
    """A rank issues the collectives in ``due``; if that is empty, all ranks issue the same ones."""
    issued: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__.strip("_")
            if "c10d" in func.namespace and name not in ("wait_tensor", "wrap_tensor_autograd", "monitored_barrier"):
                issued.append(name)
            return func(*args, **(kwargs or {}))

    with Watch():
        run(judged, lambda label, value=None: None, "cpu")
    all_of_them: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, issued)
    print(f"rank {dist.get_rank()} issues {dict(Counter(issued))}; due: {due or all_of_them[0]}", flush=True)
    os._exit(Counter(issued) != due if due else issued != all_of_them[0])


def recomputed(run: Run, judged: Any, due: dict[str, int]) -> None:
    """A rank issues the collectives in ``due`` while functions of regions run again, and no others."""
    issued: Counter[str] = Counter()
    inside: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__.strip("_")
            if "c10d" in func.namespace and name not in ("wait_tensor", "wrap_tensor_autograd", "monitored_barrier"):
                issued.update([name] if inside and torch._C._current_graph_task_id() != -1 else [])
            return func(*args, **(kwargs or {}))

    def region(function: Any, *args: Any, **kwargs: Any) -> Any:
        def one(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as stack:
                inside.append("")
                stack.callback(inside.pop)
                return function(*args, **kwargs)

        return judged(one, *args, **kwargs)

    with Watch():
        run(region, lambda label, value=None: None, "cpu")
    print(f"rank {dist.get_rank()} issues {dict(issued)} in recomputations; due: {due}", flush=True)
    os._exit(issued != due)


def calls(run: Run, judged: Any, due: int) -> None:
    """Functions of regions are called as often as is due."""
    called: list[str] = []

    def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        def one(*args: Any, **kwargs: Any) -> Any:
            called.append("")
            return function(*args, **kwargs)

        return judged(one, *args, **kwargs)

    run(counted, lambda label, value=None: None, "cpu")
    print(f"rank {dist.get_rank()}: {len(called)} calls; due: {due}", flush=True)
    os._exit(len(called) != due)


def raises(run: Run, judged: Any, rank: int) -> None:
    """A rank raises the error of its region."""
    try:
        run(judged, lambda label, value=None: None, "cpu")
    except ArithmeticError as error:
        print(f"rank {dist.get_rank()}: {error!r}", flush=True)
        os._exit(0)
    except Exception as error:
        print(f"rank {dist.get_rank()}: {error!r}", flush=True)
        os._exit(int(dist.get_rank() == rank))
    os._exit(int(dist.get_rank() == rank))


def hangs(run: Run, judged: Any, seconds: float) -> None:
    """All ranks come to the end of the program in time; where one does not, its stack is printed."""
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True)  # with status 1
    run(judged, lambda label, value=None: None, "cpu")
    faulthandler.cancel_dump_traceback_later()
    os._exit(0)


def kept(x: Any) -> Any:
    """A copy of what is compared."""
    return x.detach().clone() if torch.is_tensor(x) else x


def differ(x: Any, y: Any, tolerance: float) -> bool:
    """Whether two values differ by more than this."""
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) != len(y) or any(differ(one, other, tolerance) for one, other in zip(x, y))  # noqa: B905 - as long
    if torch.is_tensor(x) and torch.is_tensor(y) and x.shape == y.shape and x.dtype == y.dtype:
        return not (torch.equal(x, y) or float((x.double() - y.double()).abs().max()) <= tolerance)
    return str(x) != str(y)
