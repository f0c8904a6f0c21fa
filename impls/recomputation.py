"""One recomputation of a region: the function runs again, and what it saves this time is collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch

from impls import ambient
from impls.operators import Operators
from impls.versions import Footprint


class Stop(BaseException):
    """Ends a recomputation early. Not an Exception, so that ``except Exception`` in user code lets it pass."""


class Values(dict[int, torch.Tensor]):
    """Recomputed tensors by index. Callable, so that the engine's task can own them as its final callback."""

    __slots__ = ("__weakref__",)

    def __call__(self) -> None:
        self.clear()


class Recomputation:
    """What one run is to bring, and what it has brought.

    ``wanted`` are the footprints of the tensors that are needed, by their index among all that forward saved, which
    were ``total``; None stands for a forward that has not ended yet. ``versions`` are those at which it saved them.
    After ``run``, ``values`` has the tensors and ``mismatch`` says in what the run was not what forward was, or is None.
    """

    def __init__(self, wanted: Mapping[int, Footprint], total: int | None, versions: Sequence[int], *,
                 early_stop: bool, check: bool, log: bool) -> None:  # fmt: skip
        self.wanted, self.total, self.early_stop, self.check = wanted, total, early_stop, check
        self.versions, self.seen = versions, 0
        self.last = max(wanted)
        self.values = Values()
        self.count, self.unwritten, self.stopped = 0, -1, False
        self.mismatch: str | None = None
        self.operators = Operators() if log else None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        index, self.count = self.count, self.count + 1
        self.saw(tensor)
        kept = tensor.detach() if tensor.requires_grad else tensor
        footprint = self.wanted.get(index)
        if footprint is not None:
            if self.check and not footprint.resembles(tensor):
                self.mismatch = f"saved tensor {index} was {footprint}, came back as {Footprint(tensor)}"
                self.stop()
            self.values[index] = kept
            if not tensor.requires_grad and tensor._version == 0:
                self.unwritten = torch._C._autograd._get_sequence_nr()
        # An operator may save a buffer of its own that it writes only later, as rrelu does with its noise. Stopping
        # inside that operator would bring the buffer back unwritten, so the stop waits for the next one that saves.
        if self.early_stop and index >= self.last and self.unwritten != torch._C._autograd._get_sequence_nr():
            self.stop()  # rule 5
        return kept  # rule 6: packed, so that the recomputed graph can be differentiated

    def saw(self, tensor: torch.Tensor) -> None:
        """A tensor was saved in the region or in one inside it. At another version, it was changed since forward saved it.

        Versions of regions inside are compared too: what such a region returns is recomputed from what it reads, even
        where nothing of its own is unpacked. So some programs are refused that plain accepts: those that rewrite a buffer
        and then save it, and those that change a weight whose own part of the backward is over. What they read in the
        recomputation is not what forward read, and whether that matters cannot be told here.
        """
        index, self.seen = self.seen, self.seen + 1
        if index < len(self.versions) and tensor._version != self.versions[index]:
            self.mismatch = (f"a saved tensor ({Footprint(tensor)}) was changed in place since: it was at version "
                             f"{self.versions[index]}, is at version {tensor._version}")  # fmt: skip
            self.stop()

    def stop(self) -> NoReturn:
        self.stopped = True  # user code may catch even this exception
        raise Stop

    def run(
        self,
        function: Callable[[], Any],
        modes: ambient.Modes,
        states: ambient.GeneratorStates,
        context: AbstractContextManager[Any],
    ) -> None:
        """Run under the given modes and generator states; afterwards those that were there before are back."""
        present = ambient.generators(tuple(generator for generator, _ in states)) if states else []
        try:
            ambient.set_generators(states)
            with ambient.under(modes), torch.enable_grad(), self.operators or nullcontext(), context:
                self._collect(function)
        finally:
            ambient.set_generators(present)
        if self.mismatch is None and self.values.keys() != self.wanted.keys():
            self.mismatch = f"forward saved {self.last + 1} tensors or more, recomputation {self.count}"
        if self.mismatch is None and self.check and not self.stopped and self.total not in (None, self.count):
            self.mismatch = f"forward saved {self.total} tensors, recomputation {self.count}"

    def _collect(self, function: Callable[[], Any]) -> None:
        # Rule 3: hooks do not stack, so with these on top nothing that is active around backward is asked.
        torch._C._autograd._push_saved_tensors_default_hooks(self.pack, _identity)
        try:
            function()
        except Stop:
            pass  # stop() has noted it
        finally:
            torch._C._autograd._pop_saved_tensors_default_hooks()


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
