"""A smoke check of a callable that declares nothing, before the laws run: is the adapter itself sound?

Laws assume that a checkpoint calls the function that it is given and returns its value. Without that, every law would fail, and
none would say why. A fault says what is wrong and how to mend it. Things that an implementation need not be able to do, such as
passing keyword arguments on, are warnings: the laws judge them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from conformance.judging import judge
from conformance.judging.process_state import isolated
from conformance.meters.interruptions import Timeout
from impls import Implementation, Kind


class Fault(Exception):
    """What is wrong with an adapter, and how to mend it."""


class Raised(Fault):
    """The call ended with an exception."""


@dataclass(frozen=True)
class Smoke:
    """What a smoke check found: a fault that makes judging pointless, "" if there is none, and warnings."""

    fault: str = ""
    warnings: tuple[str, ...] = ()


@contextmanager
def _told(call: str) -> Iterator[None]:
    """An exception, a hang or a changed grad mode inside is a fault of the call."""
    before = torch.is_grad_enabled()
    try:
        with judge.limited(judge.SECONDS_PER_CASE):
            yield
    except Fault:
        raise
    except Timeout:
        raise Fault(f"{call} gave no answer in {judge.SECONDS_PER_CASE} seconds") from None
    except BaseException as error:
        if judge.is_users(error):
            raise
        raise Raised(f"{call} raised {type(error).__name__}: {error}") from error
    if torch.is_grad_enabled() is not before:
        raise Fault(f"{call} left grad mode {'off' if before else 'on'}: put it back, also after an error")


def _leaf(device: str) -> torch.Tensor:
    return torch.tensor([[0.25, 0.5], [0.75, 1.0]], device=device, requires_grad=True)


def _passed_on(checkpoint: Any, function: Any, call: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The value of a checkpointed call. It must be the function's, after one call of it."""
    returned: list[torch.Tensor] = []

    def probe(*args: Any, **kwargs: Any) -> torch.Tensor:
        returned.append(function(*args, **kwargs))
        return returned[-1]

    with _told(call):
        value = checkpoint(probe, *args, **kwargs)
    if not returned and callable(value):
        raise Fault(f"{call} returned {_what(value)} and did not call the function. {_mend(value)}")
    if len(returned) != 1:
        times = f"called the function {len(returned)} times in forward"
        raise Fault(f"{call} {times}: it must call it once, with the arguments that it is given, and again in backward only")
    due = returned[0]
    if value is None:
        raise Fault(f"{call} returned None: return what the function returns")
    if not isinstance(value, torch.Tensor):
        raise Fault(f"{call} returned {_what(value)}, the function a tensor: return the function's value as it is")
    expected = function(*args, **kwargs)  # by plain autograd; lost arguments show in the value
    if not (value.shape == due.shape == expected.shape and torch.equal(value, due) and torch.equal(value, expected)):
        raise Fault(f"{call} returned another value than the function does: pass arguments on and return the value unchanged")
    return value


def _what(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, torch.nn.Module):
        return f"a module ({kind})"
    return f"a function ({kind})" if callable(value) else f"a {kind}"


def _mend(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        return "It looks like a wrapper of modules; adapt it: checkpoint = impls.signature_adapter.wrapper_of_modules(yours)"
    return "It looks like a decorator; adapt it: checkpoint = impls.signature_adapter.decorator(yours)"


def _gradients(value: torch.Tensor, call: str, **tensors: torch.Tensor) -> None:
    """A backward must give each tensor a gradient; whether it is right is for the laws to judge."""
    if not value.requires_grad:
        raise Fault(f"the value of {call} does not require grad, though the function's does: it is cut off from the graph")
    with _told(f"backward() after {call}"):
        value.sum().backward()
    for name, tensor in tensors.items():
        if tensor.grad is None or not bool(tensor.grad.any()):
            raise Fault(f"backward() after {call} gave {name} no gradient: its value must be connected to what it was made of")


def _guessed(checkpoint: Any, device: str) -> str:
    """Advice for something that cannot be called as checkpoint(function, x)."""
    for given in (lambda x: x.sin(), torch.nn.Linear(2, 2, device=device)):
        with suppress(Fault), _told("a guess"):
            value = checkpoint(given)
            if callable(value):
                return _mend(value)
    with suppress(Fault), _told("a guess"):
        if isinstance(checkpoint(_leaf(device), lambda x: x.sin()), torch.Tensor):
            return "It takes the function last; adapt it: checkpoint = lambda function, *args: yours(*args, function)"
    if needed := ", ".join(f"{name}=..." for name in _needed(checkpoint)):
        return f"Give what it cannot do without: checkpoint = functools.partial(yours, {needed})"
    if isinstance(checkpoint, type):
        return "It is a class: give what is called for each region, as an instance or a method may be"
    return "When it takes another argument before the function, adapt it: checkpoint = functools.partial(yours, argument)"


def _needed(checkpoint: Any) -> list[str]:
    """The required keyword arguments, as far as there is a signature."""
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(checkpoint).parameters.values()
        return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    return []


def _function(checkpoint: Any, device: str, _: list[str]) -> None:
    x, call = _leaf(device), "checkpoint(function, x)"
    try:
        value = _passed_on(checkpoint, lambda x: x.sin().exp(), call, x)
    except Raised as raised:
        raise Fault(f"{raised}. {_guessed(checkpoint, device)}") from raised
    _gradients(value, call, x=x)


def _two_arguments(checkpoint: Any, device: str, _: list[str]) -> None:
    x, y, call = _leaf(device), _leaf(device), "checkpoint(function, x, y)"
    _gradients(_passed_on(checkpoint, lambda x, y: (x - y).exp() * y, call, x, y), call, x=x, y=y)


def _module(checkpoint: Any, device: str, _: list[str]) -> None:
    x, call = _leaf(device), "checkpoint(module, x)"
    module = torch.nn.Sequential(torch.nn.Linear(2, 2, device=device), torch.nn.Tanh())
    with _told(call):
        value = checkpoint(module, x)
    if not isinstance(value, torch.Tensor) or not torch.equal(value, module(x)):
        raise Fault(f"{call} returned another value than the module does, {_what(value)}: a module is called as a function is")
    _gradients(value, call, x=x, **dict(module.named_parameters()))


def _other_arguments(checkpoint: Any, device: str, warnings: list[str]) -> None:
    tried: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "checkpoint(function, x, 3)": ((_leaf(device), 3), {}),
        "checkpoint(function, x, scale=y)": ((_leaf(device),), {"scale": _leaf(device)}),
    }
    for call, (args, kwargs) in tried.items():
        try:
            _passed_on(checkpoint, lambda x, scale=1: x.sin() * scale, call, *args, **kwargs)
        except Fault as fault:
            warnings.append(str(fault).splitlines()[0])


def _hooks(graph: Any, device: str, _: list[str]) -> None:
    x, call = _leaf(device), "saved_tensors_hooks(pack, unpack)"
    seen: list[str] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append("pack")
        return tensor.detach().clone()

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append("unpack")
        return tensor

    with _told(call), graph.saved_tensors_hooks(pack, unpack):
        value = x.exp()
    x.sin()
    if seen != ["pack"]:
        raise Fault(f"of {call}, pack was called {len(seen)} times, once is due: it is for what is saved inside the with block")
    _gradients(value, call, x=x)
    if seen != ["pack", "unpack"]:
        raise Fault(f"of {call}, unpack was called {len(seen) - 1} times in backward, once is due")


def _contexts(graph: Any, device: str, _: list[str]) -> None:
    for name in ("save_on_cpu", "allow_mutation_on_saved_tensors"):
        x, call = _leaf(device), f"{name}()"
        with _told(call), getattr(graph, name)():
            value = x.exp()
            _gradients(value, call, x=x)


def _multi_grad_hook(graph: Any, device: str, _: list[str]) -> None:
    x, call = _leaf(device), "register_multi_grad_hook((x,), hook)"
    seen: list[Any] = []
    with _told(call):
        handle = graph.register_multi_grad_hook((x,), seen.append)
    _gradients(x.exp(), call, x=x)
    if len(seen) != 1:
        raise Fault(f"{call} called the hook {len(seen)} times in a backward, once is due")
    with _told(f"remove() of what {call} returned"):
        handle.remove()


def _offloaded(offload: Any, device: str, _: list[str]) -> None:
    call = "OffloadModel(model, device)"
    layers = [torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2), torch.nn.Tanh()]
    model, x = torch.nn.Sequential(*layers), _leaf(device)
    expected = model.to(device)(x).detach()
    model.to("cpu")
    with _told(call):
        offloaded = offload(model, torch.device(device))
    if not callable(offloaded):
        raise Fault(f"{call} returned {_what(offloaded)}: return the offloaded model, which is called as the model is")
    with _told(f"{call}(x)"):
        value = offloaded(x)
    if not isinstance(value, torch.Tensor) or not torch.equal(value, expected):
        raise Fault(f"{call}(x) returned another value than the model does, {_what(value)}")
    _gradients(value, f"{call}(x)", x=x, **dict(model.named_parameters()))


Probe = Callable[[Any, str, list[str]], None]
PROBES: Mapping[Kind, tuple[Probe, ...]] = MappingProxyType(
    {
        "checkpoint": (_function, _two_arguments, _module),
        "graph": (_hooks, _contexts, _multi_grad_hook),
        "offload": (_offloaded,),
    }
)
MORE: Mapping[Kind, tuple[Probe, ...]] = MappingProxyType({"checkpoint": (_other_arguments,), "graph": (), "offload": ()})


def smoke(implementation: Implementation, device: str) -> Smoke:
    """Try an adapter on the smallest programs of its kind. The first fault ends the check, as others may follow from it.

    Not checked: that gradients are right, and anything else that a law is about.
    """
    needed = probed(implementation, device, PROBES)
    return needed if needed.fault else probed(implementation, device, MORE)


def probed(implementation: Implementation, device: str, probes: Mapping[Kind, tuple[Probe, ...]]) -> Smoke:
    """What some of the probes find: :data:`PROBES` is what any implementation must do, :data:`MORE` what it may refuse."""
    warnings: list[str] = []
    for probe in probes[implementation.kind]:
        try:
            with isolated(device), torch.enable_grad():
                probe(implementation.subject, device, warnings)
        except Fault as fault:
            return Smoke(f"{implementation.name} cannot be judged: {fault}", tuple(warnings))
    return Smoke("", tuple(warnings))
