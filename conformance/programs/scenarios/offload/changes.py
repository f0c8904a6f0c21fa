"""Programs about offloaded models in which something changes: in a hook, in some microbatches, beside another thread."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import Assigning, Clamped, Counting, First, Scaled, here


def generated(OffloadModel, note, device, place, *, slices, checkpoint, passes):  # noqa: N803
    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, pair):
            x, generator = pair
            return x * self.weight * torch.rand(2, generator=generator, device=x.device), generator

    layers = [Noisy(), Noisy(), First(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    generator = torch.Generator(place).manual_seed(3)
    y = model((torch.randn(3, 2, device=place), generator))
    note("forward", here([y]))
    torch.rand(2, generator=generator, device=place)
    for turn in range(passes):
        y.sum().backward(retain_graph=turn < passes - 1)
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        note(f"random numbers {turn}", here([torch.rand(2, generator=generator, device=place)]))


def seldom(OffloadModel, note, device, place, *, starts, checkpoint, slices):  # noqa: N803
    import copy

    class Seldom(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x):
            if x.detach()[0, 0] == 1:
                self.scale.mul_(0.5)
            elif x.detach()[0, 0] == 2:
                self.scale = self.scale * 0.25
            return x * self.scale

    layers = [Seldom(), *(torch.nn.Tanh() for _ in range(slices - 1))]
    plain = torch.nn.Sequential(*copy.deepcopy(layers)).to(place)
    options = {"checkpoint_activation": True, "num_microbatches": len(starts)} if checkpoint else {}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    parts = [torch.tensor([[float(start), 1.0]], device=place, requires_grad=True) for start in starts]
    x = torch.cat([part.detach() for part in parts]).requires_grad_()
    for label, of, held in (("expected", plain, plain[0].scale), ("seen", model, layers[0].scale)):
        if of is plain or not checkpoint:
            runs = [(y := of(part), torch.autograd.grad(y.sum(), part)[0]) for part in parts]
        else:
            y = of(x)
            runs = zip(y.split(1), torch.autograd.grad(y.sum(), x)[0].split(1), strict=True)
        note(f"{label} forward and gradients", [here(run) for run in runs])
        note(f"{label} buffers", here([*of.buffers(), held]))


def raised_after(OffloadModel, note, device, place, *, what, index, error, slices, checkpoint, microbatches):  # noqa: N803
    import copy

    raised = {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[error]
    kind = {"statistics": torch.nn.BatchNorm1d, "in place": Counting, "assigned": Assigning, "a weight": Clamped}[what]
    left = [0]

    def fail(*_):
        left[0] -= 1
        if left[0] == 0:  # in the last microbatch, when the others have changed state, however the model is cut
            raise raised("the program's")

    layers = [torch.nn.Linear(2, 2), kind(2), torch.nn.Tanh()]
    layers[index].register_forward_hook(fail)
    plain = torch.nn.Sequential(*copy.deepcopy(layers)).to(place)
    options = {"checkpoint_activation": checkpoint or microbatches > 1, "num_microbatches": microbatches}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    x = torch.randn(3 * microbatches, 2, device=place)
    for label, of, inputs in (("expected", plain, x.split(3)), ("seen", model, [x])):
        left[0] = microbatches
        try:
            for part in inputs:
                of(part)
        except raised as came:
            note(f"{label} error", [str(came), *getattr(came, "__notes__", [])])
        note(f"{label} state", here(of.state_dict().values()))
        for part in inputs:
            of(part).square().sum().backward()
        note(f"{label} gradients", here(p.grad for p in of.parameters()))
        note(f"{label} state afterwards", here(of.state_dict().values()))


def changed_in_a_region(OffloadModel, note, device, place, *, what, first, index, after, slices, checkpoint):  # noqa: N803
    import copy

    from impls.nested import checkpoint as region

    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    layers.insert(index, Scaled(2, what, first))
    plain = torch.nn.Sequential(*copy.deepcopy(layers)).to(place)
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    x = torch.randn(3, 2, device=place, requires_grad=True)
    head = torch.nn.Linear(2, 2).to(place)
    y = region(lambda x: head(model(x)), x)
    try:
        wanted = head.parameters() if after else [x, *model.parameters(), *head.parameters()]
        gradients = torch.autograd.grad(y.sum(), list(wanted), allow_unused=True)
    except RuntimeError as error:
        named = f"parameter or buffer '{index}.{what}'", "a saved tensor (torch.float32 [2] on"  # by the model, by the region
        note("expected refusal", True)
        note("seen refusal", any(one in str(error) for one in named))
    else:
        wanted = head.parameters() if after else [x, *plain.parameters(), *head.parameters()]
        note("expected gradients", here(torch.autograd.grad(head(plain(x)).sum(), list(wanted), allow_unused=True)))
        note("seen gradients", here(gradients))


def changed_ahead(OffloadModel, note, device, place, *, slices, checkpoint, how):  # noqa: N803
    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    armed = [True]

    def change(*_):
        if armed:  # not again in a recomputation
            armed.clear()
            last = layers[-1]
            if how != "in place":
                at = place if how == "replaced by one on the device" else last.weight.device
                last.weight = torch.nn.Parameter(last.weight.detach().to(at) * 2)
            else:
                with torch.no_grad():
                    last.weight.mul_(2)

    layers[0].register_forward_hook(change)
    for turn in range(2):
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.square().sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))


def shared_state(OffloadModel, note, device, place, *, slices, checkpoint, forwards, silent):  # noqa: N803
    class Halving(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x):
            (self.scale.data if silent else self.scale).mul_(0.5)  # data has a version of its own
            return x * self.scale.clone()

    layers = [Halving(), torch.nn.Linear(2, 2), Halving()]
    layers[2].scale = layers[0].scale
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for turn in range(forwards):
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.square().sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
    note("buffers", here(model.buffers()))


def steered(OffloadModel, note, device, place, *, slices, checkpoint, changing, quiet):  # noqa: N803
    class Steering(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x):
            if changing:
                with torch.no_grad():
                    getattr(self, changing).mul_(0.5)
            inner = x.detach().requires_grad_()
            with torch.enable_grad():
                grad, own = torch.autograd.grad((inner * self.weight).sum(), (inner, self.weight))
            return x * grad * own * self.scale.clone()

    layers = [torch.nn.Linear(2, 2), Steering()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    if quiet:
        with torch.no_grad():
            note("forward without gradients", here([model(torch.ones(3, 2, device=place))]))
    for turn in range(2):
        y = model(torch.ones(3, 2, device=place))
        note(f"forward {turn}", here([y]))
        y.sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        note(f"state {turn}", here(model.state_dict().values()))


def viewed(OffloadModel, note, device, place, *, kind, slices, checkpoint):  # noqa: N803
    class Viewed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2, dtype=torch.complex64))

        def forward(self, x):
            w = self.weight
            made = {"conj": w.conj, "negative": lambda: w.conj().imag, "real": lambda: torch.view_as_real(w)[:, 1]}[kind]()
            return (x * made).abs() if kind == "conj" else x * made

    layers = [torch.nn.Linear(2, 2), Viewed(), torch.nn.Tanh()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(3, 2, device=place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def looked_at(OffloadModel, note, device, place, *, what, checkpoint):  # noqa: N803
    import threading

    class Pausing(torch.nn.BatchNorm1d):
        def forward(self, x):
            threads.append(threading.Thread(target=lambda: found.extend(look())))
            threads[-1].start()
            threads[-1].join(0.02)  # the other thread has its chance, and must wait until this slice is over
            return x * self.weight

    layers = [torch.nn.Linear(2, 2), Pausing(2)]
    model = OffloadModel(layers, place, num_slices=2, checkpoint_activation=checkpoint)
    owned, values = list(layers[1].parameters()), {name: value + 1 for name, value in model.state_dict().items()}
    owned = {"buffers": list(layers[1].buffers()), "state": [*owned, *layers[1].buffers()]}.get(what, owned)
    look = {
        "parameters": lambda: list(model.parameters())[2:],
        "buffers": lambda: list(model.buffers()),
        "state": lambda: list(model.state_dict(keep_vars=True).values())[2:],
        "loading": lambda: [model.load_state_dict(values), *layers[1].parameters()][1:],
    }[what]
    threads, found = [], []
    model(torch.ones(3, 2, device=place))
    threads[0].join()
    note("expected objects", [True] * len(owned))
    note("seen objects", [one is other for one, other in zip(owned, found, strict=True)])
    note("expected to be loaded", what == "loading")
    note("seen to be loaded", all(torch.equal(value, values[name]) for name, value in model.state_dict().items()))


def counted_on_threads(OffloadModel, note, device, place, *, threads, rounds, slices, checkpoint):  # noqa: N803
    import threading

    class Tallied(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            with turns:  # the plain model's threads add to one tensor
                self.calls.add_(1)
            return super().forward(x)

    def call():
        try:
            for _ in range(rounds):
                barrier.wait(10)
                model(torch.ones(3, 2, device=place))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    turns, barrier, errors = threading.Lock(), threading.Barrier(threads), []
    layers = [Tallied(), Tallied(), Tallied()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    workers = [threading.Thread(target=call) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    note("expected calls", [threads * rounds] * len(layers))
    note("seen calls", [int(layer.calls) for layer in layers])


def kept_from(OffloadModel, note, device, place, *, what, checkpoint):  # noqa: N803
    class Changing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.ones(2))
            self.weight, self.inner = torch.nn.Parameter(torch.ones(2)), torch.nn.Module()
            if what == "of two modules":
                self.inner.register_buffer("state", self.state)

        def forward(self, x):
            if what == "resized":
                self.state.resize_(1)
            elif what == "with a graph":
                self.state.mul_(x.sum())
            elif what == "assigned with a graph":
                self.state = self.state * x.sum()
            elif what == "of two modules":
                self.inner.state = self.state * 2
            elif what == "a parameter":
                self.weight = torch.nn.Parameter(self.weight.detach() * 2)
            elif what == "removed":
                self.state = None
            elif what == "a leaf":
                self.weight.mul_(2)
            return x * 2

    layers = [torch.nn.Linear(2, 2), Changing()]
    model = OffloadModel(layers, place, num_slices=2, checkpoint_activation=checkpoint)
    words = {"resized": ["1.state", "resized"], "of two modules": ["1.inner.state", "assigned"], "a leaf": ["1.weight", "leaf"]}
    words |= {"a parameter": ["1.weight", "assigned"], "removed": ["1.state", "removed"]}
    words = words.get(what, ["1.state", "graph"])
    note("expected refusal", words)
    try:
        model(torch.ones(3, 2, device=place))
        note("seen refusal", "none")
    except RuntimeError as error:
        note("seen refusal", [word for word in words if word in str(error)])
    note("expected state", [torch.ones(2)] * 2)
    note("seen state", here([layers[1].state, layers[1].weight]))


def divided(OffloadModel, note, device, place, *, rows, microbatches):  # noqa: N803
    seen, parts = [], min(rows, microbatches)
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    x = torch.randn(rows, 2, device=place)
    OffloadModel([layer], place, num_slices=1, checkpoint_activation=True, num_microbatches=parts)(x)
    note("expected rows", [len(part) for part in torch.tensor_split(x, parts)])
    note("seen rows", seen)


def given_objects(OffloadModel, note, device, place, *, what, slices, checkpoint):  # noqa: N803
    class Carrier:
        def __init__(self, value):
            self.value, self.factor = {"in it": value} if what == "in a container" else value, 2.0

    class Weighted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, x):
            return Carrier(x * self.weight)

    class Carried(Weighted):
        def forward(self, carrier):
            y = (carrier.value["in it"] if what == "in a container" else carrier.value) * self.weight
            y = (y * carrier.factor if what == "a number" else y).sin()
            if what == "another object":
                carrier = Carrier(y)
            elif what == "an attribute":
                carrier.value = y
            elif what == "in a container":
                carrier.value["in it"] = y
            elif what == "a number":
                carrier.factor += 1.0
            return [y, carrier]

    layers = [Weighted(), Carried(), First()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(4, 2, device=place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def added_to_objects(OffloadModel, note, device, place, *, what, slices, checkpoint):  # noqa: N803
    class Carrier:
        def __init__(self):
            self.last, self.seen = None, []

    class Slotted:
        __slots__ = ("factor", "value")

    class Listed(list):
        pass

    kind, read, change = {
        "a slot": (Slotted, lambda carrier: 2.0 + hasattr(carrier, "factor"), lambda carrier, y: setattr(carrier, "factor", y)),
        "an item": (Listed, lambda carrier: 2.0 + len(carrier), lambda carrier, y: carrier.append(1.0)),
        "in a list": (Carrier, lambda carrier: 2.0 + len(carrier.seen), lambda carrier, y: carrier.seen.append(1.0)),
        "for None": (Carrier, lambda carrier: 2.0 + (carrier.last is None), lambda carrier, y: setattr(carrier, "last", y)),
        "by name": (Carrier, lambda carrier: 2.0 + len(vars(carrier)), lambda carrier, y: setattr(carrier, "new", 1.0)),
    }[what]

    class Weighted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, x):
            carrier = kind()
            carrier.value = x * self.weight
            return carrier

    class Carried(Weighted):
        def forward(self, carrier):
            y = (carrier.value * self.weight * read(carrier)).sin()
            change(carrier, y.detach())
            return y

    model = OffloadModel([Weighted(), Carried()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(4, 2, device=place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def kept_by_modules(OffloadModel, note, device, place, *, what, slices, checkpoint):  # noqa: N803
    class Keeping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, x):
            self.penalty = (self.weight if what == "weight" else x).square().sum()
            return (x * self.weight).sin()

    layers = [Keeping(), torch.nn.Linear(2, 2), Keeping()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    x = torch.randn(4, 2, device=place).requires_grad_()
    note("leaves", (x, *model.parameters()))
    y = model(x)
    note("forward", here([y]))
    y.sum().backward(retain_graph=True)
    note("gradients", here([x.grad, *(p.grad for p in model.parameters())]))
    for index in (0, 2):
        layers[index].penalty.backward(retain_graph=True)
        note(f"gradients {index}", here([x.grad, *(p.grad for p in model.parameters())]))
