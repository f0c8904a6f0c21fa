"""Programs about what offloading costs: calls, copies of parameters, what is kept, traffic between devices."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import Assigning, Counting, chain, note_gradients


def calls(OffloadModel, note, device, place, *, widths, slices, microbatches, passes):  # noqa: N803
    layers = chain(widths)
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    counts = [0] * len(layers)

    def counting(index):
        def count(*_):
            counts[index] += 1

        return count

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(counting(index))
    y = model(torch.randn(5, widths[0], device=place))
    parts, again = max(1, microbatches), int(microbatches > 0)
    note("expected after forward", [parts] * len(layers))
    note("seen after forward", list(counts))
    for turn in range(passes):
        y.sum().backward(retain_graph=turn < passes - 1)
        note(f"expected after backward {turn}", [parts * (1 + again * (turn + 1))] * len(layers))
        note(f"seen after backward {turn}", list(counts))
    with torch.no_grad():
        model(torch.randn(5, widths[0], device=place))
    note("expected without gradients", [parts * (2 + again * passes)] * len(layers))
    note("seen without gradients", list(counts))


def boundaries(OffloadModel, note, device, place, *, widths, slices, microbatches, rows):  # noqa: N803
    from conformance.programs.offloaded_models import greedy

    layers = chain(widths)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    made = [indices for indices in greedy(counts, slices) if indices]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    x = torch.randn(rows, widths[0], device=place)
    note("leaves", (x, *model.parameters()))
    note("made")
    y = model(x)
    note("forward", y)
    note("bytes", 4 * rows * (widths[-1] + sum(widths[(indices[0] + 1) // 2] for indices in made)))
    y.sum().backward()
    note_gradients(note, model)


def sliced(OffloadModel, note, device, place, *, counts, slices):  # noqa: N803
    from conformance.programs.offloaded_models import greedy
    from conformance.simulated_device.device import Moves

    class Wider(torch.nn.Module):
        def __init__(self, count):
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.ones(count)] if count else [])

        def forward(self, x):
            return torch.nn.functional.pad(x, (0, 1))

    layers = [Wider(count) for count in counts]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=True)
    values = {}
    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda module, args, index=index: values.update({index: 4 * args[0].numel()}))
    x = torch.randn(1, 3, device=place)
    with Moves() as moves:
        y = model(x)
    expected = [indices[0] for indices in greedy(counts, slices) if indices]
    note("expected inputs of slices", sorted(values[index] for index in expected))
    note("seen inputs of slices", sorted(move.bytes for move in moves.seen if move.kind == f"{place}→cpu"))
    del y


def resident(OffloadModel, note, device, place, *, widths, slices, microbatches, passes):  # noqa: N803
    layers = chain(widths)[:-1]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    note("leaves", tuple(model.parameters()))
    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda module, args, index=index: note(f"cost layer {index}"))
    loss = model(torch.randn(4, widths[0], device=place)).sum()
    note("cost over")
    for turn in range(passes):
        loss.backward(retain_graph=turn < passes - 1)
        note("cost over")
    note_gradients(note, model)


def packed(OffloadModel, note, device, place, *, widths, slices, microbatches):  # noqa: N803
    from conformance.programs.offloaded_models import greedy

    layers, seen = chain(widths), []
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    inputs = [widths[(indices[0] + 1) // 2] for indices in greedy(counts, slices) if indices]
    parts = torch.tensor_split(torch.randn(4, widths[0], device=place), max(1, microbatches))
    saved = [[4, width] for index in range(len(widths) - 1) for width in widths[index : index + 2]]  # by Linear, by Tanh
    note("expected shapes", [[len(part), width] for width in inputs for part in parts] if microbatches else saved)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: [seen.append(list(t.shape)), t * 0][1], lambda t: t):
        y = model(torch.cat(parts))
    note("seen shapes", list(seen))
    y.sum().backward()
    note("expected gradient", [torch.zeros(widths[1], widths[0])])
    note("seen gradient", [layers[0].weight.grad])


def at_home(OffloadModel, note, device, place, *, widths, slices, checkpoint, optimizer):  # noqa: N803
    layers = [*chain(widths), Assigning(widths[-1])]
    owned = [p for layer in layers for p in layer.parameters()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    made = {"SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "Adam": lambda p: torch.optim.Adam(p, lr=0.1)}
    stepping = made[optimizer](model.parameters())
    places = []

    def look(*_):
        places.extend(p.device.type for p in owned)
        places.extend(p.grad.device.type for p in owned if p.grad is not None)

    look()
    for layer in layers:
        layer.register_forward_pre_hook(look)
        layer.register_forward_hook(look)
    for p in owned:
        p.register_hook(lambda grad: places.append(grad.device.type))
        p.register_post_accumulate_grad_hook(look)
    for _ in range(2):
        y = model(torch.randn(4, widths[0], device=place))
        look()
        y.sum().backward()
        look()
        stepping.step()
        places.extend(v.device.type for state in stepping.state.values() for v in state.values() if isinstance(v, torch.Tensor))
    places.extend(value.device.type for value in model.state_dict().values())
    note("expected places", ["cpu"])
    note("seen places", sorted(set(places)))
    note("expected place of the output", torch.device(place).type)
    note("seen place of the output", y.device.type)
    note("expected identity", True)
    note("seen identity", [id(p) for p in model.parameters()] == [id(p) for p in owned])


def traffic(OffloadModel, note, device, place, *, widths, slices, microbatches, frozen, steps):  # noqa: N803
    from conformance.programs.offloaded_models import greedy
    from conformance.simulated_device.device import Moves

    layers = chain(widths)
    layers[frozen].bias.requires_grad_(False)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    starts = [indices[0] for indices in greedy(counts, slices) if indices]
    boundary = sum(4 * 5 * widths[(index + 1) // 2] for index in starts) * (microbatches > 0)
    owned = [p for layer in layers for p in layer.parameters()]
    parameters, gradients = (4 * sum(p.numel() for p in ps) for ps in (owned, [p for p in owned if p.requires_grad]))
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    stepping = torch.optim.SGD([p for p in owned if p.requires_grad], lr=0.1, momentum=0.9)
    for step in range(steps):
        x = torch.randn(5, widths[0], device=place, requires_grad=True)
        with Moves() as forward:
            y = model(x)
        with Moves() as backward:
            y.sum().backward()
        with Moves() as rest:
            stepping.step()
            stepping.zero_grad()
        inward, outward = f"cpu→{place}", f"{place}→cpu"
        note(f"expected in forward {step}", [parameters, boundary])
        note(f"seen in forward {step}", [forward.totals[inward], forward.totals[outward]])
        note(f"expected in backward {step}", [parameters + boundary, gradients])
        note(f"seen in backward {step}", [backward.totals[inward], backward.totals[outward]])
        note(f"expected otherwise {step}", [])
        note(f"seen otherwise {step}", [str(move) for move in rest.seen])


def returning(OffloadModel, note, device, place, *, width, slices, checkpoint, training, kind):  # noqa: N803
    from conformance.programs.offloaded_models import greedy
    from conformance.simulated_device.device import Moves

    changing = {"BatchNorm1d": torch.nn.BatchNorm1d, "Counting": Counting, "Assigning": Assigning}[kind](width)
    layers = [torch.nn.Linear(width, width), changing, torch.nn.Linear(width, width)]
    owned = [p for layer in layers for p in layer.parameters()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint).train(training)
    state = [b.clone() for b in changing.buffers()]
    with Moves() as moves:
        model(torch.randn(5, width, device=place)).sum().backward()
    changed = [not torch.equal(*pair) for pair in zip(state, changing.buffers(), strict=True)]
    note("expected whether they change", [training or kind != "BatchNorm1d"] * len(state))
    note("seen whether they change", changed)
    sizes = [b.numel() * b.element_size() for b, has in zip(state, changed, strict=True) if has]
    made = [indices for indices in greedy([sum(p.numel() for p in layer.parameters()) for layer in layers], slices) if indices]
    boundary = 4 * 5 * width * len(made) * checkpoint
    note("expected bytes out", boundary + sum(sizes) + 4 * sum(p.numel() for p in owned))
    note("seen bytes out", moves.totals[f"{place}→cpu"])


def quiet_traffic(OffloadModel, note, device, place, *, widths, slices, microbatches, how):  # noqa: N803
    from conformance.simulated_device.device import Moves

    layers = chain(widths)
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    parameters = 4 * sum(p.numel() for layer in layers for p in layer.parameters())
    x = torch.randn(5, widths[0], device=place)
    with Moves() as moves, {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[how]():
        y = model(x)
    note("expected traffic", [parameters, 0])
    note("seen traffic", [moves.totals[f"cpu→{place}"], moves.totals[f"{place}→cpu"]])
    note("expected shape", [5, widths[-1]])
    note("seen shape", list(y.shape))
