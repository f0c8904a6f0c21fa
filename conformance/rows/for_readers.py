"""What a law means to somebody who reads results: who meets it, what breaking it does, and by which words it is found.

It is written beside each law, but is no part of what is judged: fingerprints leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

Tier = Literal["everyday", "advanced", "adversarial"]
Consequence = Literal["wrong gradient", "wrong state", "leaked or late memory", "more work than needed", "poor error"]
Test = TypeVar("Test", bound=Callable[..., Any])

# Most ordinary and worst first, as reports list them.
TIERS: Mapping[Tier, str] = MappingProxyType(
    {
        "everyday": "an ordinary training step meets it: modules, dropout, autocast, containers, gradient accumulation",
        "advanced": "nesting, partial or repeated backward, higher derivatives, hooks, threads",
        "adversarial": "changes between forward and backward, exotic objects, abuse of the engine",
    }
)
CONSEQUENCES: Mapping[Consequence, str] = MappingProxyType(
    {
        "wrong gradient": "an output or a gradient is not plain's, and nothing says so",
        "wrong state": "random numbers, buffers, modes or other state is not what plain leaves",
        "leaked or late memory": "something lives longer than it must",
        "more work than needed": "something runs, or is copied, more often than it must",
        "poor error": "a mistake is not reported, or what is right is refused",
    }
)


@dataclass(frozen=True)
class ForReaders:
    """Tier, consequence and search words of a law. Raises ValueError for values that do not exist and for no words."""

    tier: Tier
    consequence: Consequence
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, accepted in (("tier", get_args(Tier)), ("consequence", get_args(Consequence))):
            if (value := getattr(self, name)) not in accepted:
                raise ValueError(f"{name} is {value!r}; accepted are {', '.join(accepted)}")
        if not self.words or not all(self.words) or len(set(self.words)) < len(self.words):
            raise ValueError(f"words are {', '.join(self.words)!r}; they must be different words, between commas")


_BY_LAW: dict[str, ForReaders] = {}  # of the laws whose modules were imported


def for_readers(tier: Tier, consequence: Consequence, words: str) -> Callable[[Test], Test]:
    """Decorate a law with what it means to readers; ``words`` are synonyms for its subject, separated by commas."""
    made = ForReaders(tier, consequence, tuple(word.strip() for word in words.split(",")))

    def register(test: Test) -> Test:
        _BY_LAW[test.__name__.removeprefix("test_")] = made
        return test

    return register


def of_law(name: str) -> ForReaders | None:
    """What a law means to readers; None for an unknown law, as results of an older suite may have."""
    return _BY_LAW.get(name)
