"""A program about offloaded models on streams of a device; it follows what ``offload_modules`` defines."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import chain, here


def trained_under_delays(OffloadModel, note, device, place, *, widths, slices, checkpoint, first, seeds):  # noqa: N803
    import random

    module, delays = torch.get_device_module(place), random.Random(0)
    sleep = getattr(module, "_sleep", lambda cycles: None)
    getattr(module, "forget_hazards", tuple)()

    def delay(*_):
        sleep(delays.choice([0, 10**5, 10**6, 10**7]))

    layers = [*chain(widths)[:-1], torch.nn.Dropout(0.5)]
    for layer in layers:
        layer.register_forward_pre_hook(delay)
        layer.register_forward_hook(delay)
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    for parameter in model.parameters():
        parameter.register_hook(delay)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note("leaves", tuple(model.parameters()))
    for turn in range(first, first + seeds):
        delays.seed(turn)
        stepping.zero_grad()
        y = model(torch.randn(3, widths[0], device=place))
        delay()
        y.square().sum().backward()
        note(f"gradients {turn}", here(p.grad for p in model.parameters()))
        stepping.step()
        note(f"forward {turn}", here([y]))
    note("state", here(model.state_dict().values()))
    note("hazards", getattr(module, "hazards", tuple)())
