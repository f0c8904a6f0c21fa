"""Scripts of verdicts under ranks: programs are made smaller, and an earlier script's is taken while it shows the fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import impls
from conformance.distributed.law import all_laws
from conformance.distributed.script import EVALUATIONS, Smaller, program_in, reduced, script
from conformance.judging.judge import Outcome
from conformance.judging.result import Result
from conformance.judging.verdicts import Measured, Verdict
from conformance.programs.sums import DEFAULT

LAW = all_laws()["ddp_with_shared_weights"]
LINES = tuple(f"    x{number} = torch.ones({number})" for number in range(9))
HEAD = "import torch\nimport torch.distributed as dist\n\ndef run(checkpoint, note, device):\n"


def program(*lines: str) -> Smaller:
    return Smaller(HEAD + "\n".join([*lines, "    note('sum', 1)"]) + "\n", DEFAULT)


WHOLE = Result(
    law=LAW,
    implementation=impls.get("torch-reentrant"),
    device="cpu",
    expected=Verdict.DIVERGES,
    verdict=Verdict.DIVERGES,
    counts=Counter(),
    detail="sum is 2",
    program=program(*LINES),
    vacuous="",
    seconds=0.0,
    measured=Measured("calls", (("calls", 1),)),
)


class Shows:
    """A fault that shows as long as x3 is there."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def __call__(self, program: Smaller) -> Outcome | None:
        self.tried.append(program.source)
        if "x3 =" not in program.source:
            return None
        return Outcome(program, Verdict.DIVERGES, detail="smaller", measured=Measured("calls", (("calls", 2),)))


def test_what_the_fault_does_not_need_is_left_out() -> None:
    shows = Shows()
    found = reduced(WHOLE, "", shows)
    assert found.program is not None
    assert [line for line in LINES if line in found.program.source] == [LINES[3]]
    assert (found.detail, found.measured) == ("smaller", Measured("calls", (("calls", 2),)))
    assert 1 < len(shows.tried) <= EVALUATIONS


def test_the_program_of_an_earlier_script_is_taken_while_it_shows_the_fault() -> None:
    before = program_in(script(reduced(WHOLE, "", Shows()), 2), WHOLE)
    assert before is not None
    shows, source = Shows(), before.source
    assert reduced(WHOLE, "", shows, [before]).program == before
    assert shows.tried == [source]


def test_a_program_that_no_longer_shows_the_fault_is_not_taken() -> None:
    shows = Shows()
    found = reduced(WHOLE, "", shows, [program(LINES[2])])
    assert found.program is not None
    assert LINES[3] in found.program.source
    assert len(shows.tried) > 1


@pytest.mark.parametrize("text", ["", "no Python(", "from torch.utils.checkpoint import checkpoint\n\nprint(1)\n"])
def test_a_text_without_a_program_has_none(text: str) -> None:
    assert program_in(text, replace(WHOLE, detail="")) is None
