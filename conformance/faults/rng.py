"""Faults of the nested checkpoint that laws of the family rng must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("replays-no-random-numbers", "rng", "dropout_masks_are_replayed", "recomputation",
           "            random_numbers.set_states(states)", "            pass"),
    Mutant("does-not-put-the-stream-back", "rng", "ambient_stream_is_left_alone", "recomputation",
           "            random_numbers.set_states(present)", "            pass"),
    Mutant("does-not-put-the-stream-back-after-an-error", "rng", "an_error_leaves_the_stream_alone", "recomputation",
           "        finally:\n            random_numbers.set_states(present)",
           "        except ZeroDivisionError:\n            raise\n        random_numbers.set_states(present)"),
    Mutant("replays-in-the-first-backward-only", "rng", "every_backward_draws_the_same", "recomputation",
           "            random_numbers.set_states(states)",
           "            random_numbers.set_states(states)\n            states.clear()"),
    Mutant("replays-from-the-seed", "rng", "draws_between_regions", "state.random_numbers", "generator.set_state(state)",
           "generator.manual_seed(generator.initial_seed())"),
    Mutant("always-preserves-random-numbers", "rng", "preserve_rng_state_switched_off", "nested", "if preserve_rng_state:",
           "if True:"),
    Mutant("overlooks-explicit-generators", "rng", "explicit_generators_are_replayed", "inputs",
           "isinstance(leaf, torch.Generator)", "False"),
    Mutant("lets-two-threads-recompute-at-once", "rng", "two_threads_draw_their_own", "region",
           "lock = _turn if self.states else self.lock", "lock = threading.RLock()"),
    Mutant("forgets-the-second-normal", "rng", "all_distributions_are_replayed", "state.random_numbers",
           "generator.set_state(state)",
           "generator.set_state(torch.cat((state[:-24], torch.zeros(24, dtype=torch.uint8))))", profile="default"),
    Mutant("stops-before-noise-is-drawn", "rng", "noise_that_is_saved_before_it_is_drawn", "recomputation",
           "if index >= self.until and self.unwritten != _sequence_number():", "if index >= self.until:"),
    Mutant("replays-if-the-last-tensor-is-asked-for", "rng", "a_partial_backward_draws_the_same", "region",
           "self.modes, self.states, self.context)",
           "self.modes, self.states if slot[0] == len(self.slots) - 1 else [], self.context)"),
    Mutant("replays-while-grad-mode-is-off", "rng", "second_derivatives_see_the_same_masks", "recomputation",
           "            random_numbers.set_states(states)",
           "            random_numbers.set_states([] if torch.is_grad_enabled() else states)"),
    Mutant("puts-back-all-but-the-second-normal", "rng", "generator_state_is_left_alone", "recomputation",
           "            random_numbers.set_states(present)",
           "            random_numbers.set_states([(g, torch.cat((s[:-24], s.new_zeros(24)))) for g, s in present])"),
    Mutant("lets-a-seed-set-inside-stay", "rng", "seeding_inside", "recomputation",
           "            random_numbers.set_states(present)",
           "            pairs = zip(present, states)\n"
           "            random_numbers.set_states([one for one, (g, s) in pairs if g.get_state()[:8].equal(s[:8])])"),
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
           "self.modes, self.states, self.context)",
           "self.modes, self.states if threading.current_thread() is threading.main_thread() else [], self.context)"),
    Mutant("remembers-the-states-of-a-function", "rng", "the_same_call_draws_anew", "nested",
           "region.states = random_numbers.states(tuple(region.inputs.generators))",
           "region.states = vars(function).setdefault(\"states\", random_numbers.states(tuple(region.inputs.generators)))"),
    Mutant("gives-up-replaying-after-an-error", "rng", "an_error_leaves_the_stream_alone", "recomputation",
           "        finally:\n            random_numbers.set_states(present)",
           "        except BaseException:\n            random_numbers.set_states(present)\n            states.clear()\n"
           "            raise\n        else:\n            random_numbers.set_states(present)"),
    Mutant("replays-three-times", "rng", "every_backward_draws_the_same", "region",
           "        run = Recomputation(wanted,",
           "        self.runs = vars(self).get('runs', 0) + 1\n"
           "        self.states = self.states if self.runs < 4 else random_numbers.states()\n"
           "        run = Recomputation(wanted,"),
)  # fmt: skip
