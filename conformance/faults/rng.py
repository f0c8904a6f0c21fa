"""Faults of the nested checkpoint that laws of the family rng must catch."""

from __future__ import annotations

from conformance.mutants import Mutant

FAULTS = (
    Mutant("replays-no-random-numbers", "rng", "dropout_masks_are_replayed", "recomputation",
           "            ambient.set_generators(states)", "            pass"),
    Mutant("does-not-put-the-stream-back", "rng", "ambient_stream_is_left_alone", "recomputation",
           "            ambient.set_generators(present)", "            pass"),
    Mutant("does-not-put-the-stream-back-after-an-error", "rng", "an_error_leaves_the_stream_alone", "recomputation",
           "        finally:\n            ambient.set_generators(present)",
           "        except ZeroDivisionError:\n            raise\n        ambient.set_generators(present)"),
    Mutant("replays-in-the-first-backward-only", "rng", "every_backward_draws_the_same", "recomputation",
           "            ambient.set_generators(states)",
           "            ambient.set_generators(states)\n            states.clear()"),
    Mutant("replays-from-the-seed", "rng", "draws_between_regions", "ambient", "generator.set_state(state)",
           "generator.manual_seed(generator.initial_seed())"),
    Mutant("always-preserves-random-numbers", "rng", "preserve_rng_state_switched_off", "nested", "if preserve_rng_state:",
           "if True:"),
    Mutant("overlooks-explicit-generators", "rng", "explicit_generators_are_replayed", "inputs",
           "isinstance(leaf, torch.Generator)", "False"),
    Mutant("lets-two-threads-recompute-at-once", "rng", "two_threads_draw_their_own", "region",
           "lock = _turn if self.states else self.lock", "lock = threading.RLock()"),
)  # fmt: skip
