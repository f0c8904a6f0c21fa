"""The result of judging one implementation by one law, and its row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conformance.judging.causes import NONE, Cause
from conformance.judging.verdicts import VALUES, Measured, Verdict
from conformance.programs.sums import Comparable
from conformance.reproducers.script import script
from conformance.rows.results_file import Row, is_unexpected
from impls import Implementation, Known

if TYPE_CHECKING:
    from conformance.judging.law import Law


@dataclass(frozen=True)
class Result:
    """The result of judging one implementation by one law."""

    law: Law
    implementation: Implementation
    device: str
    expected: Verdict
    verdict: Verdict
    counts: Counter[Verdict]
    detail: str
    program: Comparable | None
    vacuous: str
    seconds: float
    measured: Measured | None = VALUES
    known: Known | None = None
    units: float = 0  # how far rounding may move a value of the program, in units of its dtype's resolution
    cause: Cause = NONE  # what kind of thing was observed
    unproven: Counter[str] = field(default_factory=Counter)  # of a vacuous result: reasons why cases prove nothing
    beyond: str = ""  # how a divergence differs from the declared effect
    declaration: str = ""  # a digest of the parts of the declaration that this depends on

    @property
    def cases(self) -> int:
        return self.counts.total()

    @property
    def as_declared(self) -> bool:
        """Whether the verdict is the declared one and proven. A callable without a declaration may also do better."""
        return not self.vacuous and not self.beyond and as_declared(self.implementation, self.verdict, self.expected)

    def script(self) -> str:
        """The program as a standalone script; "" if there is no program."""
        if self.program is None:
            return ""
        about = f"law {self.law.name}. {self.law.statement}"
        program, options = self.program.source, self.written_options()
        return script(program, self.implementation, about, self.measured, options, self.device, self.detail, self.units)

    def written_options(self) -> str:
        """The law's options as the arguments of a call."""
        return ", ".join(f"{key}={_written(value)}" for key, value in self.law.options.items())

    def row(self) -> dict[str, Any]:
        """The result as a row of a results file."""
        return {
            "law": self.law.name,
            "impl": self.implementation.name,
            "device": self.device,
            "expected": str(self.expected),
            "verdict": str(self.verdict),
            "cases": self.cases,
            "detail": self.vacuous or self.beyond or self.detail,
            "cause": self.cause.words,
            "effect": self.cause.effect,
            "unproven": dict(self.unproven),
            "program": self.script(),
            "family": self.law.family,
            "subject": self.law.kind,
            "statement": self.law.statement,
            "counts": {str(verdict): count for verdict, count in sorted(self.counts.items())},
            "as_declared": self.as_declared,
            "declared": self.implementation.declared,
            "known": None if self.known is None else {"reason": self.known.reason, "source": self.known.source},
            "declaration": self.declaration,
            "options": self.written_options(),
            "seconds": round(self.seconds, 3),
        }


def as_declared(implementation: Implementation, verdict: Verdict, expected: Verdict) -> bool:
    """Whether this is the declared verdict or, for a callable that declares nothing, a better one."""
    return verdict == expected if implementation.declared else verdict.rank <= expected.rank


def is_worse(row: Row) -> bool:
    """Whether the verdict is worse than the declared one. A limit that does not show, or a vacuous law, is not worse."""
    return is_unexpected(row) and Verdict(row["verdict"]).severity > Verdict(row["expected"]).severity


def _written(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)
