"""Faults of the nested checkpoint that laws of the family autocast must catch."""

from __future__ import annotations

from conformance.mutants.mutant import TextMutant

FAULTS = (
    TextMutant("forgets-autocast", "autocast", "autocast_is_forwards", "state.modes",
           "cast = (wanted.autocast, wanted.cache) != (found.autocast, found.cache)", "cast = False", profile="default"),
    TextMutant("forgets-the-autocast-cache", "autocast", "autocast_is_forwards", "state.modes", "dtype, enabled, wanted.cache",
           "dtype, enabled", profile="default"),
    TextMutant("does-not-compare-whether-casts-are-cached", "autocast", "autocast_is_forwards", "state.modes",
           "(wanted.autocast, wanted.cache) != (found.autocast, found.cache)", "wanted.autocast != found.autocast",
           profile="default"),
    TextMutant("forgets-the-autocast-dtype", "autocast", "autocast_is_forwards", "state.modes",
           "torch.autocast(kind, dtype, enabled, wanted.cache)", "torch.autocast(kind, torch.bfloat16, enabled, wanted.cache)"),
    TextMutant("never-switches-autocast-off", "autocast", "autocast_is_forwards", "state.modes",
           "for kind, enabled, dtype in wanted.autocast:",
           "for kind, enabled, dtype in (one for one in wanted.autocast if one[1]):", profile="default"),
    TextMutant("takes-casts-for-cached", "autocast", "autocast_cache_keeps_gradients", "state.modes",
           "torch.autocast(kind, dtype, enabled, wanted.cache)",
           "torch.autocast(kind, dtype, enabled and not wanted.cache, wanted.cache)"),
    TextMutant("restores-autocast-twice", "autocast", "autocast_is_forwards", "nested.region",
           "        run = Recomputation(wanted,",
           "        self.runs = vars(self).get('runs', 0) + 1\n"
           "        self.modes = self.modes if self.runs < 3 else modes.present()\n        run = Recomputation(wanted,",
           profile="default"),
    TextMutant("restores-autocast-on-the-main-thread-alone", "autocast", "autocast_is_forwards_on_another_thread", "nested.region",
           "surroundings = Restoration(self.modes,",
           "import threading\n\n                main = threading.current_thread() is threading.main_thread()\n"
           "                surroundings = Restoration(self.modes if main else modes.present(),"),
)  # fmt: skip
