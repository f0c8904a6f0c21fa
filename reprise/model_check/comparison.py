"""What differs between two runs, to the last bit."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from reprise.model_check.run import Run, Tensors
from reprise.model_check.tensors.tensor_difference import Difference as Difference
from reprise.model_check.tensors.tensor_difference import difference, largest_value

Place = tuple[str, str]  # a field of Comparison, and the name of a tensor, a stream or a module in it


@dataclass(frozen=True)
class TensorsCompared:
    """Tensors compared by name: how many plain has, which differ, which are missing, and which only the other run has."""

    total: int
    differing: tuple[Difference, ...] = ()
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not (self.differing or self.missing or self.surplus)

    @property
    def is_rounding(self) -> bool:
        """Whether what differs does so by rounding alone."""
        return not (self.missing or self.surplus) and all(one.is_rounding for one in self.differing)


NOTHING = TensorsCompared(0)


@dataclass(frozen=True)
class Comparison:
    """How a run differs from a plain one, after each step. Names in later steps are as in ``step 2 layer.weight``."""

    loss: TensorsCompared
    gradients: TensorsCompared
    buffers: TensorsCompared
    random_streams: tuple[str, ...]
    training_flags: tuple[str, ...]
    process_state: tuple[str, ...]
    losses_of_later_steps: TensorsCompared = NOTHING
    gradients_of_later_steps: TensorsCompared = NOTHING
    buffers_of_later_steps: TensorsCompared = NOTHING  # without the last
    random_streams_of_later_steps: tuple[str, ...] = ()
    training_flags_of_later_steps: tuple[str, ...] = ()
    process_state_of_later_steps: tuple[str, ...] = ()
    parameters_after_steps: TensorsCompared = NOTHING
    buffers_after_steps: TensorsCompared = NOTHING  # empty if there is one step

    @property
    def parts(self) -> dict[str, TensorsCompared]:
        """Kinds of tensors that are compared, by name."""
        return self.first_parts | self.later_parts

    @property
    def first_parts(self) -> dict[str, TensorsCompared]:
        """Those of the first step."""
        return {"loss": self.loss, "gradients": self.gradients, "buffers": self.buffers}

    @property
    def later_parts(self) -> dict[str, TensorsCompared]:
        """Those of later steps, and of the last one."""
        return {
            "losses of later steps": self.losses_of_later_steps,
            "gradients of later steps": self.gradients_of_later_steps,
            "buffers of later steps": self.buffers_of_later_steps,
            "parameters after the last step": self.parameters_after_steps,
            "buffers after the last step": self.buffers_after_steps,
        }

    @property
    def agrees(self) -> bool:
        return all(part.agrees for part in self.parts.values()) and not self._states

    @property
    def _states(self) -> tuple[str, ...]:
        """What differs and is no tensor, of all steps."""
        return tuple(itertools.chain(*self.first_states.values(), *self.later_states.values()))

    @property
    def first_states(self) -> dict[str, tuple[str, ...]]:
        """What differs after the first step and is no tensor, by kind."""
        return {
            "random number streams": self.random_streams,
            "train() flags": self.training_flags,
            "state of the process": self.process_state,
        }

    @property
    def later_states(self) -> dict[str, tuple[str, ...]]:
        """The same after later steps."""
        return {
            "random number streams after later steps": self.random_streams_of_later_steps,
            "train() flags after later steps": self.training_flags_of_later_steps,
            "state of the process after later steps": self.process_state_of_later_steps,
        }

    @property
    def is_rounding(self) -> bool:
        """Whether something differs, and all of it by rounding alone."""
        return not self.agrees and not self._states and all(part.is_rounding for part in self.parts.values())

    @property
    def distances(self) -> dict[Place, float]:
        """The distance of everything that differs; infinite for what is missing or surplus, and for what is no tensor."""
        found: dict[Place, float] = {}
        for name, part in _fields(self):
            if isinstance(part, TensorsCompared):
                found |= {(name, one.name): one.distance for one in part.differing}
                found |= dict.fromkeys(((name, one) for one in (*part.missing, *part.surplus)), math.inf)
            else:
                found |= dict.fromkeys(((name, one) for one in part), math.inf)
        return found

    @property
    def of_first_step(self) -> Comparison:
        """The same without later steps."""
        return Comparison(self.loss, self.gradients, self.buffers, self.random_streams, self.training_flags, self.process_state)

    def at(self, places: Set[Place]) -> Comparison:
        """The same with these places alone."""
        return Comparison(**{name: _part_at(part, name, places) for name, part in _fields(self)})


def _fields(compared: Comparison) -> Iterator[tuple[str, TensorsCompared | tuple[str, ...]]]:
    return ((one.name, getattr(compared, one.name)) for one in dataclasses.fields(compared))


def _part_at(part: Any, name: str, places: Set[Place]) -> Any:
    if not isinstance(part, TensorsCompared):
        return tuple(one for one in part if (name, one) in places)
    return TensorsCompared(
        total=part.total,
        differing=tuple(one for one in part.differing if (name, one.name) in places),
        missing=tuple(one for one in part.missing if (name, one) in places),
        surplus=tuple(one for one in part.surplus if (name, one) in places),
    )


def widest(comparisons: Iterable[Comparison]) -> Comparison:
    """Everything that differs in any of these comparisons with the same run, each with its largest difference."""
    parts: dict[str, Any] = {}
    for compared in comparisons:
        for name, part in _fields(compared):
            parts[name] = _wider(parts[name], part) if name in parts else part
    return Comparison(**parts)


def _wider(one: Any, other: Any) -> Any:
    if not isinstance(one, TensorsCompared):
        return tuple(dict.fromkeys((*one, *other)))
    differing = {found.name: found for found in sorted((*one.differing, *other.differing), key=lambda found: found.distance)}
    missing, surplus = (tuple(dict.fromkeys((*getattr(one, of), *getattr(other, of)))) for of in ("missing", "surplus"))
    return TensorsCompared(one.total, tuple(differing.values()), missing, surplus)


def compare_tensors(expected: Tensors, seen: Tensors) -> TensorsCompared:
    """Compare tensors by name."""
    among = functools.cache(lambda: max(map(largest_value, expected.values()), default=0.0))  # takes longer than to compare
    found = [difference(name, value, seen[name], among) for name, value in expected.items() if name in seen]
    return TensorsCompared(
        total=len(expected),
        differing=tuple(one for one in found if one is not None),
        missing=tuple(name for name in expected if name not in seen),
        surplus=tuple(name for name in seen if name not in expected),
    )


def proves_something(gradients: Tensors) -> bool:
    """Whether a gradient has a finite value other than zero. If none has, equal gradients prove nothing."""
    return any(largest_value(one) > 0 for one in gradients.values())


def compare_first_steps(expected: Run, seen: Run) -> Comparison:
    """Compare the first step of a run with that of a plain one."""
    return Comparison(
        loss=compare_tensors(_losses(expected)[0], _losses(seen)[0]),
        gradients=compare_tensors(expected.gradients, seen.gradients),
        buffers=compare_tensors(expected.buffers, seen.buffers),
        random_streams=tuple(_names_that_differ(expected.random, seen.random)),
        training_flags=tuple(_names_that_differ(expected.training, seen.training)),
        process_state=tuple(_names_that_differ(expected.process, seen.process)),
    )


def compare_runs(expected: Run, seen: Run) -> Comparison:
    """Compare a run with a plain one of as many steps."""
    later = [*zip(expected.later, seen.later, strict=True)]
    return dataclasses.replace(
        compare_first_steps(expected, seen),
        losses_of_later_steps=compare_tensors(_losses(expected)[1], _losses(seen)[1]),
        gradients_of_later_steps=_of_steps(compare_tensors(a.gradients, b.gradients) for a, b in later),
        buffers_of_later_steps=_of_steps(compare_tensors(a.buffers, b.buffers) for a, b in later[:-1]),
        random_streams_of_later_steps=tuple(_states_of_steps((a.random, b.random) for a, b in later)),
        training_flags_of_later_steps=tuple(_states_of_steps((a.training, b.training) for a, b in later)),
        process_state_of_later_steps=tuple(_states_of_steps((a.process, b.process) for a, b in later)),
        parameters_after_steps=compare_tensors(expected.parameters, seen.parameters),
        buffers_after_steps=compare_tensors(expected.later[-1].buffers, seen.later[-1].buffers) if later else NOTHING,
    )


def _of_steps(parts: Iterable[TensorsCompared]) -> TensorsCompared:
    """What differs in the second step and later ones, by name of step and tensor."""
    total, differing, missing, surplus = 0, list[Difference](), list[str](), list[str]()
    for number, part in enumerate(parts, 2):
        total += part.total
        differing += [dataclasses.replace(one, name=f"step {number} {one.name}") for one in part.differing]
        missing += [f"step {number} {one}" for one in part.missing]
        surplus += [f"step {number} {one}" for one in part.surplus]
    return TensorsCompared(total, tuple(differing), tuple(missing), tuple(surplus))


def _states_of_steps(states: Iterable[tuple[Mapping[str, object], Mapping[str, object]]]) -> Iterator[str]:
    for number, (one, other) in enumerate(states, 2):
        yield from (f"step {number} {name}".rstrip() for name in _names_that_differ(one, other))


def _losses(of: Run) -> tuple[Tensors, Tensors]:
    """Of the first step, and of later ones."""
    first, *later = of.losses
    return {"step 1": first}, {f"step {number}": one for number, one in enumerate(later, 2)}


def _names_that_differ(expected: Mapping[str, object], seen: Mapping[str, object]) -> Iterator[str]:
    for name in {**expected, **seen}:
        if expected.get(name) != seen.get(name):
            yield name
