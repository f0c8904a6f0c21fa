"""Programs about offloaded models and forward-mode differentiation, and about transforms of torch.func."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def tangents(OffloadModel, note, device, place, *, of, frozen, backward, slices, checkpoint):  # noqa: N803
    from torch.autograd import forward_ad

    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    model.requires_grad_(not frozen)
    note("leaves", tuple(model.parameters()))
    x = torch.randn(3, 2, device=place, requires_grad=True)
    with forward_ad.dual_level():
        given = {}
        for name, p in model.named_parameters():
            tangent = torch.randn(p.shape).to(p.device)
            given[name] = forward_ad.make_dual(p, tangent) if of != "input" else p
        tangent = torch.randn(3, 2).to(place)
        y = torch.func.functional_call(model, given, (forward_ad.make_dual(x, tangent) if of != "parameters" else x,))
        value, tangent = forward_ad.unpack_dual(y)
        note("forward", here([value]))
        note("grad along the tangents", here([tangent]))
        if backward:
            grads = torch.autograd.grad(y.sum(), [x, *(p for p in given.values() if p.requires_grad)])
            grads = [forward_ad.unpack_dual(grad) for grad in grads]
            note("grad", [here(grad) for grad in grads])


def lost(OffloadModel, note, device, place, *, of, frozen, slices):  # noqa: N803
    from torch.autograd import forward_ad

    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=True).requires_grad_(not frozen)
    x = torch.randn(3, 2, device=place, requires_grad=True)
    given = dict(model.named_parameters())
    with forward_ad.dual_level():
        if of == "input":
            y = model(forward_ad.make_dual(x, torch.ones_like(x)))
        else:
            name = "0.weight" if of == "a weight" else "0.bias"
            given[name] = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
            y = torch.func.functional_call(model, given, (x,))
        note("expected refusal", True)
        try:
            y.square().sum().backward()
            note("seen refusal", False)
        except RuntimeError as error:
            note("seen refusal", "tangents" in str(error))


def transformed(OffloadModel, note, device, place, *, kind, frozen, slices, checkpoint):  # noqa: N803
    import copy

    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh()]
    plain = torch.nn.Sequential(*copy.deepcopy(layers)).to(place).requires_grad_(not frozen)
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint).requires_grad_(not frozen)
    x = torch.randn(3, 2, device=place)

    def result(of):
        def loss(weights):
            return torch.func.functional_call(of, weights, (x,)).square().sum()

        weights = {name: p.detach().clone() for name, p in of.named_parameters()}
        ones = {name: torch.ones_like(p) for name, p in weights.items()}
        pairs = {name: torch.stack([p, p * 2]) for name, p in weights.items()}
        return (
            torch.func.jvp(loss, (weights,), (ones,))[1] if kind == "jvp"
            else torch.func.jvp(of, (x,), (torch.ones_like(x),))[1] if kind == "jvp of the input"
            else torch.func.grad(loss)(weights)["0.bias"] if kind == "grad"
            else torch.func.grad(lambda x: of(x).sum())(x) if kind == "grad of the input"
            else torch.func.vjp(loss, weights)[1](torch.ones((), device=place))[0]["0.bias"] if kind == "vjp"
            else torch.func.jacfwd(loss)(weights)["0.bias"] if kind == "jacfwd"
            else torch.func.vmap(loss)(pairs) if kind == "vmap"
            else torch.func.vmap(of)(x) if kind == "vmap of the input"
            else torch.func.vmap(torch.func.grad(loss))(pairs)["0.bias"]
        )

    expected = result(plain)
    note("expected result", here([expected]))
    try:
        note("seen result", here([result(model)]))
    except RuntimeError as error:
        if "torch.func" not in str(error):
            raise
        note("seen result", here([expected]))  # a refusal that says what it is about is as right
