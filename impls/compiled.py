"""Checkpoints inside what ``torch.compile`` traces: PyTorch's own, the one that the compiler knows, takes their place.

The compiler turns it into marks in the graph, which tell the partitioner what to recompute. An option that marks cannot express
is refused by name, never dropped: with ``fullgraph=True`` the refusal is an error; otherwise it is a graph break, and the call
runs eagerly. A call that the compiler does not trace runs eagerly, too, and so does all that it calls, because a recomputation
has to do what forward did. An exported program has no such marks, so there a region is a call of its function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch.utils.checkpoint

from impls.torch_private import SelectiveForward, SelectiveRecomputation, run_frames_untraced

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

_INSTEAD = "Leave the option out, or the call out of what is compiled"


def is_compiling() -> bool:
    """Whether Dynamo traces this call, or any thread exports.

    ``torch.compiler.is_compiling`` would not do: while one thread compiles, it is true in all of them. So is PyTorch's flag of
    an export, but nothing else tells of an export without Dynamo.
    """
    return torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()


def traced_or_eager(checkpoint: Function) -> Function:
    """Decorate a checkpoint that calls :func:`trace` while it is traced: a call that is not traced runs eagerly as a whole."""
    run_frames_untraced(checkpoint.__code__)
    return checkpoint


def untraced(function: Function) -> Function:
    """Decorate the backward of a custom autograd Function that compiled autograd is not to trace: it breaks the graph there.

    Dynamo is asked only once it traces, since importing it takes seconds.
    """

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(function)(*args)
        return function(*args)

    return called  # type: ignore[return-value]


def trace(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
    context_fn: Callable[[], Contexts] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
) -> Any:
    """Call ``function(*args, **kwargs)`` as a region of the graph that is being traced.

    ``context_fn`` is None if there is none. Raises NotImplementedError for an option that the graph cannot honour, and, when
    the graph is compiled, for contexts that are no selective policy. The graph always replays random numbers and computes
    what backward needs, and nothing else, again; it has nothing that a check of determinism could compare. While any thread
    exports, the function is called and autograd keeps what it saves: PyTorch's checkpoint would export a region inside of
    another as one without grad mode.
    """
    if not preserve_rng_state:
        raise NotImplementedError(f"preserve_rng_state is False; torch.compile replays random numbers always. {_INSTEAD}")
    if debug:
        raise NotImplementedError(f"debug is True; what torch.compile recomputes is not compared with forward. {_INSTEAD}")
    if not early_stop:
        raise NotImplementedError(f"early_stop is False; torch.compile recomputes only what backward needs. {_INSTEAD}")
    if respect_saved_tensors_hooks is not None:
        told = f"respect_saved_tensors_hooks is {respect_saved_tensors_hooks}; hooks see what the graph of torch.compile saves"
        raise NotImplementedError(f"{told}. {_INSTEAD}")
    if torch.compiler.is_exporting():
        if context_fn is not None:
            if torch.compiler.is_dynamo_compiling():
                told = "context_fn is given; torch.export with strict=True cannot ask what it gives"
                raise NotImplementedError(f"{told}. Leave the option out, or export with strict=False")
            _policies(context_fn)
        return function(*args, **kwargs)
    # What a function is passed may be called as an option of PyTorch's checkpoint is, which would take it for that.
    function = _bind(function, kwargs) if kwargs else function
    if context_fn is None:
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, determinism_check=determinism_check)
    return torch.utils.checkpoint.checkpoint(
        function,
        *args,
        use_reentrant=False,
        determinism_check=determinism_check,
        context_fn=functools.partial(_policies, context_fn),
    )


def _bind(function: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The function with its arguments by keyword."""

    def bound(*args: Any) -> Any:
        return function(*args, **kwargs)

    return bound


def _policies(context_fn: Callable[[], Contexts]) -> Contexts:
    """The contexts, which are asked for as the graph is compiled, if they are a selective policy's."""
    contexts = context_fn()
    for context, kind in zip(contexts, (SelectiveForward, SelectiveRecomputation), strict=True):
        if not isinstance(context, kind):
            raise NotImplementedError(
                f"context_fn gives {context!r}, which is no selective policy, and torch.compile would enter it as it compiles, "
                f"or not at all, and never as the region runs. {_INSTEAD}"
            )
    return contexts
