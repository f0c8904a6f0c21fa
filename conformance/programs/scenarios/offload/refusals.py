"""Programs that build or call a model wrongly, noting whether the error names what is wrong, or build it amid training."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import Scale, here


def built_wrongly(OffloadModel, note, device, place, *, wrong):  # noqa: N803
    class Own(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    weighted, buffered, hooked = (torch.nn.Sequential(one, other) for _ in range(3))
    listed = torch.nn.ModuleList([one, other])
    weighted.scale = listed.scale = torch.nn.Parameter(torch.ones(2))
    buffered.register_buffer("scale", torch.ones(2))
    hooked.register_forward_hook(lambda module, args, value: value * 2)
    before, backward, preceded, patched = (torch.nn.Sequential(one, other) for _ in range(4))
    before.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    backward.register_full_backward_hook(lambda module, grads, of: (grads[0] * 2,))
    preceded.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2,))
    patched.forward = lambda x: other(one(x)) * 2
    right = {"model": torch.nn.Sequential(one, torch.nn.Tanh(), other), "device": place}
    options, names = {
        "a module": ({"model": one}, ["model"]),
        "a subclass": ({"model": Own(one, other)}, ["model", "forward"]),
        "a function": ({"model": torch.sin}, ["model"]),
        "nothing": ({"model": None}, ["model"]),
        "functions": ({"model": [one, torch.sin]}, ["model"]),
        "a dict": ({"model": torch.nn.ModuleDict({"one": one, "other": other})}, ["model"]),
        "no modules": ({"model": []}, ["model"]),
        "an empty Sequential": ({"model": torch.nn.Sequential()}, ["model"]),
        "a parameter of its own": ({"model": weighted}, ["model", "scale"]),
        "a parameter of a list": ({"model": listed}, ["model", "scale"]),
        "a buffer of its own": ({"model": buffered}, ["model", "scale"]),
        "a hook of its own": ({"model": hooked}, ["model", "hooks"]),
        "a hook before its own": ({"model": before}, ["model", "hooks"]),
        "a backward hook of its own": ({"model": backward}, ["model", "hooks"]),
        "a hook before backward": ({"model": preceded}, ["model", "hooks"]),
        "a forward of an instance": ({"model": patched}, ["model", "forward"]),
        "no shape of buffers yet": ({"model": [torch.nn.LazyBatchNorm1d(affine=False), one]}, ["model", "running_mean"]),
        "text for checkpointing": ({"checkpoint_activation": "no"}, ["checkpoint_activation", "'no'"]),
        "no shape yet": ({"model": [one, torch.nn.LazyLinear(2)]}, ["model", "weight"]),
        "True for slices": ({"num_slices": True}, ["num_slices", "True"]),
        "a device that keeps no values": ({"device": "meta"}, ["device", "meta"]),
        "no slices": ({"num_slices": 0}, ["num_slices", "0"]),
        "fewer slices": ({"num_slices": -1}, ["num_slices", "-1"]),
        "half a slice": ({"num_slices": 1.5}, ["num_slices", "1.5"]),
        "text for slices": ({"num_slices": "2"}, ["num_slices", "'2'"]),
        "no microbatches": ({"num_microbatches": 0}, ["num_microbatches", "0"]),
        "fewer microbatches": ({"num_microbatches": -2, "checkpoint_activation": True}, ["num_microbatches", "-2"]),
        "half a microbatch": ({"num_microbatches": 2.5, "checkpoint_activation": True}, ["num_microbatches", "2.5"]),
        "microbatches alone": ({"num_microbatches": 2}, ["num_microbatches", "checkpoint_activation"]),
        "one module twice": ({"model": [one, other, one]}, ["slice"]),
        "one inside another": ({"model": [one, other, torch.nn.Sequential(one)]}, ["slice"]),
        "a device that is none": ({"device": "nowhere"}, ["device", "nowhere"]),
        "a number for a device": ({"device": 1.5}, ["device", "1.5"]),
        "an offload device that is none": ({"offload_device": "nowhere"}, ["offload_device", "nowhere"]),
    }[wrong]
    note("expected refusal", names)
    try:
        OffloadModel(**(right | {"num_slices": 2} | options))
        note("seen refusal", "none")
    except (TypeError, ValueError) as error:
        note("seen refusal", [name for name in names if name in str(error)] if len(str(error).split()) > 4 else str(error))
    note("expected places", ["cpu", "cpu"])
    note("seen places", [one.weight.device.type, other.weight.device.type])
    note("expected modules", 3)
    note("seen modules", len(right["model"]))


def built_with_more(OffloadModel, note, device, place, *, what, kind):  # noqa: N803
    container = {"Sequential": torch.nn.Sequential, "ModuleList": torch.nn.ModuleList}[kind]
    methods = {
        "train": lambda self, mode=True: self,
        "named_parameters": lambda self, *args, **kwargs: iter(()),
        "requires_grad_": lambda self, flag=True: self,
        "state_dict": lambda self, *args, **kwargs: {},
        "get_extra_state": lambda self: 1,
        "extra_repr": lambda self: "more",
        "summary": lambda self: "more",
    }
    layers = [torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)]
    own = type("Own", (container,), {what: methods[what]}) if what in methods else container
    model = own(*layers) if kind == "Sequential" else own(layers)
    if what == "train of an instance":
        model.train = lambda mode=True: model
    elif what not in methods:
        getattr(model, f"register_{what}")(lambda *_: None)
    named = {"train of an instance": "train", "state_dict_post_hook": "state_dict"}.get(what, what)
    names = [] if what in ("extra_repr", "summary") else ["model", named, "Sequential" if what in methods else "OffloadModel"]
    names = names[:2] if what == "train of an instance" else names
    note("expected refusal", names)
    try:
        OffloadModel(model, place, num_slices=1)
        note("seen refusal", [])
    except (TypeError, ValueError) as error:
        note("seen refusal", [name for name in names if name in str(error)] or str(error))


def built_in_training(OffloadModel, note, device, place, *, training, graded, there):  # noqa: N803
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2)).train(training)
    layers[2].bias.requires_grad_(False)
    layers.to(place if there else "cpu")
    if graded:
        layers(torch.randn(3, 2, device=place if there else "cpu")).square().sum().backward()
    note("expected modes", [training] * 4)
    owned = [*layers.parameters(), *layers.buffers()]
    note("expected flags", [tensor.requires_grad for tensor in owned])
    note("expected values", [tensor.detach().cpu().clone() for tensor in owned])
    note("expected gradients", [None if p.grad is None else p.grad.cpu().clone() for p in layers.parameters()])
    model = OffloadModel(layers, place, num_slices=2)
    note("seen modes", [model.training, *(layer.training for layer in layers)])
    note("seen flags", [tensor.requires_grad for tensor in owned])
    note("seen values", [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())])
    note("seen gradients", [p.grad for p in model.parameters()])
    note("expected objects", [True] * len(owned))
    note("seen objects", [one is other for one, other in zip(owned, (*model.parameters(), *model.buffers()), strict=True)])
    note("expected places", ["cpu"])
    grads = [tensor.grad for tensor in owned if tensor.grad is not None]
    note("seen places", sorted({tensor.device.type for tensor in [*owned, *grads]}))


def altered(OffloadModel, note, device, place, *, kind, how, checkpoint):  # noqa: N803
    import copy

    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2)]
    plain, other = torch.nn.Sequential(*copy.deepcopy(layers)), torch.nn.Linear(2, 2)
    gather = {"list": list, "tuple": tuple, "ModuleList": torch.nn.ModuleList}
    model = OffloadModel(gather[kind](layers), place, num_slices=2, checkpoint_activation=checkpoint)
    x = torch.randn(3, 2, device=place)
    model(x)
    if how:
        plain.add_module({"replaced": "1", "added": "3"}[how], copy.deepcopy(other))
        model.add_module({"replaced": "1", "added": "3"}[how], other)
    for label, of in (("expected", plain.to(place)), ("seen", model)):
        note(f"{label} names", [name for name, _ in of.named_parameters()])
        try:
            y = of(x)
            y.sum().backward()
        except RuntimeError as error:
            if how == "added" and "modules" in str(error):  # that is as right
                y, of = y, plain
            else:
                y = str(error)
        note(f"{label} forward", y if isinstance(y, str) else here([y]))
        note(f"{label} gradients", here(p.grad for p in of.parameters()))


def called_wrongly(OffloadModel, note, device, place, *, wrong, slices):  # noqa: N803
    class Summed(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    class Counted(torch.nn.Module):
        def forward(self, x):
            if wrong == "outputs of other types":
                return x, True if len(x) > 1 else 1
            return [x] * len(x) if wrong == "outputs of other structures" else (x, len(x))

    layers = [torch.nn.Bilinear(2, 2, 2) if wrong == "rows that differ" else torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    layers += [Summed() if wrong == "an output without rows" else Counted() if wrong.startswith("outputs") else Scale()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=True, num_microbatches=3)
    inputs = {
        "too few rows": lambda rows: [torch.randn(2, 2, device=place)],
        "no rows": lambda rows: [torch.randn(0, 2, device=place)],
        "rows that differ": lambda rows: [torch.randn(3, 2, device=place), torch.randn(4, 2, device=place)],
        "an input without rows": lambda rows: [torch.randn((), device=place)],
    }.get(wrong, lambda rows: [torch.randn(4, 2, device=place)])(2)
    numbers = {"too few rows": ["2", "3"], "no rows": ["0", "3"], "rows that differ": ["3", "4"]}.get(wrong, [])
    names = [*numbers, "microbatch"]
    note("expected refusal", names)
    try:
        model(*inputs)
        note("seen refusal", "none")
    except (TypeError, ValueError) as error:
        note("seen refusal", [name for name in names if name in str(error)] if len(str(error).split()) > 4 else str(error))
    note("expected gradients", [True] * 4)
    note("seen gradients", [p.grad is None for p in list(model.parameters())[:4]])
    if wrong in ("too few rows", "no rows"):
        model(torch.randn(4, 2, device=place)).sum().backward()
        note("expected to go on", True)
        note("seen to go on", all(bool(p.grad.abs().sum().cpu() > 0) for p in model.parameters()))


def warned(OffloadModel, note, device, place, *, module, training, microbatches, tracking, deep):  # noqa: N803
    import warnings

    made = {
        "BatchNorm1d": lambda: torch.nn.BatchNorm1d(2, track_running_stats=tracking),
        "BatchNorm2d": lambda: torch.nn.Sequential(
            torch.nn.Unflatten(1, (2, 1, 1)), torch.nn.BatchNorm2d(2, track_running_stats=tracking), torch.nn.Flatten()
        ),
        "LayerNorm": lambda: torch.nn.LayerNorm(2),
        "Dropout": lambda: torch.nn.Dropout(0.5),
    }[module]()
    layers = [torch.nn.Linear(2, 2), torch.nn.Sequential(made) if deep else made, torch.nn.Linear(2, 2)]
    options = {"checkpoint_activation": True, "num_microbatches": microbatches}
    model = OffloadModel(layers, place, num_slices=2, **options).train(training)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(torch.randn(6, 2, device=place)).sum().backward()
    whole = module.startswith("BatchNorm") and (training or not tracking) and microbatches > 1
    note("expected warning", whole)
    note("seen warning", any("BatchNorm" in str(w.message) and "microbatch" in str(w.message) for w in caught))
    note("expected others", [])
    note("seen others", [str(w.message) for w in caught if "BatchNorm" not in str(w.message)])
