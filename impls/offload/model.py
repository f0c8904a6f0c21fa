"""OffloadModel: a model that computes on one device and lives on another, slice by slice."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from impls.offload.boundary import nodes_of
from impls.offload.changes import SharedMemory
from impls.offload.containers import flatten
from impls.offload.microbatches import Call, join, split
from impls.offload.residence import Residence
from impls.offload.slice_run import SliceRun
from impls.offload.slice_use import Below
from impls.offload.slicing import Chain, children, refuse_shared, slices
from impls.offload.transfers import Route
from impls.torch_private import (
    BatchNorm,
    has_compatible_shallow_copy_type,
    innermost_transform,
    is_differentiated_tensor,
    is_transformed_tensor,
    tree_leaves,
    untransformed_tensor,
)


class OffloadModel(nn.Module):
    """A chain of modules whose parameters are on ``offload_device``, but for those of the slice that computes on ``device``.

    Called as the model is: the first module gets all arguments under their own names, moved to ``device`` in containers of
    its own; each other one gets the value of the one before it, a tuple as one argument. The result is on ``device``.
    Modules, ``state_dict``, parameters and buffers have the model's own names, and parameters stay the objects they were, so
    that optimizers, hooks, saving and loading work as they do without it. Gradients are where parameters are. With one
    microbatch all values are those of the model on ``device``, to the last bit if its parameters, and with
    ``checkpoint_activation`` its inputs, are aligned in memory and have no gaps, as their copies are and have none; under
    autocast and in inference mode, those of the model inside a dispatch mode.

    Args:
        model: an nn.Sequential, or a list, tuple or nn.ModuleList of modules; without methods in place of torch's.
        device: where modules compute.
        offload_device: where parameters, buffers, gradients and checkpointed activations are.
        num_slices: into how many slices the model is cut, by :func:`impls.offload.slices`. Two of them at most are loaded.
        checkpoint_activation: keep only what slices pass on to each other, and run each slice again in backward.
        num_microbatches: into how many parts the rows of all inputs are split (dimension 0, as ``torch.tensor_split``
            does); outputs are joined along dimension 0. Sums over rows are then taken in another order.

    Each parameter is copied to the device twice a step, and its gradient comes back once. What forward changes in place
    (running statistics, a clamped weight) is copied back once, and a recomputation neither sees nor repeats that. What it
    changed before it raised stays, as in the model; where that cannot be copied back, a note of the error says so.

    Raises TypeError or ValueError, naming the argument, for a model that cannot be cut, a module in two slices, and
    options that are not as described; ValueError when called with fewer rows than microbatches; RuntimeError in backward
    when a parameter that it needs was changed since forward: any of the slice with ``checkpoint_activation``, otherwise
    those that plain autograd would miss, if its version or storage tells, which a fused optimizer does not let it;
    RuntimeError in forward where a module runs backward inside a slice that is checkpointed, on a device with threads of its
    own or through what the slice was given to what is before it. Warns when batch norm takes its statistics from microbatches.

    What forward changes where no version tells, through ``.data`` or as running statistics, reads in backward as it does in
    plain autograd: as it is then. RuntimeError in backward when that is not what forward used and a slice must run again,
    when another microbatch has changed it since, or when it was given other data after it was used. With
    ``checkpoint_activation``, a buffer that the slice has changed reads as it was in forward instead, where another slice or
    microbatch changes it through ``.data`` afterwards, and so does any buffer to which another microbatch gives other data.

    Tangents of forward-mode differentiation go through. RuntimeError in backward when a slice that had any must run again, and
    in forward inside transforms of ``torch.func`` that would not see the parameters.

    A slice runs again to its end. Its modules then train, or do not, as they did, and afterwards as they are set to by then.
    RuntimeError in backward when an object that pytree does not know, and that a slice must run again with, has other tensors
    or numbers in its attributes by then, and when backward goes through what a module kept of such a run. RuntimeError in
    forward when such a slice is given an iterator, which would be used up. In such a run a leaf that a slice was given has no
    ``grad``, a parameter is a plain tensor, and a list in an attribute of a tensor is the one that forward may have changed.

    A parameter that forward sees is one, of its class, with its attributes and version, but no leaf and without ``grad``, and
    another object in each call. RuntimeError in forward when what it changes shares memory with something else, or is made to,
    and when it registers a hook on a parameter, freezes, unfreezes or converts it, or gives it another attribute.

    Under torch.compile the model runs as it is, so it breaks a graph around it. A module that calls ``torch.func.grad`` is
    refused as it is in a checkpoint, here under no_grad, too. One that calls ``torch.func.jvp`` is refused in backward where
    its slice runs again on what was a view, as microbatches are.

    Not checked: that rows do not depend on each other, and that each row of an input gives as many of an output; changes in
    forward of parameters and buffers through numpy, which are lost; other state of modules, which changes again when a
    slice runs again. A parameter in several slices, or used several times in one and in several forwards, gets its
    gradients summed slice by slice and forward by forward, which is another order than plain's. Under autocast a weight
    that one slice uses several times is cast each time, so gradients are added in its own dtype. A module that checkpoints
    itself reads its own parameters when it is recomputed: it raises where these are on another device, and with
    ``impls.nested`` or ``native`` always, unless ``determinism_check="none"`` lets it read them. Memory that modules keep
    in attributes of their own stays where it is, as does what cuDNN makes of an LSTM's weights. Parameters and buffers that
    share memory have memory of their own once they are moved, as by ``Module.to``. Of the user's saved-tensor hooks around
    a checkpointed model those for inputs of slices are asked, and decide where these live.

    Threads may share a model; a module's own ``parameters()``, unlike the model's, gives copies while another thread runs
    it. Source: FairScale's OffloadModel; Pudipeddi et al. 2020 (arXiv 2002.05645); Ren et al. 2021 (arXiv 2101.06840).
    """

    def __init__(
        self,
        model: Any,
        device: torch.device | str,
        offload_device: torch.device | str = torch.device("cpu"),  # noqa: B008 - the signature is given
        num_slices: int = 3,
        checkpoint_activation: bool = False,
        num_microbatches: int = 1,
    ) -> None:
        named = children(model)
        route = Route(_device("device", device), _device("offload_device", offload_device))
        _count("num_slices", num_slices, len(named), "the number of modules")
        _count("num_microbatches", num_microbatches)
        if not isinstance(checkpoint_activation, bool):
            raise TypeError(f"checkpoint_activation is {checkpoint_activation!r}; it must be True or False")
        if num_microbatches > 1 and not checkpoint_activation:
            raise ValueError(f"num_microbatches is {num_microbatches}; more than 1 needs checkpoint_activation=True")
        cut = _cut(named, num_slices)
        refuse_shared(cut, named)
        super().__init__()
        for name, module in named.items():
            self.add_module(name, module)
        if isinstance(model, nn.Module):
            self.training = model.training
        self._cut, self._route, self._residence = cut, route, Residence(route)
        self._checkpoint_activation, self._num_microbatches = checkpoint_activation, num_microbatches
        _move(self, route)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's value; see the class for what happens to arguments and results."""
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise RuntimeError("torch.jit.trace cannot follow an OffloadModel. Trace the model that it was made of")
        if torch.compiler.is_dynamo_compiling():  # its copies of parameters are no inputs that a graph could have
            return torch.compiler.disable(self._value)(*args, **kwargs)
        return self._value(*args, **kwargs)

    def _value(self, *args: Any, **kwargs: Any) -> Any:
        if tuple(self._modules) != tuple(name for names in self._cut for name in names):
            raise RuntimeError(f"the modules of this OffloadModel are {list(self._modules)}; it was made of {self._cut}")
        self._refuse_transforms()
        if self._num_microbatches > 1:
            self._warn_of_statistics()
        calls = split(*_to_device(args, kwargs, self._route.device), self._num_microbatches)
        memory = SharedMemory()
        runs = [
            SliceRun(index, Chain({name: self.get_submodule(name) for name in names}), self._residence, memory)
            for index, names in enumerate(names for names in self._cut if names)
        ]
        try:
            return join(self._run(runs, calls))
        finally:
            # Parameters may be changed and buffers read from now on: copies from and to them have to be over.
            for run in runs:
                run.settle()

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As for any module; not while another thread runs a slice, when modules have copies."""
        with self._residence.exclusive():
            return iter(list(super().named_parameters(*args, **kwargs)))

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """As for any module; not while another thread runs a slice, when modules have copies."""
        with self._residence.exclusive():
            return iter(list(super().named_buffers(*args, **kwargs)))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """As for any module; not while another thread runs a slice, when modules have copies."""
        with self._residence.exclusive():
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As for any module; not while another thread runs a slice, when modules have copies."""
        with self._residence.exclusive():
            return super().load_state_dict(*args, **kwargs)

    def _run(self, runs: list[SliceRun], calls: list[Call]) -> list[Any]:
        below: Below | None = None
        values: list[Any] = []
        runs[0].load()
        for index, run in enumerate(runs):
            for following in runs[index + 1 : index + 2]:
                following.load()
            values = run.run(calls, below, self._checkpoint_activation, runs[:index])
            below = run.use, nodes_of(values)
            calls = [((value,), {}) for value in values]
        return values

    def _refuse_transforms(self) -> None:
        """Copies take no part in transforms of torch.func. Those that leave parameters alone may pass, if there is no graph."""
        if innermost_transform() is None:
            return
        tensors = [*self.parameters(), *self.buffers()]
        if self._checkpoint_activation or any(tensor.requires_grad or _is_tracked(tensor) for tensor in tensors):
            raise RuntimeError(
                "an OffloadModel was called inside a transform of torch.func (jvp, grad, vmap, ...), which would not see its "
                "parameters, for it computes with copies of these. Transform the model that it was made of; jvp and vmap "
                "by its inputs are for a frozen one without checkpoint_activation"
            )

    def _warn_of_statistics(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
                warnings.warn(
                    f"{name} is a {type(module).__name__} that takes statistics from its input: with num_microbatches="
                    f"{self._num_microbatches} it normalises each microbatch by itself, unlike the whole batch",
                    UserWarning,
                    stacklevel=6,
                )
                return


def _is_tracked(tensor: torch.Tensor) -> bool:
    """Whether a transform of torch.func differentiates with respect to a tensor."""
    while is_transformed_tensor(tensor):
        if is_differentiated_tensor(tensor):
            return True
        tensor = untransformed_tensor(tensor)
    return False


def _to_device(args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Call:
    """The arguments with all tensors on the device, but for sizes of a PackedSequence; what is given twice stays one."""
    packed = [node for node in tree_leaves((args, kwargs), _is_packed_sequence) if _is_packed_sequence(node)]
    tensors, whole = flatten((args, kwargs))
    stay = [id(sequence.batch_sizes) for sequence in packed]  # which torch asks to be on the CPU
    call: Call = whole.build([tensor if id(tensor) in stay else tensor.to(device) for tensor in tensors])
    return call


def _is_packed_sequence(node: Any) -> bool:
    return isinstance(node, PackedSequence)


def _device(name: str, device: Any) -> torch.device:
    """The device with its index; TypeError or ValueError for one that tensors cannot be made on."""
    if not isinstance(device, torch.device | str):
        raise TypeError(f"{name} is {device!r}; it must be a torch.device or the name of one")
    try:
        made = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # a build without CUDA says so by an AssertionError
        raise ValueError(f"{name} is {str(device)!r}, where no tensor can be made: {error}") from error
    if made.type == "meta":
        raise ValueError(f"{name} is 'meta', which keeps no values; it must be a device that does, such as 'cpu' or 'cuda'")
    return made


def _count(name: str, value: Any, most: int | None = None, what: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if value < 1 or (most is not None and value > most):
        accepted = "1 or more" if most is None else f"between 1 and {what}, {most}"
        raise ValueError(f"{name} is {value}; it must be {accepted}")


def _cut(named: dict[str, nn.Module], num_slices: int) -> tuple[tuple[str, ...], ...]:
    names = list(named)
    counts = [sum(parameter.numel() for parameter in module.parameters()) for module in named.values()]
    return tuple(tuple(names[index] for index in indices) for indices in slices(counts, num_slices))


def _move(model: nn.Module, route: Route) -> None:
    """Bring parameters, buffers and gradients to the offload device, pinned where that can be, as the objects they are."""
    pin = route.copy_streams is not None and route.copy_streams.pinned
    for tensor in [*model.parameters(), *model.buffers()]:
        grad, tensor.grad = tensor.grad, None
        value = tensor.detach().to(route.offload_device)
        value = value.pin_memory() if pin and value.layout is torch.strided else value
        if has_compatible_shallow_copy_type(tensor, value):
            tensor.data = value
        else:
            same = nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
            torch.utils.swap_tensors(tensor, same)
        tensor.grad = None if grad is None else grad.to(route.offload_device)
