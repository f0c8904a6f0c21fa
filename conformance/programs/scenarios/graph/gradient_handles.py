"""Programs about the handle of a hook on several gradients, and about backwards that fail."""

from __future__ import annotations

from typing import Any

import torch


def failing(graph: Any, note: Any, device: str, *, mode: str, error: str, where: str, rounds: int) -> None:
    p, q = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))

    class Planned(Exception):
        pass

    raised = Planned if error == "Exception" else KeyboardInterrupt
    armed, calls = [], []

    def fail(*_):
        if armed:
            raise raised("program")

    def hook(grads):
        if where == "hook":
            fail()
        calls.append([g.clone() for g in grads] if mode == "all" else grads.clone())

    def loss():
        late = q.cos()  # its gradient comes after p's and before q's
        if where == "between":
            late.register_hook(fail)
        return late.sum() + p.cos().sum()

    handle = graph.register_multi_grad_hook([p, q], hook, mode=mode)
    for number in range(rounds):
        armed.append(1)
        try:
            loss().backward()
        except (Planned, KeyboardInterrupt) as came:
            note(f"came {number}", str(came))
        armed.clear()
        calls.clear()
        p.grad = q.grad = None
        torch.ones(
            (), device=device, requires_grad=True
        ).backward()  # the engine itself keeps what it had not done until the next one
        note(f"empty {number}", [])
        loss().backward()
        note(f"gradients {number}", [p.grad, q.grad])
        note(f"calls {number}", calls)
        p.grad = q.grad = None
    calls.clear()
    handle.remove()
    note("empty", [])


def removed(graph: Any, note: Any, device: str, *, mode: str, when: str, again: bool) -> None:
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    calls = []
    handle = graph.register_multi_grad_hook([p, q], lambda grads: calls.append("called"), mode=mode)
    other = graph.register_multi_grad_hook([q, p], lambda grads: calls.append("other"), mode=mode)
    late = q.cos()  # its gradient comes after p's and before q's
    loss = late.sum() + p.cos().sum()
    if when == "before":
        handle.remove()
    elif when == "midway":
        late.register_hook(lambda grad: handle.remove())
    elif when == "with":
        with handle:
            loss.backward(retain_graph=True)
    elif when == "in another":
        p.register_hook(lambda grad: handle.remove())
    loss.backward(retain_graph=True)
    if when == "after":
        handle.remove()
        loss.backward(retain_graph=True)
    if again:
        handle.remove()
    before = len(calls)
    other.remove()
    loss.backward()
    note("expected calls after all are removed", before)
    note("seen calls after all are removed", len(calls))
    once = when in ("with", "after") or (mode == "any" and when in ("midway", "in another"))
    note("expected calls", sorted(["called"] * once + ["other"] * (2 if when in ("with", "after") else 1)))
    note("seen calls", sorted(calls))


def pickled(graph: Any, note: Any, device: str, *, mode: str, way: str, tensors: int) -> None:
    import copy
    import pickle

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    calls = []
    watched = [p * (index + 1) for index in range(tensors)]
    handle = graph.register_multi_grad_hook(watched, lambda grads: calls.append(1), mode=mode)
    note("expected calls", [1] if way == "copy" else [1, 1])
    made = (
        pickle.loads(pickle.dumps(handle)) if way == "pickle" else copy.copy(handle) if way == "copy" else copy.deepcopy(handle)
    )
    note("expected kind", True)
    note("seen kind", callable(made.remove))
    loss = sum(t.sum() for t in watched)
    loss.backward(retain_graph=True)
    made.remove()
    loss.backward(retain_graph=True)
    handle.remove()
    loss.backward()
    note("seen calls", calls)


def grows(graph: Any, note: Any, device: str, *, mode: str, fails: bool, retained: bool) -> None:
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    armed = []

    def fail(grad):
        if armed:
            raise ValueError("program")

    def forward():
        late = q.cos()
        late.register_hook(fail)
        return late.sum() + p.cos().sum()

    graph.register_multi_grad_hook([p, q], lambda grads: None, mode=mode)
    loss = forward()
    for _ in range(8):
        loss = loss if retained else forward()
        if fails:
            armed.append(1)
            try:
                loss.backward(retain_graph=True)
            except ValueError:
                armed.clear()
        p.grad = q.grad = None
        loss.backward(retain_graph=retained)
        note("gradients 0", [p.grad, q.grad])
        p.grad = q.grad = None
        note("step")


def wrong(graph: Any, note: Any, device: str, *, kind: str, mode: str) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    calls = []
    note("expected refused", True)
    try:
        if kind == "mode":
            graph.register_multi_grad_hook([p], calls.append, mode="some")
        else:
            tensors = [p.detach()] if kind == "no grad" else [p, 3 if kind == "number" else "text"]
            graph.register_multi_grad_hook(tensors, calls.append, mode=mode)
        note("seen refused", False)
    except Exception as error:
        names = ("mode",) if kind == "mode" else ("Tensor", "requires grad")
        named = any(name in str(error) for name in names)
        note("seen refused", isinstance(error, (RuntimeError, TypeError, ValueError)) and named)
    p.sin().sum().backward()
    note("expected calls", 0)
    note("seen calls", len(calls))


def from_any_iterable(graph: Any, note: Any, device: str, *, kind: str, mode: str) -> None:
    leaves = {name: torch.nn.Parameter(torch.randn(2, 2, device=device)) for name in "pq"}
    note("leaves", tuple(leaves.values()))
    tensors = {
        "list": lambda: list(leaves.values()),
        "dict": leaves.values,
        "ParameterList": lambda: torch.nn.ParameterList(leaves.values()),
    }[kind]()
    calls = []
    graph.register_multi_grad_hook(tensors, lambda grads: calls.append(len(grads)), mode=mode)
    note("expected calls", [2])
    (leaves["p"].sin() * leaves["q"]).sum().backward()
    note("seen calls", calls)


def let_go(graph: Any, note: Any, device: str, *, mode: str, leaf: bool, used: bool, copied: bool) -> None:
    import copy
    import weakref

    class Hook:
        def __call__(self, grads):
            calls.append(1)

    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    calls = []
    tensors = [p, q] if leaf else [p * 2, q * 3]
    loss = sum(t.sum() for t in tensors)
    hook = Hook()
    there = weakref.ref(hook)
    handle = graph.register_multi_grad_hook(tensors, hook, mode=mode)
    del hook
    if used:
        loss.backward(retain_graph=True)
    note("expected fate", [used, False, True])
    kept = there() is None
    if copied:
        copy.copy(handle).remove()
    else:
        handle.remove()
    note("seen fate", [bool(calls), kept, there() is None])


def come_and_go(graph: Any, note: Any, device: str, *, mode: str, used: bool) -> None:
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    for _ in range(8):
        handle = graph.register_multi_grad_hook([p, q], lambda grads: None, mode=mode)
        if used:
            (p.sin() * q).sum().backward()
            note("gradients 0", [p.grad, q.grad])
            p.grad = q.grad = None
        handle.remove()
        note("step")
