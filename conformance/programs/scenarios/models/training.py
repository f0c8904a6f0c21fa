"""Programs that train: steps of an optimizer, gradient accumulation, and a function called again in another way."""

from __future__ import annotations

import torch


def trained(checkpoint, note, device, *, optimizer, accumulate, regions, rate, nested):
    ran = []
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
        def forward(self, h):
            ran.append(1)
            h = self.linear(h).tanh()
            return torch.nn.functional.dropout(h, rate, self.training) if rate else h
    first, blocks = torch.nn.Linear(2, 2).to(device), [Block().to(device) for _ in range(regions)]
    parameters = [q for m in [first, *blocks] for q in m.parameters()]
    if optimizer == "SGD":
        steps = torch.optim.SGD(parameters, lr=0.5)
    if optimizer == "momentum":
        steps = torch.optim.SGD(parameters, lr=0.5, momentum=0.9, nesterov=True)
    if optimizer == "AdamW":
        steps = torch.optim.AdamW(parameters, lr=0.1)
    if optimizer == "foreach":
        steps = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
    note("leaves", parameters)
    for turn in range(3):
        for _ in range(accumulate):
            h = first(torch.randn(3, 2, device=device))
            for block in blocks:
                h = checkpoint(lambda h, block=block: checkpoint(block, h), h) if nested else checkpoint(block, h)
            loss = torch.nn.functional.mse_loss(h, torch.randn(3, 2, device=device)) / accumulate
            loss.backward()
        note(f"gradients {turn}", [q.grad for q in parameters])
        steps.step()
        steps.zero_grad()
        note(f"parameters {turn}", parameters)
    note("state", [steps.state[q].get(name) for q in parameters for name in ("momentum_buffer", "exp_avg", "exp_avg_sq")])
    note("cost calls", len(ran))


def another_time(checkpoint, note, device, *, change, swapped, order, nested):  # noqa: C901 - of its branches one is printed
    p = torch.randn(3, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    m, ran = torch.nn.Dropout(0.5), []
    calls, settings = [(p,), (p,)], [{}, {}]
    if change == "shape":
        calls = [(p,), (p[:1],)]
    if change == "rank":
        calls = [(p,), (p[None],)]
    if change == "dtype":
        calls = [(p,), (p.double(),)]
    if change == "arguments":
        calls = [(p,), (p, p)]
    if change == "mode":
        settings = [{"training": True}, {"training": False}]
    if change == "rate":
        settings = [{"p": 0.5}, {"p": 0.25}]
    if change == "autocast":
        settings = [{"enabled": True}, {"enabled": False}]
    if swapped:
        calls, settings = calls[::-1], settings[::-1]
    def f(h, *others):
        ran.append(1)
        for _ in range(len(h)):  # so that another shape is another number of saved tensors
            h = h.tanh()
        for other in others:
            h = h * other
        if change == "mode" or change == "rate":
            h = m(h)
        if change == "autocast":
            h = h @ h.T
        return h
    def outer(*args):
        return checkpoint(f, *args)
    def forward(turn):
        if change == "autocast":
            with torch.autocast(torch.device(device).type, torch.bfloat16, **settings[turn]):
                return checkpoint(outer if nested else f, *calls[turn])
        for name, value in settings[turn].items():
            setattr(m, name, value)
        return checkpoint(outer if nested else f, *calls[turn])
    def backward(turn, y):
        for name, value in settings[turn].items():
            setattr(m, name, value)
        y.backward(torch.ones_like(y))
        note(f"gradients {turn}", [p.grad])
    if order == "each at once":
        for turn in range(2):
            y = forward(turn)
            note(f"forward {turn}", y)
            backward(turn, y)
    else:
        outputs = [forward(0), forward(1)]
        note("forward", outputs)
        for turn in (0, 1) if order == "first to last" else (1, 0):
            backward(turn, outputs[turn])
    note("cost calls", len(ran))
