"""Programs about what an offloaded model keeps alive, and about copies that race."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import Assigning, Counting, chain, here, note_gradients


def dropped(OffloadModel, note, device, place, *, widths, slices, microbatches, after):  # noqa: N803
    layers = [*chain(widths)[:-1], torch.nn.Dropout(0.5), Counting(widths[-1])]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    x = torch.randn(4, widths[0], device=place)
    leaves = (*model.parameters(), x, *model.buffers())
    note("leaves", leaves)
    ys = [model(x) for _ in range(2)]
    for turn, kind in enumerate(after):
        y = ys[turn % 2]
        if kind == "backward":
            y.sum().backward(retain_graph=True)
        elif kind == "some":
            torch.autograd.grad(y.sum(), list(model.parameters())[:1], retain_graph=True)
        elif kind == "forward":
            ys[turn % 2] = model(x)
        elif kind == "no_grad":
            with torch.no_grad():
                model(x)
        elif kind == "spent":
            y.sum().backward()
            ys[turn % 2] = model(x)
    del y
    ys.clear()
    note("empty", [])
    model(x).sum().backward()
    note_gradients(note, model, "gradients" if microbatches < 2 else "cost gradients")  # masks are drawn by parts


def retained(OffloadModel, note, device, place, *, widths, slices, microbatches, passes, some):  # noqa: N803
    layers = [*chain(widths), torch.nn.Dropout(0.5)]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    x = torch.randn(4, widths[0], device=place)
    note("leaves", (*model.parameters(), x))
    y = model(x)
    one = torch.ones_like(y)
    note("forward" if microbatches < 2 else "cost forward", [y, one])
    for turn in range(passes):
        y.backward(one, retain_graph=True, inputs=[list(model.parameters())[some % 2]] if some else None)
        note(f"cost again {turn}", [y, one])
    note_gradients(note, model, "gradients" if microbatches < 2 else "cost gradients")  # masks are drawn by parts


def failing(OffloadModel, note, device, place, *, widths, slices, checkpoint, index, where, error):  # noqa: N803
    layers = chain(widths)
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    raised = {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[error]
    x = torch.randn(4, widths[0], device=place)
    note("leaves", (*model.parameters(), x))
    armed = []

    def fail(*_):
        if armed:
            raise armed.pop()("the program's")

    child = layers[index % len(layers)]
    register = {"forward": child.register_forward_hook, "again": child.register_forward_pre_hook}
    register.get(where, layers[0].weight.register_hook)(fail)
    if where == "forward":
        armed.append(raised)
    y = None
    try:
        y = model(x).sum()
        armed[:] = [] if where == "forward" else [raised]
        y.backward()
    except raised as came:
        note("cost of an error", str(came))
    y = None
    armed.clear()
    note("empty", [])
    model.zero_grad()
    model(x).square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def steps(OffloadModel, note, device, place, *, widths, slices, microbatches, failing):  # noqa: N803
    layers = [*chain(widths)[:-1], torch.nn.Dropout(0.5), Counting(widths[-1])]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    note("leaves", tuple(model.parameters()))

    def fail(grad):
        raise ValueError("the program's")

    for _ in range(10):
        y = model(torch.randn(4, widths[0], device=place))
        y.sum().backward()
        note_gradients(note, model, "gradients" if microbatches < 2 else "cost gradients")  # masks are drawn by parts
        model.zero_grad()
        if failing:
            handle = layers[0].weight.register_hook(fail)
            try:
                model(torch.randn(4, widths[0], device=place)).sum().backward()
            except ValueError:
                handle.remove()
        del y
        model.zero_grad()
        note("step")


def racing(OffloadModel, note, device, place, *, widths, slices, checkpoint, order, side):  # noqa: N803
    import contextlib

    layers = [*chain(widths)[:-1], torch.nn.Dropout(0.5), Counting(widths[-1])]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    module = torch.get_device_module(place)
    getattr(module, "forget_hazards", tuple)()  # a simulated device knows of races
    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note("leaves", tuple(model.parameters()))
    for step in range(2):
        stream = module.Stream() if side else None
        with module.stream(stream) if side else contextlib.nullcontext():
            if side:
                stream.wait_stream(module.default_stream())
            ys = [model(torch.randn(3, widths[0], device=place)) for _ in range(max(order) + 1)]
        if side:
            module.default_stream().wait_stream(stream)
        note(f"buffers {step}", here(model.buffers()))
        for turn, index in enumerate(order):
            ys[index].sum().backward(retain_graph=True)
            note(f"gradients {step} {turn}", here(p.grad for p in model.parameters()))
        note(f"forward {step}", here(ys))
        stepping.step()
        stepping.zero_grad()
        del ys
    note("state", here(model.state_dict().values()))
    note("hazards", getattr(module, "hazards", tuple)())


def racing_parts(OffloadModel, note, device, place, *, slices, microbatches, failing, shared):  # noqa: N803
    import copy

    def fail(*_):
        raise ValueError("the program's")

    layers = [torch.nn.Linear(2, 2), Counting(2), Assigning(2), torch.nn.Linear(2, 2)]
    if shared:
        layers.append(Counting(2))
        layers[4].mean = layers[1].mean  # of two slices, where there are two
    options = {"num_slices": slices, "checkpoint_activation": True, "num_microbatches": microbatches}
    models = {
        "expected": OffloadModel(copy.deepcopy(layers), place, offload_device=place, **options),
        "seen": OffloadModel(layers, place, **options),
    }
    module = torch.get_device_module(place)
    getattr(module, "forget_hazards", tuple)()  # a simulated device knows of races
    parts = torch.randn(4, 2, device=place)
    for label, model in models.items():
        if failing:
            handle = list(model.children())[-1].register_forward_hook(fail)
            try:
                model(parts)
            except ValueError:
                handle.remove()
            note(f"{label} buffers after an error", here(model.buffers()))
        x = parts.clone().requires_grad_()
        y = model(x)
        note(f"{label} buffers", here(model.buffers()))
        y.sum().backward()
        note(f"{label} values", here([y, x.grad, *(p.grad for p in model.parameters())]))
    note("expected hazards", ())
    note("seen hazards", getattr(module, "hazards", tuple)())
