"""Programs about offloaded models in which forward changes a buffer or a weight, and no version counter tells."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import Remembering, here


def read(OffloadModel, note, device, place, *, steps, slices, checkpoint, forwards):  # noqa: N803
    layers = [torch.nn.Linear(2, 2), Remembering(steps)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    outputs = [model(torch.randn(4, 2, device=place)) for _ in range(forwards)]
    note("forward", here(outputs))
    torch.stack(outputs).sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))
    note("buffers", here(model.buffers()))


def through_numpy(OffloadModel, note, device, place, *, first, slices, checkpoint):  # noqa: N803
    class Scaling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            if first:
                self.scale.numpy()[0] *= 1.5
            x = x * float(self.scale.numpy()[0])
            if not first:
                self.scale.numpy()[0] *= 1.5
            return x.sin()

    model = OffloadModel([torch.nn.Linear(2, 2), Scaling()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for step in range(2):
        y = model(torch.randn(4, 2, device=place))
        note(f"forward {step}", here([y]))
        y.sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        note(f"buffers {step}", here(model.buffers()))


def read_by_parts(OffloadModel, note, device, place, *, steps, rows):  # noqa: N803
    import copy

    layer = Remembering(steps)
    one, other = (copy.deepcopy(layer).to(place) for _ in range(2))
    model = OffloadModel([layer], place, num_slices=1, checkpoint_activation=True, num_microbatches=len(rows))
    parts = [torch.randn(2, 2, device=place) + row for row in rows]
    x = torch.cat(parts).requires_grad_()
    ones = [part.clone().requires_grad_() for part in parts]
    torch.cat([one(part) for part in ones]).sum().backward()
    others = [part.clone().requires_grad_() for part in parts]
    for part in others:
        other(part).sum().backward()
    at_the_end, one_by_one = (torch.cat([part.grad for part in each]) for each in (ones, others))
    note("expected gradient after all parts", here([at_the_end]))
    note("expected gradient part by part", here([one_by_one]))
    note("expected buffers", here(one.buffers()))
    y = model(x)
    note("seen buffers", here(model.buffers()))
    try:
        y.sum().backward()
    except RuntimeError as error:  # what is meant is not clear, and the error names what was saved
        if "0.scale" not in str(error) and "0.norm.running_mean" not in str(error):
            raise
    note("seen gradient after all parts", here([at_the_end if x.grad is None else x.grad]))
    note("seen gradient part by part", here([one_by_one if x.grad is None else x.grad]))


def read_before_another_forward(OffloadModel, note, device, place, *, steps, slices, checkpoint):  # noqa: N803
    layers = [torch.nn.Linear(2, 2), Remembering(steps), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint).eval()
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(4, 2, device=place))
    note("forward", here([y]))
    model.train()(torch.randn(4, 2, device=place))
    note("buffers", here(model.buffers()))
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def weights(OffloadModel, note, device, place, *, how, slices, checkpoint, forwards):  # noqa: N803
    class Limited(torch.nn.Linear):
        def forward(self, x):
            if how == "in place":
                self.weight.data.clamp_(-0.3, 0.3)
            elif how == "a row":
                self.weight.data[0] = 0.1
            else:
                self.weight.data = self.weight.data.clamp(-0.3, 0.3)
            return super().forward(x)

    layers = [torch.nn.Linear(2, 2), Limited(2, 2), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    stepping = torch.optim.SGD(model.parameters(), lr=0.5)
    note("leaves", tuple(model.parameters()))
    for step in range(2):
        stepping.zero_grad()
        outputs = [model(torch.randn(3, 2, device=place)) for _ in range(forwards)]
        note(f"forward {step}", here(outputs))
        sum(y.square().sum() for y in outputs).backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        stepping.step()
    note("parameters", here(model.parameters()))


def other_data(OffloadModel, note, device, place, *, slices, checkpoint):  # noqa: N803
    class Replacing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, x):
            y = x * self.weight
            self.weight.data = self.weight.data * 0.5
            return y.sin()

    layers = [torch.nn.Linear(2, 2), Replacing()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(3, 2, device=place))
    note("forward", here([y]))
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def by_another_name(OffloadModel, note, device, place, *, when, quiet, slices, checkpoint):  # noqa: N803
    class Scaling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, x):
            return x * self.weight

    layers = [Scaling(), Scaling()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    weight = layers[1].weight

    def change(*_):
        with torch.no_grad():
            (weight.data if quiet else weight).mul_(0.5)

    if when == "ahead":
        layers[0].register_forward_pre_hook(change)
    elif when == "between":
        layers[0].register_forward_hook(change)
    else:
        layers[1].register_forward_pre_hook(change)
    y = model(torch.ones(3, 2, device=place))
    note("forward", here([y]))
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def views_between(OffloadModel, note, device, place, *, checkpoint):  # noqa: N803
    class Doubling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, both):
            whole, part = both
            part.mul_(2)
            return (whole + self.weight).tanh()

    model = OffloadModel([Doubling()], place, num_slices=1, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    x = torch.ones(3, 2, device=place)
    y = model([x, x.view(-1)])
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def rows_of_one_tensor(OffloadModel, note, device, place, *, calls, slices, checkpoint):  # noqa: N803
    layers = [torch.nn.Linear(2, 2, bias=False), torch.nn.Identity()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    ((name, _),) = model.named_parameters()
    rows = torch.randn(calls, 2, 2).requires_grad_()
    x = torch.randn(2, 2, device=place, requires_grad=True)
    note("leaves", (rows, x))
    outputs = [torch.func.functional_call(model, {name: row}, (x,)) for row in rows]
    note("forward", here(outputs))
    torch.autograd.backward(outputs, outputs)
    note("gradients", here([rows.grad, x.grad]))


def tied_by_memory_alone(OffloadModel, note, device, place, *, checkpoint, buffer):  # noqa: N803
    class Shifted(torch.nn.Linear):
        def __init__(self, scale):
            super().__init__(2, 2, bias=False)
            self.register_buffer("scale", scale)

        def forward(self, x):
            return super().forward(x * self.scale.sum()).tanh()

    first = Shifted(torch.ones(2))
    second = torch.nn.Linear(2, 2, bias=False)
    if buffer:  # as after model.load_state_dict(torch.load(path), assign=True): two tensors, each with a version of its own
        first.scale = second.weight.data
    else:
        second.weight = torch.nn.Parameter(first.weight.data)
    layers = [first, torch.nn.Linear(2, 2), second]
    model = OffloadModel(layers, place, num_slices=3, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    came = {}
    for name, weight in model.named_parameters():

        def step(leaf, name=name):
            came[name] = leaf.grad.clone()
            with torch.no_grad():
                leaf.sub_(leaf.grad)

        weight.register_post_accumulate_grad_hook(step)
    y = model(torch.randn(3, 2, device=place))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(came[name] for name, _ in model.named_parameters()))


def used_up(OffloadModel, note, device, place, *, what, between, slices, checkpoint):  # noqa: N803
    import io
    import itertools

    class Handing(torch.nn.Linear):
        def forward(self, given):
            x, numbers = given
            return super().forward(x), make() if between else numbers

    class Using(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(2))

        def forward(self, given):
            x, numbers = given
            for number in itertools.islice(numbers, 2):
                x = x * float(number)
            return x * self.weight

    def make():
        return {
            "an iterator": lambda: iter([2.0, 3.0]),
            "a generator": lambda: (number for number in (2.0, 3.0)),
            "counted": lambda: itertools.count(2),
            "a file": lambda: io.StringIO("2\n3\n"),
        }[what]()

    model = OffloadModel([Handing(2, 2), Using()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model((torch.ones(3, 2, device=place), None if between else make()))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def at_times(OffloadModel, note, device, place, *, how, when, reads, inside, slices, checkpoint):  # noqa: N803
    class Starting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, device=device))
            self.register_buffer("mean", torch.zeros(2, device=device))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 1 if when == "once" else self.calls % 2:
                self.start(x.detach()[0])
            mean = self.mean if reads == "an operator" else torch.tensor(self.mean.tolist(), device=device)
            if not inside:
                return (x - mean).sin() * self.weight
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(((x - mean).sin() * self.weight).sum(), x, create_graph=True)[0]

        def start(self, row):
            if how == "assigned":
                self.mean = row
            elif how == "through data":
                self.mean.data.copy_(row)
            elif how == "a weight":
                self.weight.data.copy_(row)
            else:
                self.mean.copy_(row)

    layers = [Starting() for _ in range(slices)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for step in range(2):
        y = model(torch.randn(3, 2, device=place))
        note(f"forward {step}", here([y]))
        y.sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        note(f"buffers {step}", here(model.buffers()))
