"""What programs about offloaded models are made of; a program is given the text of those that it names."""


# ruff: noqa: D101 - their text is printed with programs, and a docstring would take room there
from __future__ import annotations

import time

import torch


def here(tensors):
    return [None if tensor is None else tensor.detach().cpu() for tensor in tensors]


class First(torch.nn.Module):
    def forward(self, pair):
        return pair[0]


class Apart(torch.nn.Module):
    def forward(self, x):
        return x.sin(), {"more": [x.cos(), None]}


class Joined(torch.nn.Module):
    def forward(self, pair):
        return pair[0] * pair[1]["more"][0]


class Tied(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.there = torch.nn.Linear(width, width)
        self.back = torch.nn.Linear(width, width, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x):
        return self.back(self.there(x).tanh())


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.factor


class Counting(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.long), persistent=False)

    def forward(self, x):
        self.calls.add_(1)
        self.mean.mul_(0.5).add_(x.detach().sum(0))
        return x + self.mean.clone()


class Assigning(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        self.mean = self.mean * 0.5 + x.detach().sum(0)
        return x * self.mean


class Clamped(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return x * self.weight


class Scaled(torch.nn.Module):
    def __init__(self, width, what, first):
        super().__init__()
        self.register_buffer("mean", torch.ones(width))
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.what, self.first = what, first

    def forward(self, x):
        changed = getattr(self, self.what)
        with torch.no_grad():
            changed.mul_(0.5).add_(x.detach().mean(0))
        x = x + changed.detach()
        return changed * x if self.first else x * changed


class Remembering(torch.nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps, self.norm = steps, torch.nn.BatchNorm1d(2, affine=False)
        self.norm.running_mean.fill_(0.5)
        self.register_buffer("scale", torch.full((2,), 0.5))

    def forward(self, x):
        for step in self.steps:
            if step == "start again":
                self.scale.fill_(0.5), self.norm.reset_running_stats()
            times = {"change at times": x.detach().sum() > 0, "change in training": self.training}.get(step, step == "change")
            if times:
                self.scale.data.add_(0.25)  # data has a version of its own
            if step == "norm":
                x = self.norm(x)
            if step in ("read", "statistics"):
                x = (x * (self.scale if step == "read" else self.norm.running_mean)).sin()
        return x


class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002)  # the other thread runs meanwhile
        return x


class Mixing(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))

    def forward(self, x, *others, scale=None, table=()):
        for other in others:
            x = x + (other.to(x.dtype) if isinstance(other, torch.Tensor) else other)
        for one in table:
            x = x * one["value"]
        return x * self.weight if scale is None else x * self.weight * scale


def chain(widths):
    layers = []
    for index in range(len(widths) - 1):
        layers += [torch.nn.Linear(widths[index], widths[index + 1]), torch.nn.Tanh()]
    return layers


def note_gradients(note, model, label="gradients"):
    grads = here(p.grad for p in model.parameters())
    note("grad anywhere", torch.stack([grad.any() for grad in grads if grad is not None]).any())
    note(label, grads)
