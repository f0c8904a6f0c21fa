"""A slice's modules run on parameters and buffers that they do not own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from impls.offload.saved_tensors import SliceHooks
from impls.offload.slice_use import SliceUse, Start
from impls.offload.slicing import Chain

Tensors = dict[str, torch.Tensor]


def execute(use: SliceUse, chain: Chain, given: Tensors, start: Start, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a slice on these parameters and buffers; ``given`` then has what modules have under each name, also after an error.

    ``start`` has those that began with another value than they have at the end of the slice's run.
    """
    with use.residence.exclusive(), SliceHooks(use, given, start, pristine=use.recomputed):
        put = {place: given[name] for place, name in use.places.items()}
        recurrent = [(module, dict(vars(module))) for module in chain.modules() if isinstance(module, nn.RNNBase)]
        try:
            value = _call_on(put, chain, args, kwargs)
        except BaseException as error:
            with told_beside(error):
                _collect(given, put, use.places)
            raise
        finally:
            for module, attributes in recurrent:
                for name in ("_flat_weights", "_flat_weight_refs"):
                    vars(module)[name] = attributes[name]  # or it would keep the copies, which it has in lists of its own
        _collect(given, put, use.places)
        return value


@contextmanager
def told_beside(error: BaseException) -> Iterator[None]:
    """Make a note of what goes wrong inside, on the program's own error, which is the one to be raised."""
    try:
        yield
    except Exception as other:  # noqa: BLE001 - whatever it is, it must not hide the error
        error.add_note(f"What forward had changed before this error is not all written back: {other}")


@contextmanager
def in_modes(modes: Sequence[tuple[nn.Module, bool]], chain: Chain) -> Iterator[None]:
    """Put each module in training or evaluation mode as given; afterwards put all of the chain back, whatever ran inside."""
    before = [(module, module.training) for module in {**dict(modes), **dict.fromkeys(chain.modules())}]
    try:
        for module, training in modes:
            module.training = training
        yield
    finally:
        for module, training in before:
            module.training = training


def _call_on(put: Tensors, chain: Chain, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Each place is in put: torch need not look for those that share a parameter.
    return torch.func.functional_call(chain, put, args, kwargs, tie_weights=False)


def _collect(given: Tensors, put: Tensors, places: dict[str, str]) -> None:
    before = dict(given)
    for place, name in places.items():
        if put[place] is before[name]:
            continue
        if list(places.values()).count(name) > 1:
            raise RuntimeError(
                f"{place!r} was assigned in forward, and is one with {name!r} of another module; an OffloadModel cannot write "
                "that back. Change it in place"
            )
        given[name] = put[place]
