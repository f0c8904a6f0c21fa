"""Faults that laws of the family devices must catch where a device is simulated."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

FAULTS = (
    TextMutant("leaves-a-device-where-recomputation-has-drawn", "devices", "offsets_of_generators_are_plains", "state.turns",
           "set_states(holder.before)", "pass"),
    TextMutant("knows-autocast-of-the-device-alone", "devices", "autocast_of_device_and_host", "state.modes",
           "else (host, (kind, _autocasts(kind), _autocast_dtype(kind)))",
           "else ((kind, _autocasts(kind), _autocast_dtype(kind)),)", profile="default"),
    TextMutant("recomputes-on-the-stream-of-backward", "devices", "side_streams_under_delays", "nested.region",
           "with streams.on(self.stream),", "with"),
    TextMutant("does-not-wait-for-forwards-stream", "devices", "side_streams_under_delays", "state.streams",
           "        present.wait_stream(wanted)", "        pass"),
    TextMutant("hands-over-other-values", "devices", "a_function_on_two_streams_under_delays", "nested.recomputation",
           "            self.values[index] = tensor\n", "            self.values[index] = tensor.detach().roll(1, 0)\n"),
    TextMutant("looks-at-what-is-saved", "devices", "a_region_does_not_make_the_host_wait", "nested.region",
           "        seen = look(tensor)\n", "        seen = look(tensor)\n        tensor.detach().sum().item()\n"),
    TextMutant("copies-what-it-recomputes", "devices", "the_allocator_peaks_where_the_plan_does", "nested.recomputation",
           "            self.values[index] = tensor\n", "            self.values[index] = tensor.detach().clone()\n"),
    TextMutant("reads-before-it-is-out", "devices", "pinned_copies_under_delays", "graph.streams",
           "            self.back.wait_event(ready)\n", ""),
    TextMutant("copies-before-it-is-computed", "devices", "pinned_copies_under_delays", "graph.streams",
           "            self.outward.wait_event(taken)\n", ""),
    TextMutant("computes-with-what-is-not-there-yet", "devices", "offloaded_parameters_under_delays", "offload.route",
           "            self.lane.module.current_stream(self.lane.device).wait_event(self.done)", "            pass"),
)  # fmt: skip
