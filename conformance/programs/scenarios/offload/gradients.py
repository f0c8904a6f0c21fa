"""Programs about offloaded models whose gradients are undefined, or asked for in forward, or whose buffers change silently."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def undefined(OffloadModel, note, device, place, *, before, slices, checkpoint, hooked, again):  # noqa: N803
    class Stopped(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.round())
        backward = staticmethod(lambda ctx, grad: None)

    class Stop(torch.nn.Module):
        def forward(self, x):
            return Stopped.apply(x)

    layers = [*(torch.nn.Linear(2, 2) for _ in range(before)), Stop(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=min(slices, len(layers)), checkpoint_activation=checkpoint)
    seen = []
    for parameter in model.parameters() if hooked else ():
        parameter.register_hook(lambda grad: seen.append(grad is None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for step in range(2):
        model(torch.randn(3, 2, device=place)).sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        optimizer.step()
    note("parameters", here(model.parameters()))
    note("hooks", str(sorted(seen)))
    if again:
        model.zero_grad()
        last = list(model.parameters())[-1]
        (grad,) = torch.autograd.grad(model(torch.ones(3, 2, device=place)).square().sum(), last, create_graph=True)
        Stopped.apply(grad).backward(grad.detach())
        note("gradients of a gradient", here(p.grad for p in model.parameters()))


def through_data(OffloadModel, note, device, place, *, slices, checkpoint, forwards, how):  # noqa: N803
    class Decaying(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x):
            if how == "data":
                self.scale.data.mul_(0.5)
            elif how == "detached":
                self.scale.detach().mul_(0.5)
            elif how == "replaced":
                self.scale.mul_(0.5)
                self.scale = self.scale * 2
            elif how == "data replaced":
                self.scale.data.mul_(0.5)
                self.scale = self.scale * 2
            elif how == "grown":
                self.scale = torch.cat([self.scale * 0.5, self.scale])
            elif how == "out":
                torch.mul(self.scale, 0.5, out=self.scale.data)
            elif how == "several":
                torch._foreach_mul_([self.scale.data], 0.5)
            else:
                self.scale.data[:1].add_(1)
            return x * self.scale[:2].clone()

    layers = [torch.nn.Linear(2, 2), Decaying(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    first = layers[1].scale
    for turn in range(forwards):
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
    y.sum().backward()
    note("gradients 0", here(p.grad for p in model.parameters()))
    note("buffer", here([*model.buffers(), first]))


def new_buffer(OffloadModel, note, device, place, *, slices, checkpoint, empty):  # noqa: N803
    class Growing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            if empty:
                self.register_buffer("count", None)

        def forward(self, x):
            if getattr(self, "count", None) is None:
                self.register_buffer("count", torch.ones(2, device=x.device))
            self.count = self.count * 2
            return x * self.count

    layers = [torch.nn.Linear(2, 2), Growing()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    try:
        model(torch.ones(3, 2, device=place)).sum().backward()
        note("seen gradient", here([layers[0].bias.grad]))
    except RuntimeError as error:
        note("seen gradient", "refused" if "count" in str(error) and checkpoint else str(error))
    note("expected gradient", "refused" if checkpoint else here([torch.full((2,), 6.0)]))
    note("expected to be gone", checkpoint)
    note("seen to be gone", layers[1].count is None)


def asked_for_in_forward(OffloadModel, note, device, place, *, pair, create, slices, checkpoint):  # noqa: N803
    class Energy(torch.nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            return (x, x.square()) if pair else x

    class Forces(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(2))

        def forward(self, given):
            x, energy = given if pair else (given, given)
            (force,) = torch.autograd.grad((energy * x).sum(), x, create_graph=create, retain_graph=True)
            return force * self.scale

    layers = [Energy(2, 2), Forces()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(3, 2, device=place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def asked_for_before_an_error(OffloadModel, note, device, place, *, fails, slices, checkpoint):  # noqa: N803
    class Penalty(torch.nn.Linear):
        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (grad,) = torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)
            return grad

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            calls.append("a call")
            self.count += 1
            if fails and len(calls) == 1:
                raise ValueError("the program's")
            return x

    calls = []
    layers = [Penalty(2, 2), Counting(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    x = torch.randn(3, 2, device=place)
    try:
        y = model(x)
    except ValueError:
        note("buffers after the error", here(model.buffers()))
        y = model(x)
    note("forward", here([y]))
    note("calls in forward", len(calls))
    note("buffers", here(model.buffers()))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def through_a_later_module(OffloadModel, note, device, place, *, changes, checkpoint):  # noqa: N803
    class Scaling(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            return super().forward(x) * self.scale

    class Ahead(torch.nn.Module):
        def forward(self, x):
            if changes:
                later[0].scale.add_(1)
            x = x * later[0].weight
            (grad,) = torch.autograd.grad(x.sum(), later[0].weight, create_graph=True)
            return x + grad

    later = [Scaling()]
    model = OffloadModel([Ahead(), *later], place, num_slices=1, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(2, 2, device=place))
    note("forward", here([y]))
    note("buffers", here(model.buffers()))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))
    note("buffers after backward", here(model.buffers()))


def steps_in_backward(OffloadModel, note, device, place, *, quiet, slices, checkpoint):  # noqa: N803
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.ones(2, device=device))

        def forward(self, x):
            scale = self.shift.detach().clone()
            return (x * scale).sin() + self.shift  # the gradient of the sum needs nothing that was saved

    def step(p):
        if quiet:
            p.data.sub_(p.grad)
        else:
            with torch.no_grad():
                p -= p.grad

    model = OffloadModel([Shifted(), Shifted()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    model(torch.ones(2, 2, device=place)).sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))
    note("parameters", here(model.parameters()))


def summed_in_another_dtype(OffloadModel, note, device, place, *, wide, calls, slices, checkpoint):  # noqa: N803
    class Repeated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(4, device=device, dtype=torch.bfloat16))
            self.weight.grad_dtype = torch.float32 if wide else torch.bfloat16

        def forward(self, x):
            for _ in range(calls):
                x = x * self.weight
            return x

    model = OffloadModel([Repeated(), Repeated()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.rand(4, device=place, dtype=torch.bfloat16))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))
