"""Programs about offloaded models whose modules look at more than values: flags, classes, attributes, hooks, shared memory."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def flags(OffloadModel, note, device, place, *, kind, training, slices, checkpoint):  # noqa: N803
    class Asking(torch.nn.Module):
        def forward(self, x):
            return (x * (2 if self.training else 3)).sin()

    module = {"asking": Asking, "dropout": torch.nn.Dropout, "norm": lambda: torch.nn.BatchNorm1d(2)}[kind]()
    layers = [torch.nn.Linear(2, 2), module]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint).train(training)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(4, 2, device=place))
    note("forward", here([y]))
    model.train(not training)
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))
    note("flags", [each.training for each in layers])


def parameters(OffloadModel, note, device, place, *, looks, frozen, slices, checkpoint):  # noqa: N803
    class Looking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))
            self.register_buffer("scale", torch.ones(2))
            self.weight.factor = self.scale.factor = 3.0

        def forward(self, x):
            if looks == "class":
                factor = 2.0 if isinstance(self.weight, torch.nn.Parameter) else 3.0
            elif looks == "class of a buffer":
                factor = 2.0 if isinstance(self.scale, torch.nn.Parameter) else 3.0
            else:
                factor = getattr(self.weight if looks == "attribute" else self.scale, "factor", 1.0)
            return (x * self.weight * factor).sin()

    layers = [torch.nn.Linear(2, 2), Looking()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    layers[1].weight.factor = layers[1].scale.factor = 3.0  # which moving the plain model may have lost
    layers[1].weight.requires_grad_(not frozen)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(4, 2, device=place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def memory(OffloadModel, note, device, place, *, what, slices, checkpoint):  # noqa: N803
    class Writing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))
            self.register_buffer("all", torch.ones(4))
            self.register_buffer("part", self.weight.data if what == "a weight" else self.all[:2])

        def forward(self, x):
            if what != "read alone":
                self.part.mul_(0.5)
            return x * self.weight * (self.all[2:] if what == "apart" else self.all[:2]).clone()

    layers = [torch.nn.Linear(2, 2), Writing()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for turn in range(2):
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))


def passed_on(OffloadModel, note, device, place, *, what, slices, checkpoint):  # noqa: N803
    class Passing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("before", torch.zeros(2))
            self.register_buffer("now", torch.ones(2))

        def forward(self, x):
            if what == "other data":
                self.before.data = self.now.data
            elif what == "both new":
                self.before = self.now = x.detach()[0]
            else:
                self.before = self.now[:] if what == "a view" else self.now
            if what == "exchanged":
                self.now = x.detach()[0]
            return x * self.before

    layers = [torch.nn.Linear(2, 2), Passing()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for turn in range(2):
        y = model(torch.ones(3, 2, device=place))
        y.sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        layers[1].now.mul_(3)
        note(f"buffers {turn}", here(model.buffers()))


def hooked_inside(OffloadModel, note, device, place, *, stays, slices, checkpoint):  # noqa: N803
    class Hooking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.handle = torch.nn.Parameter(torch.randn(2)), None

        def forward(self, x):
            if self.handle is None:
                self.handle = self.weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
                if not stays:
                    self.handle.remove()
            return x * self.weight

    model = OffloadModel([torch.nn.Linear(2, 2), Hooking()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for turn in range(2):
        model.zero_grad()
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))


def own_parameters(OffloadModel, note, device, place, *, looks, slices, checkpoint):  # noqa: N803
    class Derived(torch.nn.Parameter):
        pass

    class Looking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.version, self.doubled = Derived(torch.randn(2)), None, None

        def forward(self, x):
            if looks == "class":
                return x * self.weight * (2.0 if isinstance(self.weight, Derived) else 3.0)
            if self.version != self.weight._version:
                self.version, self.doubled = self.weight._version, self.weight.detach() * 2
            return x * self.weight + self.doubled

    layers = [torch.nn.Linear(2, 2), Looking()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for turn in range(2):
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.square().sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        with torch.no_grad():
            layers[1].weight.sub_(0.5)


def hooks_on_all_modules(OffloadModel, note, device, place, *, kind, checkpoint):  # noqa: N803
    model = OffloadModel([torch.nn.Tanh()], place, num_slices=1, checkpoint_activation=checkpoint)
    x = torch.randn(4, 2, device=place).requires_grad_()
    note("leaves", (x,))
    register = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")
    handle = register(lambda module, given, *of: of[0] * 2 if kind == "forward" else (given[0] * 2,))
    try:
        y = model(x)
        note("forward", here([y]))
        y.sum().backward()
    finally:
        handle.remove()
    note("gradients", here([x.grad]))


def anomalies(OffloadModel, note, device, place, *, slices, checkpoint):  # noqa: N803
    model = OffloadModel([torch.nn.Linear(2, 2), torch.nn.Tanh()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    with torch.autograd.set_detect_anomaly(True):
        y = model(torch.randn(4, 2, device=place))
        note("forward", here([y]))
        y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def returned_buffers(OffloadModel, note, device, place, *, changed, whole, slices, checkpoint):  # noqa: N803
    class Returning(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x):
            if changed == "by forward":
                self.scale.mul_(0.5)
            return x * self.scale.clone(), self.scale if whole else self.scale[:1]

    layers = [torch.nn.Linear(2, 2), Returning()]
    model = OffloadModel(layers, place, offload_device=place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    first = None
    for turn in range(2):
        y, scale = model(torch.ones(3, 2, device=place))
        first = scale if first is None else first
        note(f"forward {turn}", here([y, first]))
        y.square().sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        if changed == "by the caller":
            scale.mul_(3)
        note(f"buffers {turn}", here(model.buffers()))


def kept_of_microbatches(OffloadModel, note, device, place, *, kind, rows, microbatches, slices):  # noqa: N803
    class Keeping(torch.nn.Module):
        def forward(self, x):
            self.kept = {"loss": x.square().sum(), "largest": x.detach().amax(0), "rows": x.shape[0]}[kind]
            return x.sin()

    layers = [torch.nn.Linear(2, 2), Keeping()]
    more = {"checkpoint_activation": True, "num_microbatches": microbatches}
    model = OffloadModel(layers, place, num_slices=slices, **more)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(rows, 2, device=place))
    kept = layers[1].kept
    note("forward", here([y]))
    note("kept", kept if kind == "rows" else here([kept]))
    (y.sum() + kept if kind == "loss" else (y / kept).sum()).backward()
    note("gradients", here(p.grad for p in model.parameters()))


def settings_inside(OffloadModel, note, device, place, *, what, rows, microbatches, slices):  # noqa: N803
    class Setting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.inner.weight.factor = 3.0

        def forward(self, x):
            if what == "unfrozen":
                self.inner.weight.requires_grad_(True)
            elif what.endswith("by a reference"):
                held.requires_grad_(what.startswith("unfrozen"))
            elif what == "an attribute":
                self.inner.weight.factor /= 2
            else:
                self.inner.double()
            return self.inner(x.to(self.inner.weight.dtype)) * self.inner.weight.factor

    layers = [torch.nn.Linear(2, 2), Setting()]
    options = {"num_slices": slices, "checkpoint_activation": microbatches > 1, "num_microbatches": microbatches}
    model = OffloadModel(layers, place, **options)
    layers[1].inner.weight.factor = 3.0  # which moving the plain model may have lost
    held = layers[1].inner.weight.requires_grad_(not what.startswith("unfrozen"))
    for turn in range(2):
        y = model(torch.ones(rows, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))


def gradients_enabled_inside(OffloadModel, note, device, place, *, rows, microbatches, slices, checkpoint):  # noqa: N803
    class Enabling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        @torch.enable_grad()
        def forward(self, x):
            return (x * self.weight).sin()

    options = {"num_slices": slices, "checkpoint_activation": checkpoint or microbatches > 1, "num_microbatches": microbatches}
    model = OffloadModel([Enabling(), Enabling()], place, **options)
    x = torch.randn(rows, 2, device=place, requires_grad=True)
    with torch.no_grad():
        y = model(x)
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here([x.grad, *(p.grad for p in model.parameters())]))


def gradients_at_once(OffloadModel, note, device, place, *, count, slices, checkpoint):  # noqa: N803
    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    y = model(torch.randn(3, 2, device=place))
    note("forward", here([y]))
    seeds = torch.randn(count, 3, 2, device=place)
    note("gradients", here(torch.autograd.grad(y, list(model.parameters()), seeds, is_grads_batched=True)))


def compiled_model(OffloadModel, note, device, place, *, rows, slices, checkpoint):  # noqa: N803
    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    step = torch.compile(lambda x: model(x.sin()).cos(), backend="eager")
    for turn in range(2):
        y = step(torch.randn(rows + turn, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))


def written_late(OffloadModel, note, device, place, *, of, slices, checkpoint):  # noqa: N803
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(-torch.rand(2))

        def forward(self, x):
            return x + torch.nn.functional.rrelu(self.weight, training=True)

    layers = [torch.nn.Linear(2, 2), Gate() if of == "a weight" else torch.nn.RReLU()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    x = torch.randn(4, 2, requires_grad=of == "an input")
    y = model(x.to(place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here([x.grad, *(p.grad for p in model.parameters())]))


def set_and_set_back(OffloadModel, note, device, place, *, what, trained, slices, checkpoint):  # noqa: N803
    class Switching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm, self.busy = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), False

        def forward(self, x):
            if what == "an attribute":
                x, self.busy = x * (100 if self.busy else 1), True
            elif what == "a hook":
                handle = self.inner.register_forward_hook(lambda module, args, value: value * 2)
            else:
                self.norm.eval()
            x = self.norm(self.inner(x))
            if what == "an attribute":
                self.busy = False
            elif what == "a hook":
                handle.remove()
            elif what == "a mode":
                self.norm.train()
            return x

    layers = [Switching(), torch.nn.Identity()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for turn in range(2):
        y = model(torch.ones(4, 2, device=place).cumsum(0))
        if trained:
            model.train()
        note(f"forward {turn}", here([y]))
        y.square().sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        note(f"buffers {turn}", here(model.buffers()))
        note(f"flags {turn}", [module.training for module in layers[0].modules()])
