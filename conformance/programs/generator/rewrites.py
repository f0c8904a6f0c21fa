"""Rewrites programs: lines after operators in regions, other callers of regions, results that need less than is saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from conformance.programs.generator.operators import SAVE_INPUTS, SIN
from conformance.programs.program import Block, Line, Op, Program, Region, Statement

_SAVING_INPUTS = frozenset(one.template for one in SAVE_INPUTS)


def bound(program: Program) -> tuple[str, ...]:
    """The names of the tensors that a program's body binds outside of regions, in their order."""
    names: list[str] = []
    for statement in program.body:
        if isinstance(statement, Op):
            names.append(statement.target)
        elif isinstance(statement, Region):
            names += [name for name, _ in statement.targets]
    return tuple(names)


def failing(op: Op) -> Line:
    """The line after an operator that raises what a schedule's step has armed."""
    return Line(f"if '{op.target}' in armed: raise armed.pop('{op.target}')('program')")


def after_each(body: tuple[Statement, ...], line: Callable[[str, Op], Line | None], region: str = "") -> tuple[Statement, ...]:
    """The body with a line after operators inside regions; ``line`` gets the region's name and the operator."""
    made: list[Statement] = []
    for statement in body:
        if isinstance(statement, Region | Block):
            name = statement.name if isinstance(statement, Region) else region
            statement = replace(statement, body=after_each(statement.body, line, name))
        made.append(statement)
        added = line(region, statement) if isinstance(statement, Op) and region else None
        if added is not None:
            made.append(added)
    return tuple(made)


def called_through(body: tuple[Statement, ...], callers: Mapping[str, str]) -> tuple[Statement, ...]:
    """The body, with regions called through other texts than ``checkpoint``, by the regions' names."""
    made: list[Statement] = []
    for statement in body:
        if isinstance(statement, Region | Block):
            statement = replace(statement, body=called_through(statement.body, callers))
        if isinstance(statement, Region):
            statement = replace(statement, through=callers.get(statement.name, statement.through))
        made.append(statement)
    return tuple(made)


def kept(region: Region) -> list[Op]:
    """The operators of a region that save a tensor which the region makes and does not return."""
    return hidden(region.body, region.returned)


def hidden(body: Iterable[Statement], returned: Collection[str]) -> list[Op]:
    """The operators of a body that save a tensor which the body makes and which is not among those that are returned."""
    made: set[str] = set()
    found: list[Op] = []
    for statement in body:
        if isinstance(statement, Op):
            if statement.template in _SAVING_INPUTS and made.intersection(statement.args).difference(returned):
                found.append(statement)
            made.add(statement.target)
    return found


def breakable(program: Program) -> list[str]:
    """The targets of operators by whose end a region has saved something; its last operator only if there is no other."""
    names: list[str] = []
    for region in program.regions:
        own = [statement.target for statement in region.body if isinstance(statement, Op)]
        late = [name for op in kept(region)[:1] for name in own[own.index(op.target) : -1]]
        names += late or own[:-1] or own
    return names


def ending_in_a_region(program: Program) -> Program:
    """The same program, with one more region as the last thing that its first region does.

    A recomputation of the first region that stops early does not reach that one.
    """
    index, first = next((index, one) for index, one in enumerate(program.body) if isinstance(one, Region))
    inner, outer, result = (f"{first.name}_{name}" for name in ("inner", "outer", "result"))
    body = (Op(result, SIN.template, (inner,), SIN.terms),)
    passed = first.returned[0]
    last = Region(f"{first.name}_last", (inner,), (), passed, (passed,), body, result, (result,), ((outer, ""),))
    returned = (outer, *first.returned[1:])
    text = outer if len(returned) == 1 else f"({', '.join(returned)})"
    changed = replace(first, body=(*first.body, last), result=text, returned=returned)
    return replace(program, body=(*program.body[:index], changed, *program.body[index + 1 :]))


def _aside(region: Region) -> str:
    return f"{region.name}_aside"


def asides(program: Program) -> list[str]:
    """The results that :func:`with_asides` has added to outermost regions."""
    regions = (statement for statement in program.body if isinstance(statement, Region))
    return [_aside(one) for one in regions if _aside(one) in dict(one.targets)]


def with_asides(program: Program) -> Program:
    """The same program, with one more result from outermost regions, whose backward does not need all that they save."""
    body: list[Statement] = []
    for statement in program.body:
        saving = kept(statement) if isinstance(statement, Region) else []
        if isinstance(statement, Region) and saving:
            own = {one.target for one in statement.body if isinstance(one, Op)}
            aside = next(name for name in saving[0].args if name in own and name not in statement.returned)
            returned = (*statement.returned, aside)
            names = (*(name for name, _ in statement.targets), _aside(statement))
            targets = tuple((name, f"[{index}]") for index, name in enumerate(names))
            statement = replace(statement, result=f"({', '.join(returned)})", returned=returned, targets=targets)
        body.append(statement)
    return replace(program, body=tuple(body))
