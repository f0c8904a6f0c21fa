"""What in a model goes wrong under checkpointing, as it was seen in a run, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reprise.model_check.explanations.operator_difference import DRAW_ELSEWHERE
from reprise.model_check.metering import Observations
from reprise.model_check.regions import Key, Region
from reprise.model_check.report import Warned
from reprise.model_check.run import Run

Outputs = Mapping[Key, tuple[str, ...]]  # those that require grad, by region
WARNINGS = {
    "buffers": (
        "buffers are updated again by the recomputation, in",
        (
            "Keep their modules out of regions, or update them after the step. (BatchNorm: momentum 1 - sqrt(1 - momentum) is "
            "right in the checkpointed model; since build() gives it to plain, too, these buffers will still differ here.)"
        ),
    ),
    "inputs": (
        "no input requires grad, so nothing inside gets a gradient, in region",
        "Use a non-reentrant implementation, or let an input require grad (transformers: model.enable_input_require_grads()).",
    ),
    "outputs": (
        "outputs of a region require grad in a plain step and not here, so their gradients are lost",
        "Return a flat tuple of tensors from the region, or use a non-reentrant implementation.",
    ),
    "training flags": (
        "train() or eval() is flipped inside a region, or between its forward and its recomputation, of module",
        "Flip it before regions run or after backward, or put it back in a finally clause.",
    ),
    "Python's random numbers": (
        "Python's random numbers are drawn, and others by the recomputation, in region",
        "Draw with torch, or draw outside and pass the number in.",
    ),
    "numpy's random numbers": (
        "numpy's random numbers are drawn, and others by the recomputation, in region",
        "Draw with torch, or draw outside and pass the number in.",
    ),
    "own generators": (
        "random numbers are drawn from a generator of your own, and others by the recomputation, from",
        DRAW_ELSEWHERE,
    ),
    "hooks": (
        "hooks are registered on modules, parameters or arguments, and found or registered again by recomputation, in region",
        "Register them once, outside of regions.",
    ),
    "TorchScript": (
        "TorchScript lets no exception of Python's through, such as the one that ends a recomputation early, in region",
        "Call checkpoint with early_stop=False there, or use the module that was not traced or scripted.",
    ),
    "cache": (
        "the recomputation fills a list, a dict or an attribute again, or uses what forward left there, in",
        (
            "Switch a cache off while training (transformers: use_cache=False), or fill it outside of regions. Pass a state "
            "that goes from call to call to the region, and return the next one."
        ),
    ),
    "changed in place": (
        "a tensor that is no buffer is changed in place by a region, and again by the recomputation, in",
        "Change it outside of regions, such as after the step; a cache that is filled in place: switch it off while training.",
    ),
    "outside tensors": (
        "a tensor that a region reads, and that is not itself an argument, was changed between forward and recomputation",
        "Leave it as it is until backward has ended, or pass a clone of it as an argument of the region.",
    ),
}


def warned_of(seen: Observations, plain: Run) -> tuple[Warned, ...]:
    """Warnings about what was seen in a run, compared with a plain one; the run may have failed in backward."""
    twice = {name.rpartition(".")[0] or "the model itself": 0 for name in seen.updated_again if name in plain.buffers}
    made, kept = plain.output_requires_grad, seen.output_requires_grad
    outermost = [one for one in seen.regions if len(one.key) == 1]  # a forward without gradients may have others run in it
    lost = [one for one in outermost if made.get(one.key) and not (kept.get(one.key) or one.inputs_require_grad)]
    found = {
        "buffers": tuple(twice),
        "inputs": tuple(f"{one.name} ({one.line})" for one in lost),
        "outputs": tuple(_lost_outputs(outermost, made, kept)),
        "training flags": _places(seen.training_flags),
        "Python's random numbers": _places(seen.python_random),
        "numpy's random numbers": _places(seen.numpy_random),
        "own generators": _places(seen.generators),
        "hooks": _places(seen.hooks),
        "TorchScript": _places(seen.ended_by_torchscript),
        "cache": _places(_filled(seen)),
        "changed in place": _places({path: line for path, line in seen.filled.items() if path in seen.changed_in_place}),
        "outside tensors": _places(seen.changed_outside),
    }
    return tuple(Warned(kind, *WARNINGS[kind], places) for kind, places in found.items() if places)


def _lost_outputs(regions: list[Region], made: Outputs, kept: Outputs) -> Iterator[str]:
    for one in regions:
        lost = [name for name in made.get(one.key, ()) if name not in kept.get(one.key, made[one.key])]
        if lost and (one.inputs_require_grad or kept.get(one.key)):
            yield f"{', '.join(lost)} of {one.name} ({one.line})"


def _places(seen: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name or 'the model itself'} ({line})" for name, line in seen.items())


def _filled(seen: Observations) -> dict[str, str]:
    """Caches with their lines, without the elements of one that is there itself, with the same line."""
    found = {path: line for path, line in seen.filled.items() if path not in seen.changed_in_place}
    return {path: line for path, line in found.items() if found.get(seen.containers.get(path, "")) != line}
