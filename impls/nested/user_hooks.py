"""The hooks for saved tensors that a user has around a region, which PyTorch's selective policies ask for.

From torch 2.14 on, a policy of ``create_selective_checkpoint_contexts`` hands what it keeps to the hooks around, if
``respect_saved_tensors_hooks`` says so. The hooks on top are those of the region, which it tells from a user's by a mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from impls.torch_private import POLICIES_ASK_FOR_HOOKS, dispatch_mode_count, push_hooks, top_hooks

POLICIES_ASK_SINCE = "2.14"

Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]


class HookOwner:
    """A region or recomputation: while its own hooks are on top, ``user_hooks`` are those of the user around it."""

    user_hooks: Hooks | None = None


def active_user_hooks() -> Hooks | None:
    """The pair that the user has on top, past those of regions and recomputations; None if there is none."""
    hooks = top_hooks(True)
    owner = getattr(hooks[0], "__self__", None) if hooks else None
    return owner.user_hooks if isinstance(owner, HookOwner) else hooks


class _MarkedPackHook:
    """A pack hook in the place of the one of its ``__self__``, with the mark that a policy knows."""

    _checkpoint_internal = True

    def __init__(self, owner: Any) -> None:
        self.__self__ = owner

    def __call__(self, tensor: torch.Tensor) -> Any:
        return self.__self__.pack(tensor)

    @property
    def _user_hooks(self) -> Hooks | None:
        # Asked for when it is needed: the graph keeps this object, and is not to keep those hooks.
        return self.__self__.user_hooks


def push_hooks_of(owner: Any, context: bool = False) -> None:
    """Put the hooks of a region or a recomputation on top; marked, which takes longer, where a policy may be at work.

    That is a dispatch mode, which is entered already or by the ``context`` of the region.
    """
    pack = owner.pack
    if POLICIES_ASK_FOR_HOOKS:
        owner.user_hooks = active_user_hooks()
        if context or dispatch_mode_count():
            pack = _MarkedPackHook(owner)
    push_hooks(pack, owner.unpack)


def set_respect_hooks(context: Any, wanted: bool | None) -> None:
    """Tell a selective policy's context whether what it keeps goes through the user's hooks; others have no use for it.

    Raises TypeError for what is not True, False or None, and NotImplementedError for True where torch cannot do it.
    """
    if wanted not in (None, True, False):
        raise TypeError(f"respect_saved_tensors_hooks is {wanted!r}; it must be True, False or None")
    if POLICIES_ASK_FOR_HOOKS and hasattr(context, "respect_saved_tensors_hooks"):
        context.respect_saved_tensors_hooks = wanted
    elif wanted and not POLICIES_ASK_FOR_HOOKS:
        raise NotImplementedError(f"respect_saved_tensors_hooks is True; policies of torch {torch.__version__} hand nothing to "
                                  f"hooks. It takes torch {POLICIES_ASK_SINCE} or later")  # fmt: skip
