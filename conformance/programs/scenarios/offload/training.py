"""What is done with a drawn model: each text follows one that defines ``model``, ``x``, ``build``, ``batch`` and ``place``."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def train(model, batch, place, note, *, optimizer, steps, accumulate, none):
    made = {"SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "Adam": lambda p: torch.optim.Adam(p, lr=0.1)}
    stepping = made[optimizer]([p for p in model.parameters() if p.requires_grad])
    for step in range(steps):
        stepping.zero_grad(set_to_none=none)
        for part in range(accumulate):
            y = model(batch())
            note(f"forward {step} {part}", here([y]))
            note(f"random numbers after forward {step} {part}", here([torch.rand(2), torch.rand(2, device=place)]))
            y.square().sum().backward()
            note(f"random numbers after backward {step} {part}", here([torch.rand(2), torch.rand(2, device=place)]))
        note(f"gradients {step}", here(p.grad for p in model.parameters() if p.requires_grad))
        stepping.step()
    note("state", [list(model.state_dict()), *here(model.state_dict().values())])
    note("buffers", here(model.buffers()))


def several_forwards(model, batch, note, *, order, retain):
    outputs = [model(batch()) for _ in range(max(order) + 1)]
    for turn, index in enumerate(order):
        outputs[index].square().sum().backward(retain_graph=retain or index in order[turn + 1 :])
        note(f"gradients {turn}", here(p.grad for p in model.parameters() if p.requires_grad))
    note("random numbers", torch.rand(2))


def one_loss(model, batch, note, *, threads):
    import threading

    def backward():
        (model(batch()).sin() + model(batch()).cos()).sum().backward()
        losses.append(model(batch()).square().sum())

    def there():
        try:
            backward()
        except Exception as error:
            failed.append(error.with_traceback(None))

    losses, failed = [], []
    for _ in range(threads):
        thread = threading.Thread(target=there)
        thread.start()
        thread.join()
    if failed:
        raise failed[0]
    backward()
    note("gradients 0", here(p.grad for p in model.parameters() if p.requires_grad))
    for loss in losses:  # forward ran on another thread
        loss.backward()
    note("gradients 1", here(p.grad for p in model.parameters() if p.requires_grad))


def input_gradients(model, x, note, *, leaf):
    if leaf:
        x.requires_grad_()
    scale = torch.full((), 2.0, dtype=x.dtype, device=x.device, requires_grad=True)
    before = x._version
    y = model(x if leaf else x * scale)
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))
    note("grad of the input", here([x.grad, scale.grad]))
    note("the input", [*here([x]), x._version - before])


def requests(model, x, note, *, chosen, kind):
    wanted = [p for p in model.parameters() if p.requires_grad]
    some = [wanted[index % len(wanted)] for index in chosen]
    x.requires_grad_(x.is_floating_point())
    y = model(x).square().sum()
    if kind == "grad":
        note("grad 0", here(torch.autograd.grad(y, some, retain_graph=True)))
        note("grad 1", here(torch.autograd.grad(y, [*wanted, x] if x.requires_grad else wanted)))
    elif kind == "input":
        note("grad 0", here(torch.autograd.grad(y, x if x.requires_grad else some, retain_graph=True)))
        y.backward()
    else:
        y.backward(inputs=some, retain_graph=True)
        note("gradients 0", here(p.grad for p in wanted))
        y.backward()
    note("gradients 1", here(p.grad for p in wanted))
    note("grad of the input", here([x.grad]))


def differentiated_twice(model, x, note, *, penalty):
    x.requires_grad_(x.is_floating_point())
    wanted = [p for p in model.parameters() if p.requires_grad]
    y = model(x).tanh().sum()
    over = [*wanted, x] if penalty and x.requires_grad else wanted
    first = torch.autograd.grad(y, over, create_graph=True)
    note("first", here(first))
    torch.autograd.backward(first, [grad.detach() for grad in first])
    note("gradients", here(p.grad for p in wanted))
    note("grad of the input", here([x.grad]))


def without_gradients(model, x, note, *, how, training):
    model.train(training)
    with {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "enable_grad": torch.enable_grad}[how]():
        y = model(x)
        note("forward", here([y]))
    note("requires grad", [y.requires_grad, y.is_inference()])
    note("flags", [module.training for module in model.modules()].count(training) > 0)
    model.train()
    model(x).square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))
    note("state", here(model.state_dict().values()))


def under_autocast(model, x, place, note, *, cache):
    with torch.autocast(torch.device(place).type, torch.bfloat16, cache_enabled=cache):
        y = model(x)
    note("forward", here([y]))
    y.float().square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))
    note("modes", [torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()])
