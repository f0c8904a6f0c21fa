"""Faults of the nested checkpoint that laws of the family rng must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("replays-no-random-numbers", "rng", "dropout_masks_are_replayed", "state.restoration",
           "set_states(self.states)", "pass"),
    Mutant("does-not-put-the-stream-back", "rng", "ambient_stream_is_left_alone", "state.turns",
           "set_states(holder.before)", "pass"),
    Mutant("does-not-put-the-stream-back-after-an-error", "rng", "an_error_leaves_the_stream_alone",
           "state.restoration", "            if self.holds:\n                disturbed",
           "            self.before = self.before if error is None else []\n"
           "            if self.holds:\n                disturbed"),
    Mutant("replays-in-the-first-backward-only", "rng", "every_backward_draws_the_same", "state.restoration",
           "set_states(self.states)", "set_states(self.states)\n                self.states.clear()"),
    Mutant("replays-from-the-seed", "rng", "draws_between_regions", "state.random_numbers", "source.set_state(state)",
           "source.manual_seed(source.initial_seed())"),
    Mutant("always-preserves-random-numbers", "rng", "preserve_rng_state_switched_off", "nested", "if preserve_rng_state:",
           "if True:"),
    Mutant("overlooks-explicit-generators", "rng", "explicit_generators_are_replayed", "inputs",
           "if kind is torch.Generator:", "if False:"),
    Mutant("lets-two-threads-recompute-at-once", "rng", "two_threads_draw_their_own", "state.turns",
           "            if self.holders and", "            if False and"),
    Mutant("forgets-the-second-normal", "rng", "all_distributions_are_replayed", "state.random_numbers",
           "source.set_state(state)",
           "source.set_state(torch.cat((state[:-24], torch.zeros(24, dtype=torch.uint8))))", profile="default"),
    Mutant("stops-before-noise-is-drawn", "rng", "noise_that_is_saved_before_it_is_drawn", "recomputation",
           "_written_late(slots, self.last) if early_stop else -1", "-1"),
    Mutant("knows-noise-by-its-version", "rng", "noise_that_is_saved_before_it_is_drawn", "recomputation",
           "and not noise[4] and", "and not noise[4] and noise[3] == 0 and", profile="default"),
    Mutant("expects-every-recomputation-to-stop-early", "rng", "noise_that_is_saved_before_it_is_drawn", "recomputation",
           "len(values) < due", "(len(values) < due or not self.stopped and self.until <= self.last)"),
    Mutant("stops-in-what-the-operator-calls", "rng", "noise_that_is_saved_before_it_is_drawn", "recomputation",
           "if _sequence_number() != self.run.node:", "if True:"),
    Mutant("replays-if-the-last-tensor-is-asked-for", "rng", "a_partial_backward_draws_the_same", "region",
           "Restoration(self.modes, self.states,",
           "Restoration(self.modes, self.states if slot[0] == len(self.slots) - 1 else [],"),
    Mutant("replays-while-grad-mode-is-off", "rng", "second_derivatives_see_the_same_masks", "state.restoration",
           "set_states(self.states)", "set_states([] if torch.is_grad_enabled() else self.states)"),
    Mutant("puts-back-all-but-the-second-normal", "rng", "generator_state_is_left_alone", "state.turns",
           "set_states(holder.before)",
           "kept = [(source, state.clone()) for source, state in holder.before]\n"
           "                    [state[-24:].zero_() for _, state in kept]\n                    set_states(kept)"),
    Mutant("lets-a-seed-set-inside-stay", "rng", "seeding_inside", "state.turns",
           "set_states(holder.before)",
           "pairs = zip(holder.before, holder.states)\n"
           "                    set_states([one for one, (g, s) in pairs if g.get_state()[:8].equal(s[:8])])"),
    Mutant("replays-nothing-where-the-stream-did-not-move", "rng", "fork_rng_inside", "nested",
           "    return output\n",
           "    if all(torch.equal(state, generator.get_state()) for generator, state in region.states):\n"
           "        region.states = []\n    return output\n"),
    Mutant("replays-one-generator-alone", "rng", "explicit_generators_are_replayed", "nested",
           "tuple(region.inputs.generators)", "tuple(region.inputs.generators)[:1]"),
    Mutant("overlooks-generators-by-keyword", "rng", "explicit_generators_by_keyword", "nested",
           "tuple(region.inputs.generators)", "tuple(one for one in region.inputs.generators if one not in kwargs.values())"),
    Mutant("overlooks-the-generator-of-the-host", "rng", "every_device_is_replayed", "state.random_numbers",
           "(torch.default_generator, *devices, *explicit)", "(*devices, *explicit)"),
    Mutant("replays-on-the-main-thread-alone", "rng", "another_thread_draws_the_same", "region",
           "surroundings = Restoration(self.modes, self.states,",
           "import threading\n\n                main = threading.current_thread() is threading.main_thread()\n"
           "                surroundings = Restoration(self.modes, self.states if main else [],"),
    Mutant("remembers-the-states-of-a-function", "rng", "the_same_call_draws_anew", "nested",
           "region.states = random_numbers.states(tuple(region.inputs.generators))",
           "region.states = vars(function).setdefault(\"states\", random_numbers.states(tuple(region.inputs.generators)))"),
    Mutant("gives-up-replaying-after-an-error", "rng", "an_error_leaves_the_stream_alone", "state.restoration",
           "            if self.holds:\n                disturbed",
           "            if error is not None:\n                self.states.clear()\n"
           "            if self.holds:\n                disturbed"),
    Mutant("replays-three-times", "rng", "every_backward_draws_the_same", "region",
           "        run = Recomputation(wanted,",
           "        self.runs = vars(self).get('runs', 0) + 1\n"
           "        self.states = self.states if self.runs < 4 else random_numbers.states()\n"
           "        run = Recomputation(wanted,"),
)  # fmt: skip
