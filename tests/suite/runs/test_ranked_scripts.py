"""Scripts of verdicts under ranks: programs are made smaller, and an earlier script's is taken while it shows the fault."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.utils.checkpoint import checkpoint

import impls
from conformance.distributed import script as distributed_script
from conformance.distributed import script_endings
from conformance.distributed.answer import Answer, Task
from conformance.distributed.explorer import RankedExplorer, control_of
from conformance.distributed.law import PROFILES, all_laws
from conformance.distributed.script import EVALUATIONS, Smaller, program_in, reduced, script
from conformance.distributed.world import Worlds
from conformance.judging.judge import Observation, Outcome
from conformance.judging.result import Result
from conformance.judging.verdicts import Measured, Verdict
from conformance.programs.sums import DEFAULT
from conformance.reproducers.reduction_steps import MOST

LAW = all_laws()["ddp_with_shared_weights"]
LINES = tuple(f"    x{number} = torch.ones({number})" for number in range(9))
LONG = [line.replace("torch.ones", f"{'long ' * 18 + str(number)!r}, torch.ones") for number in range(5) for line in LINES]
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


def test_a_script_defines_the_policy_that_it_passes_on() -> None:
    result = replace(WHOLE, law=all_laws()["several_fsdp_units_under_a_region_whose_policy_keeps_all"])
    text = script(reduced(result, result.written_options(), Shows()), 2, result.written_options())
    assert "conformance" not in text
    names: dict[str, Any] = {}
    exec(text.partition("\n\n")[0], names)
    assert isinstance(names["checkpoint"].keywords["context_fn"](), tuple)
    before = program_in(text, result)
    assert before is not None
    assert LINES[3] in before.source


def test_the_program_of_an_earlier_script_is_taken_while_it_shows_the_fault() -> None:
    before = program_in(script(reduced(WHOLE, "", Shows()), 2), WHOLE)
    assert before is not None
    shows, source = Shows(), before.source
    assert reduced(WHOLE, "", shows, [before]).program == before
    assert shows.tried == [source]


def test_an_earlier_program_whose_script_is_too_long_is_made_smaller() -> None:
    shows = Shows()
    found = reduced(WHOLE, "", shows, [program(*LONG, LINES[3])])
    assert shows.tried[0].count("\n") > MOST
    assert found.program is not None
    assert found.program.source.count("\n") < shows.tried[0].count("\n")


def test_a_program_that_no_step_makes_smaller_is_taken_as_it_is() -> None:
    shows, long = Shows(), replace(program(*LONG, LINES[3]), least=True)
    assert reduced(WHOLE, "", shows, [long]).program == long
    assert shows.tried == [long.source]


def test_what_is_used_once_is_put_where_it_is_used_only_if_the_script_is_too_long() -> None:
    uses = [f"    y{number} = {'long ' * 18!r} + str({number})\n    if y{number}: note({number})" for number in range(4)]
    short, long = (replace(program(*LONG[:count], LINES[3], *uses), least=True) for count in (17, 20))
    assert reduced(WHOLE, "", Shows(), [short]).program == short
    assert len(script(replace(WHOLE, program=short), 2).splitlines()) == MOST
    found = reduced(WHOLE, "", Shows(), [long])
    assert found.program is not None
    assert [f"y{number} =" in found.program.source for number in range(4)] == [False, False, True, True]
    assert len(script(found, 2).splitlines()) == MOST


def test_a_program_for_which_every_step_was_tried_is_said_to_be_least(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reduced(WHOLE, "", Shows()).program
    assert isinstance(found, Smaller)
    assert found.least
    monkeypatch.setattr(distributed_script, "EVALUATIONS", 3)
    other = reduced(WHOLE, "", Shows()).program
    assert isinstance(other, Smaller)
    assert not other.least


def test_a_step_that_has_lost_the_fault_is_tried_again_only_if_the_script_is_too_long() -> None:
    shows = Shows()
    reduced(WHOLE, "", shows)
    assert len(shows.tried) > len(LINES)
    assert sum("x3 =" not in text for text in shows.tried) == 1


def test_a_program_that_no_longer_shows_the_fault_is_not_taken() -> None:
    shows = Shows()
    found = reduced(WHOLE, "", shows, [program(LINES[2])])
    assert found.program is not None
    assert LINES[3] in found.program.source
    assert len(shows.tried) > 1


def test_an_earlier_program_is_found_and_has_a_statement_a_line_whatever_lines_are_shared() -> None:
    bound, lines = "def checkpoint(f, *args):\n    return f(*args)\n", [*LINES * 3, "    if x3:", "        x4 = 1"]
    whole = replace(WHOLE, program=program(*lines), implementation=replace(WHOLE.implementation, binding=bound))
    text = script(whole, 2)
    assert "def checkpoint(f, *args): return f(*args)\n" in text
    assert "    x8 = torch.ones(8)\n    if x3: x4 = 1\n" in text
    assert program_in(text, whole) == program(*lines)


def test_a_script_that_cannot_measure_what_was_found_says_so_and_compares_nothing() -> None:
    text = script(replace(WHOLE, measured=None), 2)
    assert "only prints what the program notes. What was found:\n# sum is 2\n" in text
    assert text.endswith("dist.barrier()\nos._exit(0)\n")
    assert "differ" not in text


@pytest.mark.parametrize("text", ["", "no Python(", "from torch.utils.checkpoint import checkpoint\n\nprint(1)\n"])
def test_a_text_without_a_program_has_none(text: str) -> None:
    assert program_in(text, replace(WHOLE, detail="")) is None


class Explorer(RankedExplorer):
    """Plain raises without x5; the control has a fault, too, without x7; what is judged has one as long as x3 is there."""

    def __init__(self, earlier: str = "") -> None:
        super().__init__(Worlds(2), PROFILES["default"], 0, earlier=lambda law, implementation: earlier)

    def plainly(self, task: Task, world: Any) -> list[Answer]:
        return [Answer(rank, Observation(error=None if "x5 =" in task.source else ValueError())) for rank in range(2)]

    def judge(self, _: Any, program: Any, implementation: impls.Implementation) -> Outcome:
        is_wrong = "x3 =" in program.source if implementation.name != "nested" else "x7 =" not in program.source
        return replace(WRONG, program=program) if is_wrong else Outcome(program, Verdict.AGREES)


WRONG = Outcome(program(), Verdict.DIVERGES, detail="smaller", measured=Measured("calls", (("calls", 2),)))


def left(text: str) -> list[str]:
    return [line for line in LINES if line in text]


def test_plain_and_the_control_are_right_on_a_smaller_program() -> None:
    assert left(Explorer().script(WHOLE)) == [LINES[3], LINES[5], LINES[7]]


def test_what_the_control_has_no_part_in_is_left_out_where_it_is_judged_itself() -> None:
    class Same(Explorer):
        def judge(self, _: Any, program: Any, implementation: impls.Implementation) -> Outcome:
            return super().judge(_, program, WHOLE.implementation)

    assert left(Same().script(replace(WHOLE, implementation=impls.get("nested")))) == [LINES[3], LINES[5]]


@pytest.mark.parametrize("kept", [(3, 5), (3, 7)])
def test_an_earlier_program_on_which_plain_or_the_control_is_wrong_is_not_taken(kept: tuple[int, ...]) -> None:
    earlier = script(replace(WHOLE, program=program(*(LINES[one] for one in kept))), 2)
    assert left(Explorer(earlier).script(WHOLE)) == [LINES[3], LINES[5], LINES[7]]


def test_the_control_is_declared_to_keep_the_law() -> None:
    found = {name: control_of(law) for name, law in all_laws().items()}
    assert found[LAW.name] is impls.get("nested")
    beside = found["statistics_over_ranks_are_updated_once"]
    assert beside is not None
    assert beside.name == "plain"


def test_a_scripts_program_is_not_judged_with_what_another_one_was_made_with() -> None:
    whole = replace(WHOLE, program=replace(program(*LINES), arguments=(("on", 0),)), implementation=impls.get("nested"))
    before = program_in(script(whole, 2), whole)
    assert before is not None

    class Reading(Explorer):
        def judge(self, _: Any, program: Any, implementation: impls.Implementation) -> Outcome:
            return replace(WRONG, detail=str(self.case(LAW, program, implementation).arguments))

    explorer = Reading()
    raised = explorer.raised(LAW, before)
    with pytest.raises(ValueError, match="the program does not say what it was made with"):
        explorer.judge(LAW, before, whole.implementation)
    assert explorer.shown(before, whole, raised) is None
    smaller = reduced(whole, "", Shows()).program
    assert isinstance(smaller, Smaller)
    shown = explorer.shown(replace(before, arguments=smaller.arguments), whole, raised)
    assert shown is not None
    assert shown.detail == "{'on': 0}"


@pytest.mark.parametrize(("due", "status"), [({"allreduce": 1}, False), ({}, True), ({"allreduce": 2}, True)])
def test_a_script_counts_what_recomputations_issue(due: dict[str, int], status: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os._exit", sys.exit)

    def run(checkpoint: Any, note: Any, device: str) -> None:
        x = all_reduce(torch.ones(2, requires_grad=True) * 1)  # outside of the region, which counts nothing
        checkpoint(lambda h: all_reduce(h.sin()).exp(), x).sum().backward()

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(SystemExit) as ended:
            script_endings.recomputed(run, functools.partial(checkpoint, use_reentrant=False), due)
    finally:
        dist.destroy_process_group()
    assert ended.value.code is status
