"""Where a recomputation first differs from its forward, or a plain run from another: the operator, and what changed its inputs.

Regions are left out as long as what is left still goes wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from reprise.model_check import errors
from reprise.model_check.comparison import Comparison, Place, TensorsCompared, compare_runs
from reprise.model_check.errors import BUILD_ERRORS, MeteringFails
from reprise.model_check.explanations.explanation import NOTHING, Explanation
from reprise.model_check.explanations.operator_difference import (
    BESIDE_PLAIN,
    KEEP_STATE,
    OF_PLAIN,
    OperatorDifference,
    first_difference,
    in_module,
)
from reprise.model_check.explanations.reach import first_that_reaches
from reprise.model_check.explanations.recording import Operator, Recording, Write, record
from reprise.model_check.plain_runs import UNDECIDED, JudgedVerdict, PlainRuns
from reprise.model_check.regions import Key
from reprise.model_check.run import Checkpoint, Run, Setting, run

STEPS_RECORDED = 3  # steps that are recorded at most, in which a recomputation may show that it differs
TRIES = 60  # runs in which regions are left out, at most
CONFIRMED = 3  # runs in which a smallest set must show it once more
SHOWN = 3  # operators in which recomputations were ended
PLAIN_RECORDINGS = 8  # of plain, to find two that differ
ENDED_AT_ONCE = (
    "a region's function ran again, but none of its operators is recorded: it was ended before, or runs none that is compared"
)
NOTHING_AGAIN = "no region's function ran again: no gradient passed through them, or the implementation recomputes nothing"
SAME_AS_FORWARD = "every operator that the recomputations ran reads and gives the same values as in forward"
ENDED_IN = (
    "; not compared are the operators at which recomputations were ended, and later ones. An implementation that ends none "
    "early, such as torch-nonreentrant-full, shows whether they differ. They were ended at:"
)
SAME_ONCE = (
    "every operator that the recomputations of one more step ran reads and gives the same values as in forward; steps are "
    "not all alike, so another step may show a difference"
)
GONE = "no smallest set of regions is named, since the fault comes and goes: it did not show when the step was run once more"
SAME_AGAIN = (
    f"{SAME_AS_FORWARD}, and forward's as in plain, so the difference is not in a region's values, but in how often something "
    "happens, in what the implementation returns or passes on as gradients, or in what it leaves changed in the process"
)
CLONE = "Change a clone of it, or pass a clone to the region."
CHANGE_LATER = "Change it after backward and outside of regions, or pass the region a clone that is made before."
NOT_COMPARED = f"{SAME_AS_FORWARD}; whether forward's values are plain's was not compared"
NOT_COMPARED_LATER = (
    f"{SAME_AS_FORWARD}, and forward calls the operators that plain calls, with the same whole numbers. Values are not "
    "compared with plain's after the first step, as parameters may no longer be the same"
)
UNLIKE_PLAIN = f"{SAME_AS_FORWARD}, but forward differs from plain's"
OTHER_CALLS = f"{SAME_AS_FORWARD}, but forward calls other operators than plain's, or with other whole numbers"


Seen = tuple[OperatorDifference, Key, int]  # with the region, and the number of the recomputation


def explain_divergence(
    setting: Setting,
    checkpoint: Checkpoint,
    plain: PlainRuns,
    compared: Comparison | None,
    error_type: str = "",
    *,
    is_certain: bool = True,
) -> Explanation:
    """Name a smallest set of regions that still goes wrong, and where its recomputations differ from forward.

    ``compared`` has what diverges: a set goes wrong if some of that diverges again, of the tensors of the first step if there
    are any. It is None if the implementation raised an error, of ``error_type``: a set goes wrong if it raises one of
    that type. What comes and goes is not ``is_certain``, so that a set without it may be one that has it. Every set that is
    named was run and went wrong.
    """

    def shows(some: list[Key]) -> bool:
        try:
            seen = run(setting, checkpoint, only=frozenset(some))
        except BUILD_ERRORS:
            raise
        except Exception as raised:  # noqa: BLE001 - whatever it is, its type is compared
            return compared is None and errors.type_name(raised) == error_type
        return bool(plain.beyond(compare_runs(plain.first, seen)) & sought)

    sought = _sought(compared)
    every, names = [one.key for one in plain.first.regions], _names(plain.first)
    found, reason = every, ""
    if is_again := shows(every):
        found, is_smallest = _smallest(every, shows)
        reason = "" if is_smallest else f", since no more than {TRIES} runs are made"
        is_certain = is_certain and (not is_smallest or _is_confirmed(found, shows))
        reason = reason if is_certain else ", since the fault comes and goes"
        told = f"{_told_set(len(found), reason)}: {', '.join(names[key] for key in found)}"
    else:
        told = f"{GONE}, with all {len(every)} regions"
    begins_at_once = compared is not None and not compared.of_first_step.agrees
    regions = {key: names[key] for key in found} if is_again and is_certain and plain.spread.agrees else {}
    step, explained = _first_step_that_differs(setting, checkpoint, found, names, regions, at_once=begins_at_once)
    return replace(explained, lines=(told, *([f"in step {step}:"] if step > 1 else ()), *explained.lines))


def _first_step_that_differs(
    setting: Setting,
    checkpoint: Checkpoint,
    found: Sequence[Key],
    names: Mapping[Key, str],
    beside_plain: Mapping[Key, str],
    *,
    at_once: bool,
) -> tuple[int, Explanation]:
    """The first step, of a few, whose recomputations differ from forward, or that from plain's; and how, or the last one.

    ``beside_plain`` are regions whose forward may be compared with plain's; ``at_once`` says that the first step goes wrong.
    """
    last = min(setting.steps, STEPS_RECORDED)
    for step in range(1, last + 1):
        recording, ended_by = record(setting, checkpoint, frozenset(found), step=step)
        beside, differs = NOTHING, bool(_differing(recording))
        if beside_plain and not differs:
            beside, differs = _beside_plain(setting, recording, beside_plain, step)
        if differs or at_once or ended_by:
            break
    is_seen = at_once or ended_by or differs or setting.steps <= STEPS_RECORDED
    same = beside if beside and is_seen else Explanation((SAME_ONCE,))
    return step, _of_step(recording, ended_by, names, found, same)


def _smallest(every: list[Key], shows: Callable[[list[Key]], bool]) -> tuple[list[Key], bool]:
    """As ``shrink``; and if one of the regions that are left shows it alone, that one: sets between may go wrong otherwise."""
    tried = {frozenset[Key]()}

    def noted(some: list[Key]) -> bool:
        tried.add(frozenset(some))
        return shows(some)

    found, is_smallest = shrink(every, noted)
    alone = [[key] for key in found if is_smallest and len(found) > 1 and frozenset([key]) not in tried]
    return next((one for one in alone if shows(one)), found), is_smallest


def _told_set(count: int, reason: str) -> str:
    """What a set of so many regions is called, with the reason why it may not be the smallest, if there is one."""
    told = f"set of {count} region{'s' * (count != 1)} that shows it, perhaps not the smallest{reason}"
    return told if reason else "smallest set of regions that shows it"


def _sought(compared: Comparison | None) -> frozenset[Place]:
    """What of a divergence a set of regions must show some of: tensors of the first step, or of others, or whatever differs."""
    if compared is None:
        return frozenset()
    places = (compared.of_first_step.distances, compared.distances)
    tensors = ([one for one in some if isinstance(getattr(compared, one[0]), TensorsCompared)] for some in places)
    return frozenset(next(filter(None, tensors), compared.distances))


def _is_confirmed(found: list[Key], shows: Callable[[list[Key]], bool]) -> bool:
    """Whether a set shows it whenever it is run again, and does not without any one of its regions."""
    smaller = ([one for one in found if one != key] for key in found)
    return all(shows(found) for _ in range(CONFIRMED)) and not any(shows(some) for some in smaller if some)


def explain_undecided(setting: Setting, checkpoint: Checkpoint, plain: PlainRuns) -> tuple[Explanation, Explanation]:
    """As ``explain_unlike_forward`` of one more run; and whether its recomputations differ from forward."""
    names, keys = _names(plain.first), [one.key for one in plain.first.regions]
    recording, ended_by = record(setting, checkpoint, frozenset(keys))
    is_told = plain.spread.agrees or plain.spread.is_rounding  # as in ``explain_unlike_forward``
    unlike = NOTHING if is_told else _first_again(recording, names, [*_reaching(recording)])
    return unlike, _of_step(recording, ended_by, names, keys, Explanation((SAME_ONCE,)))


def explain_unlike_forward(
    setting: Setting, checkpoint: Checkpoint, plain: PlainRuns, verdict: JudgedVerdict, *, only: frozenset[Key] | None = None
) -> Explanation:
    """Show that a recomputation computes other values than its forward, in one of some runs; nothing if none does.

    They are looked for where a comparison with plain's runs cannot tell. If these differ by rounding alone, as with operators
    that add in any order, a recomputation may do so, too. Where another operator runs, the values may still be the same in the
    end, so that is not taken for a difference, and neither is what backward does not read.
    """
    if verdict != UNDECIDED or plain.spread.agrees or plain.spread.is_rounding:
        return NOTHING
    names = _names(plain.first)
    for _ in range(STEPS_RECORDED):  # what differs from run to run may be the same again by chance
        plain.tell("recorded, since plain's runs differ")
        try:
            recording, _ = record(setting, checkpoint, frozenset(names) if only is None else only)
        except MeteringFails:
            return NOTHING
        if found := _first_again(recording, names, [*_reaching(recording)]):
            return found
    return NOTHING


def _reaching(recording: Recording) -> Iterator[Seen]:
    """The first operator of each recomputation that computes other values than forward, of which a gradient may depend."""
    for difference, key, number in _differing(recording):
        if difference.is_of_values and (start := first_that_reaches(recording, (key, number))) is not None:
            forward, again = recording.runs[key, 0], recording.runs[key, number]
            if found := first_difference(forward, again, both_ended=False, start=start):
                yield found, key, number


def _names(plain: Run) -> Mapping[Key, str]:
    return {one.key: f"{one.name} ({one.line})" for one in plain.regions}


def _beside_plain(setting: Setting, recording: Recording, names: Mapping[Key, str], step: int) -> tuple[Explanation, bool]:
    """What to say of a step whose recomputations are as forward; and whether that differs from plain's.

    Of a step after the first, whose parameters may no longer be plain's, operators and whole numbers are compared, of these
    regions.
    """
    plain, ended_by = record(setting, None, step=step)
    if ended_by:
        return Explanation((NOT_COMPARED,)), False
    found = [
        (difference, key)
        for key, number in {**plain.runs, **recording.runs}
        if key and not number and (step == 1 or key in names)
        if (difference := _of_forward(plain, recording, key, calls_alone=step > 1))
    ]
    if not found:
        return Explanation((NOT_COMPARED_LATER,) if step > 1 else _not_compared(recording, names) or (SAME_AGAIN,)), False
    difference, key = min(found, key=lambda one: one[0].second.time if one[0].second else recording.time)
    region = names.get(key) or {**plain.names, **recording.names}[key]
    told = OTHER_CALLS if step > 1 else UNLIKE_PLAIN
    return Explanation((f"{told}, in region {region}:", *difference.lines), KEEP_STATE if step > 1 else ""), True


def _not_compared(recording: Recording, names: Mapping[Key, str]) -> tuple[str, ...]:
    """What to say of a step whose recomputations are as forward, as far as they ran; nothing if they ran to their ends."""
    due = [*_due(recording, names)]
    more = [f"  and {len(due) - SHOWN} more"] if len(due) > SHOWN else []
    return (f"{SAME_AS_FORWARD}{ENDED_IN}", *due[:SHOWN], *more) if due else ()


def _due(recording: Recording, names: Mapping[Key, str]) -> Iterator[str]:
    """The operator of forward that was due when the recomputation of a region was ended, of each that was."""
    for key, number in recording.runs:
        forward, again = recording.runs.get((key, 0), []), recording.runs[key, number]
        if number == 1 and (key, number) not in recording.finished and len(again) < len(forward):
            due = forward[len(again)]
            yield f"  {due.name} in region {names.get(key, recording.names[key])} at {due.line}"


def _of_forward(plain: Recording, seen: Recording, key: Key, *, calls_alone: bool) -> OperatorDifference | None:
    run = (key, 0)
    both_ended = run in seen.finished or run not in seen.begun  # what never ran lacks what plain's ran
    one, other = plain.runs.get(run, []), seen.runs.get(run, [])
    return first_difference(one, other, BESIDE_PLAIN, both_ended=both_ended, calls_alone=calls_alone)


def _of_step(
    recording: Recording, ended_by: str, names: Mapping[Key, str], keys: Sequence[Key], same: Explanation
) -> Explanation:
    """Where a recorded step's recomputations differ from forward, or which inputs of regions were changed in place.

    ``same`` is what to say if neither is seen.
    """
    if found := _differing(recording):
        return replace(_first_again(recording, names, found), ended_by=ended_by)
    if ended_by and (reasons := (*_ended_early(recording, names), *_changed_inputs(recording, names, keys))):
        is_changed = any(True for _ in _changed_inputs(recording, names, keys))
        remedy = CLONE if is_changed else KEEP_STATE if _went_on(recording) else ""
        return Explanation(reasons, remedy, ended_by=ended_by)
    if any(number for _, number in recording.runs):
        return replace(same, ended_by=ended_by)
    if any(number for _, number in recording.begun):
        return Explanation((ENDED_AT_ONCE,), ended_by=ended_by)
    return Explanation(() if ended_by else (NOTHING_AGAIN,), ended_by=ended_by)


def _differing(recording: Recording) -> list[Seen]:
    """Where each recomputation first differs from forward, with its region and its number."""
    return [
        (difference, key, number)
        for key, number in {**recording.runs, **recording.finished}
        if number > 0 and (difference := _difference_again(recording, key, number))
    ]


def _first_again(recording: Recording, names: Mapping[Key, str], found: Sequence[Seen]) -> Explanation:
    """The difference that came first; nothing if there is none."""
    if not found:
        return NOTHING
    difference, key, number = min(found, key=lambda one: _time_of(recording, *one))
    region = f"region {names.get(key, recording.names[key])}, recomputation {number}:"
    writers = (*_writers(recording, difference),)
    return Explanation((region, *difference.lines, *writers), difference.remedy or (CHANGE_LATER if writers else ""))


def _difference_again(recording: Recording, key: Key, number: int) -> OperatorDifference | None:
    """Where a recomputation first differs from forward; one that was stopped does not differ by what it had yet to run."""
    both_ended = {(key, 0), (key, number)} <= recording.finished.keys()
    runs = recording.runs
    return first_difference(runs.get((key, 0), []), runs.get((key, number), []), both_ended=both_ended)


def _time_of(recording: Recording, difference: OperatorDifference, key: Key, number: int) -> int:
    return difference.second.time if difference.second else recording.finished[key, number]


def _ended_early(recording: Recording, names: Mapping[Key, str]) -> Iterator[str]:
    """Which operator of forward was due when the last recomputation was ended, if that was the last thing in the step."""
    ended = recording.ended
    if ended is None or ended.run[1] == 0 or ended.time != recording.time:
        return
    key, number = ended.run
    forward, again = recording.runs.get((key, 0), []), recording.runs.get(ended.run, [])
    went_on = _went_on(recording)
    if not went_on and len(again) >= len(forward):
        return
    yield f"region {names.get(key, recording.names[key])}, recomputation {number}:"
    if went_on:
        yield f"forward has no more than {len(forward)} operators; an error ended the recomputation after them"
    else:
        due = forward[len(again)]
        place = f"operator {len(again)}{in_module(due.module)}"
        yield f"{place}: {due.name} in forward, where the recomputation was ended"
        yield f"  in forward at {due.line}"
    yield f"  again at {ended.line}"


def _went_on(recording: Recording) -> bool:
    """Whether the step's error ended a recomputation that had run all of forward's operators."""
    ended = recording.ended
    if ended is None or not recording.ended_step:
        return False
    return len(recording.runs.get(ended.run, [])) >= len(recording.runs.get((ended.run[0], 0), []))


def _writers(recording: Recording, difference: OperatorDifference) -> Iterator[str]:
    """What wrote the inputs of which the recomputation reads other values."""
    if difference.first is None or difference.second is None:
        return
    for i in difference.changed:
        one, other = difference.first.storages[i], difference.second.storages[i]
        if one is None or other is None or one != other:
            continue
        writes = recording.writes_to(one, difference.first.time, difference.second.time)
        if writes:
            yield _told(writes)
        else:
            yield "  changed in between, but by no recorded operator: by numpy or another thread, for example"


def _told(writes: Sequence[Write]) -> str:
    others = len(writes) - 1
    more = f" and {others} more operator{'s' * (others != 1)}" if others else ""
    return f"  changed in place by {writes[0].operator} at {writes[0].line}{more}"


def _changed_inputs(recording: Recording, names: Mapping[Key, str], keys: Sequence[Key]) -> Iterator[str]:
    """The inputs of regions that were written after they were passed."""
    for key in keys:
        since, inputs = recording.inputs.get(key, (0, {}))
        for storage, name in inputs.items():
            if writes := recording.writes_to(storage, since + 1):
                yield f"{name} of region {names[key]} is changed after it was passed:"
                yield _told(writes)


def explain_spread(setting: Setting) -> Explanation:
    """Where two plain runs first differ, and that an error ended a recorded one, if so."""
    first, error_of_first = record(setting, None)
    ended_by = [error_of_first]
    for _ in range(PLAIN_RECORDINGS - 1):
        other, error = record(setting, None)
        ended_by.append(error)
        found = [
            (difference, key)
            for key, number in {**first.runs, **other.runs}
            if (difference := _between(first.runs.get((key, number), []), other.runs.get((key, number), [])))
        ]
        if found:
            difference, key = min(found, key=lambda one: min(side.time for side in (one[0].first, one[0].second) if side))
            where = f"in region {({**first.names, **other.names})[key]}" if key else "outside of regions"
            lines = f"two plain runs first differ {where}:", *(f"  {line}" for line in difference.lines)
            return Explanation(lines, difference.remedy, error or error_of_first)
    if failed := [one for one in ended_by if one]:
        told = f"where plain runs first differ cannot be told: {len(failed)} of {PLAIN_RECORDINGS} that were recorded failed, "
        return Explanation((f"{told}and were the same until then: {failed[0]}",))
    return Explanation((f"{PLAIN_RECORDINGS} plain runs, recorded operator by operator, were the same",))


def _between(one: Sequence[Operator], other: Sequence[Operator]) -> OperatorDifference | None:
    return first_difference(one, other, OF_PLAIN, both_ended=True)


def shrink(keys: list[Key], shows: Callable[[list[Key]], bool]) -> tuple[list[Key], bool]:
    """Keys that still show it, and whether they are known to be a smallest set, which does not show it without any one of them.

    That is not known if TRIES ran out.
    """
    tries = iter(range(TRIES))
    size = len(keys) // 2 or 1
    start = needed = 0  # so many keys before start cannot be left out, as the others are now
    while len(keys) > 1 and (size > 1 or needed < len(keys)):
        rest = keys[:start] + keys[start + size :]
        if rest and next(tries, None) is None:
            return keys, False
        if rest and shows(rest):
            keys, needed = rest, 0
        else:
            start, needed = start + size, needed + size
        if start >= len(keys):
            start = 0
            if size > 1:
                size, needed = size // 2, 0
    return keys, True
