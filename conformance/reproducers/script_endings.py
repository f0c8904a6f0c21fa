"""How scripts end: for each thing that a law measures, a function whose body comes after the program.

Its parameters are names that a script defines: the function ``run``, the implementation ``judged`` and its ``name``, the
``device``, and the expected numbers ``due``. A function that counts returns what it has ``seen``, by label, and the script then
calls ``report`` with that. Any other function ends the script, with status 1 if the fault is there. They use the suite's own
counters, ``conformance.meters.counters``.

Three functions differ from the suite's to keep a script within 45 lines. ``show`` and ``near`` turn values into text and
tuples, because a script only says where they differ. ``caller`` finds the function that called an operator on the stack,
whereas the suite wraps regions' functions.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import gc
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from conformance.meters.counters import Watch, copied, counted, keeps_growing, storages

Run = Callable[[Any, Callable[..., None], str], object]


def show(x: Any) -> Any:
    """All of a tensor that is compared, as text shows it."""
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x


class Near(tuple[Any, ...]):
    """Numbers that equal others but for the first one: sums may be taken in another order."""

    def __eq__(self, other: Any) -> bool:
        return len(self) == len(other) and all(abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other))  # noqa: B905 - they are as long


def numbers(x: torch.Tensor, units: float) -> Near:
    """Those in a tensor, which may differ by so many units of their dtype's resolution."""
    return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])


def near(x: Any, units: float) -> Any:
    """As ``show``, for values that are equal but for rounding."""
    return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)


def values(
    run: Run, plain: Any, judged: Any, name: str, device: str, units: float, aside: bool, costs: bool, typed: bool, status: bool
) -> None:
    """What the program notes is what it notes under plain, and it ends with an error where that does, ``typed`` one alike.

    Notes are made ``aside`` from modes of the program, which would count them. ``costs`` that it notes are not compared.
    Without ``status`` it only prints.
    """

    def note(label: str, value: Any = None) -> None:
        notes[label] = tree_map(lambda x: near(x, units), value) if units else str(tree_map(show, value))

    expected: dict[str, Any]
    seen: dict[str, Any]
    for notes, one in ((expected := {}, plain), (seen := {}, judged)):
        try:
            run(one, _disable_current_modes()(note) if aside else note, device)
        except Exception as error:
            print("error:", repr(error))
            notes["error"] = type(error).__name__ if typed else "raised"
    wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
    if costs:
        wrong = [label for label in wrong if label.partition(" ")[0] != "cost"]
    for label in wrong:
        print(f"{label}: plain {expected.get(label)}, {name} {seen.get(label)}")
    if status:
        sys.exit(len(wrong) > 0)


def left(run: Run, plain: Any, judged: Any, name: str, device: str, units: float) -> NoReturn:
    """An error leaves gradients that plain has at some time."""

    def observe(one: Any) -> list[Any]:
        leaves: list[torch.Tensor]
        shown: list[list[Any]]
        leaves, shown = [], []

        def note(label: str, value: Any = None) -> None:
            leaves.extend(value if label == "leaves" else ())
            shown.append([(number, near(leaf.grad, units) if units else show(leaf.grad)) for number, leaf in enumerate(leaves)])

        try:
            run(one, note, device)
        except Exception as error:
            print("error:", repr(error))
        note("end")
        return shown

    expected, seen = [one for moment in observe(plain) for one in moment], observe(judged)[-1]
    due = [f"leaf {number}: {gradient}" for number, gradient in expected]
    wrong = [f"leaf {number}: {gradient}" for number, gradient in seen if (number, gradient) not in expected]
    print(f"left behind by {name}:", *wrong, "which plain never has; it has:", *dict.fromkeys(due), sep="\n  ")
    sys.exit(len(wrong) > 0)


def expected(run: Run, judged: Any, name: str, device: str, units: float, aside: bool) -> NoReturn:
    """What the program notes as seen is what it notes as expected."""
    notes: dict[str, Any] = {}

    def note(label: str, value: Any = None) -> None:
        notes[label] = tree_map(lambda x: near(x, units), value) if units else str(tree_map(show, value))

    run(judged, _disable_current_modes()(note) if aside else note, device)
    others = {label: label.replace("expected", "seen", 1) for label in notes if label.startswith("expected ")}
    wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
    for label in wrong:
        print(f"{label}: {notes[label]}, {name} {notes.get(others[label])}")
    sys.exit(len(wrong) > 0)


def raises(run: Run, judged: Any, name: str, device: str) -> NoReturn:
    """An error comes."""
    try:
        run(judged, lambda label, value=None: None, device)
    except Exception as error:
        print("expected an error, and there is one:", repr(error))
        sys.exit(0)
    print(f"expected an error; {name} raised none")
    sys.exit(1)


def fails(run: Run, judged: Any, name: str, device: str) -> None:
    """No error comes."""
    try:
        run(judged, lambda label, value=None: None, device)
    except BaseException as error:
        print(f"expected no error; {name} raised", repr(error))
        sys.exit(1)
    print("expected no error, and there is none")


def ends(run: Run, judged: Any, name: str, device: str) -> NoReturn:
    """The process comes to the end of the program."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            run(judged, lambda label, value=None: None, device)
        os._exit(77)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"expected a process that runs this to reach the end, with status 77; with {name} it ends with", status)
    sys.exit(status != 77)


def hangs(run: Run, judged: Any, name: str, device: str, seconds: float) -> NoReturn:
    """The program comes to its end in time, be it by an error. What hangs ends with status 1, and shows where it is."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    print(f"expected to end within {seconds} seconds; if {name} does not, its stack is shown below", flush=True)
    with contextlib.suppress(Exception):
        run(judged, lambda label, value=None: None, device)
    faulthandler.cancel_dump_traceback_later()  # the interpreter may take long to end
    print(f"{name} has come to an end")
    sys.exit(0)


def noted(run: Run, judged: Any, device: str) -> Mapping[str, Any]:
    """What the program notes, as text."""
    seen: dict[str, str] = {}
    run(judged, lambda label, value=None: seen.update({label: str(value)}), device)
    return seen


def calls(run: Run, judged: Any, device: str) -> Mapping[str, Any]:
    """How often each function of a region is called."""
    names: list[str] = []

    def counting(function: Any, *args: Any, **kwargs: Any) -> Any:
        return judged(counted(function, names), *args, **kwargs)

    run(counting, lambda label, value=None: None, device)
    return Counter(names)


def caller(run: Run) -> str:
    """The name of the program's function that called the operator which a mode is handling, "" if autograd's engine did.

    Frames of torch in between are skipped (modules, modes and compiled functions are called through them), and so is code
    that torch generates, which has no module.
    """
    frames = ((f, f.f_globals.get("__name__", "torch.")) for f, _ in traceback.walk_stack(sys._getframe(3)))
    frame = next(f for f, name in frames if not name.startswith("torch.") or name == "torch.autograd.graph")
    return frame.f_code.co_name if frame.f_globals is run.__globals__ else ""


def kernels(run: Run, judged: Any, device: str) -> Mapping[str, Any]:
    """How often the program calls each operator, in forward and in what is recomputed; a backward's own do not count."""
    seen: Counter[str] = collections.Counter()

    def see(func: Any, result: Any) -> None:
        seen[func.overloadpacket.__name__] += caller(run) != ""

    Watch.see = staticmethod(see)
    with Watch():
        run(judged, lambda label, value=None: None, device)
    return seen


def alive(run: Run, judged: Any, device: str, due: Mapping[str, int]) -> Mapping[str, Any]:
    """How many storages are alive at each note that the program does not hold. What only the collector finds is alive."""
    made: set[StorageWeakRef]
    leaves: list[torch.Tensor]
    seen: dict[str, int]
    made, leaves, seen = set(), [], {}

    def note(label: str, value: Any = None) -> None:
        leaves.extend(value if label == "leaves" else ())
        seen[label] = sum(not one.expired() for one in made.difference(storages([value, leaves, [x.grad for x in leaves]])))

    gc.disable()
    Watch.see = staticmethod(lambda func, result: made.update(storages(result, torch.uint8)))
    with Watch():
        run(judged, note, device)
        if "end" in due:
            note("end")
    return seen


def inside(run: Run, judged: Any, device: str, region: str, recomputed: bool) -> Mapping[str, Any]:
    """How many storages are alive at each note that functions of regions made, of one ``region`` or all; or ``recomputed``."""
    made: dict[StorageWeakRef, bool]
    seen: dict[str, int]
    made, seen = {}, {}

    def see(func: Any, result: Any) -> None:
        for x in filter(torch.is_tensor, tree_leaves(result)):
            made.setdefault(
                StorageWeakRef(x.untyped_storage()), caller(run) == region if region else caller(run) not in ("", "run")
            )

    def note(label: str, value: Any = None) -> None:
        if recomputed and label in ("forward", "held 1"):
            made.update(dict.fromkeys(made, False))
        seen[label] = max(seen.get(label, 0), sum(counts and not one.expired() for one, counts in made.items()))

    gc.disable()
    Watch.see = staticmethod(see)
    with Watch():
        run(judged, note, device)
    return seen


def saved(run: Run, judged: Any, name: str, device: str, at_most: bool) -> None:
    """Hooks around the program see the storages that it notes as saved, ``at_most`` as often, and no others."""
    seen: list[StorageWeakRef] = []

    def note(label: str, value: Any = None) -> None:
        if label == "saved":
            due, packed = Counter(one for x in value for one in storages(x)), Counter(seen)
            surplus = packed - due if at_most else packed.keys() - due.keys()
            print(f"hooks see: due {due.total()}, {name} {packed.total()}, missing {(due - packed).total()}")
            sys.exit(bool(due - packed or surplus))

    def pack(x: torch.Tensor) -> torch.Tensor:
        seen.extend(storages(x))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run(judged, note, device)


def packed(run: Run, judged: Any, device: str) -> Mapping[str, Any]:
    """How many tensors hooks around the program see in forward and in backward."""
    packs: list[StorageWeakRef]
    forward: list[int]
    packs, forward = [], []

    def note(label: str, value: Any = None) -> None:
        forward.extend([len(packs)] * (label == "forward"))

    def pack(x: torch.Tensor) -> torch.Tensor:
        packs.extend(storages(x))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run(judged, note, device)
    return {"packed in forward": forward[0], "packed in backward": len(packs) - forward[0]}


def objects(run: Run, judged: Any, name: str, device: str) -> NoReturn:
    """From the third note "step" on there are not more and more Python objects."""
    counts: list[int] = []

    def note(label: str, value: Any = None) -> None:
        gc.collect()
        counts.extend([len(gc.get_objects())] * (label == "step"))

    run(judged, lambda label, value=None: None, device)  # whatever is made once only is made here
    gc.freeze()
    run(judged, note, device)
    growth = [count - counts[2] for count in counts[2:]]
    print(f"objects more than after the third step; due: 0; {name}:", growth)
    sys.exit(keeps_growing(growth))


class Moves(TorchDispatchMode):
    """Counts what is copied to the CPU and from it, and its bytes."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in filter(torch.numel, copied(func, args, result)):
            way = "to" if result.device.type == "cpu" else "from"
            self.seen.update({f"copies {way} the CPU": 1, f"bytes {way} the CPU": one.numel() * result.element_size()})
        return result


def moved(run: Run, judged: Any, device: str) -> Mapping[str, Any]:
    """How many copies go to the CPU and come from there, and how many bytes."""
    seen: Counter[str] = collections.Counter()
    with Moves(seen):
        run(judged, lambda label, value=None: None, device)
    return seen


def report(seen: Mapping[str, Any], due: Mapping[str, Any], name: str, at_most: bool) -> NoReturn:
    """What is seen is what is due, or ``at_most`` that."""
    for label, number in due.items():
        print(f"{label}: due is {'at most ' if at_most else ''}{number}, {name} {seen.get(label, 0)}")
    sys.exit(any(seen.get(label, 0) > number if at_most else seen.get(label, 0) != number for label, number in due.items()))


# What is there for each thing that a verdict says was measured.
ENDS: Mapping[str, Callable[..., Any]] = {
    "values": values, "error": values, "left": left, "expected": expected, "raises": raises, "fails": fails, "ends": ends,
    "hangs": hangs, "saved": saved, "objects": objects,
}  # fmt: skip
COUNTS: Mapping[str, Callable[..., Any]] = {
    "noted": noted, "calls": calls, "kernels": kernels, "alive": alive, "inside": inside, "recomputed": inside,
    "packed": packed, "moved": moved,
}  # fmt: skip
