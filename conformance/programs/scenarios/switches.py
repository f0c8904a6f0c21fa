"""Programs that switch options on or off around forward, by the context managers that a checkpoint may come with.

A switch is found where a drop-in for PyTorch's checkpoint has it: by its name in the module in which the checkpoint is defined.
"""

from __future__ import annotations

from typing import Any

import torch


def debug(checkpoint: Any, note: Any, device: str, *, outer: Any, inner: Any, argument: bool, fails: str) -> None:
    import inspect
    from contextlib import suppress

    switch = getattr(inspect.getmodule(getattr(checkpoint, "func", checkpoint)), "set_checkpoint_debug_enabled", None)
    if switch is None:
        raise NotImplementedError("set_checkpoint_debug_enabled is missing, which is as good as a refusal")
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def region():
        runs = []

        def f(h):
            runs.append(True)
            h = h.cos()
            return h.tanh() if len(runs) == 1 else h[:1].sigmoid()

        return checkpoint(f, p * 1, debug=argument)

    def failing(h):
        raise ZeroDivisionError("the program's")

    made = []
    with suppress(ZeroDivisionError), switch(outer):
        with suppress(ZeroDivisionError), switch(inner):
            made.append(region())
            if fails == "region":
                checkpoint(failing, p)
            elif fails == "context":
                failing(p)
        made.append(region())
        if fails:
            failing(p)
    made.append(region())

    def listed(y):
        try:
            y.backward(torch.ones_like(y))
        except RuntimeError as error:
            return [name for name in ("aten.cos", "aten.tanh", "aten.sigmoid") if name in str(error)]
        return None

    with switch(not argument):  # which is too late: forward decides
        seen = [listed(y) for y in made]
    every = ["aten.cos", "aten.tanh", "aten.sigmoid"]
    due = [argument if override is None else override for override in (inner, outer, None)]
    note("expected operators listed in the inner context, in the outer one and after both", [every if on else [] for on in due])
    note("seen operators listed in the inner context, in the outer one and after both", seen)


def early_stop(checkpoint: Any, note: Any, device: str, *, outer: bool, inner: bool, argument: bool, fails: str) -> None:
    import inspect
    from contextlib import suppress

    switch = getattr(inspect.getmodule(getattr(checkpoint, "func", checkpoint)), "set_checkpoint_early_stop", None)
    if switch is None:
        raise NotImplementedError("set_checkpoint_early_stop is missing, which is as good as a refusal")
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def region():
        ends = []

        def f(h):
            h = (h * 3).sin()
            ends.append(True)
            return h

        return checkpoint(f, p * 1, early_stop=argument), ends

    def failing(h):
        raise ZeroDivisionError("the program's")

    made = []
    with suppress(ZeroDivisionError), switch(outer):
        with suppress(ZeroDivisionError), switch(inner):
            made.append(region())
            if fails == "region":
                checkpoint(failing, p)
            elif fails == "context":
                failing(p)
        made.append(region())
        if fails:
            failing(p)
    made.append(region())
    with switch(not argument):  # which is too late: forward decides
        for y, _ in made:
            y.backward(torch.ones_like(y))
    due = [1 if stops else 2 for stops in (inner, outer, argument)]
    note("expected runs to the end in the inner context, in the outer one and after both", due)
    note("seen runs to the end in the inner context, in the outer one and after both", [len(ends) for _, ends in made])
    note("gradients 0", [p.grad])


def on_another_thread(checkpoint: Any, note: Any, device: str, *, switch: str, setting: bool, meanwhile: bool) -> None:
    import inspect
    import threading
    from concurrent.futures import ThreadPoolExecutor

    override = getattr(inspect.getmodule(getattr(checkpoint, "func", checkpoint)), switch, None)
    if override is None:
        raise NotImplementedError(f"{switch} is missing, which is as good as a refusal")
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    early, runs = switch == "set_checkpoint_early_stop", []
    options = {"early_stop" if early else "debug": not setting}

    def f(h):
        runs.append("begun")
        h = h.cos()
        h = h.tanh() if early or len(runs) == 1 else h[:1].sigmoid()
        runs[-1] = "ended"
        return h

    def on():
        y = checkpoint(f, p * 1, **options)
        try:
            y.backward(torch.ones_like(y))
        except RuntimeError as error:
            return "aten.sigmoid" in str(error)
        return runs[-1] == "begun"  # stopped early

    with ThreadPoolExecutor(1) as other:
        if meanwhile:  # the other thread has switched it, and is still inside
            switched, done = threading.Event(), threading.Event()

            def hold():
                with override(setting):
                    switched.set()
                    done.wait(10)

            held = other.submit(hold)
            switched.wait(10)
            try:
                seen = on()
            finally:
                done.set()
            held.result(10)
        else:
            with override(setting):
                seen = other.submit(on).result(10)
    note("expected the option as it was passed", not setting)
    note("seen the option as it was passed", seen)
