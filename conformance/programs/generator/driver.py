"""The driver of a drawn program: what it asks of autograd, and the notes of what comes of it."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.programs.backward_calls import SCALAR_SEEDS, SEEDS, Request, Seed
from conformance.programs.generator.builder import Author
from conformance.programs.notes import Note, Role
from conformance.programs.program import Leaf, Line, Noted, Step, gradients

_SQUARES = "squares = sum((g * g.conj()).real.sum() for g in gradients if g is not None and g.requires_grad)"
_DIFFERENTIATE = "if isinstance(squares, torch.Tensor): squares.backward(retain_graph=True)"


def _subset(author: Author, leaves: tuple[str, ...]) -> tuple[str, ...]:
    """The leaves that a request is for."""
    if not author.draw_feature("through-regions"):
        return tuple(author.draw(st.lists(st.sampled_from(leaves), min_size=1, unique=True)))
    *others, passed = leaves  # the first region is passed the last one
    return (passed, *(author.draw(st.lists(st.sampled_from(others), unique=True)) if others else ()))


def _stream(when: str) -> Noted:
    return Noted(Note(Role.VALUE, ("stream", "after", when)), "torch.rand(2, device=device)")


def _seeds(author: Author, outputs: tuple[str, ...]) -> tuple[Seed, ...]:
    """The incoming gradients for a request of these outputs; none stands for ones."""
    if not author.draw_feature("seeds"):
        return ()
    options = SEEDS[1:] if "complex" in author.used else (*SEEDS[1:], *SCALAR_SEEDS)
    return tuple(author.pick(options) for _ in outputs)


def steps(author: Author, outputs: tuple[str, ...], asked: tuple[Leaf, ...]) -> tuple[Step, ...]:
    """The driver's steps: what the features demand, then a plain backward of all outputs."""
    leaves = tuple(leaf.tensors for leaf in asked)
    made: list[Step] = []
    turn = 0

    def step(request: Request) -> None:
        nonlocal turn
        made.extend((request, gradients(str(turn), asked)))
        turn += 1

    stream = author.draw_feature("stream")
    if stream:
        made.append(_stream("forward"))
        turn += 1
    if author.draw_feature("grad"):
        asking = Request(outputs, _subset(author, leaves), retain=True, gives=True, seeds=_seeds(author, outputs))
        made += [asking, Noted(Note(Role.GRAD, (str(2 * turn),)), "gradients")]
        turn += 1
    if author.draw_feature("batched-seeds"):
        made.append(Request(outputs, leaves, retain=True, gives=True, batched=True))
        made.append(Noted(Note(Role.GRAD, (str(2 * turn),)), "gradients"))
        turn += 1
    if author.draw_feature("create-graph"):
        made.append(Request(outputs, leaves, create_graph=True, gives=True, seeds=_seeds(author, outputs)))
        made.append(Noted(Note(Role.FIRST, ("order", str(2 * turn))), "gradients"))
        made += [Line(_SQUARES), Line(_DIFFERENTIATE), gradients("of second order", asked)]
        turn += 3
    if author.draw_feature("inputs"):
        step(Request(outputs, _subset(author, leaves), retain=True, seeds=_seeds(author, outputs)))
    if "partial" in author.used:
        step(Request(outputs[-1:], retain=True, seeds=_seeds(author, outputs[-1:])))
    if author.draw_feature("retain"):
        for _ in range(author.draw(st.integers(1, 2))):
            step(Request(outputs, retain=True, seeds=_seeds(author, outputs)))
    step(Request(outputs, seeds=_seeds(author, outputs)))
    if author.draw_feature("again"):
        step(Request(outputs))
    if stream:
        made.append(_stream("backward"))
    return tuple(made)
