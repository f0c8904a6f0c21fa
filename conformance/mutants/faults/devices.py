"""Faults that laws of the family devices must catch where a device is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.mutants.mutant import Copy, mutant


def _bring_others(copy: Copy, other: Any) -> None:
    """Let a recomputation bring what ``other`` makes of each tensor."""

    def pack(there: Any, self: Any, tensor: torch.Tensor) -> Any:
        index = self.count
        try:
            return there(self, tensor)
        finally:
            if index in self.values:
                self.values[index] = other(tensor.detach())

    copy.call_instead("nested.recomputation", "Recomputation.pack", pack)


@mutant("state.process_lock", "devices", "offsets_of_generators_are_plains")
def leaves_a_device_where_recomputation_has_drawn(copy: Copy) -> None:
    """Generators of random numbers are not put back after a recomputation."""
    copy.replace("state.process_lock", "set_states", lambda _: None, only_here=True)


@mutant("state.modes", "devices", "autocast_of_device_and_host", profile="default")
def knows_autocast_of_the_device_alone(copy: Copy) -> None:
    """Where there is an accelerator, autocast of the host is not restored."""
    copy.change_result("state.modes", "current_modes", lambda modes: modes._replace(autocast=modes.autocast[-1:]))


@mutant("nested.region", "devices", "side_streams_under_delays")
def recomputes_on_the_stream_of_backward(copy: Copy) -> None:
    """A recomputation runs on the stream that is current in backward."""
    copy.set_before("nested.region", "Region.recompute", stream=lambda _: None)


@mutant("state.streams", "devices", "side_streams_under_delays")
def does_not_wait_for_forwards_stream(copy: Copy) -> None:
    """The stream of backward does not wait for what a recomputation has run on the stream of forward."""

    @contextmanager
    def moved(wanted: Any, present: Any) -> Iterator[None]:
        wanted.wait_stream(present)
        with torch.get_device_module(wanted.device).stream(wanted):
            yield

    copy.replace("state.streams", "_switch", moved)


@mutant("nested.recomputation", "devices", "a_function_on_two_streams_under_delays")
def hands_over_other_values(copy: Copy) -> None:
    """A recomputation brings the right values in the wrong places."""
    _bring_others(copy, lambda tensor: tensor.roll(1, 0))


@mutant("nested.region", "devices", "a_region_does_not_make_the_host_wait")
def looks_at_what_is_saved(copy: Copy) -> None:
    """The host reads the values of what a region saves."""
    copy.call_before("nested.region", "Region.pack", lambda _, tensor: tensor.detach().sum().item())


@mutant("nested.recomputation", "devices", "the_allocator_peaks_where_the_plan_does")
def copies_what_it_recomputes(copy: Copy) -> None:
    """A recomputation brings copies of what its function saves."""
    _bring_others(copy, lambda tensor: tensor.clone())


@mutant("graph.streams", "devices", "pinned_copies_under_delays")
def reads_before_it_is_out(copy: Copy) -> None:
    """A copy back to the device does not wait until the copy out of it is over."""
    copy.change_arguments("graph.streams", "CopyStreams.send", lambda given: given.update(ready=given["self"].module.Event()))


@mutant("graph.streams", "devices", "pinned_copies_under_delays")
def copies_before_it_is_computed(copy: Copy) -> None:
    """A copy out of the device does not wait until what it reads is computed."""

    def init(_: None, self: Any, *__: Any) -> None:
        self.to_host.wait_event = lambda _: None

    copy.call_after("graph.streams", "CopyStreams.__init__", init)


@mutant("offload.transfers", "devices", "offloaded_parameters_under_delays")
def computes_with_what_is_not_there_yet(copy: Copy) -> None:
    """Computation does not wait for the copies of parameters on the device."""
    copy.replace("offload.transfers", "Arrival.wait", lambda _: None)
