"""One tensor, saved for later as autograd saves it: through the saved-tensor hooks that are active."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch

from impls.tensors.attributes import alias_with_own_version, as_class, attributes, plain_alias, set_attribute
from impls.tensors.origins import is_copy
from impls.tensors.versions import VersionProbe, detach_without_modes, version_probe
from impls.torch_private import make_saved_tensor, set_version_counters

_ANCHOR = torch.empty(0, requires_grad=True)  # made once: the user's modes are not to see how it is made
_RESULT = torch.empty(0)


class _SaveForBackward(torch.autograd.Function):
    """Saves tensors for releases of torch that cannot make a saved tensor without a node."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return detach_without_modes(_RESULT)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> NoReturn:
        raise AssertionError("nothing is connected to this node")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        return detach_without_modes(_RESULT)


class Packed:
    """A tensor saved through whatever hooks are active, as autograd itself would save it (rule 2)."""

    __slots__ = ("attributes", "kind", "node", "original", "parameter", "probe", "saved", "version")

    def __init__(self, tensor: torch.Tensor, known: dict[int, Packed] | None = None) -> None:
        # A parameter outlives the region in any case, and hooks would bring it back as a plain tensor.
        ordinary = type(tensor) is torch.Tensor  # asked first, as isinstance of a parameter is slow
        self.parameter: torch.Tensor | None = None if ordinary or not isinstance(tensor, torch.nn.Parameter) else tensor
        self.saved: Any = None
        self.node: Any = None
        if tensor.is_inference():
            self.parameter = tensor
        elif make_saved_tensor is not None:
            self.saved = make_saved_tensor(tensor, False)  # of an input, not of an output
        else:
            self.node = _SaveForBackward.apply(_ANCHOR, tensor)  # its tensor keeps a node alive
        self.kind: type[torch.Tensor] = type(tensor)
        # Nobody else follows the version of a tensor that is an attribute.
        self.probe: VersionProbe | None = None if known is None or self.parameter is not None else version_probe(tensor)
        self.version: int | None = None if self.probe is None else self.probe._version
        self.attributes: dict[str, Any] = {}
        if self.parameter is None and (present := attributes(tensor)):  # hooks hand back another object
            known = {} if known is None else known  # tensors may be attributes of each other
            known[id(tensor)] = self
            own = {} if ordinary else vars(plain_alias(tensor))  # what a subclass consists of, it rebuilds itself
            for name, value in present.items():
                if name not in own:
                    one = known.get(id(value)) or Packed(value, known) if isinstance(value, torch.Tensor) else value
                    self.attributes[name] = one
        # Autograd makes another object of the same result, whose ``retain_grad`` would take the place of the first one's. One
        # with tensors among its attributes may share their memory.
        has_tensors = any(isinstance(one, Packed) for one in self.attributes.values())
        self.original = weakref.ref(tensor) if ordinary and not has_tensors else None

    def unpack(self, version: int | None = None, made: dict[int, torch.Tensor] | None = None) -> torch.Tensor:
        """The tensor; set to ``version`` if hooks bring back a copy, whose counter starts anew.

        The very object that was saved, if it is alive and unchanged, and hooks have brought back its values.
        """
        if self.parameter is not None:
            return self.parameter
        tensor: torch.Tensor = self.saved.unpack() if self.node is None else self.node.grad_fn.saved_tensors[0]
        original = None if self.original is None else self.original()
        if (
            original is not None
            and version in (None, original._version)
            and self.has_same_attributes(original)
            and (original is tensor or is_copy(tensor, original))
        ):
            return original
        # One that needs no gradient is the very object that the hooks handed over, which may be needed as it is.
        owned = tensor.requires_grad
        if version is not None and tensor._version != version:
            tensor = tensor if owned else alias_with_own_version(tensor)
            set_version_counters((tensor,), (version,))
        if self.attributes or vars(tensor) or type(tensor) is not self.kind:
            tensor = as_class(tensor if owned else plain_alias(tensor), self.kind)
            made = {} if made is None else made
            made[id(self)] = tensor
            for name, value in self.attributes.items():
                if isinstance(value, Packed):
                    value = made[id(value)] if id(value) in made else value.unpack(value.unchanged(), made)
                set_attribute(tensor, name, value)
        return tensor

    def has_same_attributes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the very attributes that the saved one had."""
        found = attributes(tensor)
        return len(found) == len(self.attributes) and all(found.get(name) is one for name, one in self.attributes.items())

    def unchanged(self) -> int | None:
        """The version of an attribute, if it was not changed since: if it was, whatever comes back shows that."""
        return self.version if self.probe is not None and self.probe._version == self.version else None
