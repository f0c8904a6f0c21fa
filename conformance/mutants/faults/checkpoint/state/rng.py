"""Faults of the nested checkpoint that laws of the family rng must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from conformance.mutants.faults.checkpoint.seams import on_main_thread, recompute_with, run_number
from conformance.mutants.mutant import Copy, mutant


def _after_forward(copy: Copy, change: Callable[[Any], object]) -> None:
    """A region is changed as its forward ends."""
    copy.call_after("nested.region", "Region.end_forward", lambda _, self, output: change(self))


def _before_exit(copy: Copy, change: Callable[[Any, Any], object]) -> None:
    """The restoration is changed, by ``change(restoration, error)``, before what was there is put back."""

    def changed(self: Any, kind: Any, error: Any, trace: Any) -> None:
        change(self, error)

    copy.call_before("state.restoration", "Restoration.__exit__", changed)


def _before_turn_ends(copy: Copy, change: Callable[[Any], object]) -> None:
    """The restoration that holds the lock is changed before it releases it."""
    copy.call_before("state.process_lock", "ProcessLock.release", lambda self, holder: change(holder))


def _without_second_normal(state: torch.Tensor) -> torch.Tensor:
    """A generator's state without the normal number that is kept for the next call."""
    return torch.cat((state[:-24], torch.zeros(24, dtype=torch.uint8)))


@mutant("state.restoration", "rng", "dropout_masks_are_replayed")
def replays_no_random_numbers(copy: Copy) -> None:
    """A recomputation draws from the generators as it finds them."""
    copy.replace("state.restoration", "set_states", lambda states: None, only_here=True)


@mutant("state.process_lock", "rng", "ambient_stream_is_left_alone")
def does_not_put_the_stream_back(copy: Copy) -> None:
    """Generators stay where a recomputation left them."""
    copy.replace("state.process_lock", "set_states", lambda states: None, only_here=True)


@mutant("state.restoration", "rng", "an_error_leaves_the_stream_alone")
def does_not_put_the_stream_back_after_an_error(copy: Copy) -> None:
    """Generators stay where a recomputation that failed left them."""

    def change(self: Any, error: Any) -> None:
        self.before = self.before if error is None else []

    _before_exit(copy, change)


@mutant("state.restoration", "rng", "every_backward_draws_the_same")
def replays_in_the_first_backward_only(copy: Copy) -> None:
    """The states of generators are gone once they were set."""

    def set_states(there: Any, states: Any) -> None:
        there(states)
        states.clear()

    copy.call_instead("state.restoration", "set_states", set_states, only_here=True)


@mutant("state.random_numbers", "rng", "draws_between_regions")
def replays_from_the_seed(copy: Copy) -> None:
    """Generators are set to where they began rather than to a state."""

    def set_states(states: Any) -> None:
        for source, _ in states:
            source.manual_seed(source.initial_seed())

    copy.replace("state.random_numbers", "set_states", set_states)


@mutant("nested.api", "rng", "preserve_rng_state_switched_off")
def always_preserves_random_numbers(copy: Copy) -> None:
    """The option preserve_rng_state is taken for True."""
    copy.call_instead(
        "nested.api",
        "_run",
        lambda run, function, args, kwargs, preserve, *options: run(function, args, kwargs, True, *options),
    )


@mutant("nested.inputs", "rng", "explicit_generators_are_replayed")
def overlooks_explicit_generators(copy: Copy) -> None:
    """A generator that is an argument is none to be replayed."""
    copy.call_instead(
        "nested.inputs",
        "Inputs._capture",
        lambda take, self, value: value if isinstance(value, torch.Generator) else take(self, value),
    )


@mutant("state.process_lock", "rng", "two_threads_draw_their_own")
def lets_two_threads_recompute_at_once(copy: Copy) -> None:
    """Nobody waits for the lock."""
    copy.replace("state.process_lock", "ProcessLock._wait", lambda self, taker: None)


@mutant("state.process_lock", "rng", "recomputations_that_meet_draw_their_own")
def does_not_look_whether_a_sleeper_woke(copy: Copy) -> None:
    """A recomputation that went ahead of a sleeping one counts as undisturbed, even if that one woke up."""

    def change(holder: Any) -> None:
        holder.passed = None

    _before_turn_ends(copy, change)


@mutant("state.restoration", "rng", "recomputations_that_meet_draw_their_own")
def has_a_turn_of_its_own(copy: Copy) -> None:
    """Recomputations of another implementation are not waited for."""
    copy.wrap("state.restoration", "PROCESS_LOCK", lambda lock: type(lock)())


@mutant("state.process_lock", "rng", "a_recomputation_that_waits_for_another")
def leaves_a_sleeper_with_other_random_numbers(copy: Copy) -> None:
    """A recomputation that went ahead of a sleeping one does not put the generators back."""

    def change(holder: Any) -> None:
        holder.before = holder.before if holder.passed is None else []

    _before_turn_ends(copy, change)


@mutant("state.process_lock", "rng", "a_recomputation_that_waits_for_another")
def refuses_while_another_thread_recomputes(copy: Copy) -> None:
    """A recomputation fails instead of waiting for the lock."""

    def refuse(self: Any, taker: Any) -> NoReturn:
        raise copy["state.process_lock"].ProcessLockError("another thread recomputes")

    copy.replace("state.process_lock", "ProcessLock._wait", refuse)


@mutant("state.random_numbers", "rng", "all_distributions_are_replayed", profile="default")
def forgets_the_second_normal(copy: Copy) -> None:
    """A state is set without the normal number that the generator kept for the next call."""
    copy.call_instead(
        "state.random_numbers",
        "set_states",
        lambda there, states: there([(source, _without_second_normal(state)) for source, state in states]),
    )


@mutant("nested.recomputation", "rng", "noise_that_is_saved_before_it_is_drawn")
def stops_before_noise_is_drawn(copy: Copy) -> None:
    """A recomputation ends at the last tensor that is saved, also if its operator writes it after that."""
    copy.replace("nested.recomputation", "_find_late_write", lambda slots, last: -1)


@mutant("nested.recomputation", "rng", "noise_that_is_saved_before_it_is_drawn", profile="default")
def knows_noise_by_its_version(copy: Copy) -> None:
    """A buffer that was changed before it was saved is not treated as one that its operator writes afterwards."""

    def changed(written_late: Any, slots: Any, last: int) -> int:
        index = int(written_late(slots, last))
        return index if index < 0 or slots[index][2][3] == 0 else -1

    copy.call_instead("nested.recomputation", "_find_late_write", changed)


@mutant("nested.recomputation", "rng", "noise_that_is_saved_before_it_is_drawn")
def expects_every_recomputation_to_stop_early(copy: Copy) -> None:
    """A recomputation that could have stopped early, and ran to its end, is reported as different from forward."""

    def changed(values: Any, self: Any, *args: Any) -> None:
        if self.mismatch is None and not self.stopped and self.stop_index <= self.last:
            self.mismatch = "recomputation did not stop early"

    copy.call_after("nested.recomputation", "Recomputation.run", changed)


@mutant("nested.recomputation", "rng", "noise_that_is_saved_before_it_is_drawn")
def stops_in_what_the_operator_calls(copy: Copy) -> None:
    """A recomputation ends before the next kernel, also if that is part of the operator that is under way."""
    copy.call_before("nested.recomputation", "_StopAfterOperator.__torch_dispatch__", lambda self, *call: self.run.stop())


@mutant("nested.region", "rng", "a_partial_backward_draws_the_same")
def replays_if_the_last_tensor_is_asked_for(copy: Copy) -> None:
    """Random numbers are replayed only in a backward that starts at the last tensor that was saved."""
    recompute_with(copy, "states", lambda region, slot: region.states if slot[0] == len(region.slots) - 1 else [])


@mutant("state.restoration", "rng", "second_derivatives_see_the_same_masks")
def replays_while_grad_mode_is_off(copy: Copy) -> None:
    """Random numbers are not replayed in a backward that makes a graph."""

    def set_states(there: Any, states: Any) -> None:
        there([] if torch.is_grad_enabled() else states)

    copy.call_instead("state.restoration", "set_states", set_states, only_here=True)


@mutant("state.process_lock", "rng", "generator_state_is_left_alone")
def puts_back_all_but_the_second_normal(copy: Copy) -> None:
    """Generators lose the normal number that they kept for the next call as they are put back."""

    def set_states(there: Any, states: Any) -> None:
        there([(source, _without_second_normal(state)) for source, state in states])

    copy.call_instead("state.process_lock", "set_states", set_states, only_here=True)


@mutant("state.process_lock", "rng", "seeding_inside")
def lets_a_seed_set_inside_stay(copy: Copy) -> None:
    """A generator that the recomputation seeded is not put back."""

    def change(holder: Any) -> None:
        pairs = zip(holder.before, holder.states, strict=False)
        holder.before = [one for one, (source, state) in pairs if source.get_state()[:8].equal(state[:8])]

    _before_turn_ends(copy, change)


@mutant("nested.region", "rng", "fork_rng_inside")
def replays_nothing_where_the_stream_did_not_move(copy: Copy) -> None:
    """A region after whose forward all generators are where they were is taken for one that draws nothing."""

    def change(region: Any) -> None:
        if all(torch.equal(state, generator.get_state()) for generator, state in region.states):
            region.states = []

    _after_forward(copy, change)


@mutant("nested.inputs", "rng", "explicit_generators_are_replayed")
def replays_one_generator_alone(copy: Copy) -> None:
    """Of the generators that are arguments only the first is replayed."""

    def changed(_: None, self: Any, args: Any, kwargs: Any, *rest: Any) -> None:
        del self.generators[1:]

    copy.call_after("nested.inputs", "Inputs.__init__", changed)


@mutant("nested.inputs", "rng", "explicit_generators_by_keyword")
def overlooks_generators_by_keyword(copy: Copy) -> None:
    """A generator that is passed by keyword is not replayed."""

    def changed(_: None, self: Any, args: Any, kwargs: Any, *rest: Any) -> None:
        self.generators = [one for one in self.generators if not any(one is value for value in kwargs.values())]

    copy.call_after("nested.inputs", "Inputs.__init__", changed)


@mutant("state.random_numbers", "rng", "every_device_is_replayed")
def overlooks_the_generator_of_the_host(copy: Copy) -> None:
    """The CPU's generator is not replayed."""
    copy.change_result(
        "state.random_numbers",
        "capture_states",
        lambda result, *_: [pair for pair in result if pair[0] is not torch.default_generator],
    )


@mutant("nested.region", "rng", "another_thread_draws_the_same")
def replays_on_the_main_thread_alone(copy: Copy) -> None:
    """A recomputation on another thread than the main one draws from the generators as it finds them."""
    recompute_with(copy, "states", lambda region, _: region.states if on_main_thread() else [])


@mutant("nested.region", "rng", "the_same_call_draws_anew")
def remembers_the_states_of_a_function(copy: Copy) -> None:
    """The random numbers of a function's first call are replayed for all of its calls."""

    def change(region: Any) -> None:
        region.states = vars(region.function).setdefault("states", region.states)

    _after_forward(copy, change)


@mutant("state.restoration", "rng", "an_error_leaves_the_stream_alone")
def gives_up_replaying_after_an_error(copy: Copy) -> None:
    """A region of which a recomputation failed replays no random numbers any more."""
    _before_exit(copy, lambda self, error: error is None or self.states.clear())


@mutant("nested.region", "rng", "every_backward_draws_the_same")
def replays_three_times(copy: Copy) -> None:
    """From the fourth recomputation of a region on, random numbers are drawn from the generators as they are."""
    present = copy["nested.region"].random_numbers.capture_states
    recompute_with(copy, "states", lambda region, _: region.states if run_number(region) < 4 else present())
